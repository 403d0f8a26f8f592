"""Cloze data: tokenized questions, candidates of the document, vocabulary, and padded batches.

Candidates are matched by their text, not by ids, so a word outside the vocabulary can be the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import tokenizers
from regard.config import parse_settings
from regard.data.batch import Batch, pad_rows
from regard.data.dataset import compute_dataset_fingerprint
from regard.data.indexed_dataset import Indices, Integers, RaggedArray
from regard.data.sampler import DatasetPart
from regard.errors import short_repr
from regard.runs import Run
from regard.special_tokens import UNK
from regard.tasks.cloze.questions import ClozeTextSettings, Question
from regard.tokenizers import TextSettings, Tokenizers, WordTokenizer
from regard.tokenizers.tokenizer import normalize
from regard.tokenizers.words import VOCABULARY_VERSION, find_tokens

BLANK_TAG = "blank"  # vocabulary tag of the blank
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


def tokenize_question(
    question: Question, blank: str, lowercase: bool, version: int = VOCABULARY_VERSION
) -> TokenizedQuestion:
    """Split a question into words, as a vocabulary of this version does, and find the candidates in the document.

    A candidate may have several words; if two candidates start at the same word, the longer one matches.
    """
    lines = [_split_words(line, version) for line in question.document]
    document = [_normalize_word(word, lowercase) for line in lines for word in line]
    candidates = _list_candidates(question, lines)
    ids_by_words = {
        words: candidate_id
        for candidate_id, words in enumerate(
            {_normalize_words(candidate, lowercase, version): candidate for candidate in candidates}
        )
    }
    first_spelling = {
        words: candidate
        for candidate in reversed(candidates)
        for words in [_normalize_words(candidate, lowercase, version)]
    }
    return TokenizedQuestion(
        lines,
        _tokenize_query(question.query, blank, version),
        [" ".join(first_spelling[words].split()) for words in ids_by_words],
        _match_candidates(document, ids_by_words),
        None if question.answer is None else _find_answer_id(question, ids_by_words, lowercase, version),
    )


def _list_candidates(question: Question, lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the given candidates, or by default all words of the document except punctuation."""
    if question.candidates is not None:
        return [candidate for candidate in question.candidates if candidate.strip()]
    return list(dict.fromkeys(word for line in lines for word in line if any(map(str.isalnum, word))))


def _find_answer_id(
    question: Question, ids_by_words: Mapping[tuple[str, ...], int], lowercase: bool, version: int
) -> int:
    """Return the candidate id of the answer; raise UserError if it is not a candidate."""
    assert question.answer is not None
    answer_id = ids_by_words.get(_normalize_words(question.answer, lowercase, version))
    if answer_id is None:
        choices = "words of the document" if question.candidates is None else "candidates"
        raise question.make_error(f"the answer {short_repr(question.answer)} is not among the {choices}")
    return answer_id


def _match_candidates(document: Sequence[str], ids_by_words: Mapping[tuple[str, ...], int]) -> list[int]:
    """Return for each document word the id of the candidate that it is, or is part of."""
    lengths = sorted({len(words) for words in ids_by_words}, reverse=True)
    candidate_ids: list[int] = []
    while (start := len(candidate_ids)) < len(document):
        windows = (tuple(document[start : start + length]) for length in lengths)
        match = next((window for window in windows if window in ids_by_words), None)
        candidate_ids.extend([NO_CANDIDATE] if match is None else [ids_by_words[match]] * len(match))
    return candidate_ids


def _tokenize_query(query: str, blank: str, version: int) -> list[str]:
    """Return the words of a query; the blank is a word of its own even if it touches others."""
    first, *others = (_split_words(part, version) for part in query.split(blank))
    return [*first, *(word for words in others for word in (blank, *words))]


def _normalize_words(text: str, lowercase: bool, version: int) -> tuple[str, ...]:
    return tuple(_normalize_word(word, lowercase) for word in _split_words(text, version))


def _split_words(text: str, version: int) -> list[str]:
    """Return the words and punctuation marks of a text, as they are written."""
    return [token.text for token in find_tokens(text, version)]


def _normalize_word(word: str, lowercase: bool) -> str:
    return normalize(word, lowercase)


