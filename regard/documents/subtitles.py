"""SubRip subtitles: the lines of a cue are one text, its number and times stay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from regard.documents.draft import Draft
from regard.documents.encoding import plain
from regard.documents.errors import DocumentError
from regard.documents.passage import Node, Passage, literal
from regard.documents.spelling import escaped, meant

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}")
TAG = re.compile(r"<(?P<close>/?)(?P<name>[biu]|font)(?:\s[^<>]*)?>|\{\\[^{}]*\}", re.IGNORECASE)
NOTES = "♩♪♫♬"
ASIDE = re.compile(rf"{TAG.pattern}|[{NOTES}]+", re.IGNORECASE)  # what stands among the words and is none
SPACE = re.compile(rf"{TAG.pattern}|(?<![-–—{NOTES}])(?P<space> +)(?![{NOTES}])", re.IGNORECASE)
MOST_LINES = 8  # of a cue; more are not shown at once, and come back as one
BEFORE = r"\s*(?:(?:<[^<>]*>|\{\\[^{}]*\})\s*)*"
DASH = re.compile(rf"{BEFORE}(?P<dash>[-–—]+\s*)\S")
ANOTHER = re.compile(rf"{BEFORE}(?:[-–—]+\s*\S|[{NOTES}])")


class Speech(NamedTuple):
    """Lines that are said by one, from a place in the file to another."""

    start: int
    end: int
    passage: Passage


def draft(content: bytes) -> Draft:
    """A subtitle file."""
    source = plain(content)
    lines = LINE.findall(source.text)
    speeches = [speech for speech in all_speeches(lines) if speech.passage.text]

    def write(answers: Sequence[str]) -> bytes:
        made = list(lines)
        for (start, end, passage), answer in zip(speeches, answers, strict=True):
            said = passage.write(answer, spell=meant)
            made[start:end] = [*parted(said, lines[start:end]), *[""] * (end - start)][: end - start]
        return source.bytes("".join(made))

    return Draft([speech.passage.text for speech in speeches], write)


def all_speeches(lines: Sequence[str]) -> Iterator[Speech]:
    """What is said, cue by cue: all its lines together, but for one with a dash or a note, where another begins."""
    times = [place for place, line in enumerate(lines) if TIME.match(line)]
    if not times and any(line.strip() for line in lines):
        raise DocumentError("has no times as subtitles have them, like 00:00:01,000 --> 00:00:02,500")
    for time, following in pairwise([*times, len(lines) + 1]):
        end = time + 1
        while end < min(following - 1, len(lines)) and lines[end].strip():
            end += 1
        starts = [place for place in range(time + 1, end) if place == time + 1 or ANOTHER.match(lines[place])]
        for start, stop in pairwise([*starts, end]):
            text = "".join(lines[start:stop])
            yield Speech(start, stop, Passage(nodes(text.rstrip("\r\n"))))


def nodes(text: str) -> Iterator[Node]:
    """Words and tags; a dash at the beginning, as who speaks has one, and notes of music are not among the words."""
    place = 0
    if dash := DASH.match(text):
        place = dash.end("dash")
        yield from tagged(text[: dash.start("dash")])
        yield Node(opening=[literal(dash["dash"])])
    yield from tagged(text[place:])


def tagged(text: str) -> Iterator[Node]:
    """Words, and what stands among them."""
    place = 0
    for found in ASIDE.finditer(text):
        yield Node(escaped(text[place : found.start()]))
        place = found.end()
        name = (found["name"] or "").lower()
        yield Node(opening=[literal(found[0])], half=name, opens=not found["close"])
    yield Node(escaped(text[place:]))


def parted(said: str, lines: Sequence[str]) -> list[str]:
    """What is said, in as many lines as before where it has the words, of about the same length, with their ends."""
    parts, rest = [], said
    for left in range(len(lines) if len(lines) <= MOST_LINES else 1, 1, -1):
        spaces = [found for found in SPACE.finditer(rest) if found["space"]]
        if not spaces:
            break
        middle = min(spaces, key=lambda space: abs(space.start() - len(rest) / left))
        parts.append(rest[: middle.start()])
        rest = rest[middle.end() :]
    parts.append(rest)
    ends = [line[len(line.rstrip("\r\n")) :] for line in lines]
    return [part + end for part, end in zip(parts, [*ends[: len(parts) - 1], ends[-1]], strict=True)]
