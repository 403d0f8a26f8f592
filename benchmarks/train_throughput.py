"""Throughput of `regard train` on real sentences of all lengths: target tokens per second, without padding.

    REGARD_DATA=data python -m benchmarks.train_throughput multi30k mixed-ende

Whole commands run in turns, with the fast implementation and with the reference (REGARD_FAST=0). A figure is the median
of metrics.jsonl over the second half of the updates, of all rounds together, with the lowest and the highest. The
reference makes a quarter of the updates: it has nothing to compile and captures no CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from regard.reproduce.corpora import CorpusFiles, prepare_corpus

RECIPES = {
    "default": [],
    "luong2015-global": ["model.size=512", "model.layers=2", "training.batch_tokens=12000", "training.optimizer=adam"],
}
SHARED_KEYS = [
    "data.workers=2",
    "text.kind=bpe",
    "text.vocabulary=10000",
    "training.log_every=10",
    "training.tensorboard=false",
]


def measure_training_speeds(corpus: CorpusFiles, recipe: str, fast: str, updates: int) -> list[float]:
    """Return the speeds that one command logs, without its first half, in which CUDA graphs are captured."""
    steps = [f"training.steps={updates}", f"training.validate_every={updates}", f"training.checkpoint_every={updates}"]
    keys = [*SHARED_KEYS, *steps, "training.validate_pairs=1", "training.epochs=null", *RECIPES[recipe]]
    files = [*map(str, corpus.train), "--dev", *map(str, corpus.dev or ())]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "regard", "train", *files, "--recipe", recipe, "--out", str(run), *keys]
        subprocess.run(command, env={**os.environ, "REGARD_FAST": fast}, check=True, stderr=subprocess.DEVNULL)
        rows = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    speeds = [line["tokens_per_second"] for line in rows if "tokens_per_second" in line]
    return speeds[len(speeds) // 2 :]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", default=["multi30k", "mixed-ende"])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print("| corpus | recipe | | tokens/s | from | to |\n|---|---|---|---:|---:|---:|")
    for name in options.corpora:
        with tempfile.TemporaryDirectory() as folder:
            corpus = prepare_corpus(name, Path(folder))
            for recipe in options.recipes:
                speeds: dict[str, list[float]] = {"1": [], "0": []}
                for _ in range(options.rounds):
                    for fast, values in speeds.items():
                        values += measure_training_speeds(
                            corpus, recipe, fast, options.updates if fast == "1" else options.updates // 4
                        )
                for fast, values in speeds.items():
                    kind = "fast" if fast == "1" else "reference"
                    median = statistics.median(values)
                    print(
                        f"| {name} | {recipe} | {kind} | {median:,.0f} | {min(values):,.0f} | {max(values):,.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
