"""Who speaks, as lines of subtitles say it: `- `, `>> `, `JOHN: `, `<v John>`."""

from __future__ import annotations

import re
from collections.abc import Sequence

NOTES = "♩♪♫♬"
VOICE = r"<v[.\s][^<>]*>"
INSIDE = re.compile(rf"(?<=\S)(?={VOICE})|(?<=\S[ \t])(?={VOICE})")  # where another begins in the middle of a line
BEFORE = rf"(?:<[^<>]*+>|\{{\\[^{{}}]*+\}}|[\s{NOTES}])*+"
DASH = r"(?:[-–—]+|(?:>|&gt;){2,})\s*(?=\S)"
NAME = r"[\[(]?[^\W\d_][^:：<>]{0,40}?"
CLOSED = r"(?:\s*</[^<>]*>)*"
LABEL = rf"(?P<name>{NAME}){CLOSED}[ \xa0\u202f]?(?::(?=[\s<]|\Z)|：){CLOSED}\s*"
OPENING = re.compile(rf"{BEFORE}(?P<dash>{DASH})?{BEFORE}(?P<label>{LABEL})?")
REMARK = re.compile(r"(?<=\S)\s*[\[(][^\[\]()]*[\])]")  # JOHN (on the phone)
WORDS = 4  # that a name may have
ENOUGH = 3  # lines with a name make a transcript, where they are half of all


def opening(line: str, transcript: bool) -> str:
    """What a line begins with where that says that another speaks, else nothing."""
    found = OPENING.match(line)
    if found is None:
        return ""
    if found["label"] and (spoken(found["name"]) or (transcript and named(found["name"]))):
        return line[: found.end("label")]
    tags = line[: found.start("label") if found["label"] else found.end()]
    voices = [voice.end() for voice in re.finditer(VOICE, tags)]
    return line[: max(found.end("dash"), *voices, 0)]


def spoken(name: str) -> bool:
    """Whether a name is written in capitals, but for a remark behind it: common words with a colon seldom are."""
    return short(name) and REMARK.sub("", name).isupper()


def named(name: str) -> bool:
    """Whether it may be a name where nearly every line has one."""
    return short(name) and not name[0].islower()


def short(name: str) -> bool:
    """Whether it has no more words than a name has."""
    return len(REMARK.sub("", name).split()) <= WORDS


def is_transcript(lines: Sequence[str]) -> bool:
    """Whether so many lines begin with a name and a colon that those are who speaks, capitals or not."""
    openings = [OPENING.match(line) for line in lines]
    count = sum(bool(found and found["label"] and named(found["name"])) for found in openings)
    return count >= max(ENOUGH, len(lines) / 2)
