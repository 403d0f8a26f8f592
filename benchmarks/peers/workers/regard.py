"""regard: `torch`, `onnx` or `ctranslate2`, behind it `-fp32` or `-int8`, and `-shortlist`.

To train, `torch`, or `torch-mixed` with products in half precision.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import regard  # isort: skip  # noqa: F401  # before PyTorch, as in the command: it says how long memory is kept
import torch

from regard.fast import quicken
from regard.fast.halves.way import halved
from regard.fast.octets.way import in_bytes, lacking
from regard.models import Seq2Seq, build
from regard.models.recurrent import RecurrentEncoder
from regard.nn import LSTMCell, Recurrent
from regard.search import Ranking, search, search_among
from regard.symbols import EOS, NAMES
from regard.training.optimizer import optimizer
from regard.training.settings import TrainingSettings
from regard.translate.abreast import abreast
from regard.translate.shortlist import Shortlist

from ..works import DROPOUT, LENGTH, PAIRS, SENTENCES, TOKENS, Sizes, Work
from .line import Run, serve, updating

INT8, LISTED = "int8", "shortlist"


def made(work: Work) -> Run | None:
    """The work by the engine that this process was started for."""
    engine, *more = sys.argv[1].split("-")
    listed, precision = LISTED in more, INT8 if INT8 in more else "fp32"
    model = quicken(of(work.model, work.sizes))
    if work.task == "train":
        return training(model, work, "mixed" in more) if engine == "torch" else None
    if engine == "ctranslate2":
        return None if work.model == "rnn" else by_ctranslate2(model.eval(), work, precision, listed)
    if engine == "onnx":
        return decoding(graphs(model.eval(), precision), work, listed)
    if precision == INT8:
        return None if lacking(model) else decoding(in_bytes(model.eval()), work, listed)
    return decoding(model.eval(), work, listed)


def of(kind: str, sizes: Sizes) -> Seq2Seq:
    """A model with random weights."""
    words = sizes.words
    if kind != "rnn":
        shape = {"layers": sizes.layers, "heads": sizes.heads, "feedforward": sizes.feedforward, "dropout": DROPOUT}
        model: Seq2Seq = build("default", words, words, size=sizes.size, **shape)
        return model
    model = build("luong2015-global", words, words, size=sizes.size, layers=1, reverse=False, dropout=0.0)
    # Half of the decoder's size in each direction, as the peers have it, so that its states are the decoder's first.
    both = Recurrent(LSTMCell, sizes.size, sizes.size // 2, bidirectional=True)
    model.encoder = RecurrentEncoder(model.encoder.embedding, both)  # type: ignore[arg-type]
    return model


def decoding(model: Any, work: Work, listed: bool) -> Run:
    """Through the search that `regard translate` goes by, a batch for each thread side by side.

    The words of a shortlist are looked up for every batch.
    """
    sources, lengths = work.sources(), torch.full((SENTENCES,), LENGTH)
    options: dict[str, Any] = {"beam": work.beam, "max_length": LENGTH, "min_length": LENGTH, "attention": False}
    shortlist = Shortlist([], work.shortlist())

    threads = torch.get_num_threads()
    engine = model if threads == 1 else getattr(model, "single", model)

    def batch(_: int) -> list[int]:
        if listed:
            words = shortlist.allowed(sources.flatten().tolist())
            found = search_among(words, [engine], sources, lengths, **options)
        else:
            found = search(engine, sources, lengths, **options)
        return [len(some[0].tokens) for some in found]

    return lambda: [size for sizes in abreast(batch, range(threads), threads) for size in sizes]


def graphs(model: Seq2Seq, precision: str) -> Any:
    """The model in onnxruntime's hands."""
    from regard.fast.graphs import export
    from regard.fast.onnx_runtime import OnnxModel

    with tempfile.TemporaryDirectory() as folder:
        export(model, Path(folder), precision == INT8)
        opened = OnnxModel(model, Path(folder))
        for one in (opened, opened.single):
            one.narrowed([EOS])  # the folder is gone when it is wanted
        return opened


def by_ctranslate2(model: Seq2Seq, work: Work, precision: str, listed: bool) -> Run:
    """The model as `regard translate --engine ctranslate2` runs it: a worker of one thread for each thread."""
    from regard.translate.runtime import Runtime

    with tempfile.TemporaryDirectory() as folder:
        exported(model, work, Path(folder), precision, listed)
        runtime = Runtime(Path(folder), workers=torch.get_num_threads())
    sources = work.sources().tolist() * torch.get_num_threads()

    def run() -> list[int]:
        found = runtime.within(LENGTH, sources, work.beam, Ranking(), False)
        return [len(some[0].tokens) for some in found]

    return run


def exported(model: Seq2Seq, work: Work, folder: Path, precision: str, listed: bool = False) -> None:
    """Writes a Transformer that never ends a target by itself, for CTranslate2."""
    from regard.fast.ctranslate2 import VMAP, export, spelt

    with torch.no_grad():
        # Random weights give logits around 0 to the words; 0 is never among the first of thousands.
        model.decoder.get_submodule("output").get_parameter("weight")[EOS] = 0.0
    pieces = [str(id) for id in range(work.sizes.words)]
    export(model, pieces, pieces, folder, INT8 if precision == INT8 else None)
    if listed:
        written = Shortlist(list(range(len(NAMES))), work.shortlist()).written(spelt(pieces), spelt(pieces))
        (folder / VMAP).write_text(written, encoding="utf-8")


def training(model: Seq2Seq, work: Work, mixed: bool) -> Run:
    """Forward, backward and the optimizer that a recipe with `optimizer: adam` has."""
    adam = optimizer(model.train(), TrainingSettings(optimizer="adam", learning_rate=1e-6))
    sources, targets, lengths = work.sources(), work.targets(), torch.full((PAIRS,), TOKENS)
    given, wanted = targets[:, :-1], targets[:, 1:]

    def loss() -> Any:
        with halved() if mixed else nullcontext():
            return model.summed(sources, lengths, given, wanted) / work.tokens

    return updating(adam, loss)


if __name__ == "__main__":
    serve(made)
