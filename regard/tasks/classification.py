"""Text classification: a label for a text, with self-attention or hierarchical attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.classification_dataset import ClassificationBatch, ClassificationDataset, TextEncoder
from regard.data.dataset import Indices, TrainingDataset
from regard.data.readers.labelled_texts import (
    LabelColumns,
    LabelledText,
    has_labelled_texts,
    read_labelled_texts,
    read_texts,
)
from regard.data.readers.text import Pair, iterate_lines
from regard.data.settings import BaseDataSettings
from regard.errors import UserError, format_suggestion, short_repr
from regard.evaluate import ConfusionMatrix
from regard.models import log_probs
from regard.models.classifier import ClassifierSettings
from regard.models.plugins import import_plugins
from regard.models.registry import MODELS
from regard.plot import WeightedWords
from regard.recipes import RunConfig
from regard.runs import Run
from regard.search import Floats
from regard.synthetic.classification import write_classification_corpus
from regard.synthetic.corpus import SyntheticCorpus
from regard.tasks.base import (
    SAMPLES,
    DevExample,
    InMemoryTask,
    Prediction,
    Predictor,
    Split,
    Validation,
    ValidationSample,
    Validator,
    require_list,
)
from regard.tokenizers import (
    LabelVocabulary,
    Tokenizer,
    VocabularySettings,
    load_tokenizer,
    make_vocabulary_file_name,
    train_tokenizer,
)


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(BaseDataSettings):
    """The `data` section of a classification recipe: files, columns of label and text, and length limits."""

    label: int | str | None = None
    text: int | str | None = None
    header: bool | None = None
    language: str = "en"
    max_length: int = 400
    max_sentences: int = 40
    dev_pairs: int = 1000

    def __post_init__(self) -> None:
        for name in ("max_length", "max_sentences", "dev_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("label", "text"):
            column = getattr(self, name)
            if column in (0, "") or (type(column) is int and column < 0):
                raise ValueError(f"{name} is a column's number, from 1, or its name, not {column!r}")
        if self.label is not None and self.label == self.text:
            raise ValueError(f"label and text must be different columns, not both {self.label!r}")

    @property
    def columns(self) -> LabelColumns:
        """Columns to read of a file."""
        return LabelColumns(self.label, self.text, self.header)


_LABELS_FILE = "labels.txt"


class ClassificationVocabulary(NamedTuple):
    """Tokens of the texts, and the labels."""

    encoder: TextEncoder
    labels: LabelVocabulary
    settings: VocabularySettings

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of tokens and of labels."""
        return self.encoder.tokenizer.vocab_size, len(self.labels.names)

    def describe(self) -> str:
        """Return the numbers of tokens and labels as text."""
        return f"vocabulary {self.sizes[0]:,}, {self.sizes[1]} labels"

    def save(self, folder: Path) -> None:
        """Write tokenizer and labels into a folder."""
        self.encoder.tokenizer.save(folder / make_vocabulary_file_name("text", self.settings))
        self.labels.save(folder / _LABELS_FILE)

    def encode_labels(self, examples: Sequence[LabelledText]) -> list[int]:
        """Return the ids of the labels; raise UserError with the location of an unknown label."""
        return [self._encode_label(example) for example in examples]

    def _encode_label(self, example: LabelledText) -> int:
        try:
            return self.labels.find_id(example.label)
        except UserError as error:
            raise UserError(f"{example.where}: {error}") from error

    def make_dataset(self, examples: Sequence[LabelledText]) -> ClassificationDataset:
        """Return encoded texts with their labels."""
        return ClassificationDataset(
            [self.encoder(example.text) for example in examples], self.encode_labels(examples), self.encoder
        )


_MAX_PLOTTED_HOPS = 3  # attention hops shown besides their mean


@dataclass(frozen=True)
class ClassificationPrediction(Prediction):
    """The predicted label, the probabilities of all labels, and the attention weights of hops over the tokens."""

    label: str
    probabilities: Mapping[str, float]
    tokens: Sequence[Any]
    weights: Floats | None  # (hops, tokens)

    @property
    def probability(self) -> float:
        """Probability of the predicted label."""
        return self.probabilities[self.label]

    def to_text(self) -> str:
        """Return the label, a tab and its probability."""
        return f"{self.label}\t{self.probability:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """Return label, all probabilities, tokens, and a row of attention weights for each hop."""
        label_fields = {"label": self.label, "probability": self.probability, "probabilities": dict(self.probabilities)}
        weights = None if self.weights is None else self.weights.tolist()
        return label_fields | {"tokens": self.tokens, "weights": weights}

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return the mean of the hops, and the hops with the highest single weights."""
        if self.weights is None or not self.tokens:
            return []
        strongest = np.argsort(-self.weights.max(1), kind="stable")[:_MAX_PLOTTED_HOPS] if len(self.weights) > 1 else ()
        rows = {"mean": self.weights.mean(0)} | {f"hop {hop + 1}": self.weights[hop] for hop in strongest}
        return [
            WeightedWords(name, self.tokens, row.tolist(), darkest_weight=float(row.max()))
            for name, row in rows.items()
        ]


