"""A question in words, and which words of its document are which candidate.

Candidates are found by how they are written, not by ids: a word that is not in the vocabulary can be the answer, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import tokenizers
from regard.config import parse_settings
from regard.data.batch import make_even_slices, pad_rows
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

BLANK_TAG = "blank"  # the tag that stands for the word that was taken out
NO_CANDIDATE = -1  # the place of a word that is no candidate


class TokenizedQuestion(NamedTuple):
    """A question in words."""

    lines: list[list[str]]  # of the document, as written
    query: list[str]  # the blank among them
    candidates: list[str]  # each once
    candidate_ids: list[int]  # for each word of the document the number of its candidate
    answer: int | None  # the number of the right one

    @property
    def document_words(self) -> list[str]:
        """All words of the document."""
        return [word for line in self.lines for word in line]

    @property
    def is_answerable(self) -> bool:
        """Whether the answer can be found in the document."""
        return self.answer is not None and self.answer in self.candidate_ids


def tokenize_question(
    question: Question, blank: str, lowercase: bool, version: int = VOCABULARY_VERSION
) -> TokenizedQuestion:
    """The words of a question, split as by a vocabulary of this version.

    A candidate may have several; where two begin together, it is the longer one.
    """
    lines = [_split_words(line, version) for line in question.document]
    document = [_normalize_word(word, lowercase) for line in lines for word in line]
    written = _list_candidates(question, lines)
    numbers = {
        forms: number
        for number, forms in enumerate(
            {_normalize_words(tokenizers, lowercase, version): tokenizers for tokenizers in written}
        )
    }
    first = {
        forms: tokenizers
        for tokenizers in reversed(written)
        for forms in [_normalize_words(tokenizers, lowercase, version)]
    }
    return TokenizedQuestion(
        lines,
        _tokenize_query(question.query, blank, version),
        [" ".join(first[forms].split()) for forms in numbers],
        _match_candidates(document, numbers),
        None if question.answer is None else _find_answer_id(question, numbers, lowercase, version),
    )


def _list_candidates(question: Question, lines: Sequence[Sequence[str]]) -> list[str]:
    """What the word may be; punctuation is no word, unless somebody has named it."""
    if question.candidates is not None:
        return [tokenizers for tokenizers in question.candidates if tokenizers.strip()]
    return list(dict.fromkeys(word for line in lines for word in line if any(map(str.isalnum, word))))


def _find_answer_id(
    question: Question, ids_by_words: Mapping[tuple[str, ...], int], lowercase: bool, version: int
) -> int:
    """The number of the answer."""
    assert question.answer is not None
    found = ids_by_words.get(_normalize_words(question.answer, lowercase, version))
    if found is None:
        among = "words of the document" if question.candidates is None else "candidates"
        raise question.make_error(f"the answer {short_repr(question.answer)} is not among the {among}")
    return found


def _match_candidates(document: Sequence[str], ids_by_words: Mapping[tuple[str, ...], int]) -> list[int]:
    """For each word the number of the candidate that it is, or is a part of."""
    lengths = sorted({len(forms) for forms in ids_by_words}, reverse=True)
    candidate_ids: list[int] = []
    while (at := len(candidate_ids)) < len(document):
        windows = (tuple(document[at : at + length]) for length in lengths)
        known = next((window for window in windows if window in ids_by_words), None)
        candidate_ids.extend([NO_CANDIDATE] if known is None else [ids_by_words[known]] * len(known))
    return candidate_ids


def _tokenize_query(query: str, blank: str, version: int) -> list[str]:
    """The words of a query; a blank is one of its own, whatever it touches."""
    first, *others = (_split_words(part, version) for part in query.split(blank))
    return [*first, *(word for words in others for word in (blank, *words))]


def _normalize_words(text: str, lowercase: bool, version: int) -> tuple[str, ...]:
    """The words of a candidate in the form that counts."""
    return tuple(_normalize_word(word, lowercase) for word in _split_words(text, version))


def _split_words(text: str, version: int) -> list[str]:
    """Return the words and marks of a text, as they are written."""
    return [token.text for token in find_tokens(text, version)]


def _normalize_word(word: str, lowercase: bool) -> str:
    """A word as it is compared."""
    return normalize(word, lowercase)


def encode_cloze_words(words: Sequence[str], vocabulary: WordTokenizer, blank: str | None = None) -> list[int]:
    """The ids of words; in a query the blank has its own."""
    known, lowercase = vocabulary.ids, vocabulary.lowercase
    return [
        vocabulary.find_tag_id(BLANK_TAG) if word == blank else known.get(_normalize_word(word, lowercase), UNK)
        for word in words
    ]


def find_most_frequent_candidate(question: TokenizedQuestion) -> int:
    """The candidate that the document has most often, the first among equals: what to beat."""
    counts = Counter(candidate_id for candidate_id in question.candidate_ids if candidate_id != NO_CANDIDATE)
    return max(range(len(question.candidates)), key=lambda number: (counts[number], -number))


def learn_cloze_vocabulary(questions: Iterable[Question], settings: ClozeTextSettings, blank: str) -> WordTokenizer:
    """The most frequent words of documents and queries, and the blank."""
    lines = (line for one in questions for line in (*one.document, *one.query.split(blank)))
    return WordTokenizer.train(lines, settings.vocabulary, settings.lowercase, (BLANK_TAG,), spacing=False)


def save_cloze_vocabulary(vocabulary: WordTokenizer, folder: Path) -> None:
    """Writes it as a vocabulary for both sides is written."""
    tokenizers.save_tokenizers(Tokenizers(vocabulary, vocabulary), TextSettings(kind="word"), folder)


def load_cloze_vocabulary(run: Run) -> WordTokenizer:
    """That of a run."""
    settings = parse_settings(ClozeTextSettings, run.read_config()["text"], "text")
    found = tokenizers.load_tokenizers(
        TextSettings(kind="word", lowercase=settings.lowercase), run.folder / "tokenizer"
    ).source
    assert isinstance(found, WordTokenizer)
    found.find_tag_id(BLANK_TAG)  # or an error: a vocabulary without it is another task's
    return found


class ClozeBatch(NamedTuple):
    """What the reader's loss takes: B questions, right-padded."""

    document: Tensor  # B,S
    lengths: Tensor  # B
    query: Tensor  # B,Q
    query_lengths: Tensor  # B
    candidate_ids: Tensor  # B,S the number of the candidate that each word of the document is; -1: none
    answer: Tensor  # B the number of the right one; -1: nobody has said

    def to(self, device: torch.device) -> ClozeBatch:
        """The same on another device."""
        return ClozeBatch(*(tensor.to(device, non_blocking=True) for tensor in self))

    @property
    def num_rows(self) -> int:
        """The number of questions."""
        return len(self.document)

    @property
    def num_targets(self) -> int:
        """What the loss is a mean over: the same."""
        return self.num_rows

    @property
    def num_tokens(self) -> int:
        """What speed is measured in: words that are read."""
        return int(self.lengths.sum() + self.query_lengths.sum())

    def split_into(self, count: int) -> list[ClozeBatch]:
        """The same questions in `count` batches, or as many as there are questions."""
        return [ClozeBatch(*(tensor[cut] for tensor in self)) for cut in make_even_slices(self.num_rows, count)]


