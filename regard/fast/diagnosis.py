"""The implementation that each part of training and decoding uses on this machine, and why no faster one.

Each part runs once in a tiny model. What it logs meanwhile is the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import NamedTuple

import torch

from regard.fast.accelerate import accelerate
from regard.fast.decoding import int8_model
from regard.fast.decoding.device import search as device_search
from regard.fast.decoding.device.ops import TORCH_OPS
from regard.fast.decoding.numpy_search import SearchRequest
from regard.fast.eligibility import fast_paths_enabled
from regard.fast.kernels.fp16 import load_fp16_gemm
from regard.fast.training import rnn_layer, step_ops
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
    checks: dict[str, Callable[[], tuple[str, str]]] = {
        "Transformer training": partial(_check_transformer_training, device),
        "RNN layers in training": partial(_check_rnn_layers, device),
        "Luong decoder in training": partial(_check_luong_decoder, device),
        "other attention decoders in training": partial(_check_graphed_loop, device),
        "output layer and loss of RNN models": partial(_check_output_loss, device),
        "training.precision=auto": partial(_check_auto_precision, device),
        "training.precision=mixed": partial(_check_mixed_precision, device),
        "search": partial(_check_search, device),
        "--precision int8": _check_int8,
    }
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return [_run_check(name, check) for name, check in checks.items()]


def _run_check(name: str, check: Callable[[], tuple[str, str]]) -> Part:
    messages = StringIO()
    with redirect_stderr(messages):
        implementation, reason = check()
    logged = "; ".join(dict.fromkeys(messages.getvalue().splitlines()))
    if not fast_paths_enabled() and implementation == REFERENCE:
        logged = "REGARD_FAST is 0"
    return Part(name, implementation, logged or reason)


def _build_tiny(recipe: str, device: torch.device) -> Seq2Seq:
    sizes = {"layers": 1, "heads": 2} if recipe.startswith("vaswani") else {"layers": 1}
    model: Seq2Seq = accelerate(build(recipe, VOCABULARY, VOCABULARY, size=16, **sizes)).to(device)
    return model


def _no_gpu(device: torch.device) -> str:
    return "" if device.type == "cuda" else "there is no CUDA GPU" if device.type == "cpu" else "kernels are for CUDA"


def _compute_kernel_loss(recipe: str, device: torch.device) -> bool:
    """Return whether kernels compute the loss of a tiny model, and its gradients."""
    model = _build_tiny(recipe, device).train()
    if not isinstance(model.loss_fn, KernelLoss):
        return False
    ids, lengths = torch.full((2, LENGTH), VOCABULARY - 1, device=device), torch.full((2,), LENGTH, device=device)
    loss = model.loss_fn.compute(model, (ids, lengths, ids, ids))
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    return loss is not None


def _check_transformer_training(device: torch.device) -> tuple[str, str]:
    if not _compute_kernel_loss("vaswani2017-base", device):
        return REFERENCE, _no_gpu(device)
    return ("packed batches, Triton kernels, CUDA graphs" if device.type == "cuda" else "packed batches"), _no_gpu(
        device
    )


def _check_output_loss(device: torch.device) -> tuple[str, str]:
    if not _compute_kernel_loss("bahdanau2015", device):
        return REFERENCE, _no_gpu(device)
    return f"fused linear cross-entropy, {'Triton kernels' if device.type == 'cuda' else 'in chunks'}", _no_gpu(device)


def _check_rnn_layers(device: torch.device) -> tuple[str, str]:
    if not fast_paths_enabled() or device.type not in rnn_layer.LAYER_KERNELS:
        return REFERENCE, _no_gpu(device)
    return "cuDNN" if device.type == "cuda" else "one autograd function for a sequence", _no_gpu(device)


def _check_luong_decoder(device: torch.device) -> tuple[str, str]:
    if not fast_paths_enabled() or device.type not in ("cpu", "cuda"):
        return REFERENCE, _no_gpu(device)
    ops = step_ops.select_step_ops(torch.zeros(1, device=device), LENGTH)
    kernels = "PyTorch operations" if type(ops) in (step_ops.StepOps, step_ops.InplaceStepOps) else "Triton kernels"
    graphs = ", CUDA graphs" if device.type == "cuda" else ""
    return f"input-feeding loop with its own backward pass, {kernels}{graphs}", _no_gpu(device)


def _check_graphed_loop(device: torch.device) -> tuple[str, str]:
    if not fast_paths_enabled() or device.type != "cuda":
        return REFERENCE, _no_gpu(device)
    return "CUDA graphs", ""


def _check_auto_precision(device: torch.device) -> tuple[str, str]:
    if device.type != "cuda":
        return "fp32", _no_gpu(device)
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16", ""
    return "fp32", "this GPU only emulates bf16; training.precision=fp16 is possible"


def _check_mixed_precision(device: torch.device) -> tuple[str, str]:
    if device.type != "cpu":
        return _check_auto_precision(device)
    return ("fp32", "") if load_fp16_gemm() is None else ("fp16 kernels", "")


def _check_search(device: torch.device) -> tuple[str, str]:
    if not fast_paths_enabled():
        return REFERENCE, ""
    if device.type != "cuda":
        return "KV cache", _no_gpu(device)
    model = _build_tiny("vaswani2017-base", device).eval()
    search = model.device_search
    assert isinstance(search, device_search.DeviceBeamSearch)
    source, lengths = torch.full((1, LENGTH), VOCABULARY - 1, device=device), torch.tensor([LENGTH], device=device)
    request = SearchRequest(1, 1, 0, [LENGTH], [1.0] * (LENGTH + 1), False, [LENGTH])
    found = search(model, source, lengths, request) or search(model, source, lengths, request)  # the other operations
    if found is None:
        return "KV cache", ""
    kernels = "PyTorch operations" if search.ops is TORCH_OPS else "Triton kernels"
    return f"device search, {kernels}, CUDA graphs", ""


def _check_int8() -> tuple[str, str]:
    if not fast_paths_enabled():
        return REFERENCE, ""
    obstacle = int8_model.find_int8_obstacle(_build_tiny("vaswani2017-base", torch.device("cpu")).eval())
    return ("int8 kernels", "") if obstacle is None else ("an export to CTranslate2 or ONNX", obstacle)
