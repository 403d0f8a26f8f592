"""CTranslate2 without regard, in fp32 or int8, with its fastest settings."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from ctranslate2 import Translator, get_supported_compute_types

from benchmarks.peers.workers.regard import build_model, export_ctranslate2
from benchmarks.peers.workers.worker_protocol import Run, answer_requests, measure_run
from benchmarks.peers.workloads import LENGTH, SENTENCES, Workload

TYPES = {"fp32": ("float32",), "int8": ("int8", "int8_float32", "int8_bfloat16")}


def build_run(work: Workload) -> Run | None:
    """Return the fastest combination of threads, batch size and compute type."""
    if work.task != "decode" or work.model == "rnn":
        return None
    precision = sys.argv[1]
    threads = torch.get_num_threads()
    known = get_supported_compute_types("cpu")
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(build_model(work.model, work.sizes).eval(), work, Path(folder), precision)
        ways = {
            (kind, workers, batch): make_decoding_run(Translator(folder, "cpu", **settings), work, batch)
            for kind in TYPES[precision]
            if kind in known
            for workers, batch in (
                (1, SENTENCES),
                (threads, SENTENCES),  # several batches at once
                (threads, SENTENCES // threads),
                (threads, SENTENCES // threads // 2),
            )
            for settings in [{"compute_type": kind, "inter_threads": workers, "intra_threads": threads // workers}]
        }
    best = min(ways, key=lambda way: measure_fastest(ways[way]))
    print(f"CTranslate2, {work}: type, workers and batch are {best}", file=sys.stderr)
    return ways[best]


def measure_fastest(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several runs."""
    return min(measure_run(run).wall for _ in range(5))


def make_decoding_run(translator: Translator, work: Workload, batch: int) -> Run:
    """Translate each source to its best target."""
    sources = [[str(id) for id in source] for source in work.make_sources().tolist()] * torch.get_num_threads()

    def run() -> list[int]:
        found = translator.translate_batch(
            sources,
            beam_size=work.beam,
            max_batch_size=batch,
            min_decoding_length=LENGTH,
            max_decoding_length=LENGTH,
        )
        return [len(one.hypotheses[0]) for one in found]

    return run


if __name__ == "__main__":
    answer_requests(build_run)
