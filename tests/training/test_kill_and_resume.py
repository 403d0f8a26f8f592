"""Runs killed by SIGKILL or a full disk resume with the result of an uninterrupted run."""

from __future__ import annotations

import multiprocessing
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.combinations import slow_after
from support.commands import environment, regard_command
from support.training import TINY, are_state_dicts_equal, corpus_files, format_overrides, make_trainer, train_tiny
from torch import Tensor

from regard.errors import UserError
from regard.runs import Run, checkpoint
from regard.runs.run import lock_run
from regard.training import Trainer, train
from regard.training.distributed import Interrupted

SETTINGS: dict[str, Any] = {
    "steps": 10,
    "validate_every": 4,
    "checkpoint_every": 2,
    "dropout": 0.3,
    "accumulate": 2,
    "ema": 0.9,
    "keep": 2,
    "keep_best": 2,
    "log_every": 1,
    "patience": 3,
}
BLEUS = {4: 3.0, 8: 5.0, 10: 4.0}
FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
fork = multiprocessing.get_context("fork")

TIMES = ("seconds", "minutes", "validation_seconds")  # of state.json


def make_killable_trainer(folder: Path) -> Trainer:
    trainer = make_trainer(folder, **SETTINGS)
    validate = trainer.validate
    trainer.validate = lambda model, device: validate(model, device)._replace(
        metrics={"bleu": BLEUS[trainer.train_state.step]}
    )
    return trainer


def train_to_the_end(folder: Path, prepare: Callable[[], None] = lambda: None) -> None:
    """Start the run, or resume it if it has a checkpoint."""
    prepare()
    trainer = make_killable_trainer(folder)
    if trainer.run.list_steps():
        trainer.resume()
    trainer.fit()


def train_in_a_process(folder: Path, prepare: Callable[[], None]) -> int | None:
    """Start or resume the run in a forked process and return its exit code."""
    process = fork.Process(target=train_to_the_end, args=(folder, prepare))
    process.start()
    process.join()
    return process.exitcode


def watch_file_events(folder: Path, die_at: int | None, log: Path | None = None) -> Callable[[], None]:
    """Return a function that installs an audit hook: it logs file events and kills the process at the given one."""

    def install() -> None:
        seen = [0]

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
                seen[0] += 1
                if log is not None:
                    os.write(descriptor, f"{event} {arguments[0]}\n".encode())
                if seen[0] == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT) if log is not None else -1
        sys.addaudithook(hook)

    return install


