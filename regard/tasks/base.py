"""The interface of a task, and the steps that tasks share: dev split, preparation, validation, prediction, loading.

A task is one module, which has in this order

1. settings: dataclasses for the `data` and `text` sections of its recipes;
2. the reader of its files, here or in `regard/data/readers`;
3. a vocabulary: what is learnt from the training examples besides the weights, with `sizes`, `describe` and `save`;
4. a batch (`regard.data.dataset.Batch`) and a dataset of encoded examples (`TrainingDataset`);
5. a `Prediction`, and a `Predictor` that makes predictions and scores them;
6. a class derived from `InMemoryTask`, which names these parts; its `prepare` and `load` have the steps from files to a
   trainer and from a run to a predictor. Tasks whose data stay on disk derive from `Task`. A line in
   `regard.tasks.TASKS` makes the task known to every command.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from regard.data.dataset import Indices, TrainingDataset
from regard.data.loader import map_batches_in_order
from regard.data.readers.text import Pair, format_path, iterate_lines
from regard.data.split import choose_dev_hashes, hash_source
from regard.errors import UserError, format_suggestion
from regard.models.plugins import PLUGIN_VARIABLE, import_plugins
from regard.plot.attention_overlay import AttentionOverlay, WeightedWords, plot_attention_overlay, plot_weighted_words
from regard.plot.charts import PredictedSeries, plot_predicted_series
from regard.recipes.recipe import RunConfig, get_task_name
from regard.runs import Run, choose_inference_device
from regard.synthetic.corpora import SyntheticCorpus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
ExampleT = TypeVar("ExampleT")
SAMPLES = 5  # dev examples that each validation writes with their predictions


class ValidationSample(NamedTuple):
    """One dev example with the prediction of the current checkpoint."""

    texts: Mapping[str, str]  # input, reference and prediction, by name
    plot: Callable[[], Figure | None] = lambda: None


class Validation(NamedTuple):
    """Result of one validation: dev loss, metrics by name, and some samples."""

    loss: float
    metrics: Mapping[str, float]  # by name
    selection_metric: str  # the metric that chooses the best checkpoint; higher is better
    samples: Sequence[ValidationSample] = ()

    @property
    def score(self) -> float:
        """Value of the selection metric."""
        return self.metrics[self.selection_metric]


# Validates a model on a device. Must leave the model unchanged and must not advance any random generator.
ValidateFunction = Callable[[Any, torch.device], Validation]
# Runs after each new best validation, under the same conditions.
OnBestCallback = Callable[[Any, torch.device], None]


class PreparedRun(NamedTuple):
    """Everything a trainer needs from a task: the resolved config, encoded data, validator and vocabularies."""

    run: Run
    config: RunConfig  # all values resolved, no "auto" or null that the data decide
    dataset: TrainingDataset
    validate: ValidateFunction
    vocabulary_sizes: tuple[int, int]  # input vocabulary, output vocabulary
    save_vocabularies: Callable[[Path], None]  # writes the vocabularies into a folder
    description: str  # one line about the data, for the log
    on_best: OnBestCallback | None = None
    tokenizer: Any = None  # of the inputs, for pretrained word vectors


class DevExample(NamedTuple):
    """A dev input with its reference."""

    input: Any
    reference_text: str
    reference: Any = None  # structured reference, where text is not enough (a table of numbers)


class Prediction(ABC):
    """Output of a model for one input."""

    @abstractmethod
    def to_text(self) -> str:
        """Return the prediction as one line of text."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as a JSON-serialisable dictionary, including attention weights."""

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return the input words with their attention weights; an empty list if the model has no attention."""
        return []

    def make_image_overlay(self) -> AttentionOverlay | None:
        """Return the attention weights of each output word over the image; None if the input is not an image."""
        return None

    def make_series(self, reference: Any) -> list[PredictedSeries]:
        """Return reference and prediction over time; an empty list if the output is not numbers."""
        return []

    def plot(self, reference: Any = None) -> Figure | None:
        """Return a figure of the attention weights or of the numbers over time; None if there are neither."""
        if (overlay := self.make_image_overlay()) is not None:
            return plot_attention_overlay(overlay)
        if reference is not None and (series := self.make_series(reference)):
            return plot_predicted_series(series)
        lines = self.make_attention_lines()
        return plot_weighted_words(lines) if lines else None


class Task(ABC):
    """A kind of model that a recipe names as its `task`: how to prepare its data, load it and demonstrate it."""

    verb: ClassVar[str]  # completes "a model that …"
    command: ClassVar[str] = "predict"  # subcommand of `regard` that applies a model
    demo_recipe: ClassVar[str]
    demo_note: ClassVar[str] = ""  # explains the predictions that a demo prints
    data_settings: ClassVar[type[Any]]  # dataclass for the recipe's `data` section
    text_settings: ClassVar[type[Any]]  # dataclass for the recipe's `text` section
    writes_text: ClassVar[bool] = False  # which BLEU and chrF score, so that the recipe has an `evaluation` section

    @abstractmethod
    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Prepare the data and the vocabularies of a run that begins or resumes."""

    @abstractmethod
    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> Any:
        """Load the best checkpoint of a run as a `Predictor` or a `Translator`; by default on a GPU if there is one."""

    @abstractmethod
    def load_dev_set(self, config: RunConfig) -> Sequence[DevExample]:
        """Return the dev set of a run, given its config."""

    @abstractmethod
    def write_synthetic_corpus(self, folder: Path) -> SyntheticCorpus:
        """Write the data of the task's demo into a folder."""

    def make_config(self, recipe: Mapping[str, Any]) -> RunConfig:
        """Return the config of a recipe of this task."""
        return RunConfig.from_recipe(recipe, self.text_settings, self.data_settings, self.writes_text)


