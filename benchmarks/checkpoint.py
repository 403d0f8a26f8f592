"""Time of a checkpoint of 60 million parameters, beside that of the disk and of a training step.

    python -m benchmarks.checkpoint [--folder .]

The limit: weights and the two running means of Adam are 12 bytes per parameter, which the disk has to write.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from regard.data.dataset import ParallelDataset, RaggedArray
from regard.models import build
from regard.runs import Run
from regard.tasks.base import Validation
from regard.training import Trainer, TrainingSettings


def make_trainer(folder: Path, batch_tokens: int) -> Trainer:
    """Return a trainer of the Transformer base with 32,000 subwords."""
    random = np.random.default_rng(0)
    rows = RaggedArray.from_rows(random.integers(4, 32_000, 25) for _ in range(400))
    settings = TrainingSettings(batch_tokens=batch_tokens, steps=9, tensorboard=False)
    model = build("vaswani2017-base", 32_000, 32_000)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trainer(
        model, ParallelDataset(rows, rows), lambda *_: Validation(0, {"bleu": 0}, "bleu"), settings, Run(folder), device
    )


def measure_disk_write(folder: Path, size: int) -> float:
    """Return the seconds that the disk takes for `size` bytes."""
    content = os.urandom(1 << 20)
    start = time.monotonic()
    with (folder / "plain").open("wb") as file:
        for _ in range(size >> 20):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.monotonic() - start
    (folder / "plain").unlink()
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--batch-tokens", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        trainer = make_trainer(Path(name) / "run", options.batch_tokens)
        batches = trainer.load_update_batches()
        count = sum(parameter.numel() for parameter in trainer.model.parameters())
        steps, saves, disks = [], [], []
        for _ in range(4):
            start = time.monotonic()
            trainer.train_step(next(batches))
            steps.append(time.monotonic() - start)
            start = time.monotonic()
            trainer.save()
            saves.append(time.monotonic() - start)
            disks.append(measure_disk_write(Path(name), 12 * count))
        step, save, disk = (statistics.median(times[1:]) for times in (steps, saves, disks))
        print(
            f"{count:,} parameters: checkpoint {save:.2f} s, the disk alone {disk:.2f} s, a step of "
            f"{options.batch_tokens:,} tokens {step:.2f} s; checkpoint : (disk + step) = {save / (disk + step):.2f}"
        )
