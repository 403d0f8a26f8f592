"""Text in; text and alignments out."""

from regard.translate.alignment import Alignment
from regard.translate.assessment import Assessment, against, assess
from regard.translate.options import Options
from regard.translate.trace import all_heads, traced
from regard.translate.translation import Translation, describe_unaligned_tags
from regard.translate.translator import Translator, load
from regard.translate.viewpoints import choose_alignment_head, ranked_viewpoints

__all__ = [
    "Alignment",
    "Assessment",
    "Options",
    "Translation",
    "Translator",
    "against",
    "all_heads",
    "assess",
    "choose_alignment_head",
    "describe_unaligned_tags",
    "load",
    "ranked_viewpoints",
    "traced",
]
