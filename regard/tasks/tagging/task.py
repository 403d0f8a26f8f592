"""The tagging task: data preparation, dev split, and validation with loss, accuracy and chunk F1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.models.schuster1997 import Tagger
from regard.recipes import RunConfig
from regard.runs import Run
from regard.special_tokens import PAD
from regard.tasks.base import DevExample, PreparedRun, Validation, find_vocabulary_run, split_dev_examples
from regard.tasks.tagging.conll import TagDataSettings, TaggedSentence, TagTextSettings, read_tagged_sentences
from regard.tasks.tagging.dataset import TaggingDataset, TaggingVocabulary
from regard.tasks.tagging.predictor import (
    choose_tagging_metric,
    compute_tagging_metrics,
    format_tagged_words,
    load_tagging_vocabulary,
    run_tagger,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SAMPLES = 5


class TaggingSample(NamedTuple):
    """A dev sentence with its reference tags and the current prediction."""

    reference: str
    predicted: str

    def to_dict(self) -> dict[str, str]:
        """Return reference and predicted tags."""
        return {"right": self.reference, "tagged": self.predicted}

    def plot(self) -> Figure | None:
        """Return None: the model has no attention."""
        return None


class TaggingValidator:
    """Validate on the dev set: cross-entropy per word of all of it, metrics of the first `num_measured` sentences."""

    def __init__(
        self, dev: Sequence[TaggedSentence], vocabulary: TaggingVocabulary, batch_tokens: int, num_measured: int
    ) -> None:
        self.dev = dev
        self.vocabulary = vocabulary
        self.batch_tokens = batch_tokens
        self.num_measured = min(num_measured, len(dev))
        self.dataset = TaggingDataset(dev, vocabulary)

    def __call__(self, model: Tagger, device: torch.device) -> Validation:
        """Return the metrics of a model; leave the model and the random generators unchanged."""
        training = model.training
        model.eval()
        outputs = run_tagger(model, self.dataset, device, self.batch_tokens)
        model.train(training)
        names = self.vocabulary.labels
        predicted = [[names[label - PAD - 1] for label in output.labels] for output in outputs[: self.num_measured]]
        gold = [sentence.labels for sentence in self.dev[: self.num_measured]]
        num_known = int((self.dataset.target.values != PAD).sum())
        loss = sum(output.loss for output in outputs) / max(1, num_known)
        metrics = {
            name: value
            for name, value in compute_tagging_metrics(gold, predicted, names).items()
            if isinstance(value, float)
        }
        pairs = zip(self.dev[:SAMPLES], predicted, strict=False)
        samples = [
            TaggingSample(format_tagged_words(one.words, one.labels), format_tagged_words(one.words, labels))
            for one, labels in pairs
        ]
        return Validation(loss, metrics, choose_tagging_metric(names), samples)


class _TaggingSplit(NamedTuple):
    """Training and dev sentences, and how many were left out as too long."""

    train: list[TaggedSentence]
    dev: list[TaggedSentence]
    too_long: int


def prepare_tagging(run: Run, config: RunConfig, resume: bool) -> PreparedRun:
    """Read and split the sentences, and build or load the vocabulary."""
    data: TagDataSettings = config.data
    text: TagTextSettings = config.text
    training, parent = config.training, find_vocabulary_run(run, config, resume)
    split = split_tagging_data(data, training.seed)
    if parent:
        vocabulary = load_tagging_vocabulary(parent, data)
    else:
        vocabulary = TaggingVocabulary.learn(split.train, text, data.inputs or ())
        if len(vocabulary.labels) < 2:
            raise UserError(f"every word has the label {vocabulary.labels[0]!r}: a tagger needs at least two labels")
    new_labels = sorted({label for sentence in split.train for label in sentence.labels} - set(vocabulary.labels))
    if new_labels:
        known = ", ".join(vocabulary.labels)
        folder = parent.folder if parent else run.folder
        raise UserError(f"{folder} does not know the label {new_labels[0]!r}; it chooses from {known}")
    return PreparedRun(
        run,
        config,
        TaggingDataset(split.train, vocabulary, text.dropout),
        TaggingValidator(split.dev, vocabulary, training.batch_tokens, training.validate_pairs),
        vocabulary.vocabulary_sizes,
        vocabulary.save,
        _describe_tagging_data(split, vocabulary),
    )


def split_tagging_data(data: TagDataSettings, seed: int) -> _TaggingSplit:
    """Read the sentences; without a dev set, hold out sentences by a hash of their words."""
    if not data.train:
        raise UserError("nothing to train on: name files with a word and its label on each line")
    sentences = _read_all_sentences(data.train, data)
    if data.dev:
        train, dev = sentences, _read_all_sentences(data.dev, data)
    else:
        too_few_message = (
            "all sentences are equal"
            if len(sentences) > 1
            else "there is only one sentence (a blank line ends a sentence)"
        )
        train, dev = split_dev_examples(sentences, _sentence_to_pair, seed, data.dev_sentences, too_few_message)
    short_enough = [sentence for sentence in train if len(sentence.words) <= data.max_length]
    if not short_enough:
        raise UserError(f"nothing to train on: all sentences have more than {data.max_length} words (data.max_length)")
    return _TaggingSplit(short_enough, dev, len(train) - len(short_enough))


def _read_all_sentences(names: Sequence[str], data: TagDataSettings) -> list[TaggedSentence]:
    sentences = list(read_tagged_sentences([Path(name) for name in names], data))
    if not sentences:
        raise UserError(f"{' and '.join(names)}: no sentences found")
    return sentences


def _sentence_to_pair(sentence: TaggedSentence) -> Pair:
    """Return (words, labels), so that the dev set is split by words."""
    return Pair("\n".join(map("\t".join, sentence.words)), "\n".join(sentence.labels))


def load_tagging_dev_set(config: RunConfig) -> list[DevExample]:
    """Return the dev sentences of a run."""
    return [
        DevExample(sentence.words, format_tagged_words(sentence.words, sentence.labels))
        for sentence in split_tagging_data(config.data, config.training.seed).dev
    ]


def _describe_tagging_data(split: _TaggingSplit, vocabulary: TaggingVocabulary) -> str:
    left_out = f" (left out: {split.too_long} too long)" if split.too_long else ""
    words, labels = vocabulary.vocabulary_sizes
    return (
        f"{len(split.train):,} sentences{left_out}, {len(split.dev):,} dev sentences, "
        f"{words - 1:,} features, {labels - 1:,} labels"
    )
