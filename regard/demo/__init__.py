"""From nothing to a trained, inspected model, on data that comes with regard."""

from regard.demo.answering import RECIPES, answer, told
from regard.demo.translation import run_demo, small, summary

__all__ = ["RECIPES", "answer", "run_demo", "small", "summary", "told"]
