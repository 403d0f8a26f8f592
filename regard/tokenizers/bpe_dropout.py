"""BPE dropout: the same words cut otherwise, by leaving merges out (Provilkov et al. 2020).

SentencePiece can sample as well, but what it draws is another thing in every process, whatever its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random


class BpeMerges:
    """The merges of a BPE vocabulary: two neighbours become one piece, those that were learnt first come first."""

    def __init__(self, ranks: Mapping[str, float], ids: Mapping[str, int]) -> None:
        """Of each piece that merging can make, its rank: the higher, the earlier; and of all pieces their ids."""
        self.ranks = ranks
        self.ids = ids

    def split_into_characters(self, piece: str) -> list[str]:
        """What a piece was merged from in the end: its characters, as far as they are pieces themselves."""
        letters = list(piece)
        return letters if piece in self.ranks and all(letter in self.ids for letter in letters) else [piece]

    def segment_with_dropout(self, symbols: Sequence[str], dropout: float, random: Random) -> list[str]:
        """Algorithm 1: in each round any merge may be left out by chance, and the best that is left is made."""
        parts = list(symbols)
        while True:
            best, place = float("-inf"), -1
            for index in range(len(parts) - 1):
                rank = self.ranks.get(parts[index] + parts[index + 1])
                if rank is not None and random.random() >= dropout and rank > best:
                    best, place = rank, index
            if place < 0:
                return parts
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
