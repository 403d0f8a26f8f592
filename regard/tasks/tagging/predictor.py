"""A sentence with the tags that a model gave it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text_io import iterate_lines
from regard.errors import UserError, short_repr
from regard.evaluate import are_chunk_labels, count_chunks, sum_chunk_counts
from regard.models.schuster1997 import Tagger
from regard.models.schuster1997 import Tagger as Model
from regard.plot import WeightedWords
from regard.runs import Run
from regard.special_tokens import PAD
from regard.tasks.base import choose_inference_device, get_single_run, map_batches_in_order, require_list
from regard.tasks.tagging.conll import (
    TagDataSettings,
    TaggedSentence,
    TagTextSettings,
    WordColumns,
    parse_untagged_sentences,
    read_tagged_sentences,
)
from regard.tasks.tagging.dataset import TaggingDataset, TaggingVocabulary


class TaggingPrediction(NamedTuple):
    """The words of a sentence, the tag of each, and how probable the model holds it to be."""

    words: tuple[WordColumns, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]

    def to_text(self) -> str:
        """`word/TAG`, with a space between."""
        return format_tagged_words(self.words, self.tags)

    def to_dict(self) -> dict[str, Any]:
        """Words, tags and probabilities."""
        words = [row[0] for row in self.words]
        return {"words": words, "tags": list(self.tags), "probabilities": list(self.probabilities)}

    def make_attention_lines(self) -> list[WeightedWords]:
        """Nothing: there is no attention."""
        return []

    def make_image_overlay(self) -> None:
        """There is no image."""
        return


def format_tagged_words(words: Sequence[WordColumns], labels: Sequence[str]) -> str:
    """Words with their labels in one line."""
    return " ".join(f"{row[0]}/{label}" for row, label in zip(words, labels, strict=True))


class TaggerOutput(NamedTuple):
    """What a model chose for the words of a sentence."""

    labels: list[int]
    probabilities: list[float]
    loss: float  # summed up over the words whose label is known


@torch.inference_mode()
def run_tagger(model: Tagger, dataset: TaggingDataset, device: torch.device, batch_tokens: int) -> list[TaggerOutput]:
    """The most probable label of each word, sentence by sentence, in order; in batches of about one length."""

    def tag_batch(rows: Indices) -> list[TaggerOutput]:
        batch = dataset.make_batch(rows).to(device)
        logits = model(batch.source, batch.lengths).float()
        best = logits[..., PAD + 1 :].softmax(-1).max(-1)
        losses = F.cross_entropy(logits.transpose(1, 2), batch.target, ignore_index=PAD, reduction="none").sum(1)
        columns = (best.indices, best.values, losses, batch.lengths)
        return [
            TaggerOutput([label + PAD + 1 for label in labels[:size]], probabilities[:size], loss)
            for labels, probabilities, loss, size in zip(*(column.tolist() for column in columns), strict=True)
        ]

    return map_batches_in_order(tag_batch, dataset.sizes, batch_tokens)


_LabelSequence = Sequence[str]


def choose_tagging_metric(labels: _LabelSequence) -> str:
    """What counts for a model that chooses from these labels."""
    return "f1" if are_chunk_labels(labels) else "accuracy"


def _compute_label_accuracy(gold: Sequence[_LabelSequence], predicted: Sequence[_LabelSequence]) -> float:
    """Words with the right label, in per cent."""
    pairs = [pair for sides in zip(gold, predicted, strict=True) for pair in zip(*sides, strict=True)]
    return 100.0 * sum(right == made for right, made in pairs) / max(1, len(pairs))


def compute_tagging_metrics(
    gold: Sequence[_LabelSequence], predicted: Sequence[_LabelSequence], labels: _LabelSequence
) -> dict[str, Any]:
    """Accuracy, and where a model's labels mark chunks precision, recall and F1, that of each kind as well."""
    measured: dict[str, Any] = {"accuracy": _compute_label_accuracy(gold, predicted)}
    if choose_tagging_metric(labels) == "f1":
        by_kind = count_chunks(gold, predicted)
        whole = sum_chunk_counts(by_kind.values())
        measured |= {"precision": whole.precision, "recall": whole.recall, "f1": whole.f1}
        measured["f1_by_kind"] = {kind: counts.f1 for kind, counts in by_kind.items()}
    return measured


