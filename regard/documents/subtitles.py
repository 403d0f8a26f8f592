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
SPACE = re.compile(rf"{TAG.pattern}|(?P<space> +)", re.IGNORECASE)
MOST_LINES = 8  # of a cue; more are not shown at once, and come back as one
DASH = re.compile(r"\s*(?:<[^<>]*>\s*)*[-–—]\s*\S")


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
    """What is said, cue by cue: all of its lines together, but for a line with a dash, where another one speaks."""
    times = [place for place, line in enumerate(lines) if TIME.match(line)]
    if not times and any(line.strip() for line in lines):
        raise DocumentError("has no times as subtitles have them, like 00:00:01,000 --> 00:00:02,500")
    for time, following in pairwise([*times, len(lines) + 1]):
        end = time + 1
        while end < min(following - 1, len(lines)) and lines[end].strip():
            end += 1
        starts = [place for place in range(time + 1, end) if place == time + 1 or DASH.match(lines[place])]
        for start, stop in pairwise([*starts, end]):
            text = "".join(lines[start:stop])
            yield Speech(start, stop, Passage(nodes(text.rstrip("\r\n"))))


def nodes(text: str) -> Iterator[Node]:
    """Words and tags."""
    place = 0
    for found in TAG.finditer(text):
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
