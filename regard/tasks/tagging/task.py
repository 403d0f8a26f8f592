"""How good the model is on the dev set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.config import parse_settings
from regard.data.sentence_pair import Pair
from regard.errors import UserError
from regard.models.schuster1997 import Tagger
from regard.recipes import Recipe
from regard.runs import Run
from regard.special_tokens import PAD
from regard.tasks.base import DevExample, PreparedRun, Validation, split_dev_examples
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
    """A sentence of the dev set as the model tags it now."""

    reference: str
    predicted: str

    def to_dict(self) -> dict[str, str]:
        """The right tags and the model's."""
        return {"right": self.reference, "tagged": self.predicted}

    def plot(self) -> Figure | None:
        """None: there is no attention."""
        return None


class TaggingValidator:
    """The dev set, encoded once: cross-entropy per word of all of it, and figures of its first `measured` sentences."""

    def __init__(
        self, dev: Sequence[TaggedSentence], vocabulary: TaggingVocabulary, batch_tokens: int, num_measured: int
    ) -> None:
        self.dev = dev
        self.vocabulary = vocabulary
        self.batch_tokens = batch_tokens
        self.num_measured = min(num_measured, len(dev))
        self.dataset = TaggingDataset(dev, vocabulary)

    def __call__(self, model: Tagger, device: torch.device) -> Validation:
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        chosen = run_tagger(model, self.dataset, device, self.batch_tokens)
        model.train(training)
        names = self.vocabulary.labels
        found = [[names[label - PAD - 1] for label in one.labels] for one in chosen[: self.num_measured]]
        gold = [sentence.labels for sentence in self.dev[: self.num_measured]]
        known = int((self.dataset.target.values != PAD).sum())
        loss = sum(one.loss for one in chosen) / max(1, known)
        metrics = {
            name: value
            for name, value in compute_tagging_metrics(gold, found, names).items()
            if isinstance(value, float)
        }
        both = zip(self.dev[:SAMPLES], found, strict=False)
        samples = [
            TaggingSample(format_tagged_words(one.words, one.labels), format_tagged_words(one.words, labels))
            for one, labels in both
        ]
        return Validation(loss, metrics, choose_tagging_metric(names), samples)


class _TaggingSplit(NamedTuple):
    """Sentences to train on, to validate on, and how many were too long."""

    train: list[TaggedSentence]
    dev: list[TaggedSentence]
    too_long: int


def prepare_tagging(run: Run, config: Recipe, resume: bool) -> PreparedRun:
    """Data and vocabulary, encoded."""
    training = config["training"]
    data = parse_settings(TagDataSettings, config["data"], "data")
    text = parse_settings(TagTextSettings, config["text"], "text")
    found = split_tagging_data(data, training["seed"])
    start = training["init_from"]
    if resume or start:
        vocabulary = load_tagging_vocabulary(run if resume else Run(Path(start)), data)
    else:
        vocabulary = TaggingVocabulary.learn(found.train, text, data.inputs or ())
        if len(vocabulary.labels) < 2:
            raise UserError(f"every word has the label {vocabulary.labels[0]!r}: there is nothing to choose from")
    new = sorted({label for one in found.train for label in one.labels} - set(vocabulary.labels))
    if new:
        known = ", ".join(vocabulary.labels)
        raise UserError(f"{start or run.folder} does not know the label {new[0]!r}; it chooses from {known}")
    return PreparedRun(
        run,
        config,
        TaggingDataset(found.train, vocabulary, text.dropout),
        TaggingValidator(found.dev, vocabulary, int(training["batch_tokens"]), int(training["validate_pairs"])),
        vocabulary.vocabulary_sizes,
        vocabulary.save,
        _describe_tagging_data(found, vocabulary),
    )


def split_tagging_data(data: TagDataSettings, seed: int) -> _TaggingSplit:
    """What is trained on, and the dev set: as it is named, or sentences that their hashes choose."""
    if not data.train:
        raise UserError("nothing to train on: name files with a word and its label on each line")
    every = _read_all_sentences(data.train, data)
    if data.dev:
        train, dev = every, _read_all_sentences(data.dev, data)
    else:
        alone = "all sentences are alike" if len(every) > 1 else "there is one sentence, which a blank line would end"
        train, dev = split_dev_examples(every, _sentence_to_pair, seed, data.dev_sentences, alone)
    short = [one for one in train if len(one.words) <= data.max_length]
    if not short:
        raise UserError(f"no sentence has at most {data.max_length} words (data.max_length), nothing to train on")
    return _TaggingSplit(short, dev, len(train) - len(short))


def _read_all_sentences(names: Sequence[str], data: TagDataSettings) -> list[TaggedSentence]:
    """All of some files, at least one."""
    found = list(read_tagged_sentences([Path(name) for name in names], data))
    if not found:
        raise UserError(f"{' and '.join(names)}: no sentences in there, nothing to work with")
    return found


def _sentence_to_pair(sentence: TaggedSentence) -> Pair:
    """Words and labels, for what is held out by its words."""
    return Pair("\n".join(map("\t".join, sentence.words)), "\n".join(sentence.labels))


def load_tagging_dev_set(run: Run) -> list[DevExample]:
    """The sentences that a run was validated on."""
    config = run.read_config()
    data = parse_settings(TagDataSettings, config["data"], "data")
    return [
        DevExample(one.words, format_tagged_words(one.words, one.labels))
        for one in split_tagging_data(data, config["training"]["seed"]).dev
    ]


def _describe_tagging_data(split: _TaggingSplit, vocabulary: TaggingVocabulary) -> str:
    """What there is to train on."""
    left_out = f" (left out: {split.too_long} too long)" if split.too_long else ""
    words, labels = vocabulary.vocabulary_sizes
    return (
        f"{len(split.train):,} sentences{left_out}, {len(split.dev):,} dev sentences, "
        f"{words - 1:,} features, {labels - 1:,} labels"
    )
