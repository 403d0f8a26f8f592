"""Decoding of batches on a CPU: one at a time with all threads, or in parallel with one thread each.

    python -m benchmarks.batch_parallelism

A batch has 32 sentences of 25 tokens and as many output tokens; weights are random. Alternatives run in turns, and the
best round of each counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers.workers.regard import build_model, open_onnx_model
from benchmarks.peers.workloads import LENGTH, SENTENCES, Workload
from benchmarks.timing import measure_in_turns
from regard.fast import accelerate
from regard.search import search
from regard.translate.backends.base import map_in_threads

WORKLOADS = [("rnn", 4), ("rnn", 1), ("transformer", 4), ("transformer", 1)]


def open_models(model: Any, engine: str) -> tuple[Any, Any]:
    """Return the model for all threads and the one for a single thread."""
    if engine == "torch":
        return model, model
    opened = open_onnx_model(model, engine)
    return opened, opened.single


def make_decoding_runs(kind: str, beam: int, engine: str, threads: int) -> dict[str, Callable[[], object]]:
    """Return three ways to decode as many batches as there are threads."""
    work = Workload("decode", kind, beam)
    wide, single = open_models(accelerate(build_model(kind, work.sizes)).eval(), engine)
    sources, lengths = work.make_sources(), torch.full((SENTENCES,), LENGTH)

    def decode_batch(model: Any) -> object:
        return search(model, sources, lengths, beam=beam, max_length=LENGTH, min_length=LENGTH, attention=False)

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
        "in parallel": decode_in_parallel,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"{threads} threads; speed relative to one thread\n")
    print("| | engine | all threads for each | in parallel |\n|---|---|---|---|")
    for engine in ("torch", "fp32", "int8"):
        for kind, beam in WORKLOADS:
            runs = make_decoding_runs(kind, beam, engine, threads)
            one_thread, *others = map(min, measure_in_turns(runs, options.rounds).values())
            speedups = " | ".join(f"{one_thread / seconds:.2f}" for seconds in others)
            print(f"| {kind}, beam {beam} | {engine} | {speedups} |", flush=True)


if __name__ == "__main__":
    main()
