"""Interfaces between training and a task: prepared data, validation, prediction; and helpers that tasks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from regard.console import log_message
from regard.data.indexed_dataset import Indices
from regard.data.loader import TrainingDataset
from regard.data.sampler import split_by_tokens
from regard.data.sentence_pair import Pair
from regard.data.split import choose_dev_hashes, hash_source
from regard.data.unicode_scripts import has_spaces
from regard.errors import UserError
from regard.evaluate import bleu_multi_reference, chrf_multi_reference
from regard.plot import AttentionOverlay, PredictedSeries, WeightedWords
from regard.recipes import RunConfig
from regard.runs import Run
from regard.synthetic.corpus import SyntheticCorpus

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ValidationSample(Protocol):
    """One dev example with the prediction of the current checkpoint."""

    def to_dict(self) -> dict[str, str]:
        """Return input, reference and prediction as text."""
        ...

    def plot(self) -> Figure | None:
        """Return a figure of the attention weights; None if the model has no attention."""
        ...


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
    dataset: TrainingDataset[Any]
    validate: ValidateFunction
    vocabulary_sizes: tuple[int, int]  # input vocabulary, output vocabulary
    save_vocabularies: Callable[[Path], None]  # writes the vocabularies into a folder
    description: str  # one line about the data, for the log
    on_best: OnBestCallback | None = None


class Prediction(Protocol):
    """Output of a model for one input."""

    def to_text(self) -> str:
        """Return the prediction as one line of text."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as a JSON-serialisable dictionary, including attention weights."""
        ...

    def make_attention_lines(self) -> list[WeightedWords]:
        """Return the input words with their attention weights; an empty list if the model has no attention."""
        ...

    def make_image_overlay(self) -> AttentionOverlay | None:
        """Return the attention weights of each output word over the image; None if the input is not an image."""
        ...