def encode_cloze_words(words: Sequence[str], vocabulary: WordTokenizer, blank: str | None = None) -> list[int]:
    """Return the ids of words; `blank` marks the word of a query that has the blank's id."""
    ids, lowercase = vocabulary.ids, vocabulary.lowercase
    return [
        vocabulary.find_tag_id(BLANK_TAG) if word == blank else ids.get(_normalize_word(word, lowercase), UNK)
        for word in words
    ]


def find_most_frequent_candidate(question: TokenizedQuestion) -> int:
    """Return the candidate that occurs most often in the document, the first of equals: a simple baseline."""
    counts = Counter(candidate_id for candidate_id in question.candidate_ids if candidate_id != NO_CANDIDATE)
    return max(range(len(question.candidates)), key=lambda candidate: (counts[candidate], -candidate))


def learn_cloze_vocabulary(questions: Iterable[Question], settings: ClozeTextSettings, blank: str) -> WordTokenizer:
    """Build a vocabulary of the most frequent words of documents and queries, plus the blank."""
    lines = (line for question in questions for line in (*question.document, *question.query.split(blank)))
    return WordTokenizer.train(lines, settings.vocabulary, settings.lowercase, (BLANK_TAG,), spacing=False)


def save_cloze_vocabulary(vocabulary: WordTokenizer, folder: Path) -> None:
    """Write the vocabulary into a folder, in the format of a shared vocabulary."""
    tokenizers.save_tokenizers(Tokenizers(vocabulary, vocabulary), TextSettings(kind="word"), folder)


def load_cloze_vocabulary(run: Run) -> WordTokenizer:
    """Load the vocabulary of a run."""
    settings = parse_settings(ClozeTextSettings, run.read_config()["text"], "text")
    vocabulary = tokenizers.load_tokenizers(
        TextSettings(kind="word", lowercase=settings.lowercase), run.folder / "tokenizer"
    ).source
    assert isinstance(vocabulary, WordTokenizer)
    vocabulary.find_tag_id(BLANK_TAG)  # raises if the vocabulary belongs to another task
    return vocabulary


@dataclass(frozen=True)
class ClozeBatch(Batch):
    """A batch of B right-padded questions."""

    document: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    query: Tensor  # (B, Q)
    query_lengths: Tensor  # (B,)
    candidate_ids: Tensor  # (B, S), candidate id of each document word; -1: none
    answer: Tensor  # (B,), candidate id of the reference answer; -1: unknown

    @property
    def num_tokens(self) -> int:
        """Number of words without padding, for the training speed."""
        return int(self.lengths.sum() + self.query_lengths.sum())


class ClozeDataset:
    """Encoded questions, all in memory."""

    parts: tuple[DatasetPart, ...] = ()

    def __init__(self, questions: Iterable[TokenizedQuestion], vocabulary: WordTokenizer, blank: str) -> None:
        rows = [
            _encode_question(question, vocabulary, blank) for question in questions
        ]  # ids only: words take far more memory
        self.document, self.query, self.candidate_ids = (
            RaggedArray.from_rows(row[column] for row in rows) for column in range(3)
        )
        self.answers = np.array([row[3][0] for row in rows], dtype=np.int64)
        self.sizes = (self.document.lengths + self.query.lengths).astype(np.int32)
        self.fingerprint = compute_dataset_fingerprint(
            self.document, self.query, self.candidate_ids, RaggedArray.from_rows([self.answers])
        )

    def __len__(self) -> int:
        return len(self.answers)

    def make_batch(self, rows: Indices, seed: int = 0) -> ClozeBatch:
        """Return the questions at `rows`; `seed` is unused, as nothing is random."""
        document, lengths = pad_rows(self.document, rows)
        query, query_lengths = pad_rows(self.query, rows)
        candidate_ids, _ = pad_rows(self.candidate_ids, rows, NO_CANDIDATE)
        columns = (document, lengths, query, query_lengths, candidate_ids, self.answers[rows])
        return ClozeBatch(*map(torch.from_numpy, columns))

    def release_memory(self) -> None:
        """Do nothing: all data stay in memory."""


def _encode_question(question: TokenizedQuestion, vocabulary: WordTokenizer, blank: str) -> tuple[Integers, ...]:
    """Return document ids, query ids, candidate ids and the answer of a question."""
    answer = NO_CANDIDATE if question.answer is None else question.answer
    columns = (
        encode_cloze_words(question.document_words, vocabulary),
        encode_cloze_words(question.query, vocabulary, blank),
        question.candidate_ids,
        [answer],
    )
    return tuple(np.array(column, dtype=np.int32) for column in columns)
