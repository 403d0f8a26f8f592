"""The learning rate range test, `regard train --find-rate`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import Command
from support.training import TINY, corpus_files, format_overrides, make_trainer
from torch import Tensor

from regard.console import make_progress_bar
from regard.errors import UserError
from regard.training import Trainer
from regard.training.train import MAX_RATE, MIN_RATE, LearningRatePoint, suggest_learning_rate, sweep_learning_rates


def make_sgd_trainer(folder: Path) -> Trainer:
    return make_trainer(folder, batch_tokens=40, optimizer="sgd", warmup=0)


def script_loss(trainer: Trainer, loss_at: Any) -> None:
    """Replace the loss by a function of the learning rate."""
    summed = trainer.model.loss_sum

    def scripted(*batch: Any) -> Tensor:
        rate = trainer.optimizer.param_groups[0]["lr"]
        return torch.add(summed(*batch) * 0.0, loss_at(rate) * (batch[3] != 0).sum())

    trainer.model.loss_sum = scripted


def test_rates_are_log_spaced_and_the_loss_is_smoothed(tmp_path: Path) -> None:
    trainer = make_sgd_trainer(tmp_path)
    script_loss(trainer, lambda rate: 2.0)
    tried = sweep_learning_rates(trainer, updates=7)
    np.testing.assert_allclose([one.rate for one in tried], np.geomspace(MIN_RATE, MAX_RATE, 7), rtol=1e-6)
    np.testing.assert_allclose([one.loss for one in tried], 2.0, rtol=1e-4)


def test_rate_search_stops_when_the_loss_explodes(tmp_path: Path) -> None:
    trainer = make_sgd_trainer(tmp_path)
    script_loss(trainer, lambda rate: 1.0 if rate < 0.01 else 1000.0)
    tried = sweep_learning_rates(trainer, updates=25)
    assert 0.01 <= tried[-1].rate < 0.02
    assert tried[-1].loss > 3 > tried[-2].loss


def test_rate_search_lowers_the_loss_and_writes_nothing(tmp_path: Path) -> None:
    tried = sweep_learning_rates(make_sgd_trainer(tmp_path), updates=60)
    assert min(one.loss for one in tried) < tried[0].loss
    assert MIN_RATE < suggest_learning_rate(tried) < MAX_RATE
    assert not list(tmp_path.iterdir())


def test_progress_bar_of_the_rate_search_counts_its_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = make_progress_bar()
    monkeypatch.setattr(sys.modules[sweep_learning_rates.__module__], "make_progress_bar", lambda: bar)
    tried = sweep_learning_rates(make_sgd_trainer(tmp_path), updates=5)
    assert [(task.completed, task.total) for task in bar.tasks] == [(len(tried), 5)]


def test_nan_loss_at_the_first_update_is_a_user_error(tmp_path: Path) -> None:
    trainer = make_sgd_trainer(tmp_path)
    script_loss(trainer, lambda rate: math.nan)
    with pytest.raises(UserError, match="the loss is nan from the first update on"):
        sweep_learning_rates(trainer)


def test_rate_of_the_steepest_descent_is_suggested() -> None:
    tried = [
        LearningRatePoint(1e-4, 5.0),
        LearningRatePoint(1e-3, 4.8),
        LearningRatePoint(1e-2, 3.0),
        LearningRatePoint(1e-1, 2.9),
        LearningRatePoint(1.0, 9.0),
    ]
    assert suggest_learning_rate(tried) == 1e-2
    with pytest.raises(UserError, match="no learning rate from"):
        suggest_learning_rate(
            [LearningRatePoint(1e-4, 2.0), LearningRatePoint(1e-3, 2.0), LearningRatePoint(1e-2, 2.1)]
        )


@pytest.mark.slow
def test_find_rate_command_prints_a_rate_and_writes_no_run(regard: Command, corpus: Path, tmp_path: Path) -> None:
    overrides = format_overrides(TINY)
    train = ["train", *corpus_files(corpus, "train"), "--recipe", "luong2015-global", "--find-rate", *overrides]
    done = regard(*train)
    assert done.returncode == 0, done.stderr
    assert "the loss falls fastest at about training.learning_rate=" in done.stdout
    assert len(done.stdout.splitlines()) > 10
    assert not (tmp_path / "runs").exists()
    for more in (["--resume"], ["--out", "somewhere"]):
        done = regard(*train, *more)
        assert done.returncode != 0
        assert "--find-rate keeps no model: leave out --resume and --out" in done.stderr
