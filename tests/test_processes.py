"""Several processes, as torchrun starts them: they give what one gives, and go on after one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import environment
from support.training import TINY, corpus_files
from torch import Tensor

from regard.runs import Run, checkpoint


def torchrun(*arguments: object, processes: int = 2, restarts: int = 0, **more: str) -> subprocess.Popen[str]:
    """`torchrun … -m regard …`, real processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    where = [
        f"--max-restarts={restarts}",
        "--standalone",
        "--monitor-interval=0.1",
    ]
    return subprocess.Popen(
        [*launcher, *where, "-m", "regard", *map(str, arguments)],
        env={**environment(), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def options(corpus: Path, out: Path, recipe: str = "luong2015-global", **more: Any) -> list[object]:
    changes = {
        **TINY,
        "model.dropout": 0.2,
        "training.log_every": 1,
        **{k.replace("__", "."): v for k, v in more.items()},
    }
    written = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    dev = ["--dev", *corpus_files(corpus, "dev")]
    return ["train", *corpus_files(corpus, "train"), *dev, "--recipe", recipe, "--out", out, *written]


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics() if row["kind"] == "train"]


def weights(run: Run) -> dict[str, Tensor]:
    return checkpoint.read_tensors(run.checkpoint_folder(run.newest()), checkpoint.MODEL)


def test_two_processes_are_one_with_twice_the_accumulation(corpus: Path, tmp_path: Path) -> None:
    alone, both = Run(tmp_path / "alone"), Run(tmp_path / "both")
    finished(torchrun(*options(corpus, alone.folder, training__accumulate=4), processes=1))
    output = finished(torchrun(*options(corpus, both.folder, training__accumulate=2)))
    assert losses(both) == pytest.approx(losses(alone), rel=1e-5)
    assert len(losses(both)) == 24
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(weights(both)[name], tensor, rtol=1e-3, atol=1e-5)
    assert output.count("dev loss") == 2, "one of them speaks"
    dev = [[row["bleu"] for row in run.metrics() if row["kind"] == "dev"] for run in (alone, both)]
    assert dev[0] == dev[1]


@pytest.mark.thorough
def test_a_run_of_two_goes_on_exactly_and_with_two_only(corpus: Path, tmp_path: Path) -> None:
    whole, parts = Run(tmp_path / "whole"), Run(tmp_path / "parts")
    hard = {"recipe": "xu2015-hard"}  # it also learns a baseline, which is no weight
    finished(torchrun(*options(corpus, whole.folder, **hard)))
    finished(torchrun(*options(corpus, parts.folder, **hard, training__steps=12)))
    alone = torchrun("train", "--resume", "--out", parts.folder, "training.steps=24", processes=1)
    output = alone.communicate()[0]
    assert alone.returncode != 0
    assert "was trained by 2 processes, not 1" in output
    finished(torchrun("train", "--resume", "--out", parts.folder, "training.steps=24"))
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(parts)[name], tensor)


KILLER = """
import os, sys
from regard.training import loop
update = loop.Trainer.update
def killed(self, share):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1" and self.position.step == 17:
        os.kill(os.getpid(), 9)
    return update(self, share)
loop.Trainer.update = killed
"""


@pytest.mark.thorough
def test_a_killed_worker_is_restarted_and_the_run_ends_as_if_nothing_had_been(corpus: Path, tmp_path: Path) -> None:
    whole, hurt = Run(tmp_path / "whole"), Run(tmp_path / "hurt")
    finished(torchrun(*options(corpus, whole.folder)))
    (tmp_path / "site").mkdir()
    root = str(Path(__file__).parent.parent)
    start = f"import sys\nif sys.argv[0] == '-m':\n    sys.path.insert(0, {root!r})\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(start + indented(KILLER), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "site"), environment()["PYTHONPATH"]])
    output = finished(torchrun(*options(corpus, hurt.folder), restarts=2, PYTHONPATH=path))
    assert f"exitcode  : {-signal.SIGKILL}" in output or "SIGKILL" in output or "-9" in output
    assert losses(hurt) == losses(whole)
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(hurt)[name], tensor)


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


@pytest.mark.thorough
def test_shards_are_one_model(corpus: Path, tmp_path: Path) -> None:
    alone, shards, parts = (Run(tmp_path / name) for name in ("alone", "shards", "parts"))
    more: dict[str, Any] = {
        "recipe": "vaswani2017-base",
        "model__heads": 2,
        "training__ema": 0.9,
        "training__average": 2,
    }
    # Shards go the readable way, and dropout of a fast one is another.
    finished(torchrun(*options(corpus, alone.folder, **more, training__accumulate=2), processes=1, REGARD_FAST="0"))
    finished(torchrun(*options(corpus, shards.folder, **more, training__shard=True)))
    assert losses(shards) == pytest.approx(losses(alone), rel=1e-4)
    assert {name: tensor.shape for name, tensor in weights(shards).items()} == {
        name: tensor.shape for name, tensor in weights(alone).items()
    }
    dev = [[row["loss"] for row in run.metrics() if row["kind"] == "dev"] for run in (alone, shards)]
    assert dev[0] == pytest.approx(dev[1], rel=1e-3)
    finished(torchrun(*options(corpus, parts.folder, **more, training__shard=True, training__steps=12)))
    finished(torchrun("train", "--resume", "--out", parts.folder, "training.steps=24"))
    for name, tensor in weights(shards).items():
        assert torch.equal(weights(parts)[name], tensor)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "nowhere.tsv"], "regard: there is no file nowhere.tsv"),
        (["train", "--outt", "x"], "regard: No such option: --outt"),
    ],
)
def test_a_users_mistake_is_the_cause_that_torchrun_reports(arguments: list[str], sentence: str) -> None:
    process = torchrun(*arguments)
    output = process.communicate()[0]
    assert process.returncode != 0
    before, cause = output.split("Root Cause")
    assert f": {sentence}" in cause
    assert [line for line in before.splitlines() if line.startswith(sentence)][1:] == [], "one of them speaks"
