"""Text classification: a label for a text, with self-attention or hierarchical attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.classification import (
    LABELS_FILE,
    ClassificationBatch,
    ClassificationDataset,
    ClassificationSettings,
    ClassificationVocabulary,
    LabelledText,
    TextEncoder,
    has_labelled_texts,
    read_labelled_texts,
    read_texts,
)
from regard.data.dataset import Integers, RaggedArray
from regard.data.ngrams import NgramHasher
from regard.data.readers.text import Pair, iterate_lines
from regard.errors import UserError, format_suggestion, short_repr
from regard.evaluate.label_metrics import ConfusionMatrix
from regard.models.base import log_probs
from regard.models.classifier import ClassifierSettings
from regard.models.hypothesis import Floats
from regard.models.plugins import import_plugins
from regard.models.registry import MODELS
from regard.plot.attention_overlay import WeightedWords
from regard.plot.heatmap import format_tokens
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.synthetic.corpora import write_classification_corpus
from regard.tasks.base import DevExample, InMemoryTask, Prediction, Predictor, Split, ValidationSample, require_list
from regard.tokenizers.tokenizer import Tokenizer, VocabularySettings, load_tokenizer, train_tokenizer
from regard.tokenizers.words import LabelVocabulary

_ERASED_FRACTION = 0.2  # of the words of a text, in the erasure test
_MAX_ERASED_TEXTS = 1000
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
            WeightedWords(name, format_tokens(self.tokens), row.tolist(), darkest_weight=float(row.max()))
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
            WeightedWords(str(number), format_tokens(tokens), weights, sentence_weight, max(weights))
            for number, (tokens, weights, sentence_weight) in enumerate(rows, 1)
        ]


class _ClassifierOutput(NamedTuple):
    """Log-probabilities of the labels of one text, and its tokens and attention weights with padding."""

    log_probs: Floats  # (L,)
    ids: Integers  # (tokens,), or (sentences, tokens)
    lengths: Integers  # (), or (sentences,)
    weights: Floats | None  # (hops, tokens), or (sentences, tokens)
    sentence_weights: Floats | None  # (sentences,)


class ClassificationPredictor(Predictor):
    """A text classifier with its tokenizer and labels."""

    nouns = "texts"
    dataset = ClassificationDataset
    selection_metrics = ("accuracy", "macro_f1")
    iterate_examples = staticmethod(read_labelled_texts)

    def parse_lines(self, lines: Iterable[str], name: str = "") -> Iterator[str]:
        """Yield each line as a text."""
        yield from lines

    def read_inputs(self, path: Path) -> Iterator[str]:
        """Yield the texts of a folder or labelled file; of any other file, each line is a text."""
        if has_labelled_texts(path):
            return (example.text for example in read_texts(path, self.data))
        return super().read_inputs(path)

    def parse_json_input(self, given: Any) -> str:
        """Return the text; raise UserError for other types."""
        if not isinstance(given, str):
            raise UserError(f"the input must be text, not {short_repr(given)}")
        return given

    def predict(self, inputs: Sequence[str]) -> list[ClassificationPrediction]:
        """Return a label for each text, in order."""
        texts = [LabelledText(self.parse_json_input(text), "", "") for text in require_list(inputs, "text")]
        return list(map(self._make_prediction, self.run_model(ClassificationDataset(texts, self.vocabulary))))

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return metrics on files with labels, and for a model with attention over a whole text the erasure test."""
        examples = self.read_examples(paths, self.data, "score on")
        outputs = self.run_model(ClassificationDataset(examples, self.vocabulary))
        texts = [example.text for example in subsample_evenly(examples, _MAX_ERASED_TEXTS)]
        metrics = {self.nouns: len(examples), **self.compute_metrics(examples, outputs)}
        has_weights = outputs[0].weights is not None and not self.vocabulary.encoder.is_hierarchical
        return metrics | ({"erasure": self.measure_erasure(texts)} if has_weights else {})

    def measure_erasure(self, texts: Sequence[str]) -> dict[str, float]:
        """Remove a fifth of the words of each text: those with the most attention, or random ones.

        Return, for both, how much the probability of the predicted label falls on average, and the percentage of texts
        whose label changes. If attention is faithful, its words matter more than random ones.
        """
        rng, before = np.random.default_rng(1), self.predict(texts)
        result: dict[str, float] = {}
        for name in ("attended", "random"):
            shortened = []
            for text, prediction in zip(texts, before, strict=True):
                words = np.array(text.split(), dtype=object)
                weights = self._sum_word_weights(text, prediction) if name == "attended" else rng.random(len(words))
                num_removed = max(1, round(_ERASED_FRACTION * len(words)))
                shortened.append(" ".join(words[np.sort(np.argsort(-weights, kind="stable")[num_removed:])]))
            after = list(zip(before, self.predict(shortened), strict=True))
            result[f"{name}_drop"] = float(
                np.mean([old.probability - new.probabilities[old.label] for old, new in after])
            )
            result[f"{name}_changed"] = 100 * float(np.mean([old.label != new.label for old, new in after]))
        return result

    def _sum_word_weights(self, text: str, prediction: ClassificationPrediction) -> Floats:
        """Return the attention weight of each word between spaces, the mean of all hops."""
        assert prediction.weights is not None
        mean = prediction.weights.mean(0)
        _, word_ids = self.vocabulary.encoder.tokenizer.encode_with_word_ids(text)
        return np.bincount(word_ids[: len(mean)], mean, minlength=len(text.split())).astype(np.float32)

    @classmethod
    def is_usable(cls, example: LabelledText) -> bool:
        """Return whether the text is not empty."""
        return bool(example.text.strip())

    def run_batch(self, batch: ClassificationBatch) -> list[_ClassifierOutput]:
        """Return label probabilities and attention weights of each text."""
        source, lengths, _, *ngrams = batch
        logits, *attention = self.model(source, lengths, *ngrams)
        no_weights = [None] * batch.num_rows
        weights = (no_weights if tensor is None else tensor.float().cpu().numpy() for tensor in attention)
        columns = (tensor.cpu().numpy() for tensor in (log_probs(logits), batch.source, batch.lengths))
        return [_ClassifierOutput(*row) for row in zip(*columns, *weights, strict=True)]

    def _make_prediction(self, output: _ClassifierOutput) -> ClassificationPrediction:
        """Convert a model output to label names, probabilities and attention over tokens."""
        encoder, labels = self.vocabulary.encoder, self.vocabulary.labels
        probabilities = dict(zip(labels.names, np.exp(output.log_probs).tolist(), strict=True))
        label = labels.names[int(output.log_probs.argmax())]
        convert = encoder.tokenizer.convert_ids_to_tokens
        if not encoder.is_hierarchical:
            tokens = convert(output.ids[: output.lengths].tolist())
            weights = None if output.weights is None else output.weights[:, : len(tokens)]
            return ClassificationPrediction(label, probabilities, tokens, weights)
        lengths = [length for length in output.lengths.tolist() if length]
        sentences = [convert(ids[:length]) for ids, length in zip(output.ids.tolist(), lengths, strict=False)]
        attention = (output.weights, output.sentence_weights)
        weights, sentence_weights = (None if row is None else row[: len(sentences)] for row in attention)
        return HierarchicalPrediction(label, probabilities, sentences, weights, sentence_weights)

    def compute_metrics(self, examples: Sequence[LabelledText], outputs: Sequence[_ClassifierOutput]) -> dict[str, Any]:
        """Return accuracy, macro-F1, loss, precision, recall and F1 of each label, and the confusion matrix."""
        labels, names = self.vocabulary.encode_labels(examples), self.vocabulary.labels.names
        log_probs_of_labels = [output.log_probs[label] for output, label in zip(outputs, labels, strict=True)]
        confusion = ConfusionMatrix.from_labels(labels, [int(output.log_probs.argmax()) for output in outputs])
        matches = {id: confusion.count_matches(id) for id in confusion.labels}
        return {
            "accuracy": confusion.accuracy,
            "macro_f1": confusion.macro_f1,
            "loss": 0.0 - float(np.mean(log_probs_of_labels, dtype=np.float64)),
            "labels": {names[id]: {"texts": counts.gold, **counts.to_dict()} for id, counts in matches.items()},
            "confusion": {
                names[id]: {names[other]: count for other, count in row.items()}
                for id, row in confusion.rows_by_gold_label.items()
            },
        }

    def make_sample(self, example: LabelledText, output: _ClassifierOutput) -> ValidationSample:
        """Return text, label and predicted label."""
        prediction = self._make_prediction(output)
        chosen = prediction.to_text().replace("\t", " ")
        return ValidationSample({"text": example.text, "label": example.label, "chosen": chosen}, prediction.plot)


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
    too_few = "all texts are equal"
    dev_limit = "dev_pairs"
    data_hint = "files of labelled texts, or folders with a subfolder for each label"
    write_synthetic_corpus = staticmethod(write_classification_corpus)

    def make_split_pair(self, example: LabelledText) -> Pair:
        """Return text and label."""
        return Pair(example.text, example.label)

    def measure_corpus(self, split: Split[LabelledText]) -> int:
        """Return the number of characters."""
        return sum(len(example.text) for example in split.train)

    def learn_vocabulary(self, split: Split[LabelledText], config: RunConfig) -> ClassificationVocabulary:
        """Train a tokenizer on the training texts; labels include those of texts that are held out."""
        labelled = split.train if config.data.dev else [*split.train, *split.dev]
        labels = LabelVocabulary(example.label for example in labelled)
        first = labels.names[0]
        if len(labels.names) < 2:
            raise UserError(f"every text has the label {first!r}: a classifier needs at least two labels")
        if len(labels.names) > max(_MAX_UNQUESTIONED_LABELS, len(labelled) // 2):
            raise UserError(
                f"{len(labelled):,} texts have {len(labels.names):,} labels, such as {short_repr(first)}; "
                "check the columns data.label and data.text"
            )
        texts = [*(example.text for example in split.train), *_read_unlabelled(config)]
        lines = [" ".join(text.split()) for text in texts]
        return _make_vocabulary(train_tokenizer(config.text, lambda: lines, (), config.data.language), labels, config)

    def load_vocabulary(self, run: Run, config: RunConfig) -> ClassificationVocabulary:
        """Load tokenizer and labels of a run."""
        folder = run.folder / "tokenizer"
        tokenizer = load_tokenizer(config.text, folder, "text").for_language(config.data.language)
        return _make_vocabulary(tokenizer, LabelVocabulary.load(folder / LABELS_FILE), config)

    def make_training_set(
        self, split: Split[LabelledText], vocabulary: ClassificationVocabulary, config: RunConfig
    ) -> ClassificationDataset:
        """Return the encoded training texts, with BPE dropout."""
        dataset = ClassificationDataset(split.train, vocabulary, config.text.dropout)
        if config.data.unlabelled:
            dataset.read_all_texts = partial(_encode_texts, split.train, vocabulary, config)
        return dataset

    def choose_dev_examples(self, dev: list[LabelledText], max_measured: int) -> list[LabelledText]:
        """Return an even subsample: a file may have the texts of one label behind those of another."""
        return subsample_evenly(dev, max_measured)

    def describe_training_set(self, split: Split[LabelledText], dataset: ClassificationDataset) -> list[str]:
        """Return the numbers of texts that were cut, and of each label."""
        counts = sorted(Counter(example.label for example in split.train).items())
        listed = ", ".join(f"{label} {count:,}" for label, count in counts)
        return [*dataset.describe_truncation(), f"labels: {listed}" if len(counts) <= _MAX_LISTED_LABELS else ""]

    def make_dev_example(self, example: LabelledText) -> DevExample:
        """Return text and label."""
        return DevExample(example.text, example.label)


def _read_unlabelled(config: RunConfig) -> Iterator[str]:
    """Yield the texts of labelled files and folders without their labels; of any other file, each line is a text."""
    for path in map(Path, config.data.unlabelled or ()):
        labelled = has_labelled_texts(path)
        yield from (example.text for example in read_texts(path, config.data)) if labelled else iterate_lines(path)


def _encode_texts(
    labelled: Sequence[LabelledText], vocabulary: ClassificationVocabulary, config: RunConfig
) -> RaggedArray:
    """Return the token ids of labelled and unlabelled texts."""
    texts = chain((example.text for example in labelled), _read_unlabelled(config))
    return RaggedArray.from_rows(map(vocabulary.tokenizer.encode, texts))


def _make_vocabulary(tokenizer: Tokenizer, labels: LabelVocabulary, config: RunConfig) -> ClassificationVocabulary:
    data, model = config.data, config.model
    settings = _find_classifier_settings(model["kind"])
    hasher = None
    if settings.reads_ngrams:
        affix_buckets = model["affix_buckets"] if config.text.kind == "word" else 0  # subwords have no affixes
        sizes = model["word_ngrams"], model["char_ngrams"], model["buckets"], affix_buckets, model["skip_words"]
        hasher = NgramHasher(*sizes)
    limits = data.max_length, data.max_sentences
    encoder = TextEncoder(tokenizer, settings.reads_sentences, data.language, *limits, hasher)
    return ClassificationVocabulary(encoder, labels, config.text)


def _find_classifier_settings(kind: str) -> type[ClassifierSettings]:
    """Return the settings class of a kind of classifier."""
    import_plugins()
    classifiers = {name: settings for name, (settings, _) in MODELS.items() if issubclass(settings, ClassifierSettings)}
    if kind not in classifiers:
        raise UserError(f"model.kind {kind!r} is not a classifier{format_suggestion(str(kind), classifiers)}")
    return classifiers[kind]


def subsample_evenly(examples: Sequence[LabelledText], max_examples: int) -> list[LabelledText]:
    """Return at most `max_examples` examples, evenly spaced from the first to the last."""
    count = min(len(examples), max_examples)
    return [examples[index * len(examples) // count] for index in range(count)]
