"""A question as it is asked: a text, a sentence of which a word is blank, and what the word may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.data.formats.jsonl import writable
from regard.errors import UserError, shown

FORM = '{"document": "…", "query": "… XXXXX …", "candidates": ["…", "…"], "answer": "…"}'


class Question(NamedTuple):
    """One question."""

    document: tuple[str, ...]  # its lines
    query: str
    candidates: tuple[str, ...] | None = None  # None: every word of the document
    answer: str | None = None  # None: nobody has said
    where: str = ""  # it was read, for what is to be said of it

    def wrong(self, what: str) -> UserError:
        """What is wrong with it."""
        return UserError(f"{self.where}: {what}" if self.where else what)


def question(given: Mapping[str, Any], blank: str, where: str = "") -> Question:
    """A question as JSON has it; the document is one text or a list of lines."""
    document, query = given.get("document"), given.get("query")
    lines = document.splitlines() if isinstance(document, str) else document
    found = Question(strings(lines, "document", where), text(query, "query", where), where=where)
    candidates, answer = given.get("candidates"), given.get("answer")
    return checked(
        found._replace(
            candidates=None if candidates is None else strings(candidates, "candidates", where),
            answer=None if answer is None else text(answer, "answer", where),
        ),
        blank,
    )


def checked(asked: Question, blank: str) -> Question:
    """The same, if it has a document, a blank, and a candidate where it has a list of them."""
    if not any(map(str.strip, asked.document)):
        raise asked.wrong("there is no word in the document")
    if blank not in asked.query:
        raise asked.wrong(
            f"there is no blank in the query, which {blank} (data.blank) stands for: {shown(asked.query)}"
        )
    if asked.candidates is None:
        return asked
    named = tuple(candidate for candidate in asked.candidates if candidate.strip())
    if not named:
        raise asked.wrong("there are no candidates; where every word of the document is one, leave them out")
    return asked._replace(candidates=named)


def strings(value: Any, name: str, where: str) -> tuple[str, ...]:
    """A list of texts under a name."""
    if not isinstance(value, list | tuple):
        raise misshapen(name, value, where)
    return tuple(text(one, name, where) for one in value)


def text(value: Any, name: str, where: str) -> str:
    """Text under a name."""
    if not isinstance(value, str):
        raise misshapen(name, value, where)
    if not writable(value):
        raise Question((), "", where=where).wrong("half a character (\\ud800 to \\udfff alone), which no file can hold")
    return value


def misshapen(name: str, value: Any, where: str) -> UserError:
    """What is said of a question in another form."""
    return Question((), "", where=where).wrong(f'"{name}" cannot be {shown(value)}; a question is {FORM}')
