"""Plain text: each line is a text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.documents.draft import Draft
from regard.documents.encoding import plain
from regard.documents.spelling import escaped, in_a_line, meant, spoken

LINE_END = re.compile(r"(\r\n|\r|\n)")


def draft(content: bytes) -> Draft:
    """A text file."""
    source = plain(content)
    pieces = LINE_END.split(source.text)
    places = [place for place in range(0, len(pieces), 2) if spoken(pieces[place])]

    def write(answers: Sequence[str]) -> bytes:
        made = list(pieces)
        for place, answer in zip(places, answers, strict=True):
            if not answer:
                continue
            before, after = edges(pieces[place])
            made[place] = before + in_a_line(meant(answer)).strip() + after
        return source.bytes("".join(made))

    return Draft([escaped(pieces[place].strip()) for place in places], write)


def edges(line: str) -> tuple[str, str]:
    """The white space at both ends of a line."""
    bare = line.strip()
    before = len(line) - len(line.lstrip())
    return line[:before], line[before + len(bare) :]
