"""How good translations, alignments and labels are."""

from regard.data.links import Link, pharaoh
from regard.evaluate.alignment import AlignmentScore, aer, alignment_score
from regard.evaluate.chunks import Counts, are_chunks, chunks, count_chunks, together
from regard.evaluate.confusion import Confusion, LabelFigures
from regard.evaluate.gold import Gold, gold_score, read_gold
from regard.evaluate.nearest import nearest
from regard.evaluate.scores import (
    Compared,
    Group,
    Score,
    bleu,
    bleu_of_several,
    by_length,
    chrf,
    chrf_of_several,
    compare,
    ter,
)
from regard.evaluate.symmetry import grow_diag_final_and

__all__ = [
    "AlignmentScore",
    "Compared",
    "Confusion",
    "Counts",
    "Gold",
    "Group",
    "LabelFigures",
    "Link",
    "Score",
    "aer",
    "alignment_score",
    "are_chunks",
    "bleu",
    "bleu_of_several",
    "by_length",
    "chrf",
    "chrf_of_several",
    "chunks",
    "compare",
    "count_chunks",
    "gold_score",
    "grow_diag_final_and",
    "nearest",
    "pharaoh",
    "read_gold",
    "ter",
    "together",
]
