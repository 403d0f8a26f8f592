"""Cloze reading comprehension: choose the word of a document that fills the blank in a query."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.config import Count, Range
from regard.data.cloze import (
    NO_CANDIDATE,
    QUESTION_JSON_FORMAT,
    Question,
    TokenizedQuestion,
    find_most_frequent_candidate,
    parse_question,
    parse_questions,
    read_questions,
    tokenize_question,
)
from regard.data.dataset import Batch, Indices, Integers, RaggedArray, TrainingDataset, hash_arrays, pad_rows
from regard.data.readers.text import Pair
from regard.data.split import BaseDataSettings
from regard.errors import UserError, short_repr
from regard.plot.attention_overlay import WeightedWords
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.special_tokens import UNK
from regard.synthetic.corpora import write_cloze_corpus
from regard.tasks.base import DevExample, InMemoryTask, Prediction, Predictor, Split, ValidationSample, require_list
from regard.tokenizers.tokenizer import VocabularySettings, load_tokenizer
from regard.tokenizers.words import WordTokenizer


@dataclass(frozen=True, kw_only=True)
class ClozeSettings(BaseDataSettings):
    """The `data` section of a cloze recipe: files, blank, and length limits."""

    blank: str = "XXXXX"
    max_length: Count = 2000
    dev_questions: Count = 1000

    def __post_init__(self) -> None:
        if self.blank.split() != [self.blank]:
            raise ValueError(f"blank must be one word, which marks the missing word, not {self.blank!r}")


@dataclass(frozen=True, kw_only=True)
class ClozeTextSettings:
    """The `text` section of a cloze recipe; the vocabulary is of words, because an answer is a word."""

    kind: Literal["word"] = "word"
    vocabulary: Annotated[int, Range(6)] = 50000  # more than the special ids
    lowercase: bool = False


BLANK_TAG = "blank"  # vocabulary tag of the blank
_VOCABULARY_NAME = "shared"


class ClozeVocabulary(NamedTuple):
    """Words of documents and queries, and the word that marks the blank of a query."""

    words: WordTokenizer
    blank: str

    @classmethod
    def learn(cls, questions: Iterable[Question], settings: ClozeTextSettings, blank: str) -> ClozeVocabulary:
        """Build a vocabulary of the most frequent words, plus the blank."""
        lines = (line for question in questions for line in (*question.document, *question.query.split(blank)))
        words = WordTokenizer.train(lines, settings.vocabulary, settings.lowercase, (BLANK_TAG,), spacing=False)
        return cls(words, blank)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of words, twice: questions and answers have the same vocabulary."""
        return self.words.vocab_size, self.words.vocab_size

    def describe(self) -> str:
        """Return the number of words as text."""
        return f"a vocabulary of {self.words.vocab_size:,}"

    def tokenize(self, question: Question) -> TokenizedQuestion:
        """Split a question into words, as this vocabulary does."""
        return tokenize_question(question, self.blank, self.words)

    def encode_document(self, words: Sequence[str]) -> list[int]:
        """Return the ids of words."""
        return [self.words.ids.get(self.words.normalize(word), UNK) for word in words]

    def encode_query(self, words: Sequence[str]) -> list[int]:
        """Return the ids of words, among which the blank has an id of its own."""
        blank_id = self.words.find_tag_id(BLANK_TAG)
        return [blank_id if word == self.blank else self.encode_document([word])[0] for word in words]

    def save(self, folder: Path) -> None:
        """Write the vocabulary into a folder."""
        self.words.save(folder / f"{_VOCABULARY_NAME}.vocab")

    @classmethod
    def load(cls, folder: Path, settings: ClozeTextSettings, blank: str) -> ClozeVocabulary:
        """Read what `save` wrote."""
        word_settings = VocabularySettings(kind="word", lowercase=settings.lowercase)
        words = load_tokenizer(word_settings, folder, _VOCABULARY_NAME)
        assert isinstance(words, WordTokenizer)
        words.find_tag_id(BLANK_TAG)  # raises if the vocabulary belongs to another task
        return cls(words, blank)


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


