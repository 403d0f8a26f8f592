"""What a reader makes of a question: its answer, how sure it is of each candidate, and where it looked."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text_io import format_path, iterate_lines
from regard.errors import UserError, short_repr
from regard.models.cui2017 import ClozeReader
from regard.models.cui2017 import ClozeReader as Model
from regard.plot import WeightedWords, plot_weighted_words
from regard.tasks.base import Validation, choose_inference_device, get_single_run, map_batches_in_order, require_list
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


_WORDS_PER_LINE = 16  # words in a line of a picture
_WEIGHT_DIGITS = 6  # of a weight that is written down


class ClozePrediction(NamedTuple):
    """One question, answered."""

    question: TokenizedQuestion
    probabilities: list[float]  # P(w | D, Q) of each candidate; one that is not in the document has 0
    weights: list[float]  # s of each word of the document
    query_weights: list[float] | None  # β of each word of the query, where they are weighed

    @property
    def best_candidate_id(self) -> int:
        """The best candidate's number, the first among equals."""
        return int(np.argmax(self.probabilities))

    @property
    def answer_probability(self) -> float | None:
        """P(answer | D, Q); None where the document does not have it, or nobody knows it."""
        answer = self.question.answer
        return None if answer is None or answer not in self.question.candidate_ids else self.probabilities[answer]

    @property
    def text(self) -> str:
        """The best candidate."""
        return self.question.candidates[self.best_candidate_id]

    def to_text(self) -> str:
        """The answer, a tab, and its probability."""
        return f"{self.text}\t{self.probabilities[self.best_candidate_id]:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """The answer, the candidates from the best on, and the words with their weights."""
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
        """The document line by line, long ones broken, and the query."""
        lines: list[WeightedWords] = []
        start = 0
        for number, words in enumerate(self.question.lines, 1):
            weights = self.weights[start : start + len(words)]
            lines += _wrap_line(str(number), words, weights, sum(weights))
            start += len(words)
        unweighed = [0.0] * len(self.question.query)
        return [*lines, *_wrap_line("query", self.question.query, self.query_weights or unweighed, None)]

    def make_image_overlay(self) -> None:
        """There is no image."""
        return


def _wrap_line(
    label: str, words: Sequence[str], weights: Sequence[float], weight: float | None
) -> Iterator[WeightedWords]:
    """A line in as many as it takes, the first of them with its label."""
    for start in range(0, len(words), _WORDS_PER_LINE):
        part = slice(start, start + _WORDS_PER_LINE)
        yield WeightedWords("" if start else label, words[part], weights[part], None if start else weight)


def _round_weights(weights: Sequence[float]) -> list[float]:
    """Weights as they are written down."""
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
    """An answer for each question, in order; those of like length are read together."""
    if not questions:
        return []
    examples = ClozeDataset(questions, vocabulary, blank)

    def predict_batch(rows: Indices) -> list[ClozePrediction]:
        batch = examples.make_batch(rows).to(device)
        attention = model(*batch[:4])
        s = attention.document.double().cpu().numpy()
        beta = [None] * len(rows) if attention.query is None else attention.query.double().tolist()
        return [_make_cloze_prediction(questions[row], s[at], beta[at]) for at, row in enumerate(rows.tolist())]

    return map_batches_in_order(predict_batch, examples.sizes, batch_tokens)


def _make_cloze_prediction(
    question: TokenizedQuestion, s: np.ndarray[Any, np.dtype[np.float64]], beta: list[float] | None
) -> ClozePrediction:
    """P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i, from the weights of a padded document and query."""
    candidate_ids = np.array(question.candidate_ids)
    own = s[: len(candidate_ids)]
    if not np.isfinite(own).all():
        raise ArithmeticError("the weights of a document's words are no numbers")
    here = candidate_ids != NO_CANDIDATE
    summed = np.bincount(candidate_ids[here], own[here], len(question.candidates))
    return ClozePrediction(
        question, summed.tolist(), own.tolist(), None if beta is None else beta[: len(question.query)]
    )


SAMPLES = 5


class ClozeSample(NamedTuple):
    """A question of the dev set as the model answers it now."""

    prediction: ClozePrediction

    def to_dict(self) -> dict[str, str]:
        """Query, the right answer, and the model's."""
        question = self.prediction.question
        right = "" if question.answer is None else question.candidates[question.answer]
        return {"query": " ".join(question.query), "right": right, "answer": self.prediction.text}

    def plot(self) -> Figure | None:
        """The document and the query, shaded."""
        return plot_weighted_words(self.prediction.make_attention_lines())


