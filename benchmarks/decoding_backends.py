"""Decoding on a CPU by each engine: the same weights, sentences and search, in turns.

    OMP_NUM_THREADS=2 python benchmarks/decoding_backends.py

A vocabulary of 8,000, batches of 32 sentences, 25 tokens in and 25 out, random weights. The limit beside each line is
what the products alone would take: two operations for each weight and row at the rate of a large product in fp32,
measured here, in the same run. Bytes go beyond that limit, since it is that of fp32; so may a shortlist, of 20 words
for each source word and 450 for the batch, since it is that of the whole vocabulary.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.fast.graphs import export
from regard.fast.onnx_runtime import OnnxModel
from regard.models import Seq2Seq, build
from regard.search import search, search_restricted
from regard.special_tokens import SPECIAL_TOKENS
from regard.translate.shortlist import Shortlist

WORDS, SENTENCES, LENGTH, ROUNDS = 8_000, 32, 25, 5
SHORTLIST_PER_WORD, SHORTLIST_PER_BATCH = 20, 450  # words of a shortlist: a source word's, and a batch's
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM 256, general, feeding": ("luong2015-global", {"size": 256, "layers": 1}),
    "Transformer 256, 3 + 3": ("default", {"size": 256, "layers": 3}),
}


def main() -> None:
    """Prints a table."""
    rate = measure_peak_operations()
    print(f"{torch.get_num_threads()} threads; a large product in fp32: {rate / 1e9:.0f} G operations a second\n")
    print(f"{'model':<28} {'beam':>4} {'engine':<14} {'tokens/s':>9} {'spread':>7} {'ratio':>6} {'of the limit':>13}")
    for title, (recipe, sizes) in MODELS.items():
        torch.manual_seed(0)
        model = build(recipe, WORDS, WORDS, **sizes).eval()
        with tempfile.TemporaryDirectory() as folder:
            engines = {"torch": model} | {
                f"onnx {name}": export_onnx_model(model, Path(folder) / name) for name in ("fp32", "int8")
            }
            for beam in (1, 4):
                limit = rate / (2 * beam * count_decoder_weights(model))
                ways = {name: make_decoding_run(partial(search, engine), beam) for name, engine in engines.items()}
                lists = {
                    f"{name} list": make_decoding_run(make_shortlist_search(engine), beam)
                    for name, engine in engines.items()
                }
                print_table(title, beam, ways | lists, limit)


def export_onnx_model(model: Seq2Seq, folder: Path) -> OnnxModel:
    """The model's graphs, in the precision that the folder is named after."""
    export(model, folder, folder.name == "int8")
    return OnnxModel(model, folder)


def make_shortlist_search(model: Any) -> Callable[..., object]:
    """A search among the words that a batch's own may become, which are looked up first."""
    some = torch.arange(len(SPECIAL_TOKENS), WORDS)[
        torch.randperm(WORDS - len(SPECIAL_TOKENS))[: SHORTLIST_PER_BATCH - len(SPECIAL_TOKENS)]
    ]
    draws = torch.rand(WORDS, len(some)).argsort(1)[:, :SHORTLIST_PER_WORD]
    shortlist = Shortlist(list(range(len(SPECIAL_TOKENS))), dict(enumerate(some[draws].tolist())))
    return lambda source, *rest, **options: search_restricted(
        shortlist.find_allowed_targets(source.flatten().tolist()), [model], source, *rest, **options
    )


def make_decoding_run(search_function: Callable[..., object], beam: int) -> Callable[[], object]:
    """One batch from its sources to its targets, all of the same length."""
    source = torch.randint(4, WORDS, (SENTENCES, LENGTH), generator=torch.manual_seed(1))
    lengths = torch.full((SENTENCES,), LENGTH)
    return lambda: search_function(source, lengths, beam=beam, max_length=LENGTH, min_length=LENGTH, attention=False)


def print_table(title: str, beam: int, runs: dict[str, Callable[[], object]], limit: float) -> None:
    """Takes the ways in turns, and prints what each reached."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for way in runs.values():
        way()
    for _ in range(ROUNDS):
        for name, way in runs.items():
            began = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began)
    speeds = {name: SENTENCES * LENGTH / statistics.median(some) for name, some in times.items()}
    for name, speed in speeds.items():
        spread = (max(times[name]) - min(times[name])) / statistics.median(times[name])
        ratio, share = speed / speeds["torch"], speed / limit
        print(f"{title:<28} {beam:>4} {name:<14} {speed:>9,.0f} {spread:>6.0%} {ratio:>5.1f}× {share:>12.0%}")


def count_decoder_weights(model: Seq2Seq) -> int:
    """Numbers that a step multiplies a row by: all matrices of the decoder but its embeddings."""
    matrices = [p for name, p in model.decoder.named_parameters() if p.dim() == 2 and "embed" not in name]
    tied = not any(p.shape[0] == WORDS for p in matrices)  # then the embeddings are the output's matrix, too
    embedded = [p for p in model.decoder.parameters() if p.shape[0] == WORDS and p.dim() == 2]
    return sum(p.numel() for p in matrices) + (embedded[0].numel() if tied else 0)


def measure_peak_operations() -> float:
    """Operations a second in a large product."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        left @ right
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    return best


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
