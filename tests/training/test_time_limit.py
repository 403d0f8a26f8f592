"""Training in a given time: schedule, validations and end, with a clock that only updates and validations advance."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import make_trainer, newest_weights, train_tiny

from regard.data.dataset import Batch
from regard.errors import UserError
from regard.recipes.recipe import TrainingSettings
from regard.runs import Run, checkpoint
from regard.runs.run import is_finished
from regard.tasks.base import Validation
from regard.training import Trainer, trainer
from regard.training.distributed import Interrupted
from regard.training.metrics import TrainingCost, format_estimate
from regard.training.optimizer import compute_learning_rate, compute_progress
from regard.training.train import build_new_config

BY_TIME = {"steps": None, "schedule": "linear", "validate_every": None, "patience": None, "log_every": 1}


class SimulatedTraining:
    """A trainer whose updates and validations take a given number of seconds."""

    def __init__(self, folder: Path, update: float = 5.0, validation: float = 6.0, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.trainer: Trainer = make_trainer(folder, **{**BY_TIME, **settings})
        self.now = 1000.0
        self.trainer.clock = lambda: self.now
        accumulate, validate = self.trainer.accumulator.accumulate, self.trainer.validate

        def accumulate_slowly(batches: Sequence[Batch], step: int, parts: int) -> tuple[torch.Tensor, int]:
            self.now += update
            return accumulate(batches, step, parts)

        def validate_slowly(model: Any, device: torch.device) -> Validation:
            self.now += validation
            return validate(model, device)

        self.trainer.accumulator.accumulate = accumulate_slowly  # type: ignore[method-assign,assignment]
        self.trainer.validate = validate_slowly

    def read_rates(self) -> list[float]:
        """Return the learning rate of each update, as a fraction of the peak."""
        peak = self.trainer.settings.learning_rate
        return [row["learning_rate"] / peak for row in self.trainer.run.read_metrics() if row["kind"] == "train"]

    def list_validated_steps(self) -> list[int]:
        return [row["step"] for row in self.trainer.run.read_metrics() if row["kind"] == "dev"]


def test_training_ends_in_its_time_with_a_validation(tmp_path: Path) -> None:
    training = SimulatedTraining(tmp_path, minutes=4)
    state = training.trainer.fit()
    assert 240 - 5 - 6 <= training.now - 1000 <= 240 + 5
    assert training.list_validated_steps()[-1] == state.step
    saved = checkpoint.read_state(training.trainer.run.checkpoint_folder(state.step))
    assert is_finished({"minutes": 4.0}, saved), "`regard runs` says so"


def test_log_lines_are_thirty_seconds_apart_in_limited_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = SimulatedTraining(tmp_path, minutes=10, log_every=100_000)
    training.trainer.eta.clock = training.trainer.clock
    state = training.trainer.fit()
    lines = [line for line in capsys.readouterr().err.splitlines() if " loss " in line and "dev" not in line]
    assert 10 <= len(lines) <= 20 < state.step


def test_learning_rate_rises_and_falls_to_zero_in_the_given_time(tmp_path: Path) -> None:
    training = SimulatedTraining(tmp_path, minutes=5, warmup=100_000)
    training.trainer.fit()
    rates = training.read_rates()
    peak = rates.index(max(rates))
    assert 0.03 < peak / len(rates) < 0.15, "a warm-up made for more updates is cut"
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] < 0.05
    assert rates[-1] < 0.05


@pytest.mark.parametrize(("minutes", "update", "validation"), [(1, 2.0, 2.0), (4, 5.0, 1.0), (60, 60.0, 100.0)])
def test_first_samples_come_early_and_validations_take_a_tenth_of_the_time(
    minutes: float, update: float, validation: float, tmp_path: Path
) -> None:
    training = SimulatedTraining(tmp_path, update, validation, minutes=minutes)
    training.trainer.fit()
    steps = training.list_validated_steps()
    assert steps[0] * update <= 100 + 2 * update
    assert 3 <= len(steps) <= 13
    assert len(steps) * validation <= 0.2 * 60 * minutes, "with the first and the last one"


def test_interrupted_run_uses_the_time_that_is_left(tmp_path: Path) -> None:
    whole = SimulatedTraining(tmp_path / "whole", minutes=3)
    whole.trainer.fit()
    first = SimulatedTraining(tmp_path / "parts", minutes=3)
    step = first.trainer.train_step

    def stop_later(*arguments: Any) -> Any:
        if first.trainer.train_state.step == 15:
            first.trainer.stop_signals.received_signal = signal.SIGTERM
        return step(*arguments)

    first.trainer.train_step = stop_later  # type: ignore[method-assign,assignment]
    with pytest.raises(Interrupted):
        first.trainer.fit()
    second = SimulatedTraining(tmp_path / "parts", minutes=3)
    second.now = 5.0  # another process has another clock
    second.trainer.resume()
    second.trainer.fit()
    assert second.read_rates() == pytest.approx(whole.read_rates())
    assert second.list_validated_steps() == whole.list_validated_steps()


def test_finished_run_does_not_train_on(tmp_path: Path) -> None:
    training = SimulatedTraining(tmp_path, minutes=1)
    step = training.trainer.fit().step
    resumed = SimulatedTraining(tmp_path, minutes=1)
    resumed.trainer.resume()
    assert resumed.trainer.fit().step == step


def test_linear_schedule_ends_with_steps_or_epochs() -> None:
    by_steps = TrainingSettings(schedule="linear", steps=100, warmup=5)
    by_epochs = TrainingSettings(schedule="linear", steps=None, epochs=4.0, warmup=5)
    assert compute_progress(by_steps, 25, 0.5, 10.0) == 0.25
    assert compute_progress(by_epochs, 25, 3.0, 10.0) == 0.75
    for settings in (by_steps, by_epochs):
        assert compute_learning_rate(settings, 50, 2.0, 0.5) == pytest.approx(settings.learning_rate / 2)
        assert compute_learning_rate(settings, 100, 4.0, 1.0) == 0.0


def test_estimate_names_time_memory_and_what_to_do() -> None:
    long = TrainingSettings(steps=10_000)
    assert format_estimate(TrainingCost(0.8, 610.4), 10_000, long, is_cpu=True).startswith(
        "an update takes about 0.8 s and 610 MB: 10,000 take at most about 2 h. --minutes 30 "
    )
    assert "--minutes" not in format_estimate(TrainingCost(0.8, 610.4), 10_000, long, is_cpu=False)
    assert format_estimate(TrainingCost(0.05), 100, TrainingSettings(steps=100, patience=None), is_cpu=True) == (
        "an update takes about 0.05 s: 100 take less than a minute"
    )
    limited = TrainingSettings(steps=None, minutes=10.0)
    assert format_estimate(TrainingCost(0.5, 100.0), None, limited, is_cpu=True).endswith("about 1,200 fit into 10 min")


def test_estimate_does_not_change_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for name, least in (("with", 1), ("without", 10_000)):
        monkeypatch.setattr(trainer, "MIN_ESTIMATED_STEPS", least)
        (tmp_path / name).mkdir()
        one = make_trainer(tmp_path / name, dropout=0.3)
        one.fit()
        runs.append(newest_weights(Run(tmp_path / name)))
    assert all(torch.equal(tensor, runs[1][key]) for key, tensor in runs[0].items())


def test_minutes_replace_the_limits_of_a_recipe_but_not_those_given(tmp_path: Path) -> None:
    training = build_new_config(Run(tmp_path), "bahdanau2015", {"training.minutes": 5.0}).training
    assert (training.steps, training.epochs, training.schedule, training.validate_every) == (None, None, "linear", None)
    given = {"training.minutes": 5.0, "training.steps": 70, "training.schedule": "constant"}
    training = build_new_config(Run(tmp_path), "bahdanau2015", given).training
    assert (training.steps, training.schedule) == (70, "constant")
    with pytest.raises(UserError, match="minutes must be above 0"):
        _ = build_new_config(Run(tmp_path), "bahdanau2015", {"training.minutes": 0}).training


def test_default_takes_sizes_for_a_cpu_and_says_so(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {"training.device": "cpu", "training.warmup": "auto", "training.batch_tokens": "auto"}
    run = train_tiny("default", corpus, tmp_path / "run", **overrides, **{"training.steps": 1, "model.heads": 2})
    found = run.read_config()
    assert (found["training"]["warmup"], found["training"]["batch_tokens"]) == (150, 1500)
    assert (found["model"]["size"], found["text"]["vocabulary"]) == (24, 600), "as given"
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("sizes for a CPU"))
    assert "training.warmup=150" in line
    assert "model.size" not in line
