"""Read cloze questions: the Children's Book Test format and JSON lines; and the `data` and `text` settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.data.readers.jsonl import is_valid_unicode, parse_json_line
from regard.data.readers.text import format_path, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, short_repr


@dataclass(frozen=True, kw_only=True)
class ClozeSettings(BaseDataSettings):
    """The `data` section of a cloze recipe: files, blank, and length limits."""

    blank: str = "XXXXX"
    max_length: int = 2000
    dev_questions: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blank.split() != [self.blank]:
            raise ValueError(f"blank must be one word, which marks the missing word, not {self.blank!r}")
        if self.max_length < 1 or self.dev_questions < 1:
            raise ValueError(
                f"max_length and dev_questions must be at least 1, not {self.max_length} and {self.dev_questions}"
            )


@dataclass(frozen=True, kw_only=True)
class ClozeTextSettings:
    """The `text` section of a cloze recipe; the vocabulary is of words, because an answer is a word."""

    kind: Literal["word"] = "word"
    vocabulary: int = 50000
    lowercase: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary < 6:
            raise ValueError(f"vocabulary must hold more than the five special ids, not {self.vocabulary}")


QUESTION_JSON_FORMAT = '{"document": "…", "query": "… XXXXX …", "candidates": ["…", "…"], "answer": "…"}'


class Question(NamedTuple):
    """A document, a query with a blank, candidates, and the reference answer."""

    document: tuple[str, ...]  # lines
    query: str
    candidates: tuple[str, ...] | None = None  # None: every word of the document
    answer: str | None = None  # None: unknown
    where: str = ""  # location, for messages

    def make_error(self, problem: str) -> UserError:
        """Return a UserError with the location of the question."""
        return UserError(f"{self.where}: {problem}" if self.where else problem)


def parse_question(fields: Mapping[str, Any], blank: str, where: str = "") -> Question:
    """Return the question in a JSON object; the document is one text or a list of lines."""
    document, query = fields.get("document"), fields.get("query")
    lines = document.splitlines() if isinstance(document, str) else document
    question = Question(_parse_string_list(lines, "document", where), _parse_string(query, "query", where), where=where)
    candidates, answer = fields.get("candidates"), fields.get("answer")
    return check_question(
        question._replace(
            candidates=None if candidates is None else _parse_string_list(candidates, "candidates", where),
            answer=None if answer is None else _parse_string(answer, "answer", where),
        ),
        blank,
    )


def check_question(question: Question, blank: str) -> Question:
    """Return the question without blank candidates; raise UserError if document, blank or candidates are missing."""
    if not any(map(str.strip, question.document)):
        raise question.make_error("there is no word in the document")
    if blank not in question.query:
        raise question.make_error(
            f"there is no blank in the query, marked as {blank} (data.blank): {short_repr(question.query)}"
        )
    if question.candidates is None:
        return question
    candidates = tuple(candidate for candidate in question.candidates if candidate.strip())
    if not candidates:
        raise question.make_error("there are no candidates; leave the list out if every word of the document is one")
    return question._replace(candidates=candidates)


def _parse_string_list(value: Any, name: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _make_field_error(name, value, where)
    return tuple(_parse_string(item, name, where) for item in value)


def _parse_string(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise _make_field_error(name, value, where)
    if not is_valid_unicode(value):
        raise Question((), "", where=where).make_error("invalid Unicode: an unpaired surrogate (\\ud800 to \\udfff)")
    return value


def _make_field_error(name: str, value: Any, where: str) -> UserError:
    return Question((), "", where=where).make_error(
        f'"{name}" cannot be {short_repr(value)}; a question is {QUESTION_JSON_FORMAT}'
    )


_NUMBERED_LINE = re.compile(r"(\d{1,9})(?:[ \t]+(.*))?", re.DOTALL)


def read_question_files(paths: Sequence[Path], blank: str) -> list[Question]:
    """Read the questions of several files; raise UserError if there are none."""
    questions = [
        question for path in paths for question in parse_questions(iterate_lines(path), blank, format_path(path))
    ]
    if not questions:
        names = " and ".join(map(format_path, paths))
        raise UserError(f"{names}: no questions found")
    return questions


def parse_questions(text_lines: Iterable[str], blank: str, name: str = "") -> Iterator[Question]:
    """Yield the questions in lines, each as soon as it is complete; lines that begin with a brace are JSON."""
    numbered = ((f"{name}:{number}" if name else f"line {number}", line) for number, line in enumerate(text_lines, 1))
    for where, line in numbered:
        if line.strip():
            rest = chain([(where, line)], numbered)
            yield from (_parse_json_questions if line.lstrip().startswith("{") else _parse_cbt_questions)(rest, blank)


def _parse_json_questions(numbered: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    for where, line in numbered:
        if line.strip():
            fields = parse_json_line(line, where)
            if not isinstance(fields, dict):
                raise UserError(f"{where}: not a question, which is {QUESTION_JSON_FORMAT}")
            yield parse_question(fields, blank, where)


def _parse_cbt_questions(numbered: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    """Yield questions in CBT format: numbered story lines, then `21 query⇥answer⇥⇥candidate|candidate`."""
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
    """Return a line without its number; raise UserError if a line is missing."""
    match = _NUMBERED_LINE.fullmatch(line.strip(" "))
    if match is None:
        raise UserError(f"{where}: a line of a story must begin with its number, {expected} here: {short_repr(line)}")
    if int(match[1]) != expected:
        raise UserError(f"{where}: this is line {match[1]} of a story, but line {expected} is expected")
    return match[2] or ""


def _parse_query_line(text: str, story: Sequence[str], blank: str, where: str) -> Question:
    """Return the question of a query line; answer and candidates may be missing."""
    query_text, *columns = text.split("\t")
    answer = columns[0].strip() if columns else ""
    candidate_lists = [part for part in columns[1:] if part.strip()]
    if len(candidate_lists) > 1:
        raise UserError(f"{where}: a query has an answer and one list of candidates, not {short_repr(candidate_lists)}")
    candidates = tuple(candidate_lists[0].split("|")) if candidate_lists else () if len(columns) > 1 else None
    return check_question(Question(tuple(story), query_text, candidates, answer or None, where), blank)


def _make_missing_query_error(where: str) -> UserError:
    return UserError(f"{where}: the story ends without a query, which has a blank and, after a tab, its answer")
