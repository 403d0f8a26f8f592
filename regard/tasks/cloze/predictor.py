"""Cloze inference: answers, candidate probabilities and attention weights; and validation with accuracy."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text import format_path, iterate_lines
from regard.errors import UserError, short_repr
from regard.models.cui2017 import ClozeReader
from regard.models.cui2017 import ClozeReader as Model
from regard.plot import WeightedWords, plot_weighted_words
from regard.tasks.base import (
    Prediction,
    Validation,
    ValidationSample,
    choose_inference_device,
    get_single_run,
    require_list,
)
from regard.tasks.batched_inference import map_batches_in_order
from regard.tasks.cloze.dataset import (
    NO_CANDIDATE,
    ClozeDataset,
    TokenizedQuestion,
    find_most_frequent_candidate,
    load_cloze_vocabulary,
    tokenize_question,
)
from regard.tasks.cloze.questions import (
    QUESTION_JSON_FORMAT,
    ClozeSettings,
    Question,
    parse_question,
    parse_questions,
    read_question_files,
)
from regard.tokenizers import WordTokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


@torch.inference_mode()
def run_reader(
    model: ClozeReader,
    questions: Sequence[TokenizedQuestion],
    vocabulary: WordTokenizer,
    blank: str,
    batch_tokens: int,
    device: torch.device,
) -> list[ClozePrediction]:
    """Return a prediction for each question, in order; the model must be in evaluation mode."""
    if not questions:
        return []
    dataset = ClozeDataset(questions, vocabulary, blank)

    def predict_batch(rows: Indices) -> list[ClozePrediction]:
        batch = dataset.make_batch(rows).to(device)
        attention = model(*list(batch)[:4])
        s = attention.document.double().cpu().numpy()
        beta = [None] * len(rows) if attention.query is None else attention.query.double().tolist()
        return [
            _make_cloze_prediction(questions[row], s[index], beta[index]) for index, row in enumerate(rows.tolist())
        ]

    return map_batches_in_order(predict_batch, dataset.sizes, batch_tokens)


def _make_cloze_prediction(
    question: TokenizedQuestion, s: np.ndarray[Any, np.dtype[np.float64]], beta: list[float] | None
) -> ClozePrediction:
    """Compute P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i from the weights of a padded document and query."""
    candidate_ids = np.array(question.candidate_ids)
    weights = s[: len(candidate_ids)]
    if not np.isfinite(weights).all():
        raise ArithmeticError("the attention weights of a document are NaN or inf")
    is_candidate = candidate_ids != NO_CANDIDATE
    probabilities = np.bincount(candidate_ids[is_candidate], weights[is_candidate], len(question.candidates))
    return ClozePrediction(
        question, probabilities.tolist(), weights.tolist(), None if beta is None else beta[: len(question.query)]
    )


SAMPLES = 5


class ClozeSample(NamedTuple):
    """A dev question with the current answer."""

    prediction: ClozePrediction

    def to_dict(self) -> dict[str, str]:
        """Return query, reference answer and predicted answer."""
        question = self.prediction.question
        reference = "" if question.answer is None else question.candidates[question.answer]
        return {"query": " ".join(question.query), "right": reference, "answer": self.prediction.text}

    def plot(self) -> Figure | None:
        """Return a figure of document and query, shaded by attention."""
        return plot_weighted_words(self.prediction.make_attention_lines())


class ClozeValidator:
    """Validate on answered questions: mean −log P(answer), and accuracy in percent."""

    def __init__(
        self, questions: Sequence[TokenizedQuestion], vocabulary: WordTokenizer, blank: str, batch_tokens: int
    ) -> None:
        self.questions = questions
        self.vocabulary = vocabulary
        self.blank = blank
        self.batch_tokens = batch_tokens

    def __call__(self, model: ClozeReader, device: torch.device) -> Validation:
        """Return the metrics of a model; leave the model and the random generators unchanged."""
        training = model.training
        model.eval()
        predictions = run_reader(model, self.questions, self.vocabulary, self.blank, self.batch_tokens, device)
        model.train(training)
        return Validation(
            compute_cloze_loss(predictions),
            {"accuracy": compute_cloze_accuracy(predictions)},
            "accuracy",
            [ValidationSample(one.to_dict(), one.plot) for one in map(ClozeSample, predictions[:SAMPLES])],
        )


def compute_cloze_accuracy(predictions: Sequence[ClozePrediction]) -> float:
    """Return the percentage of correct answers."""
    return (
        100
        * sum(prediction.best_candidate_id == prediction.question.answer for prediction in predictions)
        / max(1, len(predictions))
    )


def compute_cloze_loss(predictions: Sequence[ClozePrediction]) -> float:
    """Return the mean of −log P(answer) over questions whose answer is in the document; for others it is infinite."""
    probabilities = [one.answer_probability for one in predictions if one.answer_probability is not None]
    return sum(-math.log(max(p, sys.float_info.min)) for p in probabilities) / max(1, len(probabilities))


class ClozePredictor:
    """A cloze reader with its vocabulary."""

    def __init__(
        self, model: Model, vocabulary: WordTokenizer, blank: str, batch_tokens: int, device: torch.device
    ) -> None:
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.blank = blank
        self.batch_tokens = batch_tokens
        self.device = device

    def predict(self, inputs: Sequence[Question | Mapping[str, Any]]) -> list[ClozePrediction]:
        """Return an answer for each question, in order; a question is a mapping as in a line of JSON."""
        questions = [
            question if isinstance(question, Question) else self.parse_json_input(question)
            for question in require_list(inputs, "question")
        ]
        lowercase, version = self.vocabulary.lowercase, self.vocabulary.version
        tokenized = [tokenize_question(question, self.blank, lowercase, version) for question in questions]
        return run_reader(self.model, tokenized, self.vocabulary, self.blank, self.batch_tokens, self.device)

    def parse_json_input(self, given: Any) -> Question:
        """Validate a JSON object and return the question it holds."""
        if not isinstance(given, Mapping):
            raise UserError(f"a question must be {QUESTION_JSON_FORMAT}, not {short_repr(given)}")
        return parse_question(given, self.blank)

    def parse_lines(self, lines: Iterable[str]) -> Iterator[Question]:
        """Yield the questions in lines, with or without answers."""
        return parse_questions(lines, self.blank)

    def read_inputs(self, path: Path) -> Iterator[Question]:
        """Yield the questions of a file."""
        return parse_questions(iterate_lines(path), self.blank, format_path(path))

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return accuracy and loss, and the accuracy of choosing the most frequent candidate."""
        questions = read_question_files(paths, self.blank)
        for question in questions:
            if question.answer is None:
                raise question.make_error("there is no answer to evaluate the model on")
        predictions = self.predict(questions)
        baseline_correct = [find_most_frequent_candidate(one.question) == one.question.answer for one in predictions]
        return {
            "questions": len(predictions),
            "accuracy": compute_cloze_accuracy(predictions),
            "most_frequent": 100 * sum(baseline_correct) / len(baseline_correct),
            "loss": compute_cloze_loss(predictions),
        }


def load(*runs: str | Path, device: str | None = None) -> ClozePredictor:
    """Load the best checkpoint of a run for cloze questions; by default on a GPU if there is one."""
    run = get_single_run(runs, "reads")
    config = run.read_config()
    vocabulary = load_cloze_vocabulary(run)
    data = parse_settings(ClozeSettings, config["data"], "data")
    model = run.load_model((vocabulary.vocab_size, vocabulary.vocab_size))
    return ClozePredictor(
        model, vocabulary, data.blank, int(config["training"]["batch_tokens"]), choose_inference_device(device)
    )
