"""Text in; text and alignments out."""

from regard.translate.alignment import Alignment
from regard.translate.assessment import Assessment, alignment_error, assess
from regard.translate.options import Options
from regard.translate.translation import Translation
from regard.translate.translator import Translator, load

__all__ = ["Alignment", "Assessment", "Options", "Translation", "Translator", "alignment_error", "assess", "load"]
