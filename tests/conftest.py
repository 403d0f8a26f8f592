"""Fixtures that several tests share: a small corpus, runs trained on it for a few seconds, and the `regard` command."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["OMP_NUM_THREADS"] = "1"  # before any test imports torch: the results of other numbers of threads differ

import hypothesis
import pytest
from support.commands import Command, environment, regard_command, run_forked

PROGRAMS = Path(__file__).parent.parent / ".venv" / "programs" / "usr"  # unpacked by make
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], f"{PROGRAMS / 'sbin'}", f"{PROGRAMS / 'bin'}"])

os.fsync = lambda fd: None  # no test cuts the power, and waiting for a disk takes a tenth of the time

if TYPE_CHECKING:  # importing regard.runs imports torch, which tests of pure Python need not wait for
    from regard.runs import Run

hypothesis.settings.register_profile("quick", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "1000")))
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# A shell starts background jobs (`nohup make test &`) with SIGINT ignored, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The fp16 kernels exist for ARM alone; tests/fast/test_fp16_fallback.py tests what other processors report.
collect_ignore = [] if platform.machine() in ("aarch64", "arm64") else ["fast/test_fp16_kernels.py"]


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep prepared data in a cache of this session."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["REGARD_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what the workers of pytest-xdist make once for all of them."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def _make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Call `make(folder)` in the first worker that needs it; the others wait and use the result, or try again."""
    folder.parent.mkdir(exist_ok=True)
    finished = folder.with_suffix(".finished")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed half-way
            make(folder)
            finished.touch()
    return folder


@pytest.fixture
def seed() -> None:
    """Seed PyTorch; for `pytest.mark.usefixtures`."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def corpus(shared_folder: Path) -> Path:
    """Write a corpus of 300 pairs: train, dev and test, each .en, .de and .align; read-only."""
    from regard.synthetic.translation import write_translation_corpus

    return _make_once(shared_folder / "data" / "corpus", lambda folder: write_translation_corpus(folder, 300))


@pytest.fixture(scope="session")
def run(corpus: Path, shared_folder: Path) -> Run:
    """Train `bahdanau2015` for 24 updates; read-only."""
    return _train_once(shared_folder / "runs" / "bahdanau", "bahdanau2015", corpus)


@pytest.fixture(scope="session")
def fluent_run(corpus: Path, shared_folder: Path) -> Run:
    """Train `bahdanau2015` until its output resembles sentences; read-only."""
    steps = {f"training.{name}": 80 for name in ("steps", "validate_every", "checkpoint_every")}
    changes = {**steps, "training.batch_tokens": 900, "training.learning_rate": 0.02, "model.size": 40}
    return _train_once(shared_folder / "runs" / "fluent", "bahdanau2015", corpus, **changes)


@pytest.fixture(scope="session")
def transformer_run(corpus: Path, shared_folder: Path) -> Run:
    """Train a Transformer (`default`) for 120 updates; read-only."""
    changes = {"model.heads": 2, "training.steps": 120}
    return _train_once(shared_folder / "runs" / "transformer", "default", corpus, **changes)


def _train_once(folder: Path, recipe: str, corpus: Path, **overrides: Any) -> Run:
    from support.training import train_tiny

    from regard.runs import Run

    return Run(_make_once(folder, lambda out: train_tiny(recipe, corpus, out, **overrides)))


@pytest.fixture
def regard(tmp_path: Path) -> Command:
    """Run the command in `tmp_path`, in a process forked from one that has imported PyTorch."""

    def call(*arguments: object, input: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
        data = input.encode() if isinstance(input, str) else input
        streams = tmp_path.with_suffix(".streams")
        return run_forked(list(map(str, arguments)), tmp_path, environment(), data or b"", streams)

    return call


@pytest.fixture
def regard_process(tmp_path: Path) -> Command:
    """Run the command in a new interpreter, for what is decided at start-up."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            regard_command(arguments),
            input="",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(),
            check=False,
        )

    return call
