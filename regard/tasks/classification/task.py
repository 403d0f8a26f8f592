"""The classification task: data preparation, dev split, validation with accuracy and macro-F1, and the predictor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.readers.text import iterate_lines
from regard.data.sentence_pair import Pair
from regard.errors import UserError, short_repr
from regard.evaluate import ConfusionMatrix
from regard.models import Classifier
from regard.models import Classifier as Model
from regard.plot import plot_weighted_words
from regard.recipes import RunConfig
from regard.runs import Run
from regard.tasks.base import (
    DevExample,
    PreparedRun,
    Validation,
    ValidationSample,
    choose_inference_device,
    find_vocabulary_run,
    get_single_run,
    require_list,
    split_dev_examples,
)
from regard.tasks.classification.dataset import ClassificationDataset, TextEncoder
from regard.tasks.classification.labelled_texts import (
    ClassificationSettings,
    LabelledText,
    has_labelled_texts,
    is_hierarchical,
    read_labelled_texts,
    read_texts,
)
from regard.tasks.classification.prediction import (
    ClassificationPrediction,
    TextOutput,
    compute_cross_entropy,
    make_classification_prediction,
    run_classifier,
)
from regard.tokenizers import (
    LabelVocabulary,
    Tokenizer,
    VocabularySettings,
    load_tokenizer,
    make_vocabulary_file_name,
    train_tokenizer,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SAMPLES = 5


class ClassificationSample(NamedTuple):
    """A dev text with its reference label and the current prediction."""

    text: str
    label: str
    prediction: ClassificationPrediction

    def to_dict(self) -> dict[str, str]:
        """Return text, reference label and predicted label."""
        return {"text": self.text, "label": self.label, "chosen": self.prediction.to_text().replace("\t", " ")}

    def plot(self) -> Figure | None:
        """Return a figure of the words, shaded by attention; None without attention."""
        lines = self.prediction.make_attention_lines()
        return plot_weighted_words(lines) if lines else None


class ClassificationValidator:
    """Validate on dev texts: cross-entropy, accuracy and macro-F1."""

    def __init__(
        self,
        examples: Sequence[LabelledText],
        dataset: ClassificationDataset,
        labels: LabelVocabulary,
        batch_tokens: int,
    ) -> None:
        self.examples = examples
        self.dataset = dataset
        self.labels = labels
        self.batch_tokens = batch_tokens

    def __call__(self, model: Classifier, device: torch.device) -> Validation:
        """Return the metrics of a model; leave the model and the random generators unchanged."""
        training = model.training
        model.eval()
        outputs = run_classifier(model, self.dataset, device, self.batch_tokens)
        model.train(training)
        scores, gold = np.stack([output.log_probs for output in outputs]), self.dataset.labels
        if not np.isfinite(scores).all():
            raise ArithmeticError("the model gives label probabilities that are NaN or inf")
        confusion = ConfusionMatrix.from_labels(gold.tolist(), scores.argmax(1).tolist())
        metrics = {"accuracy": confusion.accuracy, "macro_f1": confusion.macro_f1}
        encoder = self.dataset.encoder
        samples = [
            ClassificationSample(
                self.examples[row].text,
                self.examples[row].label,
                make_classification_prediction(
                    outputs[row],
                    self.dataset.get_token_ids(row),
                    self.labels,
                    encoder.tokenizer,
                    encoder.is_hierarchical,
                ),
            )
            for row in range(min(SAMPLES, len(outputs)))
        ]
        return Validation(
            compute_cross_entropy(scores, gold),
            metrics,
            "accuracy",
            [ValidationSample(one.to_dict(), one.plot) for one in samples],
        )


_LABELS_FILE = "labels.txt"
_MAX_LISTED_LABELS = 10  # more labels are not listed with their counts in the log
# With more labels than this and fewer than two texts per label, texts were probably read as labels.
_MAX_UNQUESTIONED_LABELS = 20


class _ClassificationSplit(NamedTuple):
    """Training and dev texts, and all labels."""

    train: list[LabelledText]
    dev: list[LabelledText]
    labels: list[str]  # of the training data, including texts held out for dev
    empty: int  # number of empty texts left out


class ClassificationVocabularies(NamedTuple):
    """Tokenizer of the texts, and the labels."""

    tokenizer: Tokenizer
    labels: LabelVocabulary

    def save(self, settings: VocabularySettings, folder: Path) -> None:
        """Write both into a folder."""
        self.tokenizer.save(folder / make_vocabulary_file_name("text", settings))
        self.labels.save(folder / _LABELS_FILE)


def prepare_classification(run: Run, config: RunConfig, resume: bool) -> PreparedRun:
    """Split and encode texts, train or load the vocabularies, and resolve open values of the config."""
    hierarchical = is_hierarchical(config.recipe)
    data: ClassificationSettings = config.data
    split = split_classification_data(data, config.training.seed)
    config = config if resume else config.resolve_auto_sizes(len(split.train))
    settings: VocabularySettings = config.text
    training, parent_run = config.training, find_vocabulary_run(run, config, resume)
    vocabularies = (
        load_classification_vocabularies(parent_run)
        if parent_run
        else _learn_classification_vocabularies(split, settings)
    )
    encoder = TextEncoder(vocabularies.tokenizer, hierarchical, data.language, data.max_length, data.max_sentences)
    dev_sample = subsample_evenly(split.dev, training.validate_pairs)
    labels = vocabularies.labels
    dev_dataset = ClassificationDataset(
        [encoder(example.text) for example in dev_sample], encode_text_labels(dev_sample, labels), encoder
    )
    untruncated = [encoder.encode_untruncated(example.text) for example in split.train]
    return PreparedRun(
        run,
        config,
        ClassificationDataset(
            [encoder.truncate(document) for document in untruncated],
            encode_text_labels(split.train, labels),
            encoder,
            settings.dropout,
        ),
        ClassificationValidator(dev_sample, dev_dataset, labels, training.batch_tokens),
        (vocabularies.tokenizer.vocab_size, labels.num_labels),
        partial(vocabularies.save, settings),
        _describe_classification_data(split, untruncated, encoder, vocabularies),
    )


def load_classification_vocabularies(run: Run) -> ClassificationVocabularies:
    """Load the vocabularies of a run."""
    settings = parse_settings(VocabularySettings, run.read_config()["text"], "text")
    folder = run.folder / "tokenizer"
    return ClassificationVocabularies(
        load_tokenizer(settings, folder / make_vocabulary_file_name("text", settings)),
        LabelVocabulary.load(folder / _LABELS_FILE),
    )


def _learn_classification_vocabularies(
    split: _ClassificationSplit, settings: VocabularySettings
) -> ClassificationVocabularies:
    """Train a tokenizer on the training texts; labels include those of dev texts only."""
    labels = LabelVocabulary(split.labels)
    if labels.num_labels < 2:
        raise UserError(f"every text has the label {labels.find_name(0)!r}: a classifier needs at least two labels")
    lines = [" ".join(example.text.split()) for example in split.train]
    return ClassificationVocabularies(train_tokenizer(settings, lambda: lines), labels)


def split_classification_data(data: ClassificationSettings, seed: int) -> _ClassificationSplit:
    """Read the texts; without a dev set, hold out texts by a hash of their content."""
    if not data.train:
        raise UserError("nothing to train on: name files of labelled texts, or folders with a subfolder for each label")
    examples = list(read_labelled_texts([Path(name) for name in data.train], data))
    nonempty = [example for example in examples if example.text.strip()]
    empty = len(examples) - len(nonempty)
    if not nonempty:
        raise UserError(f"{' and '.join(data.train)}: no texts to train on")
    labels = sorted({example.label for example in nonempty})
    if len(labels) > max(_MAX_UNQUESTIONED_LABELS, len(nonempty) // 2):
        raise UserError(
            f"{len(nonempty):,} texts have {len(labels):,} labels, such as {short_repr(labels[0])}; "
            "check the columns data.label and data.text"
        )
    if data.dev:
        dev = list(read_labelled_texts([Path(name) for name in data.dev], data))
        if not dev:
            raise UserError(f"{' and '.join(data.dev)}: no texts to validate on")
        return _ClassificationSplit(nonempty, dev, labels, empty)
    return _ClassificationSplit(
        *split_dev_examples(nonempty, _text_to_pair, seed, data.dev_pairs, "all texts are equal"), labels, empty
    )


def _text_to_pair(one: LabelledText) -> Pair:
    """Return (text, label), so that the dev set is split by text."""
    return Pair(one.text, one.label)


def load_classification_dev_set(config: RunConfig) -> list[DevExample]:
    """Return the dev texts of a run."""
    split = split_classification_data(config.data, config.training.seed)
    return [DevExample(example.text, example.label) for example in split.dev]


def subsample_evenly(examples: Sequence[LabelledText], max_examples: int) -> list[LabelledText]:
    """Return at most `max_examples` examples, evenly spaced from the first to the last."""
    if len(examples) <= max_examples:
        return list(examples)
    return [examples[index * len(examples) // max_examples] for index in range(max_examples)]


def encode_text_labels(examples: Sequence[LabelledText], labels: LabelVocabulary) -> list[int]:
    """Return the ids of the labels; raise UserError with the location of an unknown label."""
    return [_encode_label(example, labels) for example in examples]


def _encode_label(example: LabelledText, labels: LabelVocabulary) -> int:
    try:
        return labels.find_id(example.label)
    except UserError as error:
        raise UserError(f"{example.where}: {error}") from error


def _describe_classification_data(
    split: _ClassificationSplit,
    untruncated: Sequence[Sequence[Sequence[int]]],
    encoder: TextEncoder,
    vocabularies: ClassificationVocabularies,
) -> str:
    num_long = sum(len(ids) > encoder.max_length for document in untruncated for ids in document)
    num_many = sum(len(document) > encoder.max_sentences for document in untruncated)
    truncations = [
        (num_long, f"{'sentences' if encoder.is_hierarchical else 'texts'} cut at {encoder.max_length} tokens"),
        (num_many, f"texts cut at {encoder.max_sentences} sentences"),
        (split.empty, "empty ones left out"),
    ]
    notes = ", ".join(f"{count:,} {description}" for count, description in truncations if count)
    counts = Counter(example.label for example in split.train)
    listed = ", ".join(f"{name} {counts[name]:,}" for name in vocabularies.labels.names)
    label_counts = f" ({listed})" if vocabularies.labels.num_labels <= _MAX_LISTED_LABELS else ""
    return (
        f"{len(split.train):,} texts{f' ({notes})' if notes else ''}, {len(split.dev):,} dev texts, vocabulary "
        f"{vocabularies.tokenizer.vocab_size:,}, {vocabularies.labels.num_labels} labels{label_counts}"
    )


class ClassificationPredictor:
    """A text classifier with its tokenizer and labels."""

    def __init__(
        self,
        model: Model,
        vocabularies: ClassificationVocabularies,
        data: ClassificationSettings,
        is_hierarchical: bool,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        """`data` are the run's settings: columns of label and text, and length limits."""
        self.model = model.to(device).eval()
        self.labels = vocabularies.labels
        self.data = data
        self.encoder = TextEncoder(
            vocabularies.tokenizer, is_hierarchical, data.language, data.max_length, data.max_sentences
        )
        self.batch_tokens = batch_tokens
        self.device = device

    def parse_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield each line as a text."""
        yield from lines

    def read_inputs(self, path: Path) -> Iterator[str]:
        """Yield the texts of a folder or labelled file; of any other file, each line is a text."""
        return (
            (example.text for example in read_texts(path, self.data))
            if has_labelled_texts(path)
            else iterate_lines(path)
        )

    def parse_json_input(self, given: Any) -> str:
        """Return the text; raise UserError for other types."""
        if not isinstance(given, str):
            raise UserError(f"the input must be text, not {short_repr(given)}")
        return given

    def predict(self, inputs: Sequence[str]) -> list[ClassificationPrediction]:
        """Return a label for each text, in order."""
        encoded = [self.encoder(self.parse_json_input(text)) for text in require_list(inputs, "text")]
        dataset = ClassificationDataset(encoded, [0] * len(encoded), self.encoder)
        tokenizer, hierarchical = self.encoder.tokenizer, self.encoder.is_hierarchical
        return [
            make_classification_prediction(output, dataset.get_token_ids(row), self.labels, tokenizer, hierarchical)
            for row, output in enumerate(self._run_model(dataset))
        ]

    def _run_model(self, dataset: ClassificationDataset) -> list[TextOutput]:
        return run_classifier(self.model, dataset, self.device, self.batch_tokens)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return accuracy, macro-F1, loss, precision, recall and F1 of each label, and the confusion matrix."""
        examples = list(read_labelled_texts(paths, self.data))
        if not examples:
            raise UserError(f"{' and '.join(map(str, paths))}: no texts to score on")
        gold = encode_text_labels(examples, self.labels)
        dataset = ClassificationDataset([self.encoder(example.text) for example in examples], gold, self.encoder)
        scores = np.stack([output.log_probs for output in self._run_model(dataset)])
        confusion = ConfusionMatrix.from_labels(gold, scores.argmax(1).tolist())
        return {
            "texts": len(examples),
            "accuracy": confusion.accuracy,
            "macro_f1": confusion.macro_f1,
            "loss": compute_cross_entropy(scores, dataset.labels),
            "labels": {
                self.labels.find_name(id): confusion.compute_label_scores(id)._asdict() for id in confusion.labels
            },
            "confusion": {
                self.labels.find_name(id): {self.labels.find_name(other): count for other, count in row.items()}
                for id, row in confusion.rows_by_gold_label.items()
            },
        }


def load(*runs: str | Path, device: str | None = None) -> ClassificationPredictor:
    """Load the best checkpoint of a run for classification; by default on a GPU if there is one."""
    run = get_single_run(runs, "classifies")
    config = run.read_config()
    vocabularies = load_classification_vocabularies(run)
    model = run.load_model((vocabularies.tokenizer.vocab_size, vocabularies.labels.num_labels))
    return ClassificationPredictor(
        model,
        vocabularies,
        parse_settings(ClassificationSettings, config["data"], "data"),
        is_hierarchical(config),
        int(config["training"]["batch_tokens"]),
        choose_inference_device(device),
    )
