"""BPE dropout: segment words differently each time by skipping merges at random (Provilkov et al. 2020).

SentencePiece can sample as well, but its samples differ between processes even with the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random


class BpeMerges:
    """The merges of a BPE vocabulary: two neighbours become one piece; merges learnt first are applied first."""

    def __init__(self, ranks: Mapping[str, float], ids: Mapping[str, int]) -> None:
        """Take the rank of each piece that a merge produces (higher: learnt earlier), and the id of every piece."""
        self.ranks = ranks
        self.ids = ids

    def split_into_characters(self, piece: str) -> list[str]:
        """Return the characters that a piece was merged from, or the piece itself if they are not all pieces."""
        letters = list(piece)
        return letters if piece in self.ranks and all(letter in self.ids for letter in letters) else [piece]

    def segment_with_dropout(self, symbols: Sequence[str], dropout: float, random: Random) -> list[str]:
        """Merge symbols by Algorithm 1: each round drops merges at random and applies the best one left."""
        parts = list(symbols)
        while True:
            best_rank, best_index = float("-inf"), -1
            for index in range(len(parts) - 1):
                rank = self.ranks.get(parts[index] + parts[index + 1])
                if rank is not None and random.random() >= dropout and rank > best_rank:
                    best_rank, best_index = rank, index
            if best_index < 0:
                return parts
            parts[best_index : best_index + 2] = [parts[best_index] + parts[best_index + 1]]
