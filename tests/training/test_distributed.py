"""Distributed training with torchrun: the result of one process, resume, restart after a kill, sharding, errors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from textwrap import indent
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.combinations import slow_after
from support.commands import environment
from support.training import TINY, corpus_files, format_overrides, newest_weights, train_tiny
from torch.distributed import distributed_c10d

from regard.runs import Run
from regard.training.distributed import init_distributed


def start_torchrun(*arguments: object, processes: int = 2, restarts: int = 0, **more: str) -> subprocess.Popen[str]:
    """Start `torchrun … -m regard …` with real processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    options = [f"--max-restarts={restarts}", "--standalone", "--monitor-interval=0.1"]
    return subprocess.Popen(
        [*launcher, *options, "-m", "regard", *map(str, arguments)],
        env={**environment(), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(process: subprocess.Popen[str]) -> str:
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def train_arguments(corpus: Path, out: Path, recipe: str, **more: Any) -> list[object]:
    overrides = format_overrides({**TINY, "model.dropout": 0.2, "training.log_every": 1, **more})
    dev = ["--dev", *corpus_files(corpus, "dev")]
    return ["train", *corpus_files(corpus, "train"), *dev, "--recipe", recipe, "--out", out, *overrides]


def training_losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.read_metrics() if row["kind"] == "train"]


@pytest.mark.parametrize("steps", slow_after(1, [4, 24]))
def test_two_processes_train_like_one_with_twice_the_accumulation(steps: int, corpus: Path, tmp_path: Path) -> None:
    alone, both = Run(tmp_path / "alone"), Run(tmp_path / "both")
    limits: dict[str, Any] = {"training.steps": steps, "training.validate_every": steps // 2}
    overrides = {"model.dropout": 0.2, "training.log_every": 1, "training.accumulate": 4, **limits}
    train_tiny("luong2015-global", corpus, alone.folder, **overrides)
    output = wait_for(
        start_torchrun(
            *train_arguments(corpus, both.folder, "luong2015-global", **{**overrides, "training.accumulate": 2})
        )
    )
    assert training_losses(both) == pytest.approx(training_losses(alone), rel=1e-5)
    assert len(training_losses(both)) == steps
    for name, tensor in newest_weights(alone).items():
        torch.testing.assert_close(newest_weights(both)[name], tensor, rtol=1e-3, atol=1e-5)
    assert output.count("dev loss") == 2, "only rank 0 prints"
    dev = [[row["bleu"] for row in run.read_metrics() if row["kind"] == "dev"] for run in (alone, both)]
    assert dev[0] == dev[1]


def wait_for_rank_0(rank: int, port: int, numbers: Queue[list[float]]) -> None:
    """Let rank 0 be late by three times the time limit of the process group."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    with init_distributed("cpu") as processes:
        processes.barrier()
        distributed_c10d._set_pg_timeout(timedelta(seconds=0.1), dist.group.WORLD)
        if processes.is_rank0:
            Event().wait(0.3)
        numbers.put(processes.broadcast_from_rank0([3.0 + rank]))


def test_validation_longer_than_the_time_limit_of_the_process_group_does_not_end_the_run() -> None:
    fork = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    numbers = fork.Queue()
    processes = [fork.Process(target=wait_for_rank_0, args=(rank, port, numbers)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert [numbers.get(), numbers.get()] == [[3.0], [3.0]]


SLOW_VALIDATION = """
import os, sys, threading
from datetime import timedelta
from regard.training import Trainer
from torch.distributed import distributed_c10d, group
validated = Trainer.run_validation
def late(self, *arguments, **options):
    distributed_c10d._set_pg_timeout(timedelta(seconds=1), group.WORLD)
    if os.environ["RANK"] == "0":
        threading.Event().wait(3)
    try:
        return validated(self, *arguments, **options)
    finally:
        distributed_c10d._set_pg_timeout(timedelta(minutes=30), group.WORLD)
Trainer.run_validation = late
"""


@pytest.mark.slow
def test_slow_validation_of_rank_0_does_not_end_torchrun(corpus: Path, tmp_path: Path) -> None:
    limits = {"training.steps": 4, "training.validate_every": 2}
    arguments = train_arguments(corpus, tmp_path / "run", "luong2015-global", **limits)
    output = wait_for(start_torchrun(*arguments, PYTHONPATH=write_site(tmp_path, SLOW_VALIDATION)))
    assert output.count("dev loss") == 2


@pytest.mark.slow
def test_two_process_run_resumes_identically_with_two_only(corpus: Path, tmp_path: Path) -> None:
    whole, parts = Run(tmp_path / "whole"), Run(tmp_path / "parts")
    recipe = "xu2015-hard"  # its baseline is a buffer, not a weight
    wait_for(start_torchrun(*train_arguments(corpus, whole.folder, recipe)))
    wait_for(start_torchrun(*train_arguments(corpus, parts.folder, recipe, **{"training.steps": 12})))
    alone = start_torchrun("train", "--resume", "--out", parts.folder, "training.steps=24", processes=1)
    output = alone.communicate()[0]
    assert alone.returncode != 0
    assert "was trained by 2 processes, not 1" in output
    wait_for(start_torchrun("train", "--resume", "--out", parts.folder, "training.steps=24"))
    for name, tensor in newest_weights(whole).items():
        assert torch.equal(newest_weights(parts)[name], tensor)


KILL_RANK_1 = """
import os, sys
from regard.training import Trainer
update = Trainer.train_step
def killed(self, update_batches):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1" and self.train_state.step == 17:
        os.kill(os.getpid(), 9)
    return update(self, update_batches)
Trainer.train_step = killed
"""


@pytest.mark.slow
def test_killed_worker_is_restarted_with_an_identical_result(corpus: Path, tmp_path: Path) -> None:
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    wait_for(start_torchrun(*train_arguments(corpus, whole.folder, "luong2015-global")))
    output = wait_for(
        start_torchrun(
            *train_arguments(corpus, killed.folder, "luong2015-global"),
            restarts=2,
            PYTHONPATH=write_site(tmp_path, KILL_RANK_1),
        )
    )
    assert f"exitcode  : {-signal.SIGKILL}" in output or "SIGKILL" in output or "-9" in output
    assert training_losses(killed) == training_losses(whole)
    for name, tensor in newest_weights(whole).items():
        assert torch.equal(newest_weights(killed)[name], tensor)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to list child processes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_to_every_process_of_torchrun_saves_a_checkpoint(
    number: signal.Signals, corpus: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    limits = {"training.steps": 100_000, "training.validate_every": 100_000, "training.checkpoint_every": 100_000}
    arguments = train_arguments(corpus, run.folder, "luong2015-global", **limits, **{"data.workers": 2})
    with start_torchrun(*arguments) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("step 5/"))
        processes = list_descendants(process.pid)
        assert len(processes) == 6, line  # two ranks with two workers each
        for pid in [*processes, process.pid]:  # torchrun passes the signal on to those that have it already
            os.kill(pid, number)
        output = process.stdout.read()
    assert "checkpoint saved; resume with" in output
    assert run.find_newest_step() >= 5
    assert [pid for pid in processes if Path(f"/proc/{pid}").is_dir()] == []


def list_descendants(pid: int) -> list[int]:
    children = [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]
    return [*children, *(one for child in children for one in list_descendants(child))]


def write_site(folder: Path, code: str) -> str:
    """Write a `sitecustomize` that runs the code in the processes of torchrun; return the PYTHONPATH with it."""
    (folder / "site").mkdir()
    root = str(Path(__file__).parent.parent.parent)
    start = f"import sys\nif sys.argv[0] == '-m':\n    sys.path.insert(0, {root!r})\n"
    (folder / "site" / "sitecustomize.py").write_text(start + indent(code, "    "), encoding="utf-8")
    return os.pathsep.join([str(folder / "site"), environment()["PYTHONPATH"]])


@pytest.mark.slow
def test_sharded_training_equals_one_process(corpus: Path, tmp_path: Path) -> None:
    alone, shards, parts = (Run(tmp_path / name) for name in ("alone", "shards", "parts"))
    more: dict[str, Any] = {
        "model.heads": 2,
        "training.ema": 0.9,
        "training.average": 2,
    }
    # Sharded models use the reference implementation; faster ones draw other dropout masks.
    wait_for(
        start_torchrun(
            *train_arguments(corpus, alone.folder, "vaswani2017-base", **more, **{"training.accumulate": 2}),
            processes=1,
            REGARD_FAST="0",
        )
    )
    wait_for(
        start_torchrun(*train_arguments(corpus, shards.folder, "vaswani2017-base", **more, **{"training.shard": True}))
    )
    assert training_losses(shards) == pytest.approx(training_losses(alone), rel=1e-4)
    assert {name: tensor.shape for name, tensor in newest_weights(shards).items()} == {
        name: tensor.shape for name, tensor in newest_weights(alone).items()
    }
    dev = [[row["loss"] for row in run.read_metrics() if row["kind"] == "dev"] for run in (alone, shards)]
    assert dev[0] == pytest.approx(dev[1], rel=1e-3)
    wait_for(
        start_torchrun(
            *train_arguments(
                corpus, parts.folder, "vaswani2017-base", **more, **{"training.shard": True, "training.steps": 12}
            )
        )
    )
    wait_for(start_torchrun("train", "--resume", "--out", parts.folder, "training.steps=24"))
    for name, tensor in newest_weights(shards).items():
        assert torch.equal(newest_weights(parts)[name], tensor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.tsv"], "regard: there is no file nowhere.tsv"),
        (["train", "--outt", "x"], "regard: No such option: --outt"),
    ],
    ids=str,
)
def test_torchrun_reports_the_users_error_once(arguments: list[str], message: str) -> None:
    process = start_torchrun(*arguments)
    output = process.communicate()[0]
    assert process.returncode != 0
    before, cause = output.split("Root Cause")
    assert f": {message}" in cause
    assert [line for line in before.splitlines() if line.startswith(message)][1:] == [], "only rank 0 prints"
