"""How fast `regard train` is on real sentences, of all lengths: target tokens a second, padding counted as nothing.

    REGARD_DATA=data python benchmarks/train_throughput.py multi30k mixed-ende

Real commands, with reading and optimizer, a fast and a readable one (REGARD_FAST=0) in turns. A figure is the median of
what metrics.jsonl says of the second half of the updates, of all rounds together, with the lowest and the highest. The
readable one has a quarter of the updates: it has nothing to compile or to record.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
    """Of one command, without its first half, in which recordings are made."""
    steps = [f"training.steps={updates}", f"training.validate_every={updates}", f"training.checkpoint_every={updates}"]
    keys = [*SHARED_KEYS, *steps, "training.validate_pairs=1", "training.epochs=null", *RECIPES[recipe]]
    files = [*map(str, corpus.train), "--dev", *map(str, corpus.dev or ())]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "regard", "train", *files, "--recipe", recipe, "--out", str(run), *keys]
        subprocess.run(command, env={**os.environ, "REGARD_FAST": fast}, check=True, stderr=subprocess.DEVNULL)
        said = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    found = [line["tokens_per_second"] for line in said if "tokens_per_second" in line]
    return found[len(found) // 2 :]


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", default=["multi30k", "mixed-ende"])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print("| corpus | recipe | | tokens/s | from | to |\n|---|---|---|---:|---:|---:|")
    for name in given.corpora:
        with tempfile.TemporaryDirectory() as place:
            corpus = prepare_corpus(name, Path(place))
            for recipe in given.recipes:
                found: dict[str, list[float]] = {"1": [], "0": []}
                for _ in range(given.rounds):
                    for fast, some in found.items():
                        some += measure_training_speeds(
                            corpus, recipe, fast, given.updates if fast == "1" else given.updates // 4
                        )
                for fast, some in found.items():
                    way = "fast" if fast == "1" else "readable"
                    middle = statistics.median(some)
                    print(
                        f"| {name} | {recipe} | {way} | {middle:,.0f} | {min(some):,.0f} | {max(some):,.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