class ClozeValidator:
    """Questions with their answers: −log P(answer), and how many are answered rightly, in per cent."""

    def __init__(
        self, questions: Sequence[TokenizedQuestion], vocabulary: WordTokenizer, blank: str, batch_tokens: int
    ) -> None:
        self.questions = questions
        self.vocabulary = vocabulary
        self.blank = blank
        self.batch_tokens = batch_tokens

    def __call__(self, model: ClozeReader, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        made = run_reader(model, self.questions, self.vocabulary, self.blank, self.batch_tokens, device)
        model.train(training)
        return Validation(
            compute_cloze_loss(made),
            {"accuracy": compute_cloze_accuracy(made)},
            "accuracy",
            [ClozeSample(one) for one in made[:SAMPLES]],
        )


def compute_cloze_accuracy(predictions: Sequence[ClozePrediction]) -> float:
    """How many of a hundred answers are right."""
    return 100 * sum(one.best_candidate_id == one.question.answer for one in predictions) / max(1, len(predictions))


def compute_cloze_loss(predictions: Sequence[ClozePrediction]) -> float:
    """The mean of −log P(answer), of questions whose answer is in the document: of others it has no end."""
    right = [one.answer_probability for one in predictions if one.answer_probability is not None]
    return sum(-math.log(max(one, sys.float_info.min)) for one in right) / max(1, len(right))


class ClozePredictor:
    """Fills blanks."""

    def __init__(
        self, model: Model, vocabulary: WordTokenizer, blank: str, batch_tokens: int, device: torch.device
    ) -> None:
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.blank = blank
        self.batch_tokens = batch_tokens
        self.device = device

    def predict(self, inputs: Sequence[Question | Mapping[str, Any]]) -> list[ClozePrediction]:
        """An answer for each question, in order; a question is a mapping as in a line of JSON."""
        questions = [
            one if isinstance(one, Question) else self.parse_json_input(one) for one in require_list(inputs, "question")
        ]
        lowercase, version = self.vocabulary.lowercase, self.vocabulary.version
        clozes = [tokenize_question(one, self.blank, lowercase, version) for one in questions]
        return run_reader(self.model, clozes, self.vocabulary, self.blank, self.batch_tokens, self.device)

    def parse_json_input(self, given: Any) -> Question:
        """A question as in a line of JSON."""
        if not isinstance(given, Mapping):
            raise UserError(f"a question is {QUESTION_JSON_FORMAT}, not {short_repr(given)}")
        return parse_question(given, self.blank)

    def parse_lines(self, lines: Iterable[str]) -> Iterator[Question]:
        """The questions that lines hold, with their answers or without."""
        return parse_questions(lines, self.blank)

    def read_inputs(self, path: Path) -> Iterator[Question]:
        """Those of a file."""
        return parse_questions(iterate_lines(path), self.blank, format_path(path))

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Accuracy, beside that of the candidate which the document has most often."""
        questions = read_question_files(paths, self.blank)
        for one in questions:
            if one.answer is None:
                raise one.make_error("there is no answer, and nothing to hold the model to")
        made = self.predict(questions)
        frequent = [find_most_frequent_candidate(one.question) == one.question.answer for one in made]
        return {
            "questions": len(made),
            "accuracy": compute_cloze_accuracy(made),
            "most_frequent": 100 * sum(frequent) / len(frequent),
            "loss": compute_cloze_loss(made),
        }


def load(*runs: str | Path, device: str | None = None) -> ClozePredictor:
    """The best model of a run, on a GPU where there is one."""
    run = get_single_run(runs, "reads")
    config = run.read_config()
    vocabulary = load_cloze_vocabulary(run)
    data = parse_settings(ClozeSettings, config["data"], "data")
    model = run.load_model((vocabulary.vocab_size, vocabulary.vocab_size))
    return ClozePredictor(
        model, vocabulary, data.blank, int(config["training"]["batch_tokens"]), choose_inference_device(device)
    )
