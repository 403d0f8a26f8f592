"""The `data` and `text` sections of a recipe that reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.data.readers.jsonl import is_valid_unicode, parse_json_line
from regard.data.readers.text_io import format_path, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, short_repr


@dataclass(frozen=True, kw_only=True)
class ClozeSettings(BaseDataSettings):
    """Which questions are trained on."""

    blank: str = "XXXXX"
    max_length: int = 2000
    dev_questions: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blank.split() != [self.blank]:
            raise ValueError(f"blank is one word, which stands for the word that was taken out, not {self.blank!r}")
        if self.max_length < 1 or self.dev_questions < 1:
            raise ValueError(
                f"max_length and dev_questions are at least 1, not {self.max_length} and {self.dev_questions}"
            )


@dataclass(frozen=True, kw_only=True)
class ClozeTextSettings:
    """How text becomes ids: an answer is a word, so that words are what is read."""

    kind: Literal["word"] = "word"
    vocabulary: int = 50000
    lowercase: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary < 6:
            raise ValueError(f"vocabulary must hold more than the five special ids, not {self.vocabulary}")


QUESTION_JSON_FORMAT = '{"document": "…", "query": "… XXXXX …", "candidates": ["…", "…"], "answer": "…"}'


class Question(NamedTuple):
    """One question."""

    document: tuple[str, ...]  # its lines
    query: str
    candidates: tuple[str, ...] | None = None  # None: every word of the document
    answer: str | None = None  # None: nobody has said
    where: str = ""  # it was read, for what is to be said of it

    def make_error(self, problem: str) -> UserError:
        """What is wrong with it."""
        return UserError(f"{self.where}: {problem}" if self.where else problem)


def parse_question(fields: Mapping[str, Any], blank: str, where: str = "") -> Question:
    """A question as JSON has it; the document is one text or a list of lines."""
    document, query = fields.get("document"), fields.get("query")
    lines = document.splitlines() if isinstance(document, str) else document
    found = Question(_parse_string_list(lines, "document", where), _parse_string(query, "query", where), where=where)
    candidates, answer = fields.get("candidates"), fields.get("answer")
    return check_question(
        found._replace(
            candidates=None if candidates is None else _parse_string_list(candidates, "candidates", where),
            answer=None if answer is None else _parse_string(answer, "answer", where),
        ),
        blank,
    )


def check_question(question: Question, blank: str) -> Question:
    """The same, if it has a document, a blank, and a candidate where it has a list of them."""
    if not any(map(str.strip, question.document)):
        raise question.make_error("there is no word in the document")
    if blank not in question.query:
        raise question.make_error(
            f"there is no blank in the query, which {blank} (data.blank) stands for: {short_repr(question.query)}"
        )
    if question.candidates is None:
        return question
    named = tuple(candidate for candidate in question.candidates if candidate.strip())
    if not named:
        raise question.make_error("there are no candidates; where every word of the document is one, leave them out")
    return question._replace(candidates=named)


def _parse_string_list(value: Any, name: str, where: str) -> tuple[str, ...]:
    """A list of texts under a name."""
    if not isinstance(value, list | tuple):
        raise _make_field_error(name, value, where)
    return tuple(_parse_string(one, name, where) for one in value)


def _parse_string(value: Any, name: str, where: str) -> str:
    """Text under a name."""
    if not isinstance(value, str):
        raise _make_field_error(name, value, where)
    if not is_valid_unicode(value):
        raise Question((), "", where=where).make_error(
            "half a character (\\ud800 to \\udfff alone), which no file can hold"
        )
    return value


def _make_field_error(name: str, value: Any, where: str) -> UserError:
    """What is said of a question in another form."""
    return Question((), "", where=where).make_error(
        f'"{name}" cannot be {short_repr(value)}; a question is {QUESTION_JSON_FORMAT}'
    )


_NUMBERED_LINE = re.compile(r"(\d{1,9})(?:[ \t]+(.*))?", re.DOTALL)


def read_question_files(paths: Sequence[Path], blank: str) -> list[Question]:
    """All questions of some files, at least one."""
    found = [question for path in paths for question in parse_questions(iterate_lines(path), blank, format_path(path))]
    if not found:
        named = " and ".join(map(format_path, paths))
        raise UserError(f"{named}: no questions in there, nothing to work with")
    return found


def parse_questions(text_lines: Iterable[str], blank: str, name: str = "") -> Iterator[Question]:
    """The questions that lines hold, each as soon as it is there; what begins with a brace is JSON."""
    numbered = ((f"{name}:{number}" if name else f"line {number}", line) for number, line in enumerate(text_lines, 1))
    for where, line in numbered:
        if line.strip():
            rest = chain([(where, line)], numbered)
            yield from (_parse_json_questions if line.lstrip().startswith("{") else _parse_cbt_questions)(rest, blank)


def _parse_json_questions(numbered: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    """JSON, an object a line."""
    for where, line in numbered:
        if line.strip():
            given = parse_json_line(line, where)
            if not isinstance(given, dict):
                raise UserError(f"{where}: not a question, which is {QUESTION_JSON_FORMAT}")
            yield parse_question(given, blank, where)


def _parse_cbt_questions(numbered: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    """Numbered lines of a story, the last of them the query: `21 query⇥answer⇥⇥candidate|candidate`."""
    story: list[str] = []
    where = ""
    for where, line in numbered:
        if not line.strip():
            if story:
                raise _make_missing_query_error(where)
            continue
        text = _strip_line_number(line, len(story) + 1, where)
        if "\t" in text or blank in text:
            yield _parse_query_line(text, story, blank, where)
            story = []
        else:
            story.append(text)
    if story:
        raise _make_missing_query_error(where)


def _strip_line_number(line: str, expected: int, where: str) -> str:
    """A line without its number, which says that none is missing."""
    found = _NUMBERED_LINE.fullmatch(line.strip(" "))
    if found is None:
        raise UserError(f"{where}: a line of a story begins with its number, {expected} here: {short_repr(line)}")
    if int(found[1]) != expected:
        raise UserError(f"{where}: this is line {found[1]} of a story, and line {expected} was to come")
    return found[2] or ""


def _parse_query_line(text: str, story: Sequence[str], blank: str, where: str) -> Question:
    """The last line: what is asked, what is right, and what it is chosen from; each of these two may be missing."""
    query_text, *more = text.split("\t")
    answer = more[0].strip() if more else ""
    named = [part for part in more[1:] if part.strip()]
    if len(named) > 1:
        raise UserError(f"{where}: behind a query are its answer and one list of candidates, not {short_repr(named)}")
    candidates = tuple(named[0].split("|")) if named else () if len(more) > 1 else None
    return check_question(Question(tuple(story), query_text, candidates, answer or None, where), blank)


def _make_missing_query_error(where: str) -> UserError:
    """What is said of a story without a query."""
    return UserError(f"{where}: the story ends here without a query, which has a blank and, after a tab, its answer")
