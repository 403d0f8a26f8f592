"""Text in pieces that a model can take, and nothing lost between them.

Lines are translated one by one. One that is longer than the model has learnt from is cut at the ends of sentences, if
that is not enough between clauses, then between words, and at last inside a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

LINES = re.compile(r"(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
SENTENCES = re.compile(r"(?<=[.!?…])(?<!\b\w\.)[\"'»”’)\]]*\s+|(?<=[。！？])")
CLAUSES = re.compile(r"(?<=[,;:–—])\s+|(?<=[、，；：])")
WORDS = re.compile(r"\s+")
LEVELS = (SENTENCES, CLAUSES, WORDS)
EDGES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


class Segment(NamedTuple):
    """What is translated at once, and the white space around it, which is kept."""

    before: str
    text: str
    after: str


def segments(text: str, fits: Callable[[str], bool]) -> list[Segment]:
    """The pieces of a text, one after the other; joined they are the text."""
    return [segment for line in LINES.split(text) if line for segment in trimmed(line, fits)]


def trimmed(line: str, fits: Callable[[str], bool]) -> list[Segment]:
    """A line without the white space at its ends, as it is or in pieces that fit."""
    before, core, after = EDGES.fullmatch(line).groups()  # type: ignore[union-attr]
    if not core:
        return [Segment(before + after, "", "")]
    pieces = [EDGES.fullmatch(piece).groups() for piece in cut(core, fits, 0)]  # type: ignore[union-attr]
    made = [Segment(*piece) for piece in pieces]
    made[0] = made[0]._replace(before=before)
    return [*made[:-1], made[-1]._replace(after=after)]


def cut(text: str, fits: Callable[[str], bool], level: int) -> list[str]:
    """Pieces that fit, as long as may be, cut at the coarsest level at which they do."""
    if fits(text):
        return [text]
    if level == len(LEVELS):
        middle = len(text) // 2
        return [*cut(text[:middle], fits, level), *cut(text[middle:], fits, level)] if middle else [text]
    ends = [match.end() for match in LEVELS[level].finditer(text)]
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if start < end]
    pieces: list[str] = []
    for part in parts:
        if pieces and fits(pieces[-1] + part):
            pieces[-1] += part
        elif fits(part):
            pieces.append(part)
        else:
            pieces.extend(cut(part, fits, level + 1))
    return pieces
