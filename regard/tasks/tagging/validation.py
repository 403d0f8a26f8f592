"""How good the model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.models.schuster import Tagger
from regard.symbols import PAD
from regard.tasks.tagging.columns import Tagged
from regard.tasks.tagging.examples import Examples
from regard.tasks.tagging.measures import figures, measure
from regard.tasks.tagging.prediction import written
from regard.tasks.tagging.tagging import choose
from regard.tasks.tagging.vocabulary import Vocabulary
from regard.tasks.task import Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5


class Sample(NamedTuple):
    """A sentence of the dev set as the model tags it now."""

    right: str
    tagged: str

    def told(self) -> dict[str, str]:
        """The right tags and the model's."""
        return {"right": self.right, "tagged": self.tagged}

    def picture(self) -> Figure | None:
        """None: there is no attention."""
        return None


class Validator:
    """The dev set, encoded once: cross-entropy per word of all of it, and figures of its first `measured` sentences."""

    def __init__(self, dev: Sequence[Tagged], vocabulary: Vocabulary, batch_tokens: int, measured: int) -> None:
        self.dev = dev
        self.vocabulary = vocabulary
        self.batch_tokens = batch_tokens
        self.measured = min(measured, len(dev))
        self.examples = Examples(dev, vocabulary)

    def __call__(self, model: Tagger, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        chosen = choose(model, self.examples, device, self.batch_tokens)
        model.train(training)
        names = self.vocabulary.labels
        found = [[names[label - PAD - 1] for label in one.labels] for one in chosen[: self.measured]]
        gold = [sentence.labels for sentence in self.dev[: self.measured]]
        known = int((self.examples.target.numbers != PAD).sum())
        loss = sum(one.loss for one in chosen) / max(1, known)
        told = {name: value for name, value in figures(gold, found, names).items() if isinstance(value, float)}
        both = zip(self.dev[:SAMPLES], found, strict=False)
        samples = [Sample(written(one.rows, one.labels), written(one.rows, labels)) for one, labels in both]
        return Validation(loss, told, measure(names), samples)