_BATCH_TOKENS = 4000

TaggingInput = (
    str | Sequence[str | Sequence[str]]
)  # words with spaces between; words; or each word with its other columns


class TaggingPredictor:
    """A model with its vocabulary; `data` says what it reads of a word."""

    def __init__(
        self, model: Model, vocabulary: TaggingVocabulary, data: TagDataSettings, device: torch.device
    ) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.data = data

    def predict(self, inputs: Sequence[TaggingInput]) -> list[TaggingPrediction]:
        """The tags of each sentence, in order; one without words has none.

        A sentence is text with spaces between its words, or a list of words; where the model reads other columns as
        well (`data.inputs`), a list of words with these: `[("Confidence", "NN"), ("in", "IN")]`.
        """
        return self._tag_sentences([self.parse_json_input(given) for given in require_list(inputs, "sentence")])

    def parse_json_input(self, given: Any) -> tuple[WordColumns, ...]:
        """Text, or a list of words, each with what else is read of it."""
        if not isinstance(given, str | list | tuple):
            raise UserError(f"a sentence is text or a list of words, not {short_repr(given)}")
        words = given.split() if isinstance(given, str) else given
        rows = tuple(tuple(word) if isinstance(word, list | tuple) else (word,) for word in words)
        inputs = self.data.inputs or ()
        for row in rows:
            if len(row) != 1 + len(inputs) or not all(isinstance(one, str) and one.strip() for one in row):
                wanted = ", ".join(["its text", *(f"column {column}" for column in inputs)])
                raise UserError(f"of a word this model reads {wanted}, not {short_repr(row)}")
        return rows

    def _tag_sentences(self, sentences: Sequence[tuple[WordColumns, ...]]) -> list[TaggingPrediction]:
        """The tags of sentences that were read."""
        nonempty = [TaggedSentence(rows, ("",) * len(rows)) for rows in sentences if rows]
        chosen = iter(run_tagger(self.model, TaggingDataset(nonempty, self.vocabulary), self.device, _BATCH_TOKENS))
        return [
            self._make_prediction(rows, *next(chosen)[:2]) if rows else TaggingPrediction((), (), ())
            for rows in sentences
        ]

    def _make_prediction(
        self, words: tuple[WordColumns, ...], labels: Sequence[int], probabilities: Sequence[float]
    ) -> TaggingPrediction:
        """What the model chose, by its names."""
        names = self.vocabulary.labels
        return TaggingPrediction(words, tuple(names[label - PAD - 1] for label in labels), tuple(probabilities))

    def parse_lines(self, lines: Iterable[str]) -> Iterator[tuple[WordColumns, ...]]:
        """A sentence a line, words between white space; or CoNLL-U, or, where more than words is read, columns."""
        return parse_untagged_sentences(lines, self.data)

    def read_inputs(self, path: Path) -> Iterator[tuple[WordColumns, ...]]:
        """The same of a file."""
        return parse_untagged_sentences(iterate_lines(path), self.data, path)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Accuracy on files with labels, and what chunks score where these are what labels mark."""
        gold = list(read_tagged_sentences(paths, self.data))
        if not gold:
            raise UserError(f"{' and '.join(map(str, paths))}: no sentences in there, nothing to score on")
        found = [made.tags for made in self._tag_sentences([sentence.words for sentence in gold])]
        right = [sentence.labels for sentence in gold]
        counts = {"sentences": len(gold), "words": sum(map(len, right))}
        return counts | compute_tagging_metrics(right, found, self.vocabulary.labels)


def load(*runs: str | Path, device: str | torch.device | None = None) -> TaggingPredictor:
    """The best model of a run, ready to tag."""
    run = get_single_run(runs, "tags")
    config = run.read_config()
    data = parse_settings(TagDataSettings, config["data"], "data")
    vocabulary = load_tagging_vocabulary(run, data)
    return TaggingPredictor(
        run.load_model(vocabulary.vocabulary_sizes), vocabulary, data, choose_inference_device(device)
    )


def load_tagging_vocabulary(run: Run, data: TagDataSettings) -> TaggingVocabulary:
    """The vocabulary of a run, for what `data` asks to be read."""
    settings = parse_settings(TagTextSettings, run.read_config()["text"], "text")
    return TaggingVocabulary.load(run.folder / "tokenizer", settings, data.inputs or ())
