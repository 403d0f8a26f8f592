"""Preparing a corpus, the memory of training on ten million pairs, and what reading costs of a training step.

    python benchmarks/data.py [--pairs 1000000] [--mapped 10000000]

The text is made of words drawn by Zipf's law, so that nothing has to be downloaded. Limits: two bytes an id on the disk
and in the page cache; of the process's own memory 4 bytes a pair for its size and 8 for its place in the epoch's order.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from regard.data.examples import Examples
from regard.data.loader import load, requests
from regard.data.order import Order, Place
from regard.data.preparation import prepare, vocabularies
from regard.data.ragged import Ragged, RaggedWriter
from regard.data.settings import DataSettings
from regard.data.survey import survey
from regard.models import build
from regard.text import TextSettings
from regard.training.gradients import Gradients
from regard.training.objective import Objective
from regard.training.processes import ALONE
from regard.training.settings import TrainingSettings


def text(path: Path, pairs: int, seed: int) -> Path:
    """Sentences of 5 to 35 words out of 60,000."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 11, 60_000)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(0, pairs, 10_000):
            lengths = random.integers(5, 36, 10_000)
            drawn = iter((random.zipf(1.3, int(lengths.sum())) % len(words)).tolist())
            for length in lengths:
                file.write(" ".join(words[next(drawn)] for _ in range(length)) + ".\n")
    return path


def preparation(folder: Path, pairs: int) -> None:
    """Pairs a minute, from text to mapped ids, and the second start."""
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    sides = [str(text(folder / f"train.{side}", pairs, number)) for number, side in enumerate(("xx", "yy"))]
    data, settings = DataSettings(train=tuple(sides)), TextSettings(vocabulary=16_000)
    for start in ("first", "second"):
        begun = time.monotonic()
        found = survey(data, 1)
        surveyed = time.monotonic()
        tokenizers = vocabularies(data, settings, found)
        learnt = time.monotonic()
        prepare(data, settings, tokenizers, found)
        done = time.monotonic()
        print(
            f"{start} start: {done - begun:.1f} s for {pairs:,} pairs, {60 * pairs / (done - begun):,.0f} a minute "
            f"(reading {surveyed - begun:.1f} s, vocabulary {learnt - surveyed:.1f} s, encoding {done - learnt:.1f} s)"
        )


def mapped(folder: Path, pairs: int) -> Examples:
    """Pairs of 10 to 40 random ids, written straight to the disk."""
    random = np.random.default_rng(0)
    writers = [RaggedWriter(folder, side, 4_000) for side in ("source", "target")]
    for start in range(0, pairs, 100_000):
        for writer in writers:
            lengths = random.integers(10, 41, min(100_000, pairs - start))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            writer.write(Ragged(random.integers(4, 4_000, int(offsets[-1]), dtype=np.int32), offsets))
    for writer in writers:
        writer.close()
    return Examples(Ragged.load(folder, "source"), Ragged.load(folder, "target"), fingerprint="made up")


def resident() -> float:
    """Memory of this process that is resident now, in MB, pages of mapped files included."""
    fields = Path("/proc/self/status").read_text(encoding="utf-8").split("VmRSS:")[1].split()
    return int(fields[0]) / 1e3


def training(examples: Examples, updates: int) -> None:
    """Resident memory while training, and the share of each update that goes into reading."""
    torch.manual_seed(1)
    settings = TrainingSettings(batch_tokens=1000)  # more would measure what the output layer takes
    model = build("default", 4_000, 4_000, size=64, layers=2, heads=4, dropout=0.1)
    gradients = Gradients(Objective(model), settings, torch.device("cpu"), ALONE)
    base = resident()
    begun = time.monotonic()
    order = Order(examples.sizes, settings.batch_tokens, settings.pool, settings.seed)
    shares = load(examples, requests(order, Place(), 1, 0, 1))
    next(shares)
    print(
        f"{len(examples):,} pairs: {base:,.0f} MB resident with model and libraries; the first batch after "
        f"{time.monotonic() - begun:.1f} s, then {resident():,.0f} MB"
    )
    reading = computing = most = 0.0
    for step in range(1, updates + 1):
        start = time.monotonic()
        share = next(shares)
        read = time.monotonic()
        gradients.add(share.batches, step, 1)
        reading, computing = reading + read - start, computing + time.monotonic() - read
        most = max(most, resident())
    print(
        f"{updates} updates of {settings.batch_tokens:,} tokens: {most:,.0f} MB resident at the most; "
        f"reading takes {100 * reading / (reading + computing):.2f} % of the time"
    )


def reading_alone(examples: Examples, updates: int) -> None:
    """The memory of many pools, without the computing that would take hours."""
    order = Order(examples.sizes, 4000, 100, 1)
    most, begun, tokens = 0.0, time.monotonic(), 0
    for _, share in zip(range(updates), load(examples, requests(order, Place(), 1, 0, 1)), strict=False):
        tokens += share.batches[0].tokens
        most = max(most, resident())
    seconds = time.monotonic() - begun
    print(f"{updates} batches read: {most:,.0f} MB resident at the most, {tokens / seconds:,.0f} target tokens/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--mapped", type=int, default=10_000_000)
    parser.add_argument("--only", choices=("preparation", "memory"))
    wanted = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as name:
        if wanted.only != "memory":
            preparation(Path(name), wanted.pairs)
        if wanted.only != "preparation":
            examples = mapped(Path(name), wanted.mapped)
            training(examples, 15)
            reading_alone(examples, 3000)
