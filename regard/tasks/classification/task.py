"""How good the model is on the dev set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.config import parse_settings
from regard.data.readers.text_io import iterate_lines
from regard.data.sentence_pair import Pair
from regard.errors import UserError, short_repr
from regard.evaluate import ConfusionMatrix
from regard.models import Classifier
from regard.models import Classifier as Model
from regard.plot import plot_weighted_words
from regard.recipes import Recipe, resolve_auto_sizes
from regard.runs import Run
from regard.tasks.base import (
    DevExample,
    PreparedRun,
    Validation,
    choose_inference_device,
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
    """A text of the dev set as the model labels it now."""

    text: str
    label: str
    prediction: ClassificationPrediction

    def to_dict(self) -> dict[str, str]:
        """The text, its label, and the model's choice."""
        return {"text": self.text, "label": self.label, "chosen": self.prediction.to_text().replace("\t", " ")}

    def plot(self) -> Figure | None:
        """The words, shaded."""
        lines = self.prediction.make_attention_lines()
        return plot_weighted_words(lines) if lines else None


class ClassificationValidator:
    """Cross-entropy, accuracy and macro-F1 on texts of the dev set."""

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
        """Measures the model; leaves it as it was, and takes nothing from the random generators."""
        training = model.training
        model.eval()
        found = run_classifier(model, self.dataset, device, self.batch_tokens)
        model.train(training)
        scores, right = np.stack([output.log_probs for output in found]), self.dataset.labels
        if not np.isfinite(scores).all():
            raise ArithmeticError("the model gives labels probabilities that are no numbers")
        confusion = ConfusionMatrix.from_labels(right.tolist(), scores.argmax(1).tolist())
        figures = {"accuracy": confusion.accuracy, "macro_f1": confusion.macro_f1}
        encoding = self.dataset.encoder
        samples = [
            ClassificationSample(
                self.examples[row].text,
                self.examples[row].label,
                make_classification_prediction(
                    found[row],
                    self.dataset.get_token_ids(row),
                    self.labels,
                    encoding.tokenizer,
                    encoding.is_hierarchical,
                ),
            )
            for row in range(min(SAMPLES, len(found)))
        ]
        return Validation(compute_cross_entropy(scores, right), figures, "accuracy", samples)


_LABELS_FILE = "labels.txt"
_MAX_LISTED_LABELS = 10  # labels that are counted one by one for people
_MAX_UNQUESTIONED_LABELS = (
    20  # labels that nobody doubts; of more, each has two texts on average, or texts were taken for labels
)


class _ClassificationSplit(NamedTuple):
    """What there is to train and to validate on."""

    train: list[LabelledText]
    dev: list[LabelledText]
    labels: list[str]  # of the training data, what is held out of it included
    empty: int  # texts with nothing in them, which are left out


class ClassificationVocabularies(NamedTuple):
    """What a model reads, and what it chooses from."""

    tokenizer: Tokenizer
    labels: LabelVocabulary

    def save(self, settings: VocabularySettings, folder: Path) -> None:
        """Writes both into a folder."""
        self.tokenizer.save(folder / make_vocabulary_file_name("text", settings))
        self.labels.save(folder / _LABELS_FILE)


def prepare_classification(run: Run, config: Recipe, resume: bool) -> PreparedRun:
    """Texts and vocabularies, encoded; and the config with nothing left open."""
    nested = is_hierarchical(config)
    data = parse_settings(ClassificationSettings, config["data"], "data")
    found = split_classification_data(data, config["training"]["seed"])
    config = config if resume else resolve_auto_sizes(config, len(found.train))
    settings = parse_settings(VocabularySettings, config["text"], "text")
    start = config["training"]["init_from"]
    before = run if resume else Run(Path(start)) if start else None
    vocabularies = (
        load_classification_vocabularies(before) if before else _learn_classification_vocabularies(found, settings)
    )
    encoding = TextEncoder(vocabularies.tokenizer, nested, data.language, data.max_length, data.max_sentences)
    training = config["training"]
    measured = subsample_evenly(found.dev, int(training["validate_pairs"]))
    labels = vocabularies.labels
    dev_texts = ClassificationDataset(
        [encoding(one.text) for one in measured], encode_text_labels(measured, labels), encoding
    )
    whole = [encoding.encode_untruncated(one.text) for one in found.train]
    return PreparedRun(
        run,
        config,
        ClassificationDataset(
            [encoding.truncate(document) for document in whole],
            encode_text_labels(found.train, labels),
            encoding,
            settings.dropout,
        ),
        ClassificationValidator(measured, dev_texts, labels, int(training["batch_tokens"])),
        (vocabularies.tokenizer.vocab_size, labels.num_labels),
        partial(vocabularies.save, settings),
        _describe_classification_data(found, whole, encoding, vocabularies),
    )


