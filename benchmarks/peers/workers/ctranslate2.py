"""CTranslate2 by itself, in fp32 or int8, as fast as its settings make it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from ctranslate2 import Translator, get_supported_compute_types

from ..works import LENGTH, SENTENCES, Work
from .line import Run, serve, timed
from .regard import exported, of

TYPES = {"fp32": ("float32",), "int8": ("int8", "int8_float32", "int8_bfloat16")}


def made(work: Work) -> Run | None:
    """The quickest of what there is to choose from: threads, batches, and the types of what is not bytes."""
    if work.task != "decode" or work.model == "rnn":
        return None
    precision = sys.argv[1]
    threads = torch.get_num_threads()
    known = get_supported_compute_types("cpu")
    with tempfile.TemporaryDirectory() as folder:
        exported(of(work.model, work.sizes).eval(), work, Path(folder), precision)
        ways = {
            (kind, workers, batch): decoding(Translator(folder, "cpu", **settings), work, batch)
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
    best = min(ways, key=lambda way: shortest(ways[way]))
    print(f"CTranslate2, {work}: type, workers and batch are {best}", file=sys.stderr)
    return ways[best]


def shortest(way: Callable[[], object]) -> float:
    """Seconds of the best of some runs."""
    return min(timed(way).wall for _ in range(5))


def decoding(translator: Translator, work: Work, batch: int) -> Run:
    """The best target for each source and nothing else."""
    sources = [[str(id) for id in source] for source in work.sources().tolist()] * torch.get_num_threads()

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
    serve(made)
