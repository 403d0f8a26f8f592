"""How good translations and alignments are."""

from regard.data.links import Link, pharaoh
from regard.evaluate.alignment import Gold, aer, read_gold
from regard.evaluate.scores import Score, bleu, chrf

__all__ = ["Gold", "Link", "Score", "aer", "bleu", "chrf", "pharaoh", "read_gold"]
