"""Text in pieces that a model can take, and nothing lost between them.

Lines are translated one by one. One that is longer than anything the model has learnt from, or that has more sentences,
is cut at the ends of these; a sentence that is still too long between clauses, then between words, and at last inside a
word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

LINES = re.compile(r"(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
CLAUSES = re.compile(r"(?<=[,;:–—])\s+|(?<=[、，；：])")
WORDS = re.compile(r"\s+")


class Segment(NamedTuple):
    """What is translated at once, and the white space around it, which is kept."""

    before: str
    text: str
    after: str


def segments(text: str, fits: Callable[[str], bool], split: Callable[[str], list[str]], most: float) -> list[Segment]:
    """The pieces of a text, one after the other; joined they are the text.

    `split` gives the sentences of a line, of which one piece has at most so many.
    """
    return [segment for line in LINES.split(text) if line for segment in of_line(line, fits, split, most)]


def of_line(line: str, fits: Callable[[str], bool], split: Callable[[str], list[str]], most: float) -> list[Segment]:
    """A line as it is, or its sentences where these are too many or it is too long, each in pieces that fit."""
    whole = trimmed(line)
    if not whole.text:
        return [whole]
    sentences = split(whole.text)
    if len(sentences) <= most and fits(whole.text):
        return [whole]
    pieces = [piece for sentence in sentences for piece in cut(sentence, fits, (CLAUSES, WORDS))]
    made = [trimmed(piece) for piece in pieces]
    made[0] = made[0]._replace(before=whole.before + made[0].before)
    return [*made[:-1], made[-1]._replace(after=made[-1].after + whole.after)]


def trimmed(text: str) -> Segment:
    """A text and the white space at its ends."""
    core = text.strip()
    if not core:
        return Segment(text, "", "")
    before = len(text) - len(text.lstrip())
    return Segment(text[:before], core, text[before + len(core) :])


def parts(text: str, ends: re.Pattern[str]) -> list[str]:
    """A text, cut at each match's end."""
    places = [match.end() for match in ends.finditer(text)]
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True) if start < end]


def cut(text: str, fits: Callable[[str], bool], levels: tuple[re.Pattern[str], ...]) -> list[str]:
    """Pieces that fit, as long as may be, cut at the coarsest level at which they do."""
    if fits(text):
        return [text]
    if not levels:
        middle = len(text) // 2
        return [*cut(text[:middle], fits, ()), *cut(text[middle:], fits, ())] if middle else [text]
    pieces: list[str] = []
    for part in parts(text, levels[0]):
        if pieces and fits(pieces[-1] + part):
            pieces[-1] += part
        else:
            pieces.extend(cut(part, fits, levels[1:]))
    return pieces
