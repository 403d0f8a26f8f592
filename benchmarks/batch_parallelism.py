"""Batches on a CPU: one at a time with all threads, or side by side with one thread each.

    python -m benchmarks.batch_parallelism

32 sentences of 25 tokens in a batch, exactly 25 out, random weights; in turns, the best of the rounds of each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers.workers.regard import build_model, open_onnx_model
from benchmarks.peers.workloads import LENGTH, SENTENCES, Workload
from regard.fast import quicken
from regard.search import search
from regard.translate.backends.threads import map_in_threads

WORKLOADS = [("rnn", 4), ("rnn", 1), ("transformer", 4), ("transformer", 1)]


def open_models(model: Any, engine: str) -> tuple[Any, Any]:
    """One that takes all threads, and one that takes one."""
    if engine == "torch":
        return model, model
    opened = open_onnx_model(model, engine)
    return opened, opened.single


def make_decoding_runs(kind: str, beam: int, engine: str, threads: int) -> dict[str, Callable[[], object]]:
    """As many batches as there are threads, in three ways."""
    work = Workload("decode", kind, beam)
    wide, single = open_models(quicken(build_model(kind, work.sizes)).eval(), engine)
    given = work.make_sources(), torch.full((SENTENCES,), LENGTH)

    def decode_batch(model: Any) -> object:
        return search(model, *given, beam=beam, max_length=LENGTH, min_length=LENGTH, attention=False)

    def decode_in_sequence(model: Any, batch_threads: int) -> None:
        torch.set_num_threads(batch_threads)
        for _ in range(threads):
            decode_batch(model)

    def decode_in_parallel() -> None:
        torch.set_num_threads(threads)
        map_in_threads(decode_batch, [single] * threads, threads)

    return {
        "one thread": lambda: decode_in_sequence(single, 1),
        "all threads for each": lambda: decode_in_sequence(wide, threads),
        "side by side": decode_in_parallel,
    }


def measure_fastest(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of the best round of each."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds + 1):  # the first warms up
        for name, call in runs.items():
            began = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"{threads} threads; times as fast as one\n")
    print("| | engine | all threads for each | side by side |\n|---|---|---|---|")
    for engine in ("torch", "fp32", "int8"):
        for kind, beam in WORKLOADS:
            took = measure_fastest(make_decoding_runs(kind, beam, engine, threads), given.rounds)
            alone, *others = took.values()
            print(
                f"| {kind}, beam {beam} | {engine} |",
                " | ".join(f"{alone / one:.2f}" for one in others),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
