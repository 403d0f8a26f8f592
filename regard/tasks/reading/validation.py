"""How good a reader is on the dev set."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.models.cui import Reader
from regard.plot import shaded
from regard.tasks.reading.answer import Answer, answers
from regard.tasks.reading.cloze import Cloze
from regard.tasks.task import Validation
from regard.text import Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5


class Sample(NamedTuple):
    """A question of the dev set as the model answers it now."""

    made: Answer

    def told(self) -> dict[str, str]:
        """Query, the right answer, and the model's."""
        asked = self.made.asked
        right = "" if asked.answer is None else asked.candidates[asked.answer]
        return {"query": " ".join(asked.query), "right": right, "answer": self.made.text}

    def picture(self) -> Figure | None:
        """The document and the query, shaded."""
        return shaded(self.made.looks())


class Validator:
    """Questions with their answers: −log P(answer), and how many are answered rightly, in per cent."""

    def __init__(self, clozes: Sequence[Cloze], vocabulary: Words, blank: str, batch_tokens: int) -> None:
        self.clozes = clozes
        self.vocabulary = vocabulary
        self.blank = blank
        self.batch_tokens = batch_tokens

    def __call__(self, model: Reader, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        made = answers(model, self.clozes, self.vocabulary, self.blank, self.batch_tokens, device)
        model.train(training)
        return Validation(loss(made), {"accuracy": accuracy(made)}, "accuracy", [Sample(one) for one in made[:SAMPLES]])


def accuracy(made: Sequence[Answer]) -> float:
    """How many of a hundred answers are right."""
    return 100 * sum(one.number == one.asked.answer for one in made) / max(1, len(made))


def loss(made: Sequence[Answer]) -> float:
    """The mean of −log P(answer), of questions whose answer is in the document: of others it has no end."""
    right = [one.right for one in made if one.right is not None]
    return sum(-math.log(max(one, sys.float_info.min)) for one in right) / max(1, len(right))