@dataclass(frozen=True)
class HierarchicalPrediction(ClassificationPrediction):
    """A prediction with attention over the tokens of each sentence, (sentences, tokens), and over the sentences."""

    sentence_weights: Floats | None  # (sentences,)

    def to_dict(self) -> dict[str, Any]:
        """Return label, all probabilities, tokens and attention weights, sentence by sentence."""
        fields = super().to_dict() | {"sentence_weights": None}
        if self.weights is not None and self.sentence_weights is not None:
            rows = zip(self.weights.tolist(), self.tokens, strict=True)
            fields["weights"] = [weights[: len(tokens)] for weights, tokens in rows]
            fields["sentence_weights"] = self.sentence_weights.tolist()
        return fields

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return a line for each sentence, with the sentence's weight."""
        fields = self.to_dict()
        if fields["weights"] is None:
            return []
        rows = zip(self.tokens, fields["weights"], fields["sentence_weights"], strict=True)
        return [
            WeightedWords(str(number), tokens, weights, sentence_weight, max(weights))
            for number, (tokens, weights, sentence_weight) in enumerate(rows, 1)
        ]


class _ClassifierOutput(NamedTuple):
    """Log-probabilities of the labels of one text, and attention weights with padding."""

    log_probs: Floats  # (L,)
    weights: Floats | None  # (hops, tokens), or (sentences, tokens)
    sentence_weights: Floats | None  # (sentences,)


class ClassificationPredictor(Predictor):
    """A text classifier with its tokenizer and labels."""

    def parse_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield each line as a text."""
        yield from lines

    def read_inputs(self, path: Path) -> Iterator[str]:
        """Yield the texts of a folder or labelled file; of any other file, each line is a text."""
        if has_labelled_texts(path):
            return (example.text for example in read_texts(path, self.data.columns))
        return iterate_lines(path)

    def parse_json_input(self, given: Any) -> str:
        """Return the text; raise UserError for other types."""
        if not isinstance(given, str):
            raise UserError(f"the input must be text, not {short_repr(given)}")
        return given

    def predict(self, inputs: Sequence[str]) -> list[ClassificationPrediction]:
        """Return a label for each text, in order."""
        encoder = self.vocabulary.encoder
        encoded = [encoder(self.parse_json_input(text)) for text in require_list(inputs, "text")]
        outputs = self.run_model(ClassificationDataset(encoded, [0] * len(encoded), encoder))
        return [self._make_prediction(*pair) for pair in zip(outputs, encoded, strict=True)]

    def run_batch(self, batch: ClassificationBatch) -> list[_ClassifierOutput]:
        """Return label probabilities and attention weights of each text."""
        logits, *attention = self.model(batch.ids, batch.lengths)
        no_weights = [None] * batch.num_rows
        weights = (no_weights if tensor is None else tensor.float().cpu().numpy() for tensor in attention)
        return [_ClassifierOutput(*row) for row in zip(log_probs(logits).cpu().numpy(), *weights, strict=True)]

    def _make_prediction(self, output: _ClassifierOutput, ids: Sequence[Sequence[int]]) -> ClassificationPrediction:
        """Convert a model output to label names, probabilities and attention over tokens."""
        encoder, labels = self.vocabulary.encoder, self.vocabulary.labels
        probabilities = dict(zip(labels.names, np.exp(output.log_probs).tolist(), strict=True))
        label = labels.names[int(output.log_probs.argmax())]
        tokens = [encoder.tokenizer.convert_ids_to_tokens(sentence) for sentence in ids]
        if not encoder.is_hierarchical:
            flat = [token for sentence in tokens for token in sentence]
            weights = None if output.weights is None else output.weights[:, : len(flat)]
            return ClassificationPrediction(label, probabilities, flat, weights)
        weights, sentence_weights = (
            None if row is None else row[: len(tokens)] for row in (output.weights, output.sentence_weights)
        )
        return HierarchicalPrediction(label, probabilities, tokens, weights, sentence_weights)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return accuracy, macro-F1, loss, precision, recall and F1 of each label, and the confusion matrix."""
        dataset = self.vocabulary.make_dataset(_read_nonempty(paths, self.data, "score on"))
        scores = np.stack([output.log_probs for output in self.run_model(dataset)])
        confusion, names = _count_confusions(scores, dataset), self.vocabulary.labels.names
        return {
            "texts": len(dataset),
            "accuracy": confusion.accuracy,
            "macro_f1": confusion.macro_f1,
            "loss": _compute_cross_entropy(scores, dataset.labels),
            "labels": {names[id]: confusion.compute_label_scores(id)._asdict() for id in confusion.labels},
            "confusion": {
                names[id]: {names[other]: count for other, count in row.items()}
                for id, row in confusion.rows_by_gold_label.items()
            },
        }

    def validate(
        self, examples: Sequence[LabelledText], dataset: ClassificationDataset, max_measured: int
    ) -> Validation:
        """Return cross-entropy, accuracy and macro-F1."""
        outputs = self.run_model(dataset)
        scores = np.stack([output.log_probs for output in outputs])
        if not np.isfinite(scores).all():
            raise ArithmeticError("the model gives label probabilities that are NaN or inf")
        confusion = _count_confusions(scores, dataset)
        samples = []
        for row, example in enumerate(examples[:SAMPLES]):
            prediction = self._make_prediction(outputs[row], dataset.get_token_ids(row))
            chosen = prediction.to_text().replace("\t", " ")
            texts = {"text": example.text, "label": example.label, "chosen": chosen}
            samples.append(ValidationSample(texts, prediction.plot))
        metrics = {"accuracy": confusion.accuracy, "macro_f1": confusion.macro_f1}
        return Validation(_compute_cross_entropy(scores, dataset.labels), metrics, "accuracy", samples)


