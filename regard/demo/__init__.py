"""From nothing to a trained, inspected model, on data that comes with regard."""

from regard.demo.prediction import DEFAULT_RECIPES, format_prediction_demo, run_prediction_demo
from regard.demo.translation import format_translation_demo, make_demo_overrides, run_translation_demo

__all__ = [
    "DEFAULT_RECIPES",
    "format_prediction_demo",
    "format_translation_demo",
    "make_demo_overrides",
    "run_prediction_demo",
    "run_translation_demo",
]
