"""Sentences in, tags out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.config import parse
from regard.data.files import lines
from regard.errors import UserError, shown
from regard.models.schuster import Tagger as Model
from regard.runs import Run
from regard.symbols import PAD
from regard.tasks.asking import several
from regard.tasks.loading import only, where
from regard.tasks.tagging.columns import Row, Tagged, read, unlabelled
from regard.tasks.tagging.examples import Examples
from regard.tasks.tagging.measures import figures
from regard.tasks.tagging.prediction import Tags
from regard.tasks.tagging.settings import TagDataSettings, TagTextSettings
from regard.tasks.tagging.tagging import choose
from regard.tasks.tagging.vocabulary import Vocabulary

BATCH_TOKENS = 4000

Input = str | Sequence[str | Sequence[str]]  # words with spaces between; words; or each word with its other columns


class Tagger:
    """A model with its vocabulary; `data` says what it reads of a word."""

    def __init__(self, model: Model, vocabulary: Vocabulary, data: TagDataSettings, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.data = data

    def predict(self, inputs: Sequence[Input]) -> list[Tags]:
        """The tags of each sentence, in order; one without words has none.

        A sentence is text with spaces between its words, or a list of words; where the model reads other columns as
        well (`data.inputs`), a list of words with these: `[("Confidence", "NN"), ("in", "IN")]`.
        """
        return self.tagged([self.asked(given) for given in several(inputs, "sentence")])

    def asked(self, given: Any) -> tuple[Row, ...]:
        """Text, or a list of words, each with what else is read of it."""
        if not isinstance(given, str | list | tuple):
            raise UserError(f"a sentence is text or a list of words, not {shown(given)}")
        words = given.split() if isinstance(given, str) else given
        rows = tuple(tuple(word) if isinstance(word, list | tuple) else (word,) for word in words)
        inputs = self.data.inputs or ()
        for row in rows:
            if len(row) != 1 + len(inputs) or not all(isinstance(one, str) and one.strip() for one in row):
                wanted = ", ".join(["its text", *(f"column {column}" for column in inputs)])
                raise UserError(f"of a word this model reads {wanted}, not {shown(row)}")
        return rows

    def tagged(self, sentences: Sequence[tuple[Row, ...]]) -> list[Tags]:
        """The tags of sentences that were read."""
        spoken = [Tagged(rows, ("",) * len(rows)) for rows in sentences if rows]
        chosen = iter(choose(self.model, Examples(spoken, self.vocabulary), self.device, BATCH_TOKENS))
        return [self.answer(rows, *next(chosen)[:2]) if rows else Tags((), (), ()) for rows in sentences]

    def answer(self, rows: tuple[Row, ...], labels: Sequence[int], probabilities: Sequence[float]) -> Tags:
        """What the model chose, by its names."""
        names = self.vocabulary.labels
        return Tags(rows, tuple(names[label - PAD - 1] for label in labels), tuple(probabilities))

    def read(self, lines: Iterable[str]) -> Iterator[tuple[Row, ...]]:
        """A sentence a line, words between white space; or CoNLL-U, or, where more than words is read, columns."""
        return unlabelled(lines, self.data)

    def inputs(self, path: Path) -> Iterator[tuple[Row, ...]]:
        """The same of a file."""
        return unlabelled(lines(path), self.data, path)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Accuracy on files with labels, and what chunks score where these are what labels mark."""
        gold = list(read(paths, self.data))
        if not gold:
            raise UserError(f"{' and '.join(map(str, paths))}: no sentences in there, nothing to score on")
        found = [made.tags for made in self.tagged([sentence.rows for sentence in gold])]
        right = [sentence.labels for sentence in gold]
        counts = {"sentences": len(gold), "words": sum(map(len, right))}
        return counts | figures(right, found, self.vocabulary.labels)


def load(*runs: str | Path, device: str | torch.device | None = None) -> Tagger:
    """The best model of a run, ready to tag."""
    run = only(runs, "tags")
    config = run.config()
    data = parse(TagDataSettings, config["data"], "data")
    vocabulary = saved(run, data)
    return Tagger(run.model(vocabulary.sizes), vocabulary, data, where(device))


def saved(run: Run, data: TagDataSettings) -> Vocabulary:
    """The vocabulary of a run, for what `data` asks to be read."""
    settings = parse(TagTextSettings, run.config()["text"], "text")
    return Vocabulary.load(run.folder / "tokenizer", settings, data.inputs or ())
