"""Subtitles, SubRip's and WebVTT: the lines of a cue are one text; its number, its times and who speaks stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from regard.documents.draft import Draft
from regard.documents.encoding import Encoded, plain
from regard.documents.errors import DocumentError
from regard.documents.passage import Node, Passage, Spell, literal
from regard.documents.speakers import INSIDE, NOTES, is_transcript, opening
from regard.documents.spelling import escaped, in_a_line, meant, strict
from regard.text.addresses import worded

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}")
TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[biucv]|font|lang|ruby|rt)(?:[.\s][^<>]*)?>|<[\d:.]+>|\{\\[^{}]*\}", re.IGNORECASE
)
ASIDE = re.compile(rf"{TAG.pattern}|[{NOTES}]+", re.IGNORECASE)  # what stands among the words and is none
SPACE = re.compile(rf"{TAG.pattern}|(?<=[^-–—{NOTES}\s])(?P<space> +)(?=[^{NOTES}\s])", re.IGNORECASE)
# Without groups: inside a possessive repeat, Python 3.11 may end in a SystemError by them.
UNNAMED_TAG = re.sub(r"\?P<\w+>", "?:", TAG.pattern)
SONG = re.compile(rf"(?:{UNNAMED_TAG}|\s)*+[{NOTES}]", re.IGNORECASE)
MOST_LINES = 8  # of a cue; more are not shown at once, and come back as one

Read = Callable[[str], str]


class Line(NamedTuple):
    """A line of a cue: what it begins with that says who speaks, and the rest with its end."""

    opening: str
    rest: str

    @property
    def alone(self) -> bool:
        """Whether there is nothing to say in it, and it stays a line by itself."""
        return not ASIDE.sub("", worded(self.rest)).strip()


class Speech(NamedTuple):
    """Lines that are said by one, from a place in the file on."""

    start: int
    lines: Sequence[Line]
    passage: Passage

    def written(self, said: str) -> list[str]:
        """The lines with something else said in them; one that would be empty would end the cue."""
        return parted(said, self.lines) if said.strip() else [line.opening + line.rest for line in self.lines]


def draft(content: bytes) -> Draft:
    """An .srt file, whose text is text."""
    source = plain(content)
    if source.text.strip() and not any(map(TIME.match, LINE.findall(source.text))):
        raise DocumentError("has no times as subtitles have them, like 00:00:01,000 --> 00:00:02,500")
    return drafted(source, escaped, meant)


def web_draft(content: bytes) -> Draft:
    """A .vtt file, whose text is markup."""
    source = plain(content)
    if source.text.strip() and not re.match(r"WEBVTT(?!\S)", source.text):
        raise DocumentError("is not what its ending says: it does not begin with WEBVTT")
    return drafted(source, strict)


def drafted(source: Encoded, read: Read, spell: Spell | None = None) -> Draft:
    """A file whose words are read, and spelled again, in a certain way."""
    lines = [piece for line in LINE.findall(source.text) for piece in INSIDE.split(line)]
    speeches = [speech for speech in all_speeches(lines, read) if speech.passage.text]

    def write(answers: Sequence[str]) -> bytes:
        made = list(lines)
        for speech, answer in zip(speeches, answers, strict=True):
            parts = speech.written(in_a_line(speech.passage.write(answer, spell)) if answer else "")
            count = len(speech.lines)
            made[speech.start : speech.start + count] = [*parts, *[""] * (count - len(parts))]
        return source.bytes("".join(made))

    return Draft([speech.passage.text for speech in speeches], write)


def all_speeches(lines: Sequence[str], read: Read) -> Iterator[Speech]:
    """What is said, cue by cue: all its lines together, but for those where another begins to speak or to sing."""
    cues = list(all_cues(lines))
    transcript = is_transcript([lines[start] for start, _ in cues])
    for start, end in cues:
        cue = [Line(begun := opening(line, transcript), line[len(begun) :]) for line in lines[start:end]]
        for first, last in pairwise([*(place for place in range(len(cue)) if begins(cue, place)), len(cue)]):
            said = cue[first:last]
            text = "".join(line.rest for line in said)
            yield Speech(start + first, said, Passage(nodes(text.rstrip("\r\n"), read)))


def all_cues(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the lines of each cue begin and end: behind its times, before an empty line or the next number."""
    times = [place for place, line in enumerate(lines) if TIME.match(line)]
    for time, following in pairwise([*times, len(lines)]):
        last = following - (following < len(lines) and lines[following - 1].strip().isdigit())
        end = next((place for place in range(time + 1, last) if not lines[place].strip()), last)
        if end > time + 1:
            yield time + 1, end


def begins(cue: Sequence[Line], place: int) -> bool:
    """Whether a line of a cue does not go on with what the one before it says."""
    line = cue[place]
    return not place or bool(line.opening or SONG.match(line.rest)) or line.alone or cue[place - 1].alone


def nodes(text: str, read: Read) -> Iterator[Node]:
    """Words, and what stands among them."""
    place = 0
    for found in ASIDE.finditer(text):
        yield Node(read(text[place : found.start()]))
        place = found.end()
        name = (found["name"] or "").lower()
        yield Node(opening=[literal(found[0])], half=name, opens=not found["close"])
    yield Node(read(text[place:]))


def parted(said: str, lines: Sequence[Line]) -> list[str]:
    """What is said, in as many lines as before where it has the words, of about the same length, with their ends."""
    parts, rest, before = [], said, len(lines[0].opening)
    for left in range(len(lines) if len(lines) <= MOST_LINES else 1, 1, -1):
        spaces = [found for found in SPACE.finditer(rest) if found["space"]]
        if not spaces:
            break
        wanted = (before + len(rest)) / left - before
        middle = min(spaces, key=lambda space: abs(space.start() - wanted))
        parts.append(rest[: middle.start()])
        rest, before = rest[middle.end() :], 0
    parts.append(rest)
    ends = [line.rest[len(line.rest.rstrip("\r\n")) :] for line in lines]
    made = [part + end for part, end in zip(parts, [*ends[: len(parts) - 1], ends[-1]], strict=True)]
    return [lines[0].opening + made[0], *made[1:]]
