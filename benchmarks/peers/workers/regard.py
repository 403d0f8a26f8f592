"""Worker of regard: `torch`, `onnx` or `ctranslate2`, followed by `-fp32` or `-int8`, and by `-shortlist`.

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

from benchmarks.peers.workers.worker_protocol import Run, answer_requests, make_update_run
from benchmarks.peers.workloads import DROPOUT, LENGTH, PAIRS, SENTENCES, TOKENS, ModelSizes, Workload
from regard.fast import accelerate
from regard.fast.decoding.int8 import find_int8_obstacle, quantize_model
from regard.fast.kernels.fp16 import use_fp16_gemm
from regard.models import Seq2Seq, build
from regard.nn import LSTMCell, Recurrent
from regard.recipes.recipe import TrainingSettings
from regard.search import SearchOptions, search, search_restricted
from regard.special_tokens import EOS, SPECIAL_TOKENS
from regard.training.optimizer import build_optimizer
from regard.translate.backends.base import map_in_threads
from regard.translate.shortlist import Shortlist

INT8, SHORTLIST = "int8", "shortlist"


def build_run(work: Workload) -> Run | None:
    """Return a function that runs the workload with the engine of this process."""
    engine, *more = sys.argv[1].split("-")
    listed, precision = SHORTLIST in more, INT8 if INT8 in more else "fp32"
    model = accelerate(build_model(work.model, work.sizes))
    if work.task == "train":
        return make_training_run(model, work, "mixed" in more) if engine == "torch" else None
    if engine == "ctranslate2":
        return None if work.model == "rnn" else make_ctranslate2_run(model.eval(), work, precision, listed)
    if engine == "onnx":
        return make_decoding_run(open_onnx_model(model.eval(), precision), work, listed)
    if precision == INT8:
        return None if find_int8_obstacle(model) else make_decoding_run(quantize_model(model.eval()), work, listed)
    return make_decoding_run(model.eval(), work, listed)


def build_model(kind: str, sizes: ModelSizes) -> Seq2Seq:
    """Build a model with random weights."""
    words = sizes.vocabulary_size
    if kind != "rnn":
        shape = {"layers": sizes.layers, "heads": sizes.heads, "feedforward": sizes.feedforward, "dropout": DROPOUT}
        model: Seq2Seq = build("default", words, words, size=sizes.size, **shape)
        return model
    model = build("luong2015-global", words, words, size=sizes.size, layers=1, reverse=False, dropout=0.0)
    # Half of the decoder's size in each direction, as the peers have it, so that its states are the decoder's first.
    model.encoder.recurrent = Recurrent(LSTMCell, sizes.size, sizes.size // 2, bidirectional=True)
    return model


def make_decoding_run(model: Any, work: Workload, with_shortlist: bool) -> Run:
    """Return a run of the search of `regard translate`, with a batch for each thread in parallel.

    The shortlist is found for every batch.
    """
    sources, lengths = work.make_sources(), torch.full((SENTENCES,), LENGTH)
    options: dict[str, Any] = {"beam": work.beam, "max_length": LENGTH, "min_length": LENGTH, "attention": False}
    shortlist = Shortlist([], work.make_shortlist())

    threads = torch.get_num_threads()
    engine = model if threads == 1 else getattr(model, "single", model)

    def decode_batch(_: int) -> list[int]:
        if with_shortlist:
            words = shortlist.find_allowed_targets(sources.flatten().tolist())
            found = search_restricted(words, [engine], sources, lengths, **options)
        else:
            found = search(engine, sources, lengths, **options)
        return [len(some[0].tokens) for some in found]

    return lambda: [size for sizes in map_in_threads(decode_batch, range(threads), threads) for size in sizes]


def open_onnx_model(model: Seq2Seq, precision: str) -> Any:
    """Export the model to ONNX and load it in onnxruntime."""
    from regard.export.onnx import export
    from regard.export.onnx_engine import OnnxModel

    with tempfile.TemporaryDirectory() as folder:
        export(model, Path(folder), precision == INT8)
        opened = OnnxModel(model, Path(folder))
        for one in (opened, opened.single):
            one.restrict_vocabulary([EOS])  # loaded now, since the folder is removed
        return opened


def make_ctranslate2_run(model: Seq2Seq, work: Workload, precision: str, with_shortlist: bool) -> Run:
    """Return a run of the model as in `regard translate --engine ctranslate2`, with one worker for each thread."""
    from regard.translate.backends.ctranslate2 import CTranslate2Model

    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(model, work, Path(folder), precision, with_shortlist)
        runtime = CTranslate2Model(Path(folder), workers=torch.get_num_threads())
    sources = work.make_sources().tolist() * torch.get_num_threads()

    def run() -> list[int]:
        found = runtime.search_within_limit(sources, LENGTH, SearchOptions(beam=work.beam, attention=False))
        return [len(some[0].tokens) for some in found]

    return run


def export_ctranslate2(
    model: Seq2Seq, work: Workload, folder: Path, precision: str, with_shortlist: bool = False
) -> None:
    """Export a Transformer that never ends a target by itself to CTranslate2."""
    from regard.export.ctranslate2 import VMAP, export, token_names

    with torch.no_grad():
        # Random weights give logits around 0 to the words; 0 is never among the first of thousands.
        model.decoder.get_submodule("output").get_parameter("weight")[EOS] = 0.0
    pieces = [str(id) for id in range(work.sizes.vocabulary_size)]
    export(model, pieces, pieces, folder, INT8 if precision == INT8 else None)
    if with_shortlist:
        written = Shortlist(list(range(len(SPECIAL_TOKENS))), work.make_shortlist()).format_vmap(
            token_names(pieces), token_names(pieces)
        )
        (folder / VMAP).write_text(written, encoding="utf-8")


def make_training_run(model: Seq2Seq, work: Workload, mixed: bool = False) -> Run:
    """Return an update: forward, backward and the optimizer of a recipe with `optimizer: adam`."""
    adam = build_optimizer(model.train(), TrainingSettings(optimizer="adam", learning_rate=1e-6))
    sources, targets, lengths = work.make_sources(), work.make_targets(), torch.full((PAIRS,), TOKENS)
    target_in, target_out = targets[:, :-1], targets[:, 1:]

    def loss() -> Any:
        with use_fp16_gemm() if mixed else nullcontext():
            return model.loss_sum(sources, lengths, target_in, target_out) / work.tokens

    return make_update_run(adam, loss)


if __name__ == "__main__":
    answer_requests(build_run)
