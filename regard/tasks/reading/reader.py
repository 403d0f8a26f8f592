"""A trained reader at work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.config import parse
from regard.data.files import lines, name_of
from regard.errors import UserError, shown
from regard.models.cui import Reader as Model
from regard.tasks.asking import several
from regard.tasks.loading import only, where
from regard.tasks.reading import files
from regard.tasks.reading.answer import Answer, answers
from regard.tasks.reading.cloze import cloze, most_frequent
from regard.tasks.reading.question import FORM, Question, question
from regard.tasks.reading.settings import ClozeSettings
from regard.tasks.reading.validation import accuracy, loss
from regard.tasks.reading.vocabulary import load_vocabulary
from regard.text import Words


class Reader:
    """Fills blanks."""

    def __init__(self, model: Model, vocabulary: Words, blank: str, batch_tokens: int, device: torch.device) -> None:
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.blank = blank
        self.batch_tokens = batch_tokens
        self.device = device

    def predict(self, inputs: Sequence[Question | Mapping[str, Any]]) -> list[Answer]:
        """An answer for each question, in order; a question is a mapping as in a line of JSON."""
        asked = [one if isinstance(one, Question) else self.asked(one) for one in several(inputs, "question")]
        lowercase, version = self.vocabulary.lowercase, self.vocabulary.version
        clozes = [cloze(one, self.blank, lowercase, version) for one in asked]
        return answers(self.model, clozes, self.vocabulary, self.blank, self.batch_tokens, self.device)

    def asked(self, given: Any) -> Question:
        """A question as in a line of JSON."""
        if not isinstance(given, Mapping):
            raise UserError(f"a question is {FORM}, not {shown(given)}")
        return question(given, self.blank)

    def read(self, lines: Iterable[str]) -> Iterator[Question]:
        """The questions that lines hold, with their answers or without."""
        return files.read(lines, self.blank)

    def inputs(self, path: Path) -> Iterator[Question]:
        """Those of a file."""
        return files.read(lines(path), self.blank, name_of(path))

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Accuracy, beside that of the candidate which the document has most often."""
        asked = files.questions(paths, self.blank)
        for one in asked:
            if one.answer is None:
                raise one.wrong("there is no answer, and nothing to hold the model to")
        made = self.predict(asked)
        frequent = [most_frequent(one.asked) == one.asked.answer for one in made]
        return {
            "questions": len(made),
            "accuracy": accuracy(made),
            "most_frequent": 100 * sum(frequent) / len(frequent),
            "loss": loss(made),
        }


def load(*runs: str | Path, device: str | None = None) -> Reader:
    """The best model of a run, on a GPU where there is one."""
    run = only(runs, "reads")
    config = run.config()
    vocabulary = load_vocabulary(run)
    data = parse(ClozeSettings, config["data"], "data")
    model = run.model((vocabulary.size, vocabulary.size))
    return Reader(model, vocabulary, data.blank, int(config["training"]["batch_tokens"]), where(device))
