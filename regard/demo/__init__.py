"""`regard demo`: train, evaluate and inspect a small model of any task on synthetic data."""

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
