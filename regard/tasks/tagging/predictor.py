"""Tagging inference: tags with their probabilities; and the metrics accuracy and chunk F1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.config import parse_settings
from regard.data.indexed_dataset import Indices
from regard.data.readers.text import iterate_lines
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
    """The words of a sentence, with the predicted tag of each and its probability."""

    words: tuple[WordColumns, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]

    def to_text(self) -> str:
        """Return `word/TAG`, separated by spaces."""
        return format_tagged_words(self.words, self.tags)

    def to_dict(self) -> dict[str, Any]:
        """Return words, tags and probabilities."""
        words = [row[0] for row in self.words]
        return {"words": words, "tags": list(self.tags), "probabilities": list(self.probabilities)}

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return an empty list: the model has no attention."""
        return []

    def make_image_overlay(self) -> None:
        """Return None: the input is text."""
        return


def format_tagged_words(words: Sequence[WordColumns], labels: Sequence[str]) -> str:
    """Format words and labels as one line."""
    return " ".join(f"{row[0]}/{label}" for row, label in zip(words, labels, strict=True))


class TaggerOutput(NamedTuple):
    """Predicted label ids and their probabilities for the words of a sentence."""

    labels: list[int]
    probabilities: list[float]
    loss: float  # summed over words with a known label


@torch.inference_mode()
def run_tagger(model: Tagger, dataset: TaggingDataset, device: torch.device, batch_tokens: int) -> list[TaggerOutput]:
    """Return the most probable label of each word, sentence by sentence, in order."""

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
    """Return the metric that chooses the best checkpoint: `f1` for chunk labels, else `accuracy`."""
    return "f1" if are_chunk_labels(labels) else "accuracy"


def _compute_label_accuracy(gold: Sequence[_LabelSequence], predicted: Sequence[_LabelSequence]) -> float:
    """Return the percentage of words with the correct label."""
    pairs = [pair for sides in zip(gold, predicted, strict=True) for pair in zip(*sides, strict=True)]
    return 100.0 * sum(reference == prediction for reference, prediction in pairs) / max(1, len(pairs))


def compute_tagging_metrics(
    gold: Sequence[_LabelSequence], predicted: Sequence[_LabelSequence], labels: _LabelSequence
) -> dict[str, Any]:
    """Return accuracy; and for chunk labels precision, recall and F1, overall and by chunk type."""
    metrics: dict[str, Any] = {"accuracy": _compute_label_accuracy(gold, predicted)}
    if choose_tagging_metric(labels) == "f1":
        by_kind = count_chunks(gold, predicted)
        total = sum_chunk_counts(by_kind.values())
        metrics |= {"precision": total.precision, "recall": total.recall, "f1": total.f1}
        metrics["f1_by_kind"] = {kind: counts.f1 for kind, counts in by_kind.items()}
    return metrics


_BATCH_TOKENS = 4000

# Text with spaces between words; a list of words; or a list of words with their other columns.
TaggingInput = str | Sequence[str | Sequence[str]]


class TaggingPredictor:
    """A tagger with its vocabulary; `data` names the input columns."""

    def __init__(
        self, model: Model, vocabulary: TaggingVocabulary, data: TagDataSettings, device: torch.device
    ) -> None:
        self.device = device
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.data = data

    def predict(self, inputs: Sequence[TaggingInput]) -> list[TaggingPrediction]:
        """Return the tags of each sentence, in order; an empty sentence has none.

        A sentence is text with spaces between its words, or a list of words. If the model reads other columns as well
        (`data.inputs`), it is a list of words with these: `[("Confidence", "NN"), ("in", "IN")]`.
        """
        return self._tag_sentences([self.parse_json_input(given) for given in require_list(inputs, "sentence")])

    def parse_json_input(self, given: Any) -> tuple[WordColumns, ...]:
        """Validate text or a list of words, each with the other input columns, and return it as tuples."""
        if not isinstance(given, str | list | tuple):
            raise UserError(f"a sentence must be text or a list of words, not {short_repr(given)}")
        words = given.split() if isinstance(given, str) else given
        rows = tuple(tuple(word) if isinstance(word, list | tuple) else (word,) for word in words)
        inputs = self.data.inputs or ()
        for row in rows:
            if len(row) != 1 + len(inputs) or not all(isinstance(one, str) and one.strip() for one in row):
                wanted = ", ".join(["its text", *(f"column {column}" for column in inputs)])
                raise UserError(f"for each word this model reads {wanted}, not {short_repr(row)}")
        return rows

    def _tag_sentences(self, sentences: Sequence[tuple[WordColumns, ...]]) -> list[TaggingPrediction]:
        nonempty = [TaggedSentence(rows, ("",) * len(rows)) for rows in sentences if rows]
        outputs = iter(run_tagger(self.model, TaggingDataset(nonempty, self.vocabulary), self.device, _BATCH_TOKENS))
        return [
            self._make_prediction(rows, *next(outputs)[:2]) if rows else TaggingPrediction((), (), ())
            for rows in sentences
        ]

    def _make_prediction(
        self, words: tuple[WordColumns, ...], labels: Sequence[int], probabilities: Sequence[float]
    ) -> TaggingPrediction:
        names = self.vocabulary.labels
        return TaggingPrediction(words, tuple(names[label - PAD - 1] for label in labels), tuple(probabilities))

    def parse_lines(self, lines: Iterable[str]) -> Iterator[tuple[WordColumns, ...]]:
        """Yield sentences: one a line, words between white space; or CoNLL-U, or columns if the model reads them."""
        return parse_untagged_sentences(lines, self.data)

    def read_inputs(self, path: Path) -> Iterator[tuple[WordColumns, ...]]:
        """Yield the sentences of a file, in the formats of `parse_lines`."""
        return parse_untagged_sentences(iterate_lines(path), self.data, path)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return accuracy on labelled files, and chunk scores if the labels mark chunks."""
        gold = list(read_tagged_sentences(paths, self.data))
        if not gold:
            raise UserError(f"{' and '.join(map(str, paths))}: no sentences to score on")
        predicted = [prediction.tags for prediction in self._tag_sentences([sentence.words for sentence in gold])]
        gold_labels = [sentence.labels for sentence in gold]
        counts = {"sentences": len(gold), "words": sum(map(len, gold_labels))}
        return counts | compute_tagging_metrics(gold_labels, predicted, self.vocabulary.labels)


def load(*runs: str | Path, device: str | torch.device | None = None) -> TaggingPredictor:
    """Load the best checkpoint of a run for tagging; by default on a GPU if there is one."""
    run = get_single_run(runs, "tags")
    config = run.read_config()
    data = parse_settings(TagDataSettings, config["data"], "data")
    vocabulary = load_tagging_vocabulary(run, data)
    return TaggingPredictor(
        run.load_model(vocabulary.vocabulary_sizes), vocabulary, data, choose_inference_device(device)
    )


def load_tagging_vocabulary(run: Run, data: TagDataSettings) -> TaggingVocabulary:
    """Load the vocabulary of a run, and check it against the input columns of `data`."""
    settings = parse_settings(TagTextSettings, run.read_config()["text"], "text")
    return TaggingVocabulary.load(run.folder / "tokenizer", settings, data.inputs or ())
