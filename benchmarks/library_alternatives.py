"""Operations of PyTorch in place of regard's own: `python -m benchmarks.library_alternatives training search loss`.

`training` (GPU): updates of a Transformer base in bf16, with `torch.compile` for residual connection and norm, and with
`varlen_attn` or padded attention instead of the Triton kernels.
`search` (GPU): device search with PyTorch operations, compiled and not, in the same CUDA graphs as the Triton kernels.
`loss` (CPU): `F.linear_cross_entropy` (PyTorch 2.13) and the plain loss, one thread, beside the loss in chunks.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import packed_training
from benchmarks.gpu import (
    TRANSFORMER,
    Workload,
    build_search_model,
    estimate_transformer_search,
    make_searches,
    print_table,
)
from benchmarks.timing import measure_in_turns
from regard.fast import accelerate
from regard.fast.decoding.device import search as device_search
from regard.fast.decoding.device.ops import TORCH_OPS, DecodingOps
from regard.fast.training.linear_cross_entropy import cross_entropy_in_chunks
from regard.fast.training.packed import ops as torch_ops
from regard.models import build

BATCHES = ((800, 32, 32), (800, 8, 32), (400, 16, 64), (200, 32, 128), (100, 64, 256))  # sentences, shortest, longest
COMPILED_OPS = ("logits_topk", "beam_update", "embed_and_link", "self_attention_step", "cross_attention")
LOSS_ROWS, LOSS_SIZE, LOSS_VOCABULARY, LOSS_ROUNDS = 2048, 256, 8000, 12


def benchmark_training() -> None:
    """Compare updates; packed training takes its operations from `ops_triton.TRITON_OPS`."""
    from regard.fast.training.packed import ops_triton

    own, flash = ops_triton.TRITON_OPS, ops_triton._flash_attention
    variants = {
        "own kernels": own,
        "torch.compile for add+norm": own._replace(add_norm=torch.compile(torch_ops.add_norm, dynamic=True)),
        "varlen_attn": own._replace(
            cross_attention=lambda q, kv, queries, keys, heads: flash(q, kv, queries, keys, heads, False),
            self_attention=lambda qkv, words, heads, causal: flash(qkv, None, words, words, heads, causal),
        ),
        "padded attention": own._replace(
            cross_attention=torch_ops.cross_attention, self_attention=torch_ops.self_attention
        ),
    }
    for sentences, shortest, longest in BATCHES:
        batch = packed_training.make_batch(sentences, shortest, longest)
        calls = {}
        for name, ops in variants.items():
            model = accelerate(
                build("vaswani2017-base", packed_training.VOCABULARY, packed_training.VOCABULARY, norm="pre")
            )
            step = packed_training.make_update_step(model.cuda().train(), batch)
            calls[name] = partial(_run_with_ops, ops_triton, ops, step)
        title = f"updates of a Transformer base, {sentences} sentences of {shortest} to {longest} words"
        print_table(title, Workload(int((batch[3] != 0).sum()), 0, 0), calls, None, 3)


def _run_with_ops(module: Any, ops: Any, step: Callable[[], None]) -> None:
    module.TRITON_OPS = ops
    step()


class CompiledOps(DecodingOps):
    """Operations of device search by `torch.compile`."""

    def __init__(self) -> None:
        for name in COMPILED_OPS:
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))
        self.packed = self.packed._replace(add_norm=torch.compile(self.packed.add_norm, dynamic=False))


def benchmark_search() -> None:
    """Compare searches; each variant has a model of its own."""
    torch._dynamo.config.recompile_limit = 256  # each operation is compiled for each step of a chunk
    load_own = device_search.load_ops
    loaders = {"own kernels": load_own, "PyTorch": lambda: TORCH_OPS, "torch.compile": CompiledOps}
    for sentences, beam in ((1, 4), (512, 1), (512, 4)):
        calls = {}
        for name, load in loaders.items():
            device_search.load_ops = load
            calls[name] = make_searches(build_search_model(TRANSFORMER), sentences, beam)["on the device"]
            calls[name]()
        title = f"Transformer base, {sentences} sentences, beam {beam}"
        print_table(title, estimate_transformer_search(sentences, beam), calls)
    device_search.load_ops = load_own


def benchmark_loss() -> None:
    """Compare loss and gradients of an output layer, by CPU time."""
    torch.set_num_threads(1)
    h, weight = torch.randn(LOSS_ROWS, LOSS_SIZE), torch.randn(LOSS_VOCABULARY, LOSS_SIZE) / LOSS_SIZE**0.5
    targets = torch.randint(4, LOSS_VOCABULARY, (LOSS_ROWS,))

    def compute_own(x: Tensor, w: Tensor, smoothing: float) -> Tensor:
        return cross_entropy_in_chunks(x, w, None, targets, smoothing, 0.0)

    def compute_plain(x: Tensor, w: Tensor, smoothing: float) -> Tensor:
        return F.cross_entropy(x @ w.t(), targets, ignore_index=0, reduction="sum", label_smoothing=smoothing)

    def compute_fused(x: Tensor, w: Tensor, smoothing: float) -> Tensor:
        options: Any = torch.nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(
            x, w, targets, ignore_index=0, reduction="sum", label_smoothing=smoothing, options=options
        )

    def run(loss: Callable[[Tensor, Tensor, float], Tensor], smoothing: float) -> None:
        leaves = h.clone().requires_grad_(), weight.clone().requires_grad_()
        torch.autograd.grad(loss(*leaves, smoothing), leaves)

    losses = {"own, in chunks": compute_own, "F.cross_entropy": compute_plain}
    if hasattr(F, "linear_cross_entropy"):
        losses["F.linear_cross_entropy"] = compute_fused
    for smoothing in (0.0, 0.1):
        runs = {name: partial(run, loss, smoothing) for name, loss in losses.items()}
        times = measure_in_turns(runs, LOSS_ROUNDS, time.process_time)
        own = statistics.median(times["own, in chunks"])
        for name, seconds in times.items():
            median = statistics.median(seconds)
            print(f"label smoothing {smoothing}: {name}: {median:.3f} s, {median / own:.2f} times the first")


TABLES = {"training": benchmark_training, "search": benchmark_search, "loss": benchmark_loss}

if __name__ == "__main__":
    for table in sys.argv[1:] or TABLES:
        TABLES[table]()
