"""What training asks of a task: which examples there are, how good a model is at them, and who uses it."""

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
from regard.recipes import Recipe
from regard.runs import Run
from regard.synthetic.corpus import SyntheticCorpus

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ValidationSample(Protocol):
    """An example of the dev set as the model does it now."""

    def to_dict(self) -> dict[str, str]:
        """What was asked, what would be right, and what the model made of it."""
        ...

    def plot(self) -> Figure | None:
        """Where the model looked, if it looks."""
        ...


class Validation(NamedTuple):
    """What a model is worth on the dev set."""

    loss: float
    metrics: Mapping[str, float]  # by name
    selection_metric: str  # the one of them that says which model is the best: the higher the better
    samples: Sequence[ValidationSample] = ()

    @property
    def score(self) -> float:
        """How good the model is."""
        return self.metrics[self.selection_metric]


ValidateFunction = Callable[
    [Any, torch.device], Validation
]  # leaves the model as it was; takes nothing from random generators
OnBestCallback = Callable[[Any, torch.device], None]  # runs after each new best validation; leaves the model likewise


class PreparedRun(NamedTuple):
    """All that a trainer needs of a task."""

    run: Run
    config: Recipe  # with nothing left open
    dataset: TrainingDataset[Any]
    validate: ValidateFunction
    vocabulary_sizes: tuple[int, int]  # of the vocabularies: what is read, and what is written or chosen from
    save_vocabularies: Callable[[Path], None]  # writes the vocabularies into a folder
    description: str  # the examples, in words
    on_best: OnBestCallback | None = None


class Prediction(Protocol):
    """What a model makes of one input."""

    def to_text(self) -> str:
        """In one line, for a pipe."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it, the weights included."""
        ...

    def make_attention_lines(self) -> list[WeightedWords]:
        """What the model looked at: words with their weights; nothing where it does not look."""
        ...

    def make_image_overlay(self) -> AttentionOverlay | None:
        """Where in an image the model looked for each word, if it looked at one."""
        ...


class Predictor(Protocol):
    """A trained model at work."""

    def predict(self, inputs: Sequence[Any]) -> Sequence[Prediction]:
        """A prediction for each input, in order."""
        ...

    def parse_lines(self, lines: Iterable[str]) -> Iterator[Any]:
        """The inputs that the lines of a pipe hold, each as soon as it is there."""
        ...

    def read_inputs(self, path: Path) -> Iterator[Any]:
        """The inputs that a file holds, also one that says what is right."""
        ...

    def parse_json_input(self, given: Any) -> Any:
        """The input that a stranger's JSON holds, checked; a file of this machine is none."""
        ...

    def evaluate(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Figures on data that says what is right."""
        ...


class DevExample(NamedTuple):
    """An input, and what is right."""

    input: Any
    reference_text: str
    reference: Any = None  # the same, where it is more than text


class Task(NamedTuple):
    """A kind of work that a recipe names as its `task`."""

    data_settings: type  # what its recipes' `data` section is read as …
    text_settings: type  # … and `text`
    prepare: Callable[[Run, Recipe, bool], PreparedRun]  # a run, its recipe, and whether it goes on
    load: Callable[..., Any]  # a run -> what works with its best model, a `Predictor` or a `Translator`
    load_dev_set: Callable[[Run], Sequence[DevExample]]  # what a run was validated on
    write_synthetic_corpus: Callable[[Path], SyntheticCorpus] | None = None  # writes data of its own into a folder
    make_predicted_series: Callable[[DevExample, Any], Sequence[PredictedSeries]] | None = (
        None  # what is right and a prediction, as curves over time
    )


T = TypeVar("T")


def require_list(inputs: Sequence[T], input_name: str) -> Sequence[T]:
    """The same inputs, if they are several, and not one that would be taken apart letter by letter."""
    if isinstance(inputs, str | bytes | Mapping):
        raise TypeError(f"predict takes a list of {input_name}s, not one: predict([{input_name}])")
    return inputs


def get_single_run(runs: Sequence[str | Path], activity: str) -> Run:
    """The one run among `runs`; `does` is what its model does."""
    if len(runs) != 1:
        raise UserError(f"a model that {activity} works alone, not beside others: {', '.join(map(str, runs))}")
    return Run(Path(runs[0]))


def choose_inference_device(device: str | torch.device | None) -> torch.device:
    """The device that is named, or a GPU where there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def split_dev_examples(
    examples: Sequence[T], to_pair: Callable[[T], Pair], seed: int, max_dev: int, too_few_message: str
) -> tuple[list[T], list[T]]:
    """Examples to train on, and at most so many to validate on: chosen by what is read in them, not by their order.

    Those that are read alike are on one side. `alone` is what is the matter where all are.
    """
    hashes = np.array([hash_source(to_pair(one), seed) for one in examples], dtype=np.uint64)
    if len(np.unique(hashes)) < 2:
        raise UserError(f"{too_few_message}, too little to train and validate on; give --dev")
    held = np.isin(hashes, choose_dev_hashes(hashes, max_dev)).tolist()
    both = list(zip(examples, held, strict=True))
    return [one for one, out in both if not out], [one for one, out in both if out]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether there is no memory left; where the driver says so, or it is a CPU's, that has no type of its own."""
    words = "out of memory", "DefaultCPUAllocator"
    return isinstance(error, torch.OutOfMemoryError) or any(some in str(error) for some in words)


def _run_halving_on_oom(run_batch: Callable[[Indices], T], rows: Indices) -> list[T]:
    """What work finds for some rows: at once, or in halves where there is not enough memory for that."""
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
    """What work finds for one lot of rows after the other, from the smallest examples to the largest."""
    batches = split_by_tokens(np.argsort(sizes, kind="stable"), sizes, batch_tokens)
    return [found for rows in batches for found in _run_halving_on_oom(run_batch, rows)]


def map_batches_in_order(
    run_batch: Callable[[Indices], Sequence[T]], sizes: npt.NDArray[np.integer], batch_tokens: int
) -> list[T]:
    """What work finds for each of its rows, brought back into the order of the examples."""
    found = [one for some in map_batches(run_batch, sizes, batch_tokens) for one in some]
    positions = np.argsort(np.argsort(sizes, kind="stable"))  # where in all that was found each example is
    return [found[position] for position in positions.tolist()]


def choose_selection_metric(references: Sequence[str], language: str | None = None) -> str:
    """Return the score that chooses the best model: `bleu`, or `chrf` where words are not separated by spaces.

    BLEU counts words between spaces: in Chinese, Japanese, Thai and others it is 0 or chance.
    """
    return "bleu" if has_spaces("".join(references), language) else "chrf"


def score_texts(
    texts: Sequence[str], references: Sequence[Sequence[str]], selection_metric: str, lowercase: bool
) -> dict[str, float]:
    """Return BLEU, and chrF where that is the measure; each text may have several references."""
    scores = {"bleu": bleu_multi_reference} | ({"chrf": chrf_multi_reference} if selection_metric == "chrf" else {})
    return {name: score(texts, references, lowercase).value for name, score in scores.items()}


def report_selection_metric(selection_metric: str, best: str) -> None:
    """Write a line if chrF chooses the best checkpoint; `best` is the setting `training.best`."""
    if selection_metric == "chrf" and best != "loss":
        log_message("the target language has no spaces between words: chrF, not BLEU, chooses the best checkpoint")
