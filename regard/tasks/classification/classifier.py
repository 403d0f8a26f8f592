"""A trained model that labels texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config import parse
from regard.data.files import lines
from regard.errors import UserError, shown
from regard.evaluate import Confusion
from regard.models import Classifier as Model
from regard.tasks.asking import several
from regard.tasks.classification.files import holds_texts, read, texts
from regard.tasks.classification.outputs import Output, cross_entropy, outputs
from regard.tasks.classification.prediction import Classification, classification
from regard.tasks.classification.preparation import Vocabularies, ids, kept
from regard.tasks.classification.settings import ClassificationSettings, by_sentence
from regard.tasks.classification.texts import Encoding, Texts
from regard.tasks.loading import only, where


class Classifier:
    """A model with its vocabularies: texts in, labels out."""

    def __init__(
        self,
        model: Model,
        vocabularies: Vocabularies,
        data: ClassificationSettings,
        nested: bool,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        """`data` are the settings of the run: where a file has its labels, and how much of a text is read."""
        self.model = model.to(device).eval()
        self.labels = vocabularies.labels
        self.data = data
        self.encoding = Encoding(vocabularies.tokenizer, nested, data.language, data.max_length, data.max_sentences)
        self.batch_tokens = batch_tokens
        self.device = device

    def read(self, lines: Iterable[str]) -> Iterator[str]:
        """A line is a text."""
        yield from lines

    def inputs(self, path: Path) -> Iterator[str]:
        """The texts of a file or folder like those of training, with labels or without; of others a line is a text."""
        return (one.text for one in texts(path, self.data)) if holds_texts(path) else lines(path)

    def asked(self, given: Any) -> str:
        """Text."""
        if not isinstance(given, str):
            raise UserError(f"what is classified is text, not {shown(given)}")
        return given

    def predict(self, inputs: Sequence[str]) -> list[Classification]:
        """A label for each text, in order."""
        encoded = [self.encoding(self.asked(text)) for text in several(inputs, "text")]
        texts = Texts(encoded, [0] * len(encoded), self.encoding)
        tokenizer, nested = self.encoding.tokenizer, self.encoding.by_sentence
        return [
            classification(output, texts.document(row), self.labels, tokenizer, nested)
            for row, output in enumerate(self.outputs(texts))
        ]

    def outputs(self, texts: Texts) -> list[Output]:
        """What the model says of encoded texts."""
        return outputs(self.model, texts, self.device, self.batch_tokens)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Accuracy, macro-F1, figures of each label, and which labels were taken for which."""
        examples = list(read(paths, self.data))
        if not examples:
            raise UserError(f"{' and '.join(map(str, paths))}: no texts in there, nothing to score on")
        right = ids(examples, self.labels)
        texts = Texts([self.encoding(one.text) for one in examples], right, self.encoding)
        scores = np.stack([output.log_probs for output in self.outputs(texts)])
        confusion = Confusion.of(right, scores.argmax(1).tolist())
        return {
            "texts": len(examples),
            "accuracy": confusion.accuracy,
            "macro_f1": confusion.macro_f1,
            "loss": cross_entropy(scores, texts.labels),
            "labels": {self.labels.name(id): confusion.figures(id)._asdict() for id in confusion.labels},
            "confusion": {
                self.labels.name(id): {self.labels.name(other): count for other, count in row.items()}
                for id, row in confusion.rows.items()
            },
        }


def load(*runs: str | Path, device: str | None = None) -> Classifier:
    """The best model of a run, ready to label texts, on a GPU where there is one."""
    run = only(runs, "classifies")
    config = run.config()
    vocabularies = kept(run)
    model = run.model((vocabularies.tokenizer.size, vocabularies.labels.size))
    return Classifier(
        model,
        vocabularies,
        parse(ClassificationSettings, config["data"], "data"),
        by_sentence(config),
        int(config["training"]["batch_tokens"]),
        where(device),
    )