class Predictor(ABC):
    """A trained model with its vocabulary, ready for inference."""

    nouns: ClassVar[str]  # what the examples are called in messages and metrics
    dataset: ClassVar[type[Any]]  # a `TrainingDataset` that is made of examples and the vocabulary
    selection_metrics: ClassVar[Sequence[str]]  # the first one that a model has chooses its best checkpoint
    min_batch_tokens: ClassVar[int] = 0  # batches may be larger than in training, without gradients

    def __init__(self, model: nn.Module, vocabulary: Any, data: Any, device: torch.device, batch_tokens: int) -> None:
        """Take the run's vocabulary and its data settings, and the size of a batch."""
        self.model = model.to(device).eval()
        self.vocabulary = vocabulary
        self.data = data
        self.device = device
        self.batch_tokens = max(batch_tokens, self.min_batch_tokens)

    @abstractmethod
    def predict(self, inputs: Sequence[Any]) -> Sequence[Prediction]:
        """Return one prediction for each input, in order."""

    @abstractmethod
    def parse_lines(self, lines: Iterable[str], name: str = "") -> Iterator[Any]:
        """Yield the inputs that text lines hold, each as soon as its lines are complete; `name` is for messages."""

    def read_inputs(self, path: Path) -> Iterator[Any]:
        """Yield the inputs of a file; references in it are ignored."""
        return self.parse_lines(iterate_lines(path), format_path(path))

    @abstractmethod
    def parse_json_input(self, given: Any) -> Any:
        """Validate untrusted JSON and return the input it holds; refuse paths to files on this machine."""

    @classmethod
    @abstractmethod
    def iterate_examples(cls, paths: Sequence[Path], data: Any) -> Iterable[Any]:
        """Yield the inputs of files with their references."""

    @abstractmethod
    def run_batch(self, batch: Any) -> Sequence[Any]:
        """Return the model's output for each example of a batch, without padding."""

    def compute_metrics(self, examples: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the metrics of the model's outputs, with the `selection_metrics` and `loss` for `validate`."""
        raise NotImplementedError

    def make_sample(self, example: Any, output: Any) -> ValidationSample:
        """Return an example with the prediction that an output stands for, for `validate`."""
        raise NotImplementedError

    @classmethod
    def read_examples(cls, paths: Sequence[str | Path], data: Any, purpose: str) -> list[Any]:
        """Read the examples of files; raise UserError if there are none for the purpose ("train on")."""
        examples = list(cls.iterate_examples(list(map(Path, paths)), data))
        if not any(map(cls.is_usable, examples)):
            raise UserError(f"{' and '.join(map(str, paths))}: no {cls.nouns} to {purpose}")
        return examples

    @classmethod
    def is_usable(cls, example: Any) -> bool:
        """Return whether an example has an input and a reference, as training and validation need them."""
        return True

    @classmethod
    def encode(cls, examples: Sequence[Any], vocabulary: Any) -> tuple[Sequence[Any], Any]:
        """Return the examples as the metrics take them, and their dataset."""
        return examples, cls.dataset(examples, vocabulary)

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return metrics on files that hold references."""
        examples, dataset = self.encode(self.read_examples(paths, self.data, "score on"), self.vocabulary)
        return {self.nouns: len(examples)} | self.compute_metrics(examples, self.run_model(dataset))

    def validate(self, examples: Sequence[Any], dataset: Any, max_measured: int) -> Validation:
        """Return the loss of all dev examples, and metrics and samples of the first `max_measured` ones."""
        measured = self.compute_metrics(examples, outputs := self.run_model(dataset))
        if not math.isfinite(loss := measured["loss"]):
            raise ArithmeticError("the dev loss is NaN or inf")
        if max_measured < len(examples):
            measured = self.compute_metrics(examples[:max_measured], outputs[:max_measured])
        metrics = {name: value for name, value in measured.items() if name in self.selection_metrics}
        samples = [self.make_sample(*pair) for pair in zip(examples[:SAMPLES], outputs, strict=False)]
        return Validation(loss, metrics, next(filter(metrics.__contains__, self.selection_metrics)), samples)

    @torch.inference_mode()
    def run_model(self, dataset: TrainingDataset) -> list[Any]:
        """Return the model's output for each example, in order."""

        def run_rows(rows: Indices) -> Sequence[Any]:
            return self.run_batch(dataset.make_batch(rows).to(self.device))

        return map_batches_in_order(run_rows, dataset.sizes, self.batch_tokens)


@dataclass(frozen=True)
class Validator:
    """Validates models on dev examples, which are encoded once."""

    make_predictor: Callable[[nn.Module, torch.device], Predictor]
    examples: Sequence[Any]
    dataset: TrainingDataset
    max_measured: int

    def __call__(self, model: nn.Module, device: torch.device) -> Validation:
        """Return the metrics of a model; leave the model and the random generators unchanged."""
        with evaluation_mode(model):
            return self.make_predictor(model, device).validate(self.examples, self.dataset, self.max_measured)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and on again on exit if it was on."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class Split(NamedTuple, Generic[ExampleT]):
    """Training and dev examples, and how many training examples were left out, by reason."""

    train: list[ExampleT]
    dev: list[ExampleT]
    left_out: Mapping[str, int]


class InMemoryTask(Task, Generic[ExampleT]):
    """A task whose examples fit in memory: all steps from files to a trainer or a predictor, with a method for each."""

    predictor: ClassVar[type[Predictor]]
    data_hint: ClassVar[str]  # completes "nothing to train on: name …"
    length_unit: ClassVar[str] = ""  # of `measure_length`
    too_few: ClassVar[str]  # says why no dev set can be held out if all inputs are equal
    dev_limit: ClassVar[str]  # key of `data`: the largest number of examples to hold out for the dev set

    @abstractmethod
    def make_split_pair(self, example: ExampleT) -> Pair:
        """Return input and output as text; the input decides whether an example is held out for the dev set."""

    @abstractmethod
    def learn_vocabulary(self, split: Split[ExampleT], config: RunConfig) -> Any:
        """Return the vocabulary of the training examples: tokens, labels, or the scale of numbers.

        Its `sizes` are the numbers of inputs and outputs, `describe()` gives them as text, `save(folder)` writes it.
        """

    @abstractmethod
    def load_vocabulary(self, run: Run, config: RunConfig) -> Any:
        """Load the vocabulary of a run; `config` is that of the run, or of one that starts from it."""

    def make_dev_example(self, example: ExampleT) -> DevExample:
        """Return input and reference of an example, for `load_dev_set`."""
        raise NotImplementedError

    def make_training_set(self, split: Split[ExampleT], vocabulary: Any, config: RunConfig) -> TrainingDataset:
        """Return the dataset of the training examples."""
        dataset: TrainingDataset = self.predictor.dataset(split.train, vocabulary)
        return dataset

    def choose_dev_examples(self, dev: list[ExampleT], max_measured: int) -> list[ExampleT]:
        """Return the dev examples to validate on: all, where only metrics are limited to `max_measured` of them."""
        return dev

    def resolve_config(self, config: RunConfig, split: Split[ExampleT], dataset: Any, parent: Run | None) -> RunConfig:
        """Return the config with what the data decide; `parent` is the run whose vocabulary is used."""
        return config

    def measure_corpus(self, split: Split[ExampleT]) -> int:
        """Return the size of the corpus in the unit of the task's table of automatic sizes."""
        return len(split.train)

    def measure_length(self, example: ExampleT) -> int:
        """Return the length of a training example, which is left out if it is above `data.max_length`."""
        return 0

    def describe_training_set(self, split: Split[ExampleT], dataset: Any) -> Sequence[str]:
        """Return notes on the training examples, for the log."""
        return ()

    def describe_dev_set(self, dev: Sequence[Any]) -> Sequence[str]:
        """Return notes on the examples that are validated on, for the log."""
        return ()

    def make_predictor(self, vocabulary: Any, config: RunConfig, model: Any, device: torch.device) -> Predictor:
        """Return a predictor of a model."""
        return self.predictor(model, vocabulary, config.data, device, config.training.batch_tokens)

    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Split and encode the examples, and learn or load the vocabulary."""
        # 1. Read the examples, hold out a dev set, and resolve sizes that are `auto` by the size of the corpus.
        split = self.split(config.data, config.training.seed)
        size = len(split.train) if config.auto_table == "finetuning" else self.measure_corpus(split)
        config = config if resume else config.resolve_auto_sizes(size)
        # 2. Load the vocabulary of this run, or of the run that it starts from, or learn one.
        parent = run if resume else Run(Path(config.training.init_from)) if config.training.init_from else None
        vocabulary = self.load_vocabulary(parent, config) if parent else self.learn_vocabulary(split, config)
        # 3. Encode the training examples and the dev set.
        dataset = self.make_training_set(split, vocabulary, config)
        config = self.resolve_config(config, split, dataset, parent)
        max_measured = config.training.validate_pairs
        dev, dev_dataset = self.predictor.encode(self.choose_dev_examples(split.dev, max_measured), vocabulary)
        validator = Validator(partial(self.make_predictor, vocabulary, config), dev, dev_dataset, max_measured)
        # 4. Describe the data for the log.
        nouns, left_out = self.predictor.nouns, format_left_out({**split.left_out, **dataset.left_out})
        train_set = format_count(len(dataset), nouns, left_out, *self.describe_training_set(split, dataset))
        dev_set = format_count(len(split.dev), f"dev {nouns}", *self.describe_dev_set(dev))
        learnt = vocabulary.sizes, vocabulary.save, f"{train_set}, {dev_set}, {vocabulary.describe()}"
        return PreparedRun(run, config, dataset, validator, *learnt, tokenizer=getattr(vocabulary, "tokenizer", None))

    def split(self, data: Any, seed: int) -> Split[ExampleT]:
        """Read the examples; without a dev set, hold out some by a hash of their input, so that order does not matter.

        Examples with equal inputs go to the same side. Long examples are left out of the training set only.
        """
        predictor = self.predictor
        if not data.train:
            raise UserError(f"nothing to train on: name {self.data_hint}")
        examples = predictor.read_examples(data.train, data, "train on")
        train = list(filter(predictor.is_usable, examples))
        left_out = {"empty": len(examples) - len(train)}
        if data.dev:
            dev = list(filter(predictor.is_usable, predictor.read_examples(data.dev, data, "validate on")))
        else:
            hashes = np.array([hash_source(self.make_split_pair(example), seed) for example in train], dtype=np.uint64)
            if len(np.unique(hashes)) < 2:
                raise UserError(f"{self.too_few}, too little to train and validate on; give --dev")
            is_dev = np.isin(hashes, choose_dev_hashes(hashes, getattr(data, self.dev_limit))).tolist()
            dev = list(compress(train, is_dev))
            train = list(compress(train, map(not_, is_dev)))
        short_enough = [example for example in train if self.measure_length(example) <= data.max_length]
        if not short_enough:
            raise UserError(
                f"nothing to train on: all {predictor.nouns} have more than {data.max_length} {self.length_unit} "
                "(data.max_length)"
            )
        return Split(short_enough, dev, {"too long": len(train) - len(short_enough), **left_out})

    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> Any:
        """Load the best checkpoint of a run as a predictor; by default on a GPU if there is one."""
        if len(runs) != 1:
            raise UserError(f"a model that {self.verb} cannot join an ensemble: give one run, not {len(runs)}")
        run = Run(Path(runs[0]))
        config = self.make_config(run.read_config())
        vocabulary = self.load_vocabulary(run, config)
        device = choose_inference_device(device)
        return self.make_predictor(vocabulary, config, run.load_model(vocabulary.sizes), device)

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev set of a run, given its config."""
        return list(map(self.make_dev_example, self.split(config.data, config.training.seed).dev))


def format_left_out(counts: Mapping[str, int]) -> str:
    """Return how many examples were left out, by reason; "" if none were."""
    listed = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    return f"left out: {listed}" if listed else ""


def format_count(count: int, noun: str, *notes: str) -> str:
    """Return a count of examples, with the notes that are not empty in brackets."""
    listed = "; ".join(filter(None, notes))
    return f"{count:,} {noun} ({listed})" if listed else f"{count:,} {noun}"


def require_list(inputs: Sequence[T], input_name: str) -> Sequence[T]:
    """Return the inputs; raise TypeError for a single string or mapping, which would be iterated piece by piece."""
    if isinstance(inputs, str | bytes | Mapping):
        raise TypeError(f"predict takes a list of {input_name}s, not one: predict([{input_name}])")
    return inputs


TASKS: dict[str, Task] = {}  # by name; filled by `regard.tasks`


def get_task(recipe: Mapping[str, Any]) -> Task:
    """Return the task that a recipe or a run's config names; a plug-in may add its own to `TASKS`."""
    if (name := get_task_name(recipe)) not in TASKS:
        import_plugins()
    if name not in TASKS:
        raise UserError(
            f"there is no task {name!r}{format_suggestion(name, TASKS)} "
            f"(for a task of your own, set {PLUGIN_VARIABLE} to the module that adds it)"
        )
    return TASKS[name]
