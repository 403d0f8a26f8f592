"""Text in; text and alignments out."""

from regard.translate.alignment import Alignment
from regard.translate.assessment import Assessment, assess
from regard.translate.translator import Translation, Translator, load

__all__ = ["Alignment", "Assessment", "Translation", "Translator", "assess", "load"]
