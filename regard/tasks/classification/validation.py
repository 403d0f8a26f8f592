"""How good the model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.evaluate import Confusion
from regard.models import Classifier
from regard.plot import shaded
from regard.tasks.classification.files import Example
from regard.tasks.classification.outputs import cross_entropy, outputs
from regard.tasks.classification.prediction import Classification, classification
from regard.tasks.classification.texts import Texts
from regard.tasks.task import Validation
from regard.text import Labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5


class Sample(NamedTuple):
    """A text of the dev set as the model labels it now."""

    text: str
    label: str
    chosen: Classification

    def told(self) -> dict[str, str]:
        """The text, its label, and the model's choice."""
        return {"text": self.text, "label": self.label, "chosen": self.chosen.line().replace("\t", " ")}

    def picture(self) -> Figure | None:
        """The words, shaded."""
        lines = self.chosen.looks()
        return shaded(lines) if lines else None


class Validator:
    """Cross-entropy, accuracy and macro-F1 on texts of the dev set."""

    def __init__(self, examples: Sequence[Example], texts: Texts, labels: Labels, batch_tokens: int) -> None:
        self.examples = examples
        self.texts = texts
        self.labels = labels
        self.batch_tokens = batch_tokens

    def __call__(self, model: Classifier, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        found = outputs(model, self.texts, device, self.batch_tokens)
        model.train(training)
        scores, right = np.stack([output.log_probs for output in found]), self.texts.labels
        if not np.isfinite(scores).all():
            raise ArithmeticError("the model gives labels probabilities that are no numbers")
        confusion = Confusion.of(right.tolist(), scores.argmax(1).tolist())
        figures = {"accuracy": confusion.accuracy, "macro_f1": confusion.macro_f1}
        encoding = self.texts.encoding
        samples = [
            Sample(
                self.examples[row].text,
                self.examples[row].label,
                classification(
                    found[row], self.texts.document(row), self.labels, encoding.tokenizer, encoding.by_sentence
                ),
            )
            for row in range(min(SAMPLES, len(found)))
        ]
        return Validation(cross_entropy(scores, right), figures, "accuracy", samples)