class ClozeDataset:
    """Questions in numbers, all in memory."""

    parts: tuple[DatasetPart, ...] = ()

    def __init__(self, questions: Iterable[TokenizedQuestion], vocabulary: WordTokenizer, blank: str) -> None:
        rows = [_encode_question(one, vocabulary, blank) for one in questions]  # whose words need much more room
        self.document, self.query, self.candidate_ids = (
            RaggedArray.from_rows(row[part] for row in rows) for part in range(3)
        )
        self.answers = np.array([row[3][0] for row in rows], dtype=np.int64)
        self.sizes = (self.document.lengths + self.query.lengths).astype(np.int32)
        self.fingerprint = compute_dataset_fingerprint(
            self.document, self.query, self.candidate_ids, RaggedArray.from_rows([self.answers])
        )

    def __len__(self) -> int:
        return len(self.answers)

    def make_batch(self, rows: Indices, seed: int = 0) -> ClozeBatch:
        """The questions at `rows`; nothing varies from one look to the next."""
        document, lengths = pad_rows(self.document, rows)
        query, query_lengths = pad_rows(self.query, rows)
        candidate_ids, _ = pad_rows(self.candidate_ids, rows, NO_CANDIDATE)
        columns = (document, lengths, query, query_lengths, candidate_ids, self.answers[rows])
        return ClozeBatch(*map(torch.from_numpy, columns))

    def release_memory(self) -> None:
        """All of it is needed again."""


def _encode_question(question: TokenizedQuestion, vocabulary: WordTokenizer, blank: str) -> tuple[Integers, ...]:
    """Document, query, places and answer of a question."""
    answer = NO_CANDIDATE if question.answer is None else question.answer
    columns = (
        encode_cloze_words(question.document_words, vocabulary),
        encode_cloze_words(question.query, vocabulary, blank),
        question.candidate_ids,
        [answer],
    )
    return tuple(np.array(column, dtype=np.int32) for column in columns)
