"""Checks that tests of all tasks share: errors, resume, fine-tuning, synthetic corpora, the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.recipes.recipe import override, read_recipe
from regard.runs import Run, checkpoint
from regard.synthetic.corpora import SyntheticCorpus
from regard.tasks import TASKS
from regard.tasks.base import PreparedRun
from regard.training import train
from support.commands import Command
from support.training import format_overrides

# Training settings with which any task trains in a fraction of a second, validating and saving at steps 3 and 6.
SIX_STEPS: dict[str, Any] = {
    "training.steps": 6,
    "training.epochs": None,
    "training.learning_rate": 0.01,
    "training.validate_every": 3,
    "training.checkpoint_every": 3,
    "training.log_every": 1,
    "training.tensorboard": False,
}


def error_message(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the message of the `UserError` that a call raises, which must be one line."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def prepare_job(recipe: str, data: Path, out: Path, **overrides: Any) -> PreparedRun:
    """Return the training job of a recipe with dotted overrides, before its first step."""
    config = override(read_recipe(recipe), {"data.train": [str(data)], **overrides})
    task = TASKS[config["task"]]
    return task.prepare(Run(out), task.make_config(config), False)


def assert_resume_is_bit_identical(uninterrupted: Run, out: Path) -> None:
    """Check that a run stopped at step 3 and resumed equals one of 6 steps: weights, optimizer state, dev metrics."""
    half: dict[str, Any] = {"training.steps": 3}
    train(uninterrupted.read_config(), None, out, **half)
    whole: dict[str, Any] = {"training.steps": 6}
    resumed = train(None, None, out, resume=True, **whole)
    for name in (checkpoint.MODEL_FILE, checkpoint.OPTIMIZER_FILE):
        expected, found = ((run.checkpoint_folder(6) / name).read_bytes() for run in (uninterrupted, resumed))
        assert expected == found, f"{name} differs after resuming"
    expected_rows, rows = (
        [row for row in run.read_metrics() if row["kind"] == "dev"] for run in (uninterrupted, resumed)
    )
    assert expected_rows == rows


def assert_resume_refuses_changed_data(run: Run, data: Path, out: Path, change: Callable[[], object]) -> None:
    """Check that a run on `data`, stopped at step 3, does not resume after `change` has altered the data."""
    half: dict[str, Any] = {"training.steps": 3}
    train(run.read_config(), data, out, **half)
    change()
    whole: dict[str, Any] = {"training.steps": 6}
    assert "the training data differs from" in error_message(train, None, None, out, resume=True, **whole)


def assert_init_from_copies_weights(run: Run, sizes: tuple[int, int], data: Path, dev: Path, out: Path) -> Run:
    """Fine-tune with learning rate 0, check that the weights are those of the best checkpoint, and return the run."""
    overrides = {"training.init_from": str(run.folder), "training.steps": 1, "training.learning_rate": 0.0}
    child = train(None, data, out, dev=dev, **overrides)  # type: ignore[arg-type]
    best, copied = run.load_model(sizes).state_dict(), child.load_model(sizes, 1).state_dict()
    copied.pop("baseline", None)  # of hard attention: a running mean of the loss, which moves without a gradient
    assert all(torch.equal(best[name], tensor) for name, tensor in copied.items())
    return child


def assert_synthetic_corpus_depends_on_seed(
    write: Callable[..., SyntheticCorpus], folder: Path, *recipes: str
) -> SyntheticCorpus:
    """Write a task's synthetic corpus with seeds 1, 1 and 2; compare the files and return the first.

    Each override that comes with the corpus must be a key of one of the recipes.
    """
    first, again, other = (write(folder / name, seed) for name, seed in (("first", 1), ("again", 1), ("other", 2)))
    names = sorted(path.name for path in (folder / "first").iterdir())
    assert names == sorted(path.name for path in (folder / "again").iterdir())
    for name in names:
        expected, repeated, changed = ((folder / part / name).read_bytes() for part in ("first", "again", "other"))
        assert expected == repeated != changed, name
    assert first.overrides == again.overrides == other.overrides
    assert set(first.overrides) == set().union(*(first.select_overrides(read_recipe(recipe)) for recipe in recipes))
    return first


def check_train_command(
    regard: Command, recipe: str, data: Path, overrides: Mapping[str, Any], hint: str, *arguments: object
) -> None:
    """Run `regard train` and check that its last line says how to use the model."""
    done = regard("train", *arguments, data, "--recipe", recipe, *format_overrides(overrides))
    assert done.returncode == 0, done.stderr
    name = f"{data.stem}-{recipe}"
    assert done.stderr.splitlines()[-1] == f"{hint} with: regard predict runs/{name} FILE"


def check_predict_command(
    regard: Command, run: Path, given: str, wrong: str = "", message: str = ""
) -> tuple[list[str], list[Any]]:
    """Run `regard predict` on standard input; return its lines and its JSON documents for the input `given`.

    Args:
        wrong: an input that is refused with exit status 2, if not empty …
        message: … and this error.
    """
    plain = regard("predict", run, input=given)
    assert (plain.returncode, plain.stderr) == (0, "")
    documents = regard("predict", run, "--json", input=given)
    assert (documents.returncode, documents.stderr) == (0, "")
    if wrong:
        refused = regard("predict", run, input=wrong)
        assert refused.returncode == 2
        assert message in refused.stderr
    return plain.stdout.splitlines(), [json.loads(line) for line in documents.stdout.splitlines()]


def check_evaluate_command(regard: Command, run: Path, data: Path, metrics: set[str]) -> dict[str, Any]:
    """Run `regard evaluate` with and without --json, check that both have the metrics, and return the JSON object."""
    found: dict[str, Any] = json.loads(regard("evaluate", run, data, "--json").stdout)
    assert metrics <= set(found)
    plain = regard("evaluate", run, data).stdout
    assert all(name in plain for name in metrics)
    return found
