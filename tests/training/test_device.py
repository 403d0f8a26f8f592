"""The number of CPU threads of a new run: as many as cores are idle."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import TINY, corpus_files, train_tiny

from regard.runs import Run
from regard.training import distributed
from regard.training.checkpointer import TrainState
from regard.training.train import build_new_config, run_lr_range_test
from regard.training.train import train as train_run
from regard.training.trainer import Trainer

train_module = importlib.import_module("regard.training.train")  # the package exports the function of this name


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, and a number of threads that is only noted: if threads ran here, later tests could not fork."""
    number = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: number.__setitem__(0, threads))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")


def pretend_idle(fractions: list[float], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let /proc/stat say that each core idled for this fraction of the time, and nothing set the number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = folder / "stat"

    def write(seconds: int) -> None:
        lines = ["cpu 1 2 3 4 5 6 7 8 0 0", "intr 5 0 0"]
        for core, fraction in enumerate(fractions):
            idle = int(100 * seconds * fraction)
            lines.insert(-1, f"cpu{core} {100 * seconds - idle} 0 0 {idle // 2} {idle - idle // 2} 0 0 0 0 0")
        path.write_text("\n".join(lines) + "\n", encoding="ascii")

    write(1)
    monkeypatch.setattr(distributed, "PROC_STAT", path)
    monkeypatch.setattr(time, "sleep", lambda _: write(2))


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        ([1, 1, 1, 1], 4),
        ([0.9, 1, 0.8, 0.9], 4),
        ([0, 1, 1, 1], 3),
        ([0.5, 0.6, 0.5, 0.5], 2),
        ([0, 0, 0, 0], 1),
        ([0, 0, 1, 1, 1, 1], 2),  # two more cores, which this process may not use
    ],
)
def test_new_run_takes_as_many_threads_as_cores_are_idle(
    idle: list[float],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend_idle(idle, tmp_path, monkeypatch)
    assert distributed.choose_threads() == expected
    assert ("other programs are running" in capsys.readouterr().err) == (expected < 4)


@pytest.mark.parametrize("setting", ["environment", "one thread", "another system", "no file", "other core numbers"])
def test_number_of_threads_that_is_set_or_unknown_is_left_to_pytorch(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_idle([0, 0, 0, 0], tmp_path, monkeypatch)
    if setting == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
    elif setting == "one thread":
        torch.set_num_threads(1)
    elif setting == "no file":
        monkeypatch.setattr(distributed, "PROC_STAT", tmp_path / "missing")
    elif setting == "other core numbers":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    else:
        monkeypatch.setattr(sys, "platform", "darwin")
    assert distributed.choose_threads() == torch.get_num_threads()


def test_resumed_run_keeps_its_number_of_threads(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    fit = Trainer.fit

    def record(trainer: Trainer) -> TrainState:
        used.append(torch.get_num_threads())
        return fit(trainer)

    monkeypatch.setattr(Trainer, "fit", record)
    monkeypatch.setattr(train_module, "choose_threads", lambda: 2)
    short = {"model.size": 8, "training.validate_every": 1, "training.checkpoint_every": 1}
    folder = train_tiny("bahdanau2015", corpus, tmp_path / "run", **short, **{"training.steps": 1}).folder
    monkeypatch.setattr(train_module, "choose_threads", lambda: 4)
    more: dict[str, Any] = {"training.steps": 2}
    train_run(None, None, folder, resume=True, **more)
    assert used == [2, 2]
    assert torch.get_num_threads() == 4
    assert Run(folder).read_config()["training"]["threads"] == 2
    successor = build_new_config(Run(tmp_path / "next"), None, {"training.init_from": str(folder)})
    assert successor.training.threads is None


def test_resumed_run_does_not_use_more_threads_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert distributed.choose_resumed_threads(3) == 3
    assert distributed.choose_resumed_threads(8) is None
    assert "training with 4 CPU threads, not training.threads=8" in capsys.readouterr().err


def test_search_for_a_learning_rate_uses_the_given_threads(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(train_module, "sweep_learning_rates", lambda _: used.append(torch.get_num_threads()))
    changes: dict[str, Any] = {**TINY, "training.threads": 3}
    run_lr_range_test("bahdanau2015", corpus_files(corpus, "train"), **changes)
    assert used == [3]
