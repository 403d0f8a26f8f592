"""What several tests share: a small corpus and a run that was trained on it for a few seconds."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from forked import forked

from regard.data.embedded import write
from regard.runs import Run
from regard.training import train

torch.set_num_threads(1)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

ROOT = Path(__file__).parent.parent
QUICK: dict[str, Any] = {
    "model.size": 24,
    "model.layers": 1,
    "text.kind": "word",
    "text.vocabulary": 600,
    "training.steps": 24,
    "training.batch_tokens": 300,
    "training.optimizer": "adam",
    "training.learning_rate": 0.01,
    "training.warmup": 4,
    "training.schedule": "inverse-sqrt",
    "training.epochs": None,
    "training.validate_every": 12,
    "training.checkpoint_every": 12,
    "training.validate_pairs": 10,
    "training.log_every": 4,
    "training.tensorboard": False,
}

# Half precision is for processors of ARM's alone; that others say so is tested with the rest.
collect_ignore = [] if platform.machine() in ("aarch64", "arm64") else ["test_halves.py"]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of this session alone."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["REGARD_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train, dev and test, each .en, .de and .align."""
    folder = tmp_path_factory.mktemp("corpus")
    write(folder, 300)
    return folder


def files(corpus: Path, split: str) -> list[Path]:
    """The two sides of a split."""
    return [corpus / f"{split}.en", corpus / f"{split}.de"]


@pytest.fixture(scope="session")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of `bahdanau2015`; nobody changes it."""
    out = tmp_path_factory.mktemp("runs") / "bahdanau"
    return train("bahdanau2015", files(corpus, "train"), out, dev=files(corpus, "dev"), **QUICK)


@pytest.fixture(scope="session")
def able(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of `bahdanau2015` that has learnt to say something; nobody changes it."""
    out = tmp_path_factory.mktemp("runs") / "able"
    more = {"training.steps": 240, "training.validate_every": 240, "training.checkpoint_every": 240, "model.size": 40}
    return train("bahdanau2015", files(corpus, "train"), out, dev=files(corpus, "dev"), **{**QUICK, **more})


def transformer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a Transformer that has seen a few sentences."""
    changes: dict[str, Any] = {**QUICK, "model.heads": 2, "training.steps": 120}
    out = tmp_path_factory.mktemp("runs") / "transformer"
    return train("default", files(corpus, "train"), out, dev=files(corpus, "dev"), **changes)


def environment() -> dict[str, str]:
    """That of a real process: one thread, the checkout on the path, no terminal."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120"}


@pytest.fixture
def regard(tmp_path: Path) -> Command:
    """Runs the real command in a folder of its own, in a process that need not load everything first."""

    def call(*arguments: object, input: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
        data = input.encode() if isinstance(input, str) else input
        return forked(list(map(str, arguments)), tmp_path, environment(), data or b"", tmp_path.with_suffix(".streams"))

    return call


@pytest.fixture
def started(tmp_path: Path) -> Command:
    """The same from its very start, for what is decided there."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(arguments), input="", capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
        )

    return call


def command(arguments: Sequence[object]) -> list[str]:
    """`python -m regard …`."""
    return [sys.executable, "-m", "regard", *map(str, arguments)]
