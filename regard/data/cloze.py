"""Cloze questions: the Children's Book Test format and JSON lines; their words, and the candidates in the document.

Candidates are matched by their text, not by ids, so a word outside the vocabulary can be the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.readers.text import detect_json_lines, format_path, iterate_json_lines, iterate_lines
from regard.errors import UserError, short_repr
from regard.tokenizers.tokenizer import check_unicode
from regard.tokenizers.words import WordTokenizer

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
        return _make_error(problem, self.where)


def _make_error(problem: str, where: str) -> UserError:
    return UserError(f"{where}: {problem}" if where else problem)


def parse_question(fields: Mapping[str, Any], blank: str, where: str = "") -> Question:
    """Return the question in a JSON object; the document is one text or a list of lines."""
    document, candidates, answer = fields.get("document"), fields.get("candidates"), fields.get("answer")
    lines = _parse_texts(document.splitlines() if isinstance(document, str) else document, "document", where)
    (query,) = _parse_texts([fields.get("query")], "query", where)
    if candidates is not None:
        candidates = _parse_texts(candidates, "candidates", where)
    if answer is not None:
        (answer,) = _parse_texts([answer], "answer", where)
    return check_question(Question(lines, query, candidates, answer, where), blank)


def _parse_texts(values: Any, name: str, where: str) -> tuple[str, ...]:
    others = [value for value in values if not isinstance(value, str)] if isinstance(values, list | tuple) else [values]
    if others:
        raise _make_error(f'"{name}" cannot be {short_repr(others[0])}; a question is {QUESTION_JSON_FORMAT}', where)
    for value in values:
        check_unicode(value, where)
    return tuple(values)


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


_NUMBERED_LINE = re.compile(r"(\d{1,9})(?:[ \t]+(.*))?", re.DOTALL)


def read_questions(paths: Sequence[Path], blank: str) -> Iterator[Question]:
    """Yield the questions of several files; raise UserError for one without an answer."""
    for path in paths:
        for question in parse_questions(iterate_lines(path), blank, format_path(path)):
            if question.answer is None:
                raise question.make_error("there is no answer")
            yield question


def parse_questions(text_lines: Iterable[str], blank: str, name: str = "") -> Iterator[Question]:
    """Yield the questions in lines, each as soon as it is complete.

    If the first line begins with a brace, all are JSON.
    """
    is_json, numbered_lines = detect_json_lines(text_lines, name)
    if not is_json:
        yield from _parse_cbt_questions(numbered_lines, blank)
        return
    for where, fields in iterate_json_lines(numbered_lines, f"a question is {QUESTION_JSON_FORMAT}"):
        yield parse_question(fields, blank, where)


def _parse_cbt_questions(numbered_lines: Iterable[tuple[str, str]], blank: str) -> Iterator[Question]:
    """Yield questions in CBT format: numbered story lines, then `21 query⇥answer⇥⇥candidate|candidate`."""
    story: list[str] = []
    where = ""
    for where, line in numbered_lines:
        if not line.strip():
            if story:
                break
            continue
        text = _strip_line_number(line, len(story) + 1, where)
        if "\t" in text or blank in text:
            yield _parse_query_line(text, story, blank, where)
            story = []
        else:
            story.append(text)
    if story:
        raise UserError(f"{where}: the story ends without a query, which has a blank and, after a tab, its answer")


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


NO_CANDIDATE = -1  # candidate id of words that are not candidates


class TokenizedQuestion(NamedTuple):
    """A question split into words, with the candidate id of each document word."""

    lines: list[list[str]]  # words of each line of the document, as written
    query: list[str]  # words, including the blank
    candidates: list[str]  # without duplicates
    candidate_ids: list[int]  # of each word of the document; -1: not a candidate
    answer: int | None  # candidate id of the reference answer

    @property
    def document_words(self) -> list[str]:
        """All words of the document."""
        return [word for line in self.lines for word in line]

    @property
    def is_answerable(self) -> bool:
        """True if the reference answer occurs in the document."""
        return self.answer is not None and self.answer in self.candidate_ids


def tokenize_question(question: Question, blank: str, vocabulary: WordTokenizer) -> TokenizedQuestion:
    """Split a question into words, as the vocabulary does, and find the candidates in the document.

    By default all words of the document except punctuation are candidates. A candidate may have several words; if two
    candidates start at the same word, the longer one matches.
    """

    def normalize_words(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(vocabulary.normalize, words))

    # 1. Words, as they are written; the blank is a word of its own even if it touches others.
    split_words = vocabulary.split_words
    lines = [split_words(line) for line in question.document]
    words = [word for line in lines for word in line]
    first, *others = (split_words(part) for part in question.query.split(blank))
    query = [*first, *(word for part in others for word in (blank, *part))]
    # 2. Candidates by their normalized words, each with its first spelling.
    candidates = question.candidates
    if candidates is None:
        candidates = tuple(word for word in dict.fromkeys(words) if any(map(str.isalnum, word)))
    spellings: dict[tuple[str, ...], str] = {}
    for candidate in candidates:
        spellings.setdefault(normalize_words(split_words(candidate)), " ".join(candidate.split()))
    ids_by_words = {candidate_words: candidate_id for candidate_id, candidate_words in enumerate(spellings)}
    # 3. The reference answer.
    answer_id = None
    if question.answer is not None:
        answer_id = ids_by_words.get(normalize_words(split_words(question.answer)))
        if answer_id is None:
            choices = "words of the document" if question.candidates is None else "candidates"
            raise question.make_error(f"the answer {short_repr(question.answer)} is not among the {choices}")
    candidate_ids = _match_candidates(normalize_words(words), ids_by_words)
    return TokenizedQuestion(lines, query, list(spellings.values()), candidate_ids, answer_id)


def _match_candidates(document: Sequence[str], ids_by_words: Mapping[tuple[str, ...], int]) -> list[int]:
    """Return for each document word the id of the candidate that it is, or is part of."""
    lengths = sorted({len(words) for words in ids_by_words}, reverse=True)
    candidate_ids: list[int] = []
    while (start := len(candidate_ids)) < len(document):
        windows = (tuple(document[start : start + length]) for length in lengths)
        match = next((window for window in windows if window in ids_by_words), None)
        candidate_ids.extend([NO_CANDIDATE] if match is None else [ids_by_words[match]] * len(match))
    return candidate_ids


def find_most_frequent_candidate(question: TokenizedQuestion) -> int:
    """Return the candidate that occurs most often in the document, the first of equals: a simple baseline."""
    counts = Counter(candidate_id for candidate_id in question.candidate_ids if candidate_id != NO_CANDIDATE)
    return max(range(len(question.candidates)), key=lambda candidate: (counts[candidate], -candidate))
