"""Text in; text and alignments out."""

from regard.translate.alignment import Alignment
from regard.translate.assessment import Assessment, alignment_error, assess
from regard.translate.translator import Translation, Translator, load

__all__ = ["Alignment", "Assessment", "Translation", "Translator", "alignment_error", "assess", "load"]
