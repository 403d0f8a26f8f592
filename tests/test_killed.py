"""A run that is killed, at whatever moment, goes on as if it had never been."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import environment, regard_command
from support.training import TINY, corpus_files, make_trainer
from torch import Tensor

from regard.runs import Run, checkpoint
from regard.runs.lock import held
from regard.training import loop, train

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
WRITES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
fork = multiprocessing.get_context("fork")


def job(folder: Path) -> loop.Trainer:
    made = make_trainer(folder, **SETTINGS)
    validate = made.validate
    made.validate = lambda model, device: validate(model, device)._replace(figures={"bleu": BLEUS[made.position.step]})
    return made


def go(folder: Path, prepare: Callable[[], None] = lambda: None) -> None:
    """Trains to the end, from wherever the run is."""
    prepare()
    made = job(folder)
    if made.run.steps():
        made.resume()
    made.fit()


def in_a_process(folder: Path, prepare: Callable[[], None]) -> int | None:
    """The same in a process of its own; how it ended."""
    process = fork.Process(target=go, args=(folder, prepare))
    process.start()
    process.join()
    return process.exitcode


def count_events(folder: Path, die_at: int | None, log: Path | None = None) -> Callable[[], None]:
    """Counts what happens to the run's files, and dies by SIGKILL at one of these events."""

    def install() -> None:
        seen = [0]

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in WRITES and str(arguments[0]).startswith(str(folder)):
                seen[0] += 1
                if log is not None:
                    os.write(descriptor, f"{event} {arguments[0]}\n".encode())
                if seen[0] == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT) if log is not None else -1
        sys.addaudithook(hook)

    return install


def last(folder: Path) -> dict[str, Any]:
    """All that a run ends with, but for the time that it took."""
    run = Run(folder)
    path = run.checkpoint_folder(run.newest())
    state = checkpoint.read_state(path)
    return {
        "state": {key: value for key, value in state.items() if key != "seconds"},
        "model": (path / "model.safetensors").read_bytes(),
        "optimizer": (path / "optimizer.safetensors").read_bytes(),
        "steps": run.steps(),
        "best": run.best(),
        "metrics": [
            {name: value for name, value in row.items() if name not in ("tokens_per_second", "memory_mb")}
            for row in run.metrics()
        ],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """What a run that is never killed ends with, and what happens to its files."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    folder.mkdir()
    log = folder.parent / "log"
    assert in_a_process(folder, count_events(folder, None, log)) == 0
    return last(folder), log.read_text(encoding="utf-8").splitlines()


def test_the_events_are_those_of_a_checkpoint(whole: tuple[dict[str, Any], list[str]]) -> None:
    events = whole[1]
    assert any(".step-4.part/state.json" in event for event in events), "the middle of a write is among them"
    assert any(event.startswith("os.rename") for event in events)
    assert len(events) > 50


@pytest.mark.parametrize("number", range(20))
def test_killed_at_a_random_moment(number: int, whole: tuple[dict[str, Any], list[str]], tmp_path: Path) -> None:
    end, events = whole
    folder = tmp_path / "run"
    folder.mkdir()
    random = np.random.default_rng(number)
    kills = 0
    for _ in range(3):
        die_at = int(random.integers(1, len(events)))
        if in_a_process(folder, count_events(folder, die_at)) == 0:
            break
        kills += 1
    assert in_a_process(folder, lambda: None) == 0
    assert kills or number
    found = last(folder)
    assert found == end
    assert not list((folder / "checkpoints").glob(".*")), "and nothing is left lying about"


def test_killed_between_two_updates(whole: tuple[dict[str, Any], list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (3, 5, 5, 9):

        def die(step: int = step) -> None:
            update = loop.Trainer.update

            def updated(self: loop.Trainer, share: Any) -> Any:
                if self.position.step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return update(self, share)

            loop.Trainer.update = updated  # type: ignore[method-assign]

        assert in_a_process(folder, die) == -signal.SIGKILL
    assert in_a_process(folder, lambda: None) == 0
    assert last(folder) == whole[0]


def test_a_full_disk_ends_with_a_sentence_and_the_last_checkpoint_whole(corpus: Path, tmp_path: Path) -> None:
    changes = {**TINY, "model.dropout": 0.2}
    whole = train("luong2015-global", corpus_files(corpus, "train"), tmp_path / "whole", **changes)
    folder = tmp_path / "full"
    train("luong2015-global", corpus_files(corpus, "train"), folder, **{**changes, "training.steps": 12})
    arguments = regard_command(["train", "--resume", "--out", folder, "training.steps=24"])

    def little_room() -> None:  # a file that grows over its limit fails as one does on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    full = subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, check=False, preexec_fn=little_room
    )
    assert full.returncode == 2
    last_line = full.stderr.splitlines()[-1]
    assert "could not be written" in last_line
    assert "Traceback" not in full.stderr
    run = Run(folder)
    assert run.steps()[-1] == 12
    assert not list((folder / "checkpoints").glob(".*"))
    again = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    left, right = (checkpoint.read_tensors(one.checkpoint_folder(24), checkpoint.MODEL) for one in (whole, run))
    assert all(torch.equal(right[name], tensor) for name, tensor in left.items())


KILLED = """
import os, signal
from regard.cli import app
from regard.training import loop
update = loop.Trainer.update
def killed(self, share):
    if self.position.step == 17:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, share)
loop.Trainer.update = killed
app.main()
"""


ORPHANED = """
import os, signal, sys
from pathlib import Path
from regard.runs.lock import held
with held(Path(sys.argv[1])):
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    print("reads", flush=True)
    print(sys.stdin.read())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without forks children hold nothing")
def test_what_reads_for_one_that_was_killed_does_not_hold_on_to_its_folder(tmp_path: Path) -> None:
    script = [sys.executable, "-c", ORPHANED, str(tmp_path)]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        assert process.stdout.readline() == "reads\n"
        with held(tmp_path):
            assert process.communicate("on")[0] == "on\n"


def test_the_command_is_killed_and_goes_on(corpus: Path, tmp_path: Path) -> None:
    changes = {
        **TINY,
        "training.log_every": 1,
        "training.checkpoint_every": 3,
        "model.dropout": 0.2,
        "data.workers": 1,
    }
    end = train("vaswani2017-base", corpus_files(corpus, "train"), tmp_path / "whole", **{**changes, "model.heads": 2})
    written = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    arguments = ["train", *corpus_files(corpus, "train"), "--recipe", "vaswani2017-base", "--out", tmp_path / "killed"]
    process = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments), "model.heads=2", *written],
        env=environment(),
        stdout=subprocess.DEVNULL,  # not a pipe, whose end would be that of those who read for it, too
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    killed = Run(tmp_path / "killed")
    assert killed.newest() < 24
    again = subprocess.run(
        regard_command(["train", "--resume", "--out", killed.folder]),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    tensors: list[dict[str, Tensor]] = [
        checkpoint.read_tensors(run.checkpoint_folder(24), checkpoint.MODEL) for run in (end, killed)
    ]
    assert all(torch.equal(tensors[1][name], tensor) for name, tensor in tensors[0].items())