class Predictor(Protocol):
    """A trained model, ready for inference."""

    def predict(self, inputs: Sequence[Any]) -> Sequence[Prediction]:
        """Return one prediction for each input, in order."""
        ...

    def parse_lines(self, lines: Iterable[str]) -> Iterator[Any]:
        """Yield the inputs that text lines hold, each as soon as its lines are complete."""
        ...

    def read_inputs(self, path: Path) -> Iterator[Any]:
        """Yield the inputs of a file; references in it are ignored."""
        ...

    def parse_json_input(self, given: Any) -> Any:
        """Validate untrusted JSON and return the input it holds; refuse paths to files on this machine."""
        ...

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Return metrics on files that hold references."""
        ...


class DevExample(NamedTuple):
    """A dev input with its reference."""

    input: Any
    reference_text: str
    reference: Any = None  # structured reference, where text is not enough (a table of numbers)


class Task(NamedTuple):
    """A kind of model that a recipe names as its `task`, with the functions that prepare, load and demonstrate it."""

    data_settings: type  # dataclass for the recipe's `data` section
    text_settings: type  # dataclass for the recipe's `text` section
    prepare: Callable[[Run, RunConfig, bool], PreparedRun]  # run, config, whether training resumes
    load: Callable[..., Any]  # run folder -> `Predictor` or `Translator` with the best checkpoint
    load_dev_set: Callable[[RunConfig], Sequence[DevExample]]
    write_synthetic_corpus: Callable[[Path], SyntheticCorpus] | None = None  # writes toy data into a folder
    # Reference and prediction as curves over time (regression only).
    make_predicted_series: Callable[[DevExample, Any], Sequence[PredictedSeries]] | None = None

    def make_config(self, recipe: Mapping[str, Any]) -> RunConfig:
        """Return the config of a recipe of this task."""
        return RunConfig.from_recipe(recipe, self.text_settings, self.data_settings)


T = TypeVar("T")


def require_list(inputs: Sequence[T], input_name: str) -> Sequence[T]:
    """Return the inputs; raise TypeError for a single string or mapping, which would be iterated piece by piece."""
    if isinstance(inputs, str | bytes | Mapping):
        raise TypeError(f"predict takes a list of {input_name}s, not one: predict([{input_name}])")
    return inputs


def find_vocabulary_run(run: Run, config: RunConfig, resume: bool) -> Run | None:
    """Return the run whose vocabularies are used: the resumed one, or that in `training.init_from`; None: learn new."""
    init_from = config.training.init_from
    return run if resume else Run(Path(init_from)) if init_from else None


def get_single_run(runs: Sequence[str | Path], activity: str) -> Run:
    """Return the only run of `runs`; raise UserError for several. `activity` completes "a model that …"."""
    if len(runs) != 1:
        raise UserError(
            f"a model that {activity} cannot join an ensemble: give one run, not {', '.join(map(str, runs))}"
        )
    return Run(Path(runs[0]))


def choose_inference_device(device: str | torch.device | None) -> torch.device:
    """Return the named device, or by default a GPU if there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def split_dev_examples(
    examples: Sequence[T], to_pair: Callable[[T], Pair], seed: int, max_dev: int, too_few_message: str
) -> tuple[list[T], list[T]]:
    """Split examples into training and dev set by a hash of their input, so that order does not matter.

    Examples with equal inputs go to the same side.

    Args:
        examples: All examples.
        to_pair: Gives the (input, output) pair of an example; the input is hashed.
        seed: Seed of the hash.
        max_dev: Maximum number of dev examples.
        too_few_message: Beginning of the error message if all inputs are equal.

    Returns:
        Training examples, dev examples.
    """
    hashes = np.array([hash_source(to_pair(example), seed) for example in examples], dtype=np.uint64)
    if len(np.unique(hashes)) < 2:
        raise UserError(f"{too_few_message}, too little to train and validate on; give --dev")
    is_dev = np.isin(hashes, choose_dev_hashes(hashes, max_dev)).tolist()
    pairs = list(zip(examples, is_dev, strict=True))
    return [example for example, in_dev in pairs if not in_dev], [example for example, in_dev in pairs if in_dev]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error means out of memory, including driver and CPU allocator errors of other types."""
    phrases = "out of memory", "DefaultCPUAllocator"
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in phrases)


def _run_halving_on_oom(run_batch: Callable[[Indices], T], rows: Indices) -> list[T]:
    """Run a batch; on out of memory run its two halves instead, recursively."""
    try:
        return [run_batch(rows)]
    except RuntimeError as error:
        if not is_out_of_memory(error) or len(rows) == 1:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(rows) // 2
    return _run_halving_on_oom(run_batch, rows[:middle]) + _run_halving_on_oom(run_batch, rows[middle:])


def map_batches(run_batch: Callable[[Indices], T], sizes: npt.NDArray[np.integer], batch_tokens: int) -> list[T]:
    """Run a function on token-limited batches of row indices, shortest examples first; return one result per batch."""
    batches = split_by_tokens(np.argsort(sizes, kind="stable"), sizes, batch_tokens)
    return [result for rows in batches for result in _run_halving_on_oom(run_batch, rows)]


def map_batches_in_order(
    run_batch: Callable[[Indices], Sequence[T]], sizes: npt.NDArray[np.integer], batch_tokens: int
) -> list[T]:
    """Run a function on batches as `map_batches` does; return one result per example, in the original order."""
    sorted_results = [
        result for batch_results in map_batches(run_batch, sizes, batch_tokens) for result in batch_results
    ]
    positions = np.argsort(np.argsort(sizes, kind="stable"))  # inverse permutation: rank of each example by size
    return [sorted_results[position] for position in positions.tolist()]


def choose_selection_metric(references: Sequence[str], language: str | None = None) -> str:
    """Return the metric that chooses the best checkpoint: `bleu`, or `chrf` for scripts without spaces.

    BLEU counts words between spaces: in Chinese, Japanese, Thai and others it is 0 or random.
    """
    return "bleu" if has_spaces("".join(references), language) else "chrf"


def score_texts(
    texts: Sequence[str], references: Sequence[Sequence[str]], selection_metric: str, lowercase: bool
) -> dict[str, float]:
    """Return BLEU, and chrF if that is the selection metric; each text may have several references."""
    scores = {"bleu": bleu_multi_reference} | ({"chrf": chrf_multi_reference} if selection_metric == "chrf" else {})
    return {name: score(texts, references, lowercase).value for name, score in scores.items()}


def report_selection_metric(selection_metric: str, best: str) -> None:
    """Log a line if chrF chooses the best checkpoint; `best` is the setting `training.best`."""
    if selection_metric == "chrf" and best != "loss":
        log_message("the target language has no spaces between words: chrF, not BLEU, chooses the best checkpoint")
