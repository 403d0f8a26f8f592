"""A label for a text, and what the model looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from regard.plot import Line
from regard.search import Floats
from regard.tasks.classification.outputs import Output
from regard.text import Labels, Tokenizer

STRONGEST = 3  # hops that are shown beside their mean


class Look(Protocol):
    """Tokens, and the weights that they had, if they had any."""

    def told(self) -> dict[str, Any]:
        """As JSON can hold it."""
        ...

    def lines(self) -> list[Line]:
        """As people see it."""
        ...


class Hops(NamedTuple):
    """Several looks at a text that is read as one."""

    tokens: Sequence[str]
    weights: Floats | None  # hops × tokens

    def told(self) -> dict[str, Any]:
        """Tokens, and a row of weights for each hop."""
        return {"tokens": self.tokens, "weights": None if self.weights is None else self.weights.tolist()}

    def lines(self) -> list[Line]:
        """The mean of the hops, and those that looked hardest at one place."""
        if self.weights is None or not self.tokens:
            return []
        strongest = np.argsort(-self.weights.max(1), kind="stable")[:STRONGEST] if len(self.weights) > 1 else ()
        rows = {"mean": self.weights.mean(0)} | {f"hop {hop + 1}": self.weights[hop] for hop in strongest}
        return [Line(name, self.tokens, row.tolist(), darkest=float(row.max())) for name, row in rows.items()]


class Nested(NamedTuple):
    """A look at the words of each sentence, and one at the sentences."""

    tokens: Sequence[Sequence[str]]
    weights: Sequence[Sequence[float]] | None
    sentence_weights: Sequence[float] | None

    def told(self) -> dict[str, Any]:
        """Sentence by sentence."""
        return {"tokens": self.tokens, "weights": self.weights, "sentence_weights": self.sentence_weights}

    def lines(self) -> list[Line]:
        """A line for each sentence, with its own weight."""
        if self.weights is None or self.sentence_weights is None:
            return []
        rows = zip(self.tokens, self.weights, self.sentence_weights, strict=True)
        return [
            Line(str(number), tokens, weights, own, max(weights))
            for number, (tokens, weights, own) in enumerate(rows, 1)
        ]


class Classification(NamedTuple):
    """A model's choice."""

    label: str
    probabilities: Mapping[str, float]
    look: Look

    @property
    def probability(self) -> float:
        """That of the chosen label."""
        return self.probabilities[self.label]

    def line(self) -> str:
        """The label, a tab and its probability."""
        return f"{self.label}\t{self.probability:.4f}"

    def document(self) -> dict[str, Any]:
        """All probabilities, the tokens and their weights."""
        chosen = {"label": self.label, "probability": self.probability, "probabilities": dict(self.probabilities)}
        return chosen | self.look.told()

    def looks(self) -> list[Line]:
        """What the model looked at."""
        return self.look.lines()

    def overlay(self) -> None:
        """There is no image."""
        return


def classification(
    output: Output, document: Sequence[Sequence[int]], labels: Labels, tokenizer: Tokenizer, by_sentence: bool
) -> Classification:
    """What a model said of a text with these ids, in words."""
    chances = np.exp(output.log_probs).tolist()
    probabilities = {labels.name(id): chance for id, chance in enumerate(chances)}
    look = nested(output, document, tokenizer) if by_sentence else hops(output, document, tokenizer)
    return Classification(labels.name(int(output.log_probs.argmax())), probabilities, look)


def hops(output: Output, document: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Hops:
    """Where a model looked that reads a text as one."""
    return Hops([piece for ids in document for piece in tokenizer.pieces(ids)], output.weights)


def nested(output: Output, document: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Nested:
    """Where a model looked that reads sentence by sentence."""
    tokens = [tokenizer.pieces(ids) for ids in document]
    if output.weights is None or output.sentence_weights is None:
        return Nested(tokens, None, None)
    weights = [row[: len(ids)].tolist() for row, ids in zip(output.weights, document, strict=True)]
    return Nested(tokens, weights, output.sentence_weights.tolist())