def final_state(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint, the kept steps and the metrics of a run, without timings."""
    run = Run(folder)
    path = run.checkpoint_folder(run.find_newest_step())
    state = checkpoint.read_state(path)
    return {
        "state": {key: value for key, value in state.items() if key not in TIMES},
        "model": (path / "model.safetensors").read_bytes(),
        "optimizer": (path / "optimizer.safetensors").read_bytes(),
        "steps": run.list_steps(),
        "best": run.find_best_step(),
        "metrics": [
            {name: value for name, value in row.items() if name not in ("tokens_per_second", "memory_mb", "seconds")}
            for row in run.read_metrics()
        ],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """Train without a kill; return the final state and the file events."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    folder.mkdir()
    log = folder.parent / "log"
    assert train_in_a_process(folder, watch_file_events(folder, None, log)) == 0
    return final_state(folder), log.read_text(encoding="utf-8").splitlines()


def test_file_events_include_checkpoint_writes_and_renames(uninterrupted: tuple[dict[str, Any], list[str]]) -> None:
    events = uninterrupted[1]
    assert any(".step-4.part/state.json" in event for event in events), "a kill can hit an unfinished checkpoint"
    assert any(event.startswith("os.rename") for event in events)
    assert len(events) > 50


@pytest.mark.parametrize("seed", slow_after(1, range(20)))
def test_run_killed_at_random_file_events_resumes_identically(
    seed: int, uninterrupted: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    end, events = uninterrupted
    folder = tmp_path / "run"
    folder.mkdir()
    random = np.random.default_rng(seed)
    kills = 0
    for _ in range(3):
        die_at = int(random.integers(1, len(events)))
        if train_in_a_process(folder, watch_file_events(folder, die_at)) == 0:
            break
        kills += 1
    assert train_in_a_process(folder, lambda: None) == 0
    assert kills or seed
    found = final_state(folder)
    assert found == end
    assert not list((folder / "checkpoints").glob(".*")), "no temporary folders remain"


@pytest.mark.slow
def test_run_killed_between_updates_resumes_identically(
    uninterrupted: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (3, 5, 5, 9):

        def die(step: int = step) -> None:
            update = Trainer.train_step

            def updated(self: Trainer, update_batches: Any) -> Any:
                if self.train_state.step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return update(self, update_batches)

            Trainer.train_step = updated  # type: ignore[method-assign]

        assert train_in_a_process(folder, die) == -signal.SIGKILL
    assert train_in_a_process(folder, lambda: None) == 0
    assert final_state(folder) == uninterrupted[0]


@pytest.mark.slow
def test_full_disk_keeps_the_last_checkpoint_and_training_resumes(corpus: Path, tmp_path: Path) -> None:
    overrides = {"model.dropout": 0.2}
    whole = train_tiny("luong2015-global", corpus, tmp_path / "whole", **overrides)
    folder = tmp_path / "full"
    train_tiny("luong2015-global", corpus, folder, **{**overrides, "training.steps": 12})
    arguments = regard_command(["train", "--resume", "--out", folder, "training.steps=24"])

    def limit_file_size() -> None:  # writing past the limit fails like writing to a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    own = {name: value for name, value in environment().items() if not name.startswith("COVERAGE_")}  # its file is cut
    full = subprocess.run(arguments, env=own, capture_output=True, text=True, check=False, preexec_fn=limit_file_size)
    assert full.returncode == 2
    last_line = full.stderr.splitlines()[-1]
    assert "could not be written" in last_line
    assert "Traceback" not in full.stderr
    run = Run(folder)
    assert run.list_steps()[-1] == 12
    assert not list((folder / "checkpoints").glob(".*"))
    again = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    left, right = (checkpoint.read_tensors(one.checkpoint_folder(24), checkpoint.MODEL_FILE) for one in (whole, run))
    assert all(torch.equal(right[name], tensor) for name, tensor in left.items())


@pytest.mark.skipif(sys.platform != "linux", reason="data workers are forked")
def test_killed_data_worker_costs_no_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    trainer, update = make_trainer(tmp_path / "killed", steps=6, checkpoint_every=100), Trainer.train_step
    trainer.data_settings = replace(trainer.data_settings, workers=1)

    def kill_worker_during_third_update(self: Trainer, batches: Any) -> Any:
        if self.train_state.step == 2:
            (worker,) = multiprocessing.active_children()
            worker.kill()
            os.waitid(os.P_PID, worker.pid or 0, os.WEXITED | os.WNOWAIT)
        return update(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", kill_worker_during_third_update)
        with pytest.raises(UserError, match=r"loading training data failed: DataLoader worker .*killed"):
            trainer.fit()
    assert max(trainer.run.list_steps()) == 3
    resumed = make_trainer(tmp_path / "killed", steps=6, checkpoint_every=100)
    resumed.resume()
    whole = make_trainer(tmp_path / "whole", steps=6, checkpoint_every=100)
    assert (resumed.fit().step, whole.fit().step) == (6, 6)
    assert are_state_dicts_equal(resumed.model.state_dict(), whole.model.state_dict())


def make_trainer_with_workers(folder: Path) -> Trainer:
    trainer = make_trainer(folder, steps=100_000, validate_every=100_000)
    trainer.data_settings = replace(trainer.data_settings, workers=2)
    return trainer


def train_until_signalled(trainer: Trainer, moment: int | str, number: signal.Signals) -> None:
    """Train; every process of the run gets the signal at a moment.

    The moment is a number of function calls from the start of the workers on, or "worker started" or "update".
    """
    shares, update, own, calls, senders = trainer.load_update_batches, trainer.train_step, os.getpid(), [0], list[int]()

    def signal_all() -> None:
        if senders or os.getpid() != own:  # forked processes have these functions, too
            return
        senders.append(0)
        pids = [*list_children(own), own]
        if sender := os.fork():  # PyTorch's workers react differently to signals from their parent
            os.waitpid(sender, 0)
            return
        for pid in pids:
            os.kill(pid, number)
        os._exit(0)

    def count_call(frame: object, event: str, argument: object) -> None:
        calls[0] += 1
        if calls[0] == moment:
            signal_all()

    def started_shares() -> Any:
        if moment == "worker started":
            os.register_at_fork(after_in_parent=signal_all)
        sys.setprofile(count_call)
        return shares()

    def signalled_update(update_batches: Any) -> Any:
        if moment == "update" and trainer.train_state.step == 2:
            signal_all()
        return update(update_batches)

    trainer.load_update_batches, trainer.train_step = started_shares, signalled_update  # type: ignore[method-assign]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    try:
        trainer.fit()
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)


def list_children(pid: int) -> list[int]:
    return [int(child) for each in Path(f"/proc/{pid}/task").glob("*/children") for child in each.read_text().split()]


def assert_signal_saves_a_checkpoint(folder: Path, moment: int | str, number: signal.Signals) -> None:
    folder.mkdir()
    trainer = make_trainer_with_workers(folder)  # here, because the first one imports much
    process = fork.Process(target=train_until_signalled, args=(trainer, moment, number))
    process.start()
    process.join()
    assert process.exitcode == 128 + number, f"signal at {moment}"
    run = Run(folder)
    assert checkpoint.read_state(run.checkpoint_folder(run.find_newest_step()))["step"] >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to list child processes")
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("worker started", signal.SIGTERM),
        ("update", signal.SIGTERM),
        pytest.param("update", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("update", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_signal_to_every_process_of_a_run_saves_a_checkpoint(
    moment: str, number: signal.Signals, tmp_path: Path
) -> None:
    assert_signal_saves_a_checkpoint(tmp_path / "run", moment, number)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to list child processes")
def test_signal_to_every_process_at_random_moments_always_saves_a_checkpoint(tmp_path: Path) -> None:
    moments = np.random.default_rng(0).integers(1, 20_000, 50).tolist()  # the workers start at call 3,000 or so
    for trial, moment in enumerate(moments):
        assert_signal_saves_a_checkpoint(tmp_path / str(trial), moment, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to list child processes")
def test_data_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    trainer, pids = make_trainer_with_workers(tmp_path), tmp_path / "pids"

    def train_and_die() -> None:
        shares = trainer.load_update_batches()
        next(shares)
        pids.write_text("\n".join(map(str, list_children(os.getpid()))), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=train_and_die)
    process.start()
    process.join()
    workers = [int(pid) for pid in pids.read_text(encoding="utf-8").split()]
    assert len(workers) == 2
    for worker in workers:
        with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(worker)) as watched:
            assert select.select([watched], [], [], 60)[0], "the worker has ended"


KILLED_COMMAND = """
import os, signal
from regard.cli import app
from regard.training import Trainer
update = Trainer.train_step
def killed(self, update_batches):
    if self.train_state.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, update_batches)
Trainer.train_step = killed
app.main()
"""


ORPHANED_CHILD = """
import os, signal, sys
from pathlib import Path
from regard.runs.run import lock_run
with lock_run(Path(sys.argv[1])):
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    print("child", flush=True)
    print(sys.stdin.read())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only forked children inherit the lock")
def test_child_of_a_killed_process_does_not_hold_the_run_lock(tmp_path: Path) -> None:
    script = [sys.executable, "-c", ORPHANED_CHILD, str(tmp_path)]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        assert process.stdout.readline() == "child\n"
        with lock_run(tmp_path):
            assert process.communicate("on")[0] == "on\n"


def test_killed_command_resumes_identically(corpus: Path, tmp_path: Path) -> None:
    overrides: dict[str, Any] = {
        "model.heads": 2,
        "training.log_every": 1,
        "training.checkpoint_every": 3,
        "training.steps": 6,
        "model.dropout": 0.2,
        "data.workers": 1,
    }
    whole = train_tiny("vaswani2017-base", corpus, tmp_path / "whole", **overrides)
    data = [*corpus_files(corpus, "train"), "--dev", *corpus_files(corpus, "dev")]
    arguments = ["train", *data, "--recipe", "vaswani2017-base", "--out", tmp_path / "killed"]
    process = subprocess.run(
        [sys.executable, "-c", KILLED_COMMAND, *map(str, arguments), *format_overrides({**TINY, **overrides})],
        env=environment(),
        stdout=subprocess.DEVNULL,  # data workers outlive the kill for a moment and would keep a pipe open
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    killed = Run(tmp_path / "killed")
    assert killed.find_newest_step() == 3
    train(None, None, killed.folder, resume=True)
    tensors: list[dict[str, Tensor]] = [
        checkpoint.read_tensors(run.checkpoint_folder(6), checkpoint.MODEL_FILE) for run in (whole, killed)
    ]
    assert all(torch.equal(tensors[1][name], tensor) for name, tensor in tensors[0].items())