def load_classification_vocabularies(run: Run) -> ClassificationVocabularies:
    """The vocabularies of a run."""
    settings = parse_settings(VocabularySettings, run.read_config()["text"], "text")
    folder = run.folder / "tokenizer"
    return ClassificationVocabularies(
        load_tokenizer(settings, folder / make_vocabulary_file_name("text", settings)),
        LabelVocabulary.load(folder / _LABELS_FILE),
    )


def _learn_classification_vocabularies(
    split: _ClassificationSplit, settings: VocabularySettings
) -> ClassificationVocabularies:
    """Vocabularies of the training texts; a label that only a text held out has is one all the same."""
    labels = LabelVocabulary(split.labels)
    if labels.num_labels < 2:
        raise UserError(f"every text has the label {labels.find_name(0)!r}: there is nothing to choose from")
    lines = [" ".join(one.text.split()) for one in split.train]
    return ClassificationVocabularies(train_tokenizer(settings, lambda: lines), labels)


def split_classification_data(data: ClassificationSettings, seed: int) -> _ClassificationSplit:
    """Reads the texts, and holds some out where no dev set is named: by their content, not by their order."""
    if not data.train:
        raise UserError("nothing to train on: name files of texts with labels, or folders that have one for each label")
    every = list(read_labelled_texts([Path(name) for name in data.train], data))
    full = [one for one in every if one.text.strip()]
    empty = len(every) - len(full)
    if not full:
        raise UserError(f"{' and '.join(data.train)}: no texts in there, nothing to work with")
    labels = sorted({one.label for one in full})
    if len(labels) > max(_MAX_UNQUESTIONED_LABELS, len(full) // 2):
        raise UserError(
            f"{len(full):,} texts have {len(labels):,} labels, such as {short_repr(labels[0])}; "
            "data.label and data.text say where both are"
        )
    if data.dev:
        dev = list(read_labelled_texts([Path(name) for name in data.dev], data))
        if not dev:
            raise UserError(f"{' and '.join(data.dev)}: no texts in there, nothing to validate on")
        return _ClassificationSplit(full, dev, labels, empty)
    return _ClassificationSplit(
        *split_dev_examples(full, _text_to_pair, seed, data.dev_pairs, "all texts are one"), labels, empty
    )


def _text_to_pair(one: LabelledText) -> Pair:
    """Text and label, for what is held out by its text."""
    return Pair(one.text, one.label)


def load_classification_dev_set(run: Run) -> list[DevExample]:
    """The texts that a run was validated on."""
    config = run.read_config()
    found = split_classification_data(
        parse_settings(ClassificationSettings, config["data"], "data"), config["training"]["seed"]
    )
    return [DevExample(one.text, one.label) for one in found.dev]


def subsample_evenly(examples: Sequence[LabelledText], max_examples: int) -> list[LabelledText]:
    """At most so many of them, from the first to the last."""
    if len(examples) <= max_examples:
        return list(examples)
    return [examples[number * len(examples) // max_examples] for number in range(max_examples)]


def encode_text_labels(examples: Sequence[LabelledText], labels: LabelVocabulary) -> list[int]:
    """The ids of their labels; one that is not known is named with its place."""
    return [_encode_label(one, labels) for one in examples]


def _encode_label(example: LabelledText, labels: LabelVocabulary) -> int:
    """The id of a text's label."""
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
    """What there is to train on."""
    long = sum(len(ids) > encoder.max_length for document in untruncated for ids in document)
    many = sum(len(document) > encoder.max_sentences for document in untruncated)
    cut = [
        (long, f"{'sentences' if encoder.is_hierarchical else 'texts'} cut at {encoder.max_length} tokens"),
        (many, f"texts cut at {encoder.max_sentences} sentences"),
        (split.empty, "empty ones left out"),
    ]
    notes = ", ".join(f"{count:,} {what}" for count, what in cut if count)
    counts = Counter(one.label for one in split.train)
    each = ", ".join(f"{name} {counts[name]:,}" for name in vocabularies.labels.names)
    return (
        f"{len(split.train):,} texts{f' ({notes})' if notes else ''}, {len(split.dev):,} dev texts, vocabulary "
        f"{vocabularies.tokenizer.vocab_size:,}, {vocabularies.labels.num_labels} labels{f' ({each})' if vocabularies.labels.num_labels <= _MAX_LISTED_LABELS else ''}"
    )


class ClassificationPredictor:
    """A model with its vocabularies: texts in, labels out."""

    def __init__(
        self,
        model: Model,
        vocabularies: ClassificationVocabularies,
        data: ClassificationSettings,
        is_hierarchical: bool,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        """`data` are the settings of the run: where a file has its labels, and how much of a text is read."""
        self.model = model.to(device).eval()
        self.labels = vocabularies.labels
        self.data = data
        self.encoder = TextEncoder(
            vocabularies.tokenizer, is_hierarchical, data.language, data.max_length, data.max_sentences
        )
        self.batch_tokens = batch_tokens
        self.device = device

    def parse_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """A line is a text."""
        yield from lines

    def read_inputs(self, path: Path) -> Iterator[str]:
        """The texts of a file or folder like those of training, with labels or without; of others a line is a text."""
        return (one.text for one in read_texts(path, self.data)) if has_labelled_texts(path) else iterate_lines(path)

    def parse_json_input(self, given: Any) -> str:
        """Text."""
        if not isinstance(given, str):
            raise UserError(f"what is classified is text, not {short_repr(given)}")
        return given

    def predict(self, inputs: Sequence[str]) -> list[ClassificationPrediction]:
        """A label for each text, in order."""
        encoded = [self.encoder(self.parse_json_input(text)) for text in require_list(inputs, "text")]
        texts = ClassificationDataset(encoded, [0] * len(encoded), self.encoder)
        tokenizer, nested = self.encoder.tokenizer, self.encoder.is_hierarchical
        return [
            make_classification_prediction(output, texts.get_token_ids(row), self.labels, tokenizer, nested)
            for row, output in enumerate(self._run_model(texts))
        ]

    def _run_model(self, dataset: ClassificationDataset) -> list[TextOutput]:
        """What the model says of encoded texts."""
        return run_classifier(self.model, dataset, self.device, self.batch_tokens)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Accuracy, macro-F1, figures of each label, and which labels were taken for which."""
        examples = list(read_labelled_texts(paths, self.data))
        if not examples:
            raise UserError(f"{' and '.join(map(str, paths))}: no texts in there, nothing to score on")
        right = encode_text_labels(examples, self.labels)
        texts = ClassificationDataset([self.encoder(one.text) for one in examples], right, self.encoder)
        scores = np.stack([output.log_probs for output in self._run_model(texts)])
        confusion = ConfusionMatrix.from_labels(right, scores.argmax(1).tolist())
        return {
            "texts": len(examples),
            "accuracy": confusion.accuracy,
            "macro_f1": confusion.macro_f1,
            "loss": compute_cross_entropy(scores, texts.labels),
            "labels": {
                self.labels.find_name(id): confusion.compute_label_scores(id)._asdict() for id in confusion.labels
            },
            "confusion": {
                self.labels.find_name(id): {self.labels.find_name(other): count for other, count in row.items()}
                for id, row in confusion.rows_by_gold_label.items()
            },
        }


def load(*runs: str | Path, device: str | None = None) -> ClassificationPredictor:
    """The best model of a run, ready to label texts, on a GPU where there is one."""
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
