"""Decoding on a CPU by each engine: the same weights, sentences and search, in turns.

    OMP_NUM_THREADS=2 python -m benchmarks.decoding_backends

The vocabulary has 8,000 words, a batch 32 sentences of 25 tokens in and 25 out; weights are random. The limit of each
line is the time of the matrix products alone: two operations for each weight and row at the rate of a large product in
fp32, measured in the same run. int8 exceeds that limit, since it is that of fp32; so may a shortlist, of 20 words for
each source word and 450 for the batch, since the limit is that of the whole vocabulary.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import measure_in_turns, measure_matrix_product
from regard.export.onnx import export
from regard.export.onnx_engine import OnnxModel
from regard.models import Seq2Seq, build
from regard.search import search, search_restricted
from regard.special_tokens import SPECIAL_TOKENS
from regard.translate.shortlist import Shortlist

WORDS, SENTENCES, LENGTH, ROUNDS = 8_000, 32, 25, 5
SHORTLIST_PER_WORD, SHORTLIST_PER_BATCH = 20, 450  # words of a shortlist: of a source word, and of a batch
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM 256, general, feeding": ("luong2015-global", {"size": 256, "layers": 1}),
    "Transformer 256, 3 + 3": ("default", {"size": 256, "layers": 3}),
}


def main() -> None:
    """Print a table."""
    rate = measure_matrix_product(1024, rounds=8)
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
                full = {name: make_decoding_run(partial(search, engine), beam) for name, engine in engines.items()}
                lists = {
                    f"{name} list": make_decoding_run(make_shortlist_search(engine), beam)
                    for name, engine in engines.items()
                }
                print_table(title, beam, full | lists, limit)


def export_onnx_model(model: Seq2Seq, folder: Path) -> OnnxModel:
    """Export the model to ONNX, in the precision that the folder is named after."""
    export(model, folder, folder.name == "int8")
    return OnnxModel(model, folder)


def make_shortlist_search(model: Any) -> Callable[..., object]:
    """Return a search restricted to a shortlist of each batch; finding it is part of the search."""
    targets = torch.arange(len(SPECIAL_TOKENS), WORDS)[
        torch.randperm(WORDS - len(SPECIAL_TOKENS))[: SHORTLIST_PER_BATCH - len(SPECIAL_TOKENS)]
    ]
    draws = torch.rand(WORDS, len(targets)).argsort(1)[:, :SHORTLIST_PER_WORD]
    shortlist = Shortlist(list(range(len(SPECIAL_TOKENS))), dict(enumerate(targets[draws].tolist())))
    return lambda source, *rest, **options: search_restricted(
        shortlist.find_allowed_targets(source.flatten().tolist()), [model], source, *rest, **options
    )


def make_decoding_run(search_function: Callable[..., object], beam: int) -> Callable[[], object]:
    """Return a function that decodes one batch, with targets of the same length."""
    source = torch.randint(4, WORDS, (SENTENCES, LENGTH), generator=torch.manual_seed(1))
    lengths = torch.full((SENTENCES,), LENGTH)
    return lambda: search_function(source, lengths, beam=beam, max_length=LENGTH, min_length=LENGTH, attention=False)


def print_table(title: str, beam: int, runs: dict[str, Callable[[], object]], limit: float) -> None:
    """Measure the runs in turns, and print the speed of each."""
    times = measure_in_turns(runs, ROUNDS)
    speeds = {name: SENTENCES * LENGTH / statistics.median(seconds) for name, seconds in times.items()}
    for name, speed in speeds.items():
        spread = (max(times[name]) - min(times[name])) / statistics.median(times[name])
        ratio, fraction = speed / speeds["torch"], speed / limit
        print(f"{title:<28} {beam:>4} {name:<14} {speed:>9,.0f} {spread:>6.0%} {ratio:>5.1f}× {fraction:>12.0%}")


def count_decoder_weights(model: Seq2Seq) -> int:
    """Count the weights that a step multiplies a row by: all matrices of the decoder but its embeddings."""
    matrices = [p for name, p in model.decoder.named_parameters() if p.dim() == 2 and "embed" not in name]
    tied = not any(p.shape[0] == WORDS for p in matrices)  # then the embeddings are the output matrix as well
    embedded = [p for p in model.decoder.parameters() if p.shape[0] == WORDS and p.dim() == 2]
    return sum(p.numel() for p in matrices) + (embedded[0].numel() if tied else 0)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