class ClozeDataset(TrainingDataset):
    """Encoded questions."""

    def __init__(self, questions: Iterable[TokenizedQuestion], vocabulary: ClozeVocabulary) -> None:
        rows = [_encode_question(question, vocabulary) for question in questions]  # words take far more memory than ids
        self.document, self.query, self.candidate_ids = (
            RaggedArray.from_rows(row[column] for row in rows) for column in range(3)
        )
        self.answers = np.array([row[3][0] for row in rows], dtype=np.int64)
        self.vocabulary = vocabulary
        self.sizes = (self.document.lengths + self.query.lengths).astype(np.int32)
        answers = RaggedArray.from_rows([self.answers])
        self.fingerprint = hash_arrays(self.document, self.query, self.candidate_ids, answers)

    def make_batch(self, rows: Indices, seed: int = 0) -> ClozeBatch:
        """Return the questions at `rows`; `seed` is unused, as nothing is random."""
        document, lengths = pad_rows(self.document, rows)
        query, query_lengths = pad_rows(self.query, rows)
        candidate_ids, _ = pad_rows(self.candidate_ids, rows, NO_CANDIDATE)
        columns = (document, lengths, query, query_lengths, candidate_ids, self.answers[rows])
        return ClozeBatch(*map(torch.from_numpy, columns))


def _encode_question(question: TokenizedQuestion, vocabulary: ClozeVocabulary) -> tuple[Integers, ...]:
    """Return document ids, query ids, candidate ids and the answer of a question."""
    answer = NO_CANDIDATE if question.answer is None else question.answer
    document, query = vocabulary.encode_document(question.document_words), vocabulary.encode_query(question.query)
    return tuple(np.array(column, dtype=np.int32) for column in (document, query, question.candidate_ids, [answer]))


_WORDS_PER_LINE = 16  # in plots
_WEIGHT_DIGITS = 6  # decimals of weights in JSON


