"""`--find-rate`: which learning rate suits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import Command
from support.training import TINY, corpus_files
from torch import Tensor

from regard.data.examples import Examples
from regard.data.ragged import Ragged
from regard.errors import UserError
from regard.models import build
from regard.runs import Run
from regard.tasks import Validation
from regard.training import Trainer, TrainingSettings, suggested
from regard.training.finder import HIGH, LOW, Tried, find


def trainer(folder: Path) -> Trainer:
    torch.manual_seed(0)
    rows = [[4 + (number + place) % 8 for place in range(2 + number % 5)] for number in range(24)]
    examples = Examples(Ragged.of(rows), Ragged.of(rows))
    model = build("luong2015-global", 12, 12, size=8, layers=1, dropout=0.0)
    settings = TrainingSettings(batch_tokens=40, optimizer="sgd", warmup=0, tensorboard=False)
    return Trainer(
        model, examples, lambda *_: Validation(0, {"bleu": 0}, "bleu"), settings, Run(folder), torch.device("cpu")
    )


def losses(job: Trainer, of: Any) -> None:
    """The loss is what a function of the learning rate says, whatever the model computes."""
    summed = job.model.summed

    def scripted(*batch: Any) -> Tensor:
        rate = job.optimizer.param_groups[0]["lr"]
        return torch.add(summed(*batch) * 0.0, of(rate) * (batch[3] != 0).sum())

    job.model.summed = scripted


def test_rates_rise_evenly_and_the_loss_is_smoothed(tmp_path: Path) -> None:
    job = trainer(tmp_path)
    losses(job, lambda rate: 2.0)
    tried = find(job, updates=7)
    np.testing.assert_allclose([one.rate for one in tried], np.geomspace(LOW, HIGH, 7), rtol=1e-6)
    np.testing.assert_allclose([one.loss for one in tried], 2.0, rtol=1e-4)


def test_it_ends_where_the_loss_explodes(tmp_path: Path) -> None:
    job = trainer(tmp_path)
    losses(job, lambda rate: 1.0 if rate < 0.01 else 1000.0)
    tried = find(job, updates=25)
    assert 0.01 <= tried[-1].rate < 0.02
    assert tried[-1].loss > 3 > tried[-2].loss


def test_it_learns_meanwhile_and_nothing_is_kept(tmp_path: Path) -> None:
    tried = find(trainer(tmp_path), updates=60)
    assert min(one.loss for one in tried) < tried[0].loss
    assert LOW < suggested(tried) < HIGH
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_no_number_from_the_start(tmp_path: Path) -> None:
    job = trainer(tmp_path)
    losses(job, lambda rate: math.nan)
    with pytest.raises(UserError, match="the loss is nan from the first update on"):
        find(job)


def test_the_steepest_fall_is_suggested() -> None:
    tried = [Tried(1e-4, 5.0), Tried(1e-3, 4.8), Tried(1e-2, 3.0), Tried(1e-1, 2.9), Tried(1.0, 9.0)]
    assert suggested(tried) == 1e-2
    with pytest.raises(UserError, match="no learning rate from"):
        suggested([Tried(1e-4, 2.0), Tried(1e-3, 2.0), Tried(1e-2, 2.1)])


def test_the_command(regard: Command, corpus: Path, tmp_path: Path) -> None:
    changes = [f"{key}={value}".replace("None", "null") for key, value in TINY.items()]
    train = ["train", *corpus_files(corpus, "train"), "--recipe", "luong2015-global", "--find-rate", *changes]
    done = regard(*train)
    assert done.returncode == 0, done.stderr
    assert "the loss falls fastest at about training.learning_rate=" in done.stdout
    assert len(done.stdout.splitlines()) > 10
    assert not (tmp_path / "runs").exists()
    for more in (["--resume"], ["--out", "somewhere"]):
        done = regard(*train, *more)
        assert done.returncode != 0
        assert "--find-rate trains nothing that is kept: leave --resume and --out out" in done.stderr
