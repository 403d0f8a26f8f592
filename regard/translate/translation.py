"""One text and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.translate.alignment import Alignment, Floats
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
    alternatives: list[Translation] = field(default_factory=list)  # the rest of the n best


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
    pieces = [(segment, one) for segment, one in zip(segments, made, strict=True)]
    looks = [one.attention for one in made if one.tokens]
    attention = None if not looks or any(look is None for look in looks) else blocks(looks)  # type: ignore[arg-type]
    return Translation(
        source,
        "".join(segment.before + one.text + segment.after for segment, one in pieces),
        sum(one.score for one in made),
        [token for one in made for token in one.tokens],
        [token for one in made for token in one.source_tokens],
        attention,
        aligned(source, pieces),
    )


def blocks(parts: Sequence[Floats]) -> Floats:
    """Matrices along the diagonal of one."""
    whole = np.zeros((sum(len(part) for part in parts), sum(part.shape[1] for part in parts)), dtype=np.float32)
    row = column = 0
    for part in parts:
        whole[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return whole


def aligned(source: str, pieces: Sequence[tuple[Segment, Translation]]) -> Alignment | None:
    """The alignment of the words of all pieces; None if one that has words has none."""
    if any(one.alignment is None for _, one in pieces if one.tokens):
        return None
    target = "".join(segment.before + one.text + segment.after for segment, one in pieces)
    soft = np.zeros((len(target.split()), len(source.split())), dtype=np.float32)
    pairs = []
    read, written = "", ""
    for segment, one in pieces:
        read, written = read + segment.before, written + segment.before
        if one.alignment is not None:
            first = begins(read, segment.text), begins(written, one.text)
            rows, columns = one.alignment.soft.shape
            soft[first[1] : first[1] + rows, first[0] : first[0] + columns] += one.alignment.soft
            pairs += [(first[0] + left, first[1] + right) for left, right in one.alignment.pairs]
        read, written = read + segment.text + segment.after, written + one.text + segment.after
    return Alignment(source.split(), target.split(), soft, sorted(set(pairs)))


def begins(before: str, text: str) -> int:
    """The number of the word that `text` begins with, after the text before it; a word may be cut in two."""
    inside = bool(before and text) and not before[-1].isspace() and not text[0].isspace()
    return len(before.split()) - inside
