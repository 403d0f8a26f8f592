"""Translate text with trained models: search options, alignments, evaluation, tags and URLs."""

from regard.translate.options import Options
from regard.translate.translation import Translation
from regard.translate.translator import Translator, load

__all__ = ["Options", "Translation", "Translator", "load"]