def _count_confusions(scores: Floats, dataset: ClassificationDataset) -> ConfusionMatrix:
    return ConfusionMatrix.from_labels(dataset.labels.tolist(), scores.argmax(1).tolist())


def _compute_cross_entropy(scores: Floats, labels: Indices) -> float:
    """Return the mean of −log p of the reference labels, given log-probabilities (N, L)."""
    return 0.0 - float(scores[np.arange(len(labels)), labels].mean(dtype=np.float64))


def _read_nonempty(paths: Sequence[Path], data: ClassificationSettings, purpose: str) -> list[LabelledText]:
    """Read labelled texts; raise UserError if there are none."""
    examples = list(read_labelled_texts(paths, data.columns))
    if not examples:
        raise UserError(f"{' and '.join(map(str, paths))}: no texts to {purpose}")
    return examples


_MAX_LISTED_LABELS = 10  # more labels are not listed with their counts in the log
# With more labels than this and fewer than two texts per label, texts were probably read as labels.
_MAX_UNQUESTIONED_LABELS = 20


class ClassificationTask(InMemoryTask[LabelledText]):
    """Label texts."""

    verb = "classifies"
    demo_recipe = "yang2016"
    demo_note = (
        "A word's weight is that of its state, which has read the whole sentence: a full stop can stand for all of it."
        "\nWeights in brackets are those of sentences. See docs/classify.md."
    )
    data_settings = ClassificationSettings
    text_settings = VocabularySettings
    predictor = ClassificationPredictor
    nouns = "texts"
    dev_limit = "dev_pairs"
    data_hint = "files of labelled texts, or folders with a subfolder for each label"

    def write_synthetic_corpus(self, folder: Path) -> SyntheticCorpus:
        """Write the data of the task's demo into a folder."""
        return write_classification_corpus(folder)

    def read_examples(self, paths: Sequence[Path], data: ClassificationSettings, purpose: str) -> list[LabelledText]:
        """Read labelled texts."""
        return _read_nonempty(paths, data, purpose)

    def choose_training_examples(
        self, examples: list[LabelledText], data: ClassificationSettings
    ) -> list[LabelledText]:
        """Return the texts that are not empty; raise UserError if the labels look like texts."""
        nonempty = [example for example in examples if example.text.strip()]
        if not nonempty:
            raise UserError(f"{' and '.join(data.train or ())}: no texts to train on")
        labels = sorted({example.label for example in nonempty})
        if len(labels) > max(_MAX_UNQUESTIONED_LABELS, len(nonempty) // 2):
            raise UserError(
                f"{len(nonempty):,} texts have {len(labels):,} labels, such as {short_repr(labels[0])}; "
                "check the columns data.label and data.text"
            )
        return nonempty

    def make_split_pair(self, example: LabelledText) -> Pair:
        """Return text and label."""
        return Pair(example.text, example.label)

    def learn_vocabulary(self, split: Split[LabelledText], config: RunConfig) -> ClassificationVocabulary:
        """Train a tokenizer on the training texts; labels include those of texts that are held out."""
        held_out = () if config.data.dev else split.dev
        labels = LabelVocabulary(example.label for example in (*split.train, *held_out))
        if len(labels.names) < 2:
            raise UserError(f"every text has the label {labels.names[0]!r}: a classifier needs at least two labels")
        lines = [" ".join(example.text.split()) for example in split.train]
        return _make_vocabulary(train_tokenizer(config.text, lambda: lines), labels, config)

    def load_vocabulary(self, run: Run, config: RunConfig) -> ClassificationVocabulary:
        """Load tokenizer and labels of a run."""
        folder = run.folder / "tokenizer"
        tokenizer = load_tokenizer(config.text, folder / make_vocabulary_file_name("text", config.text))
        return _make_vocabulary(tokenizer, LabelVocabulary.load(folder / _LABELS_FILE), config)

    def make_training_set(
        self, split: Split[LabelledText], vocabulary: ClassificationVocabulary, config: RunConfig
    ) -> tuple[ClassificationDataset, Mapping[str, int]]:
        """Return the encoded training texts, and how many were cut or left out."""
        encoder, labels = vocabulary.encoder, vocabulary.encode_labels(split.train)
        untruncated = [encoder.encode_untruncated(example.text) for example in split.train]
        documents = map(encoder.truncate, untruncated)
        noun = "sentences" if encoder.is_hierarchical else "texts"
        counts = {
            f"{noun} cut at {encoder.max_length} tokens": sum(
                len(ids) > encoder.max_length for document in untruncated for ids in document
            ),
            f"texts cut at {encoder.max_sentences} sentences": sum(
                len(document) > encoder.max_sentences for document in untruncated
            ),
            "empty ones left out": split.left_out["empty"],
        }
        return ClassificationDataset(documents, labels, encoder, config.text.dropout), counts

    def make_dev_set(
        self, dev: Sequence[LabelledText], vocabulary: ClassificationVocabulary, config: RunConfig
    ) -> tuple[list[LabelledText], ClassificationDataset]:
        """Return an even subsample of the dev texts, and encoded."""
        sample = subsample_evenly(dev, config.training.validate_pairs)
        return sample, vocabulary.make_dataset(sample)

    def describe(
        self,
        split: Split[LabelledText],
        dataset: TrainingDataset,
        left_out: Mapping[str, int],
        validator: Validator,
        vocabulary: ClassificationVocabulary,
    ) -> str:
        """Return the numbers of texts, of those that were cut, and of each label."""
        notes = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
        counts = Counter(example.label for example in split.train)
        names = vocabulary.labels.names
        listed = ", ".join(f"{name} {counts[name]:,}" for name in names)
        label_counts = f" ({listed})" if len(names) <= _MAX_LISTED_LABELS else ""
        return (
            f"{len(dataset):,} texts{f' ({notes})' if notes else ''}, {len(split.dev):,} dev texts, "
            f"{vocabulary.describe()}{label_counts}"
        )

    def make_dev_example(self, example: LabelledText) -> DevExample:
        """Return text and label."""
        return DevExample(example.text, example.label)


def _make_vocabulary(tokenizer: Tokenizer, labels: LabelVocabulary, config: RunConfig) -> ClassificationVocabulary:
    data, is_hierarchical = config.data, _reads_sentences(config.model["kind"])
    encoder = TextEncoder(tokenizer, is_hierarchical, data.language, data.max_length, data.max_sentences)
    return ClassificationVocabulary(encoder, labels, config.text)


def _reads_sentences(kind: str) -> bool:
    """Return whether a kind of model reads a text sentence by sentence."""
    import_plugins()
    classifiers = {
        name: settings.reads_sentences
        for name, (settings, _) in MODELS.items()
        if issubclass(settings, ClassifierSettings)
    }
    if kind not in classifiers:
        raise UserError(f"model.kind {kind!r} is not a classifier{format_suggestion(str(kind), classifiers)}")
    return classifiers[kind]


def subsample_evenly(examples: Sequence[LabelledText], max_examples: int) -> list[LabelledText]:
    """Return at most `max_examples` examples, evenly spaced from the first to the last."""
    if len(examples) <= max_examples:
        return list(examples)
    return [examples[index * len(examples) // max_examples] for index in range(max_examples)]
