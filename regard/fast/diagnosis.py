"""The implementation that each part of training and decoding uses on this machine, and why no faster one.

Each part runs once in a tiny model. What it logs meanwhile is the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import NamedTuple

import torch

from regard.console import log_message
from regard.fast import accelerate
from regard.fast.decoding import int8
from regard.fast.decoding.device import search as device_search
from regard.fast.decoding.device.ops import TORCH_OPS
from regard.fast.decoding.search_trace import SearchRequest
from regard.fast.eligibility import fast_paths_enabled
from regard.fast.kernels.fp16 import load_fp16_gemm
from regard.fast.training import step_ops
from regard.fast.training.linear_cross_entropy import KernelLoss
from regard.models import build
from regard.models.base import Seq2Seq

VOCABULARY, LENGTH = 50, 6
REFERENCE = "reference implementation"


class Part(NamedTuple):
    """A part of training or decoding."""

    part: str
    implementation: str
    reason: str  # why it is not a faster one, "" if it is the fastest


def diagnose_parts(device: torch.device) -> list[Part]:
    """Run all parts on a device, and return what they use."""
    no_gpu = {"cuda": "", "cpu": "there is no CUDA GPU"}.get(device.type, "kernels are for CUDA")
    checks: tuple[tuple[str, Callable[[torch.device], str], str], ...] = (
        ("Transformer training", _check_transformer_training, no_gpu),
        ("RNN layers in training", _check_rnn_layers, no_gpu),
        ("Luong decoder in training", _check_luong_decoder, no_gpu),
        ("other attention decoders in training", _check_graphed_loop, no_gpu),
        ("output layer and loss of RNN models", _check_output_loss, no_gpu),
        ("training.precision=auto", _check_auto_precision, no_gpu),
        ("training.precision=mixed", _check_mixed_precision, "" if device.type == "cpu" else no_gpu),
        ("search", _check_search, no_gpu),
        ("--precision int8", _check_int8, ""),
    )
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return [_run_check(name, check, device, reason) for name, check, reason in checks]


def _run_check(name: str, check: Callable[[torch.device], str], device: torch.device, reason: str) -> Part:
    """Return what a part uses; `reason` stands for a slower implementation that logs none."""
    if not fast_paths_enabled() and check not in (_check_auto_precision, _check_mixed_precision):
        return Part(name, REFERENCE, "REGARD_FAST is 0")
    messages = StringIO()
    with redirect_stderr(messages):
        implementation = check(device)
    logged = "; ".join(dict.fromkeys(messages.getvalue().splitlines()))
    return Part(name, implementation, logged or reason)


def _build_tiny(recipe: str, device: torch.device) -> Seq2Seq:
    sizes = {"layers": 1, "heads": 2} if recipe.startswith("vaswani") else {"layers": 1}
    model: Seq2Seq = accelerate(build(recipe, VOCABULARY, VOCABULARY, size=16, **sizes)).to(device)
    return model


def _compute_kernel_loss(recipe: str, device: torch.device) -> bool:
    """Return whether kernels compute the loss of a tiny model, and its gradients."""
    model = _build_tiny(recipe, device).train()
    if not isinstance(model.acceleration.loss_sum, KernelLoss):
        return False
    ids, lengths = torch.full((2, LENGTH), VOCABULARY - 1, device=device), torch.full((2,), LENGTH, device=device)
    loss = model.acceleration.loss_sum.compute(model, (ids, lengths, ids, ids))
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    return loss is not None


def _check_transformer_training(device: torch.device) -> str:
    if not _compute_kernel_loss("vaswani2017-base", device):
        return REFERENCE
    return "packed batches, Triton kernels, CUDA graphs" if device.type == "cuda" else "packed batches"


def _check_output_loss(device: torch.device) -> str:
    if not _compute_kernel_loss("bahdanau2015", device):
        return REFERENCE
    return f"fused linear cross-entropy, {'Triton kernels' if device.type == 'cuda' else 'in chunks'}"


def _check_rnn_layers(device: torch.device) -> str:
    return {"cuda": "cuDNN", "cpu": "one autograd function for a sequence"}.get(device.type, REFERENCE)


def _check_luong_decoder(device: torch.device) -> str:
    if device.type not in ("cpu", "cuda"):
        return REFERENCE
    ops = step_ops.select_step_ops(torch.zeros(1, device=device), LENGTH)
    kernels = "PyTorch operations" if type(ops) is step_ops.StepOps else "Triton kernels"
    graphs = ", CUDA graphs" if device.type == "cuda" else ""
    return f"input-feeding loop with its own backward pass, {kernels}{graphs}"


def _check_graphed_loop(device: torch.device) -> str:
    return "CUDA graphs" if device.type == "cuda" else REFERENCE


def _check_auto_precision(device: torch.device) -> str:
    if device.type != "cuda":
        return "fp32"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    log_message("this GPU only emulates bf16; training.precision=fp16 is possible")
    return "fp32"


def _check_mixed_precision(device: torch.device) -> str:
    if device.type != "cpu":
        return _check_auto_precision(device)
    return "fp32" if load_fp16_gemm() is None else "fp16 kernels"


def _check_search(device: torch.device) -> str:
    if device.type != "cuda":
        return "KV cache"
    model = _build_tiny("vaswani2017-base", device).eval()
    search = model.acceleration.search
    assert isinstance(search, device_search.DeviceBeamSearch)
    source, lengths = torch.full((1, LENGTH), VOCABULARY - 1, device=device), torch.tensor([LENGTH], device=device)
    request = SearchRequest(1, 1, 0, [LENGTH], [1.0] * (LENGTH + 1), False, [LENGTH])
    found = search(model, source, lengths, request) or search(model, source, lengths, request)  # the other operations
    if found is None:
        return "KV cache"
    return f"device search, {'PyTorch operations' if search.ops is TORCH_OPS else 'Triton kernels'}, CUDA graphs"


def _check_int8(_: torch.device) -> str:
    obstacle = int8.find_int8_obstacle(_build_tiny("vaswani2017-base", torch.device("cpu")).eval())
    if obstacle is None:
        return "int8 kernels"
    log_message(obstacle)
    return "an export to CTranslate2 or ONNX"
