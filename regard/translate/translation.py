"""One text and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.search import Floats
from regard.translate.alignment import Alignment
from regard.translate.segments import Segment


@dataclass(frozen=True)
class Translation:
    """A text, its translation, and where the model looked."""

    source: str
    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)  # as the model wrote them, with EOS
    source_tokens: list[str] = field(default_factory=list)  # as the model read them, with EOS
    attention: Floats | None = None  # tokens × source tokens
    alignment: Alignment | None = None  # of words
    ended: bool = True  # False: cut off at its length limit
    alternatives: list[Translation] = field(default_factory=list)  # the rest of the n best
    unaligned_tags: int = 0  # tags that no alignment places


def describe_unaligned_tags(count: int, total: int) -> str:
    """Build the warning for translations that have `unaligned_tags`."""
    return (
        f"{count:,} of {total:,} translations have tags that the model's attention does not align with words; these "
        "tags may be around the whole sentence, at an end of it, beside another word, or empty"
    )


def joined(source: str, segments: Sequence[Segment], made: Sequence[Translation]) -> Translation:
    """The translation of a text from those of its segments, with the white space that was around them.

    Scores are added up; of several alternatives the first goes with the first, the second with the second.
    """
    if len(segments) == 1 and not segments[0].before and not segments[0].after:
        return made[0]
    whole = together(source, segments, made)
    for rank in range(max((len(one.alternatives) for one in made), default=0)):
        of_rank = [([one, *one.alternatives])[min(rank + 1, len(one.alternatives))] for one in made]
        whole.alternatives.append(together(source, segments, of_rank))
    return whole


def together(source: str, segments: Sequence[Segment], made: Sequence[Translation]) -> Translation:
    """One translation for each segment, as one."""
    pieces = list(zip(segments, made, strict=True))
    alignment = aligned(source, pieces)
    looks = [one.attention for one in made if one.attention is not None] if alignment else []
    return Translation(
        source,
        "".join(segment.before + one.text + segment.after for segment, one in pieces),
        sum(one.score for one in made),
        [token for one in made for token in one.tokens],
        [token for one in made for token in one.source_tokens],
        blocks(looks) if looks else None,
        alignment,
        all(one.ended for one in made),
    )


def blocks(parts: Sequence[Floats]) -> Floats:
    """Matrices along the diagonal of one."""
    whole = np.zeros((sum(len(part) for part in parts), sum(part.shape[1] for part in parts)), dtype=np.float32)
    row = column = 0
    for part in parts:
        whole[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return whole


class Counter:
    """Counts the words of a text that comes in pieces; a word may be cut in two."""

    def __init__(self) -> None:
        self.words = 0
        self.inside = False  # whether the last piece ended in the middle of a word

    def add(self, piece: str) -> int:
        """The number of the word that a piece begins with."""
        if not piece:
            return self.words
        first = self.words - (self.inside and not piece[0].isspace())
        self.words = first + len(piece.split())
        self.inside = not piece[-1].isspace()
        return first


def aligned(source: str, pieces: Sequence[tuple[Segment, Translation]]) -> Alignment | None:
    """The alignment of the words of all pieces; None if one that has words has none."""
    if any(one.alignment is None for _, one in pieces if one.tokens):
        return None
    target = "".join(segment.before + one.text + segment.after for segment, one in pieces)
    soft = np.zeros((len(target.split()), len(source.split())), dtype=np.float32)
    pairs = []
    read, written = Counter(), Counter()
    for segment, one in pieces:
        read.add(segment.before)
        written.add(segment.before)
        left, right = read.add(segment.text), written.add(one.text)
        if one.alignment is not None:
            rows, columns = one.alignment.soft.shape
            soft[right : right + rows, left : left + columns] += one.alignment.soft
            pairs += [(left + source_word, right + target_word) for source_word, target_word in one.alignment.pairs]
        read.add(segment.after)
        written.add(segment.after)
    return Alignment(source.split(), target.split(), soft, sorted(set(pairs)))
