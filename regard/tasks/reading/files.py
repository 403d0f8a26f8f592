"""Files of questions: the layout of the Children's Book Test (Hill et al. 2016), and JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from regard.data.files import lines, name_of
from regard.data.formats.jsonl import parsed
from regard.errors import UserError, shown
from regard.tasks.reading.question import FORM, Question, checked, question

NUMBERED = re.compile(r"(\d{1,9})(?:[ \t]+(.*))?", re.DOTALL)


def questions(paths: Sequence[Path], blank: str) -> list[Question]:
    """All questions of some files, at least one."""
    found = [asked for path in paths for asked in read(lines(path), blank, name_of(path))]
    if not found:
        named = " and ".join(map(name_of, paths))
        raise UserError(f"{named}: no questions in there, nothing to work with")
    return found


def read(written: Iterable[str], blank: str, name: str = "") -> Iterator[Question]:
    """The questions that lines hold, each as soon as it is there; what begins with a brace is JSON."""
    numbered = ((f"{name}:{number}" if name else f"line {number}", line) for number, line in enumerate(written, 1))
    for where, line in numbered:
        if line.strip():
            rest = chain([(where, line)], numbered)
            yield from (objects if line.lstrip().startswith("{") else stories)(rest, blank)


def objects(numbered: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    """JSON, an object a line."""
    for where, line in numbered:
        if line.strip():
            given = parsed(line, where)
            if not isinstance(given, dict):
                raise UserError(f"{where}: not a question, which is {FORM}")
            yield question(given, blank, where)


def stories(numbered: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    """Numbered lines of a story, the last of them the query: `21 query⇥answer⇥⇥candidate|candidate`."""
    story: list[str] = []
    where = ""
    for where, line in numbered:
        if not line.strip():
            if story:
                raise unasked(where)
            continue
        text = told(line, len(story) + 1, where)
        if "\t" in text or blank in text:
            yield query(text, story, blank, where)
            story = []
        else:
            story.append(text)
    if story:
        raise unasked(where)


def told(line: str, expected: int, where: str) -> str:
    """A line without its number, which says that none is missing."""
    found = NUMBERED.fullmatch(line.strip(" "))
    if found is None:
        raise UserError(f"{where}: a line of a story begins with its number, {expected} here: {shown(line)}")
    if int(found[1]) != expected:
        raise UserError(f"{where}: this is line {found[1]} of a story, and line {expected} was to come")
    return found[2] or ""


def query(text: str, story: Sequence[str], blank: str, where: str) -> Question:
    """The last line: what is asked, what is right, and what it is chosen from; each of these two may be missing."""
    asked, *more = text.split("\t")
    answer = more[0].strip() if more else ""
    named = [part for part in more[1:] if part.strip()]
    if len(named) > 1:
        raise UserError(f"{where}: behind a query are its answer and one list of candidates, not {shown(named)}")
    candidates = tuple(named[0].split("|")) if named else () if len(more) > 1 else None
    return checked(Question(tuple(story), asked, candidates, answer or None, where), blank)


def unasked(where: str) -> UserError:
    """What is said of a story without a query."""
    return UserError(f"{where}: the story ends here without a query, which has a blank and, after a tab, its answer")