@dataclass(frozen=True)
class ClozePrediction(Prediction):
    """A question with candidate probabilities and attention weights."""

    question: TokenizedQuestion
    probabilities: list[float]  # P(w | D, Q) of each candidate; 0 if it is not in the document
    weights: list[float]  # s of each word of the document
    query_weights: list[float] | None  # β of each word of the query, if the model has them

    @property
    def best_candidate_id(self) -> int:
        """Id of the most probable candidate, the first of equals."""
        return int(np.argmax(self.probabilities))

    @property
    def answer_probability(self) -> float | None:
        """P(answer | D, Q); None if the answer is unknown or not in the document."""
        answer = self.question.answer
        return None if answer is None or answer not in self.question.candidate_ids else self.probabilities[answer]

    @property
    def text(self) -> str:
        """The most probable candidate."""
        return self.question.candidates[self.best_candidate_id]

    def to_text(self) -> str:
        """Return the answer, a tab, and its probability."""
        return f"{self.text}\t{self.probabilities[self.best_candidate_id]:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer, the candidates in order of probability, and the words with their attention weights."""
        ranked = sorted(zip(self.question.candidates, self.probabilities, strict=True), key=lambda pair: -pair[1])
        query = None if self.query_weights is None else _round_weights(self.query_weights)
        return {
            "answer": self.text,
            "probability": round(self.probabilities[self.best_candidate_id], _WEIGHT_DIGITS),
            "candidates": [{"word": word, "probability": round(value, _WEIGHT_DIGITS)} for word, value in ranked],
            "document": {"words": self.question.document_words, "weights": _round_weights(self.weights)},
            "query": {"words": self.question.query, "weights": query},
        }

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return the lines of the document and the query with their attention weights; wrap long lines."""
        lines: list[WeightedWords] = []
        start = 0
        for number, words in enumerate(self.question.lines, 1):
            weights = self.weights[start : start + len(words)]
            lines += _wrap_line(str(number), words, weights, sum(weights))
            start += len(words)
        zeros = [0.0] * len(self.question.query)
        return [*lines, *_wrap_line("query", self.question.query, self.query_weights or zeros, None)]


def _wrap_line(
    label: str, words: Sequence[str], weights: Sequence[float], weight: float | None
) -> Iterator[WeightedWords]:
    """Yield parts of a line that fit the width; only the first has the label."""
    for start in range(0, len(words), _WORDS_PER_LINE):
        part = slice(start, start + _WORDS_PER_LINE)
        yield WeightedWords("" if start else label, words[part], weights[part], None if start else weight)


def _round_weights(weights: Sequence[float]) -> list[float]:
    return [round(weight, _WEIGHT_DIGITS) for weight in weights]


def compute_cloze_accuracy(predictions: Sequence[ClozePrediction]) -> float:
    """Return the percentage of correct answers."""
    num_correct = sum(prediction.best_candidate_id == prediction.question.answer for prediction in predictions)
    return 100 * num_correct / max(1, len(predictions))


def compute_cloze_loss(predictions: Sequence[ClozePrediction]) -> float:
    """Return the mean of −log P(answer) over questions whose answer is in the document; for others it is infinite."""
    probabilities = [one.answer_probability for one in predictions if one.answer_probability is not None]
    return sum(-math.log(max(p, sys.float_info.min)) for p in probabilities) / max(1, len(probabilities))


class _ReaderOutput(NamedTuple):
    """Attention weights over a padded document, and over a padded query if the model has them."""

    document: np.ndarray[Any, np.dtype[np.float64]]
    query: list[float] | None


class ClozePredictor(Predictor):
    """A cloze reader with its vocabulary."""

    nouns = "questions"
    dataset = ClozeDataset
    selection_metrics = ("accuracy",)

    def predict(self, inputs: Sequence[Question | Mapping[str, Any]]) -> list[ClozePrediction]:
        """Return an answer for each question, in order; a question is a mapping as in a line of JSON."""
        given = require_list(inputs, "question")
        questions = [one if isinstance(one, Question) else self.parse_json_input(one) for one in given]
        tokenized, dataset = self.encode(questions, self.vocabulary)
        return list(map(make_cloze_prediction, tokenized, self.run_model(dataset)))

    def run_batch(self, batch: ClozeBatch) -> list[_ReaderOutput]:
        """Return the attention weights of each question, with padding."""
        attention = self.model(batch.document, batch.lengths, batch.query, batch.query_lengths)
        beta = [None] * batch.num_rows if attention.query is None else attention.query.double().tolist()
        return [_ReaderOutput(*pair) for pair in zip(attention.document.double().cpu().numpy(), beta, strict=True)]

    def parse_json_input(self, given: Any) -> Question:
        """Validate a JSON object and return the question it holds."""
        if not isinstance(given, Mapping):
            raise UserError(f"a question must be {QUESTION_JSON_FORMAT}, not {short_repr(given)}")
        return parse_question(given, self.data.blank)

    def parse_lines(self, lines: Iterable[str], name: str = "") -> Iterator[Question]:
        """Yield the questions in lines, with or without answers."""
        return parse_questions(lines, self.data.blank, name)

    @classmethod
    def iterate_examples(cls, paths: Sequence[Path], data: ClozeSettings) -> Iterator[Question]:
        """Yield questions with answers."""
        return read_questions(paths, data.blank)

    @classmethod
    def encode(
        cls, examples: Sequence[Question], vocabulary: ClozeVocabulary
    ) -> tuple[Sequence[TokenizedQuestion], ClozeDataset]:
        """Return questions split into words, and their dataset."""
        questions = list(map(vocabulary.tokenize, examples))
        return questions, ClozeDataset(questions, vocabulary)

    def compute_metrics(
        self, examples: Sequence[TokenizedQuestion], outputs: Sequence[_ReaderOutput]
    ) -> dict[str, Any]:
        """Return accuracy and loss, and the accuracy of choosing the most frequent candidate."""
        predictions = list(map(make_cloze_prediction, examples, outputs))
        baseline_correct = [find_most_frequent_candidate(question) == question.answer for question in examples]
        return {
            "accuracy": compute_cloze_accuracy(predictions),
            "most_frequent": 100 * sum(baseline_correct) / len(baseline_correct),
            "loss": compute_cloze_loss(predictions),
        }

    def make_sample(self, example: TokenizedQuestion, output: _ReaderOutput) -> ValidationSample:
        """Return query, reference answer and predicted answer."""
        prediction = make_cloze_prediction(example, output)
        reference = "" if example.answer is None else example.candidates[example.answer]
        texts = {"query": " ".join(example.query), "right": reference, "answer": prediction.text}
        return ValidationSample(texts, prediction.plot)


def make_cloze_prediction(question: TokenizedQuestion, output: _ReaderOutput) -> ClozePrediction:
    """Compute P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i from the weights of a padded document and query."""
    candidate_ids = np.array(question.candidate_ids)
    weights = output.document[: len(candidate_ids)]
    if not np.isfinite(weights).all():
        raise ArithmeticError("the attention weights of a document are NaN or inf")
    is_candidate = candidate_ids != NO_CANDIDATE
    probabilities = np.bincount(candidate_ids[is_candidate], weights[is_candidate], len(question.candidates))
    query_weights = None if output.query is None else output.query[: len(question.query)]
    return ClozePrediction(question, probabilities.tolist(), weights.tolist(), query_weights)


class ClozeTask(InMemoryTask[Question]):
    """Choose the word that fills a blank."""

    verb = "reads"
    demo_recipe = "cui2017"
    data_settings = ClozeSettings
    text_settings = ClozeTextSettings
    predictor = ClozePredictor
    too_few = "all questions are of one document"
    dev_limit = "dev_questions"
    data_hint = "a file of questions, in CBT format or JSON lines"
    write_synthetic_corpus = staticmethod(write_cloze_corpus)

    def make_split_pair(self, example: Question) -> Pair:
        """Return document and query, so that the dev set is split by document."""
        return Pair("\n".join(example.document), example.query)

    def learn_vocabulary(self, split: Split[Question], config: RunConfig) -> ClozeVocabulary:
        """Return the vocabulary of the training questions."""
        return ClozeVocabulary.learn(split.train, config.text, config.data.blank)

    def load_vocabulary(self, run: Run, config: RunConfig) -> ClozeVocabulary:
        """Load the vocabulary of a run."""
        return ClozeVocabulary.load(run.folder / "tokenizer", config.text, config.data.blank)

    def make_training_set(self, split: Split[Question], vocabulary: ClozeVocabulary, config: RunConfig) -> ClozeDataset:
        """Return the encoded questions whose document is short enough and contains the answer."""
        max_length, left_out = config.data.max_length, {"too long": 0, "without the answer in the document": 0}

        def iterate_usable() -> Iterator[TokenizedQuestion]:
            for question in map(vocabulary.tokenize, split.train):
                if len(question.candidate_ids) > max_length:
                    left_out["too long"] += 1
                elif not question.is_answerable:
                    left_out["without the answer in the document"] += 1
                else:
                    yield question

        dataset = ClozeDataset(iterate_usable(), vocabulary)
        if not len(dataset):
            raise UserError(
                f"no question is left to train on: of {len(split.train):,} documents "
                f"{left_out['too long']:,} have more than {max_length:,} words (data.max_length), "
                f"and {left_out['without the answer in the document']:,} do not contain the answer"
            )
        dataset.left_out = left_out
        return dataset

    def choose_dev_examples(self, dev: list[Question], max_measured: int) -> list[Question]:
        """Return the first questions."""
        return dev[:max_measured]

    def describe_dev_set(self, dev: Sequence[TokenizedQuestion]) -> list[str]:
        """Return the number of unanswerable questions, which count as wrong."""
        unanswerable = sum(not question.is_answerable for question in dev)
        return [f"{unanswerable:,} without the answer in the document"] if unanswerable else []

    def make_dev_example(self, example: Question) -> DevExample:
        """Return a question and its answer."""
        return DevExample(example, example.answer or "")
