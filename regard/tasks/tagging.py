"""Sequence tagging: a label for each word of a sentence (part-of-speech tags, named entities, chunks)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.dataset import Indices, RaggedArray, SequenceBatch, TrainingDataset, hash_arrays, pad_rows
from regard.data.readers.text import Pair
from regard.data.tagging import (
    UNKNOWN,
    TagDataSettings,
    TaggedSentence,
    TaggingVocabulary,
    TagTextSettings,
    WordColumns,
    parse_untagged_sentences,
    read_tagged_sentences,
    read_unlabelled_words,
)
from regard.errors import UserError, short_repr
from regard.evaluate.label_metrics import are_chunk_labels, count_chunks, sum_chunk_counts
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.special_tokens import PAD
from regard.synthetic.corpora import write_tagging_corpus
from regard.tasks.base import DevExample, InMemoryTask, Prediction, Predictor, Split, ValidationSample, require_list


@dataclass(frozen=True)
class TaggingBatch(SequenceBatch):
    """A batch of B right-padded sentences, (B, S, F): the feature ids of each word."""

    target: Tensor  # (B, S), label ids

    @property
    def num_targets(self) -> int:
        """Number of labels, which the loss is averaged over."""
        return int((self.target != PAD).sum())


class TaggingDataset(TrainingDataset):
    """Encoded sentences; with word dropout, a fraction `dropout` of the words becomes unknown at random."""

    def __init__(
        self, sentences: Sequence[TaggedSentence], vocabulary: TaggingVocabulary, dropout: float = 0.0
    ) -> None:
        self.source = RaggedArray.from_rows(vocabulary.encode(sentence.words) for sentence in sentences)
        self.target = RaggedArray.from_rows(vocabulary.encode_labels(sentence.labels) for sentence in sentences)
        self.vocabulary = vocabulary
        self.dropout = dropout
        self.sizes = self.target.lengths.astype(np.int32)
        self.fingerprint = hash_arrays(self.source, self.target)

    def make_batch(self, rows: Indices, seed: int = 0) -> TaggingBatch:
        """Return the sentences at `rows`; `seed` determines word dropout."""
        num_features = len(self.vocabulary.feature_ids)
        source = pad_rows(self.source, rows)[0].reshape(len(rows), -1, num_features)
        if self.dropout:
            dropped = np.random.default_rng(seed).random(source.shape[:2]) < self.dropout
            source[..., 0][dropped & (source[..., 0] != PAD)] = self.vocabulary.feature_ids[0][UNKNOWN]
        target, lengths = pad_rows(self.target, rows)
        return TaggingBatch(*map(torch.from_numpy, (source, lengths, target)))


@dataclass(frozen=True)
class TaggingPrediction(Prediction):
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


def format_tagged_words(words: Sequence[WordColumns], labels: Sequence[str]) -> str:
    """Format words and labels as one line."""
    return " ".join(f"{row[0]}/{label}" for row, label in zip(words, labels, strict=True))


def compute_tagging_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, Any]:
    """Return accuracy; and for chunk labels precision, recall and F1, overall and by chunk type."""
    pairs = [pair for sides in zip(gold, predicted, strict=True) for pair in zip(*sides, strict=True)]
    num_correct = sum(reference == prediction for reference, prediction in pairs)
    metrics: dict[str, Any] = {"accuracy": 100.0 * num_correct / max(1, len(pairs))}
    if are_chunk_labels(labels):
        by_kind = count_chunks(gold, predicted)
        total = sum_chunk_counts(by_kind.values())
        metrics |= total.to_dict()
        metrics["f1_by_kind"] = {kind: counts.f1 for kind, counts in by_kind.items()}
    return metrics


# Text with spaces between words; a list of words; or a list of words with their other columns.
TaggingInput = str | Sequence[str | Sequence[str]]


class _TaggerOutput(NamedTuple):
    """Predicted labels and their probabilities for the words of a sentence."""

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    loss: float  # summed over words with a known label


class TaggingPredictor(Predictor):
    """A tagger with its vocabulary; its data settings name the input columns."""

    nouns = "sentences"
    dataset = TaggingDataset
    selection_metrics = ("f1", "accuracy", "precision", "recall")
    min_batch_tokens = 4000
    iterate_examples = staticmethod(read_tagged_sentences)

    def predict(self, inputs: Sequence[TaggingInput]) -> list[TaggingPrediction]:
        """Return the tags of each sentence, in order; an empty sentence has none.

        A sentence is text with spaces between its words, or a list of words. If the model reads other columns as well
        (`data.inputs`), it is a list of words with these: `[("Confidence", "NN"), ("in", "IN")]`.
        """
        sentences = [self.parse_json_input(given) for given in require_list(inputs, "sentence")]
        unlabelled = [TaggedSentence(rows, ("",) * len(rows)) for rows in sentences if rows]
        outputs = iter(self.run_model(TaggingDataset(unlabelled, self.vocabulary)))
        empty = TaggingPrediction((), (), ())
        return [TaggingPrediction(rows, *next(outputs)[:2]) if rows else empty for rows in sentences]

    def run_batch(self, batch: TaggingBatch) -> list[_TaggerOutput]:
        """Return the most probable label of each word."""
        logits = self.model(batch.source, batch.lengths).float()
        best = logits[..., PAD + 1 :].softmax(-1).max(-1)
        losses = F.cross_entropy(logits.transpose(1, 2), batch.target, ignore_index=PAD, reduction="none").sum(1)
        columns = (best.indices, best.values, losses, batch.lengths)
        return [
            _TaggerOutput(
                tuple(self.vocabulary.labels[label] for label in labels[:size]), tuple(probabilities[:size]), loss
            )
            for labels, probabilities, loss, size in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def parse_json_input(self, given: Any) -> tuple[WordColumns, ...]:
        """Validate text or a list of words, each with the other input columns, and return it as tuples."""
        if not isinstance(given, str | list | tuple):
            raise UserError(f"a sentence must be text or a list of words, not {short_repr(given)}")
        words = given.split() if isinstance(given, str) else given
        rows = tuple(tuple(word) if isinstance(word, list | tuple) else (word,) for word in words)
        inputs = self.data.input_columns
        for row in rows:
            if len(row) != 1 + len(inputs) or not all(isinstance(one, str) and one.strip() for one in row):
                wanted = ", ".join(["its text", *(f"column {column}" for column in inputs)])
                raise UserError(f"for each word this model reads {wanted}, not {short_repr(row)}")
        return rows

    def parse_lines(self, lines: Iterable[str], name: str = "") -> Iterator[tuple[WordColumns, ...]]:
        """Yield sentences: one a line, words between white space; or CoNLL-U, or columns if the model reads them."""
        return parse_untagged_sentences(lines, self.data, name)

    def compute_metrics(self, examples: Sequence[TaggedSentence], outputs: Sequence[_TaggerOutput]) -> dict[str, Any]:
        """Return the cross-entropy per word, accuracy, and chunk scores if the labels mark chunks."""
        gold = [sentence.labels for sentence in examples]
        num_known = sum(label in self.vocabulary.label_ids for labels in gold for label in labels)
        loss = sum(output.loss for output in outputs) / max(1, num_known)
        metrics = compute_tagging_metrics(gold, [output.tags for output in outputs], self.vocabulary.labels)
        return {"words": sum(map(len, gold)), "loss": loss} | metrics

    def make_sample(self, example: TaggedSentence, output: _TaggerOutput) -> ValidationSample:
        """Return a sentence with its labels and with the predicted ones."""
        right, tagged = (format_tagged_words(example.words, labels) for labels in (example.labels, output.tags))
        return ValidationSample({"right": right, "tagged": tagged})


class TaggingTask(InMemoryTask[TaggedSentence]):
    """Label each word of a sentence."""

    verb = "tags"
    demo_recipe = "schuster1997"
    data_settings = TagDataSettings
    text_settings = TagTextSettings
    predictor = TaggingPredictor
    length_unit = "words"
    too_few = "there is one sentence, or all are equal (a blank line ends a sentence)"
    dev_limit = "dev_sentences"
    data_hint = "files with a word and its label on each line"
    write_synthetic_corpus = staticmethod(write_tagging_corpus)

    def measure_length(self, example: TaggedSentence) -> int:
        """Return the number of words."""
        return len(example.words)

    def measure_corpus(self, split: Split[TaggedSentence]) -> int:
        """Return the number of words."""
        return sum(len(sentence.words) for sentence in split.train)

    def make_split_pair(self, example: TaggedSentence) -> Pair:
        """Return words and labels as text."""
        return Pair("\n".join(map("\t".join, example.words)), "\n".join(example.labels))

    def learn_vocabulary(self, split: Split[TaggedSentence], config: RunConfig) -> TaggingVocabulary:
        """Return the features and labels of the training sentences."""
        more = chain.from_iterable(read_unlabelled_words(config.data.unlabelled or ()))
        vocabulary = TaggingVocabulary.learn(split.train, config.text, config.data.input_columns, more)
        if len(vocabulary.labels) < 2:
            raise UserError(f"every word has the label {vocabulary.labels[0]!r}: a tagger needs at least two labels")
        return vocabulary

    def load_vocabulary(self, run: Run, config: RunConfig) -> TaggingVocabulary:
        """Load the vocabulary of a run, and check it against the input columns of the config."""
        return TaggingVocabulary.load(run.folder / "tokenizer", config.text, config.data.input_columns)

    def resolve_config(
        self, config: RunConfig, split: Split[TaggedSentence], dataset: Any, parent: Run | None
    ) -> RunConfig:
        """Return the config; `model.transitions`, if it is null, is whether the labels mark chunks."""
        if config.recipe["model"].get("transitions", False) is not None:
            return config
        return config.override({"model.transitions": are_chunk_labels(dataset.vocabulary.labels)})

    def make_training_set(
        self, split: Split[TaggedSentence], vocabulary: TaggingVocabulary, config: RunConfig
    ) -> TaggingDataset:
        """Return the encoded training sentences; raise UserError for labels that the vocabulary does not know."""
        for label in sorted({label for sentence in split.train for label in sentence.labels}):
            if label not in vocabulary.label_ids:
                raise UserError(
                    f"{config.training.init_from or 'the run'} does not know the label {label!r}; "
                    f"it chooses from {', '.join(vocabulary.labels)}"
                )
        dataset = TaggingDataset(split.train, vocabulary, config.text.dropout)
        if config.data.unlabelled:
            dataset.read_all_texts = partial(_encode_words, split.train, vocabulary, config)
        return dataset

    def make_dev_example(self, example: TaggedSentence) -> DevExample:
        """Return words and labels of a sentence."""
        return DevExample(example.words, format_tagged_words(example.words, example.labels))


def _encode_words(labelled: Sequence[TaggedSentence], vocabulary: TaggingVocabulary, config: RunConfig) -> RaggedArray:
    """Return the word ids of labelled and unlabelled sentences."""
    ids, is_lowered = vocabulary.feature_ids[0], config.text.lowercase
    words = ([row[0] for row in sentence.words] for sentence in labelled)
    sentences = chain(words, read_unlabelled_words(config.data.unlabelled))
    return RaggedArray.from_rows(
        [ids.get(word.lower() if is_lowered else word, PAD) for word in sentence] for sentence in sentences
    )
