"""Preparation of a corpus, memory of training on ten million pairs, and time of reading in a training step.

    python -m benchmarks.data_preparation [--pairs 1000000] [--mapped 10000000]

The words of the text are drawn by Zipf's law, so that nothing has to be downloaded. Limits: two bytes per id on disk
and in the page cache; of the process's own memory 4 bytes per pair for its size and 8 for its position in the epoch.
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

from regard.data.dataset import ParallelDataset, RaggedArray, RaggedArrayWriter
from regard.data.loader import BatchLoader, SamplerPosition, TokenBatchSampler, iterate_batch_requests
from regard.data.prepare import load_or_train_tokenizers, prepare_training_pairs
from regard.data.split import DataSettings, split_corpora
from regard.models import build
from regard.recipes.recipe import TrainingSettings
from regard.tokenizers.tokenizer import TextSettings
from regard.training.distributed import SINGLE_PROCESS, ModelWithLoss
from regard.training.optimizer import GradientAccumulator


def write_random_text(path: Path, pairs: int, seed: int) -> Path:
    """Write sentences of 5 to 35 words out of 60,000."""
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


def measure_preparation(folder: Path, pairs: int) -> None:
    """Print pairs per minute from text to mapped ids, and the time of a second start."""
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    sides = [
        str(write_random_text(folder / f"train.{side}", pairs, number)) for number, side in enumerate(("xx", "yy"))
    ]
    data, settings = DataSettings(train=tuple(sides)), TextSettings(vocabulary=16_000)
    for name in ("first", "second"):
        start = time.monotonic()
        found = split_corpora(data, 1)
        split_done = time.monotonic()
        tokenizers = load_or_train_tokenizers(data, settings, found)
        tokenizers_done = time.monotonic()
        prepare_training_pairs(data, settings, tokenizers, found)
        done = time.monotonic()
        print(
            f"{name} start: {done - start:.1f} s for {pairs:,} pairs, {60 * pairs / (done - start):,.0f} a minute "
            f"(reading {split_done - start:.1f} s, vocabulary {tokenizers_done - split_done:.1f} s, "
            f"encoding {done - tokenizers_done:.1f} s)"
        )


def write_mapped_examples(folder: Path, pairs: int) -> ParallelDataset:
    """Write pairs of 10 to 40 random ids to the disk, and map them."""
    random = np.random.default_rng(0)
    writers = [RaggedArrayWriter(folder, side, 4_000) for side in ("source", "target")]
    for start in range(0, pairs, 100_000):
        for writer in writers:
            lengths = random.integers(10, 41, min(100_000, pairs - start))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            writer.write(RaggedArray(random.integers(4, 4_000, int(offsets[-1]), dtype=np.int32), offsets))
    for writer in writers:
        writer.close()
    return ParallelDataset(
        RaggedArray.load(folder, "source"), RaggedArray.load(folder, "target"), fingerprint="made up"
    )


def read_resident_megabytes() -> float:
    """Return the resident memory of this process in MB, with pages of mapped files."""
    fields = Path("/proc/self/status").read_text(encoding="utf-8").split("VmRSS:")[1].split()
    return int(fields[0]) / 1e3


def measure_training(examples: ParallelDataset, updates: int) -> None:
    """Print resident memory while training, and the fraction of each update spent on reading."""
    torch.manual_seed(1)
    settings = TrainingSettings(batch_tokens=1000)  # more would measure what the output layer takes
    model = build("default", 4_000, 4_000, size=64, layers=2, heads=4, dropout=0.1)
    gradients = GradientAccumulator(ModelWithLoss(model), settings, torch.device("cpu"), SINGLE_PROCESS)
    base = read_resident_megabytes()
    start = time.monotonic()
    order = TokenBatchSampler(examples.sizes, settings.batch_tokens, settings.pool, settings.seed)
    batches = BatchLoader(examples, iterate_batch_requests(order, SamplerPosition(), 1, 0, 1))
    next(batches)
    print(
        f"{len(examples):,} pairs: {base:,.0f} MB resident with model and libraries; the first batch after "
        f"{time.monotonic() - start:.1f} s, then {read_resident_megabytes():,.0f} MB"
    )
    reading = computing = most = 0.0
    for step in range(1, updates + 1):
        start = time.monotonic()
        batch = next(batches)
        read = time.monotonic()
        gradients.accumulate(batch.batches, step, 1)
        reading, computing = reading + read - start, computing + time.monotonic() - read
        most = max(most, read_resident_megabytes())
    print(
        f"{updates} updates of {settings.batch_tokens:,} tokens: {most:,.0f} MB resident at the most; "
        f"reading takes {100 * reading / (reading + computing):.2f} % of the time"
    )


def measure_reading(examples: ParallelDataset, updates: int) -> None:
    """Print the memory of reading many pools, without computing, which would take hours."""
    order = TokenBatchSampler(examples.sizes, 4000, 100, 1)
    most, start, tokens = 0.0, time.monotonic(), 0
    for _, batch in zip(
        range(updates),
        BatchLoader(examples, iterate_batch_requests(order, SamplerPosition(), 1, 0, 1)),
        strict=False,
    ):
        tokens += batch.batches[0].num_tokens
        most = max(most, read_resident_megabytes())
    seconds = time.monotonic() - start
    print(f"{updates} batches read: {most:,.0f} MB resident at the most, {tokens / seconds:,.0f} target tokens/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--mapped", type=int, default=10_000_000)
    parser.add_argument("--only", choices=("preparation", "memory"))
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as name:
        if options.only != "memory":
            measure_preparation(Path(name), options.pairs)
        if options.only != "preparation":
            examples = write_mapped_examples(Path(name), options.mapped)
            measure_training(examples, 15)
            measure_reading(examples, 3000)
