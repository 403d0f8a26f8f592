"""What a reader makes of a question: its answer, how sure it is of each candidate, and where it looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.data.ragged import Indices
from regard.models.cui import Reader
from regard.plot import Line
from regard.tasks.memory import in_order
from regard.tasks.reading.cloze import NOBODY, Cloze
from regard.tasks.reading.examples import Examples
from regard.text import Words

WIDTH = 16  # words in a line of a picture
DIGITS = 6  # of a weight that is written down


class Answer(NamedTuple):
    """One question, answered."""

    asked: Cloze
    probabilities: list[float]  # P(w | D, Q) of each candidate; one that is not in the document has 0
    weights: list[float]  # s of each word of the document
    query_weights: list[float] | None  # β of each word of the query, where they are weighed

    @property
    def number(self) -> int:
        """The best candidate's number, the first among equals."""
        return int(np.argmax(self.probabilities))

    @property
    def right(self) -> float | None:
        """P(answer | D, Q); None where the document does not have it, or nobody knows it."""
        answer = self.asked.answer
        return None if answer is None or answer not in self.asked.places else self.probabilities[answer]

    @property
    def text(self) -> str:
        """The best candidate."""
        return self.asked.candidates[self.number]

    def line(self) -> str:
        """The answer, a tab, and its probability."""
        return f"{self.text}\t{self.probabilities[self.number]:.4f}"

    def document(self) -> dict[str, Any]:
        """The answer, the candidates from the best on, and the words with their weights."""
        ranked = sorted(zip(self.asked.candidates, self.probabilities, strict=True), key=lambda pair: -pair[1])
        query = None if self.query_weights is None else rounded(self.query_weights)
        return {
            "answer": self.text,
            "probability": round(self.probabilities[self.number], DIGITS),
            "candidates": [{"word": word, "probability": round(value, DIGITS)} for word, value in ranked],
            "document": {"words": self.asked.document, "weights": rounded(self.weights)},
            "query": {"words": self.asked.query, "weights": query},
        }

    def looks(self) -> list[Line]:
        """The document line by line, long ones broken, and the query."""
        lines: list[Line] = []
        start = 0
        for number, words in enumerate(self.asked.lines, 1):
            weights = self.weights[start : start + len(words)]
            lines += broken(str(number), words, weights, sum(weights))
            start += len(words)
        unweighed = [0.0] * len(self.asked.query)
        return [*lines, *broken("query", self.asked.query, self.query_weights or unweighed, None)]

    def overlay(self) -> None:
        """There is no image."""
        return


def broken(label: str, words: Sequence[str], weights: Sequence[float], weight: float | None) -> Iterator[Line]:
    """A line in as many as it takes, the first of them with its label."""
    for start in range(0, len(words), WIDTH):
        part = slice(start, start + WIDTH)
        yield Line("" if start else label, words[part], weights[part], None if start else weight)


def rounded(weights: Sequence[float]) -> list[float]:
    """Weights as they are written down."""
    return [round(weight, DIGITS) for weight in weights]


@torch.inference_mode()
def answers(
    model: Reader, clozes: Sequence[Cloze], vocabulary: Words, blank: str, batch_tokens: int, device: torch.device
) -> list[Answer]:
    """An answer for each question, in order; those of like length are read together."""
    if not clozes:
        return []
    examples = Examples(clozes, vocabulary, blank)

    def some(rows: Indices) -> list[Answer]:
        batch = examples.batch(rows).to(device)
        looked = model(*batch[:4])
        s = looked.document.double().cpu().numpy()
        beta = [None] * len(rows) if looked.query is None else looked.query.double().tolist()
        return [answer(clozes[row], s[at], beta[at]) for at, row in enumerate(rows.tolist())]

    return in_order(some, examples.sizes, batch_tokens)


def answer(asked: Cloze, s: np.ndarray[Any, np.dtype[np.float64]], beta: list[float] | None) -> Answer:
    """P(w | D, Q) = Σ_{i ∈ I(w,D)} s_i, from the weights of a padded document and query."""
    places = np.array(asked.places)
    own = s[: len(places)]
    if not np.isfinite(own).all():
        raise ArithmeticError("the weights of a document's words are no numbers")
    here = places != NOBODY
    summed = np.bincount(places[here], own[here], len(asked.candidates))
    return Answer(asked, summed.tolist(), own.tolist(), None if beta is None else beta[: len(asked.query)])
