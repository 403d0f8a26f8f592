"""Metrics of attention alone, without a trained model: cost by source length, and effect of the scale 1/√d_k."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.nn import Alignment, Attention, Dot, General, Global, LocalMonotonic, LocalPredictive, Memory, ScaledDot
from regard.reproduce.experiment import ExperimentRow, MetricValues

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

SOURCE_LENGTHS = [2**power for power in range(5, 14)]  # 32 … 8,192 words
WINDOW = 10
KEY_SIZES = (4, 16, 64, 256, 1024)
KEY_COUNT, KEY_CLASSES, QUERY_COUNT, VALUE_SIZE = 16, 4, 64, 16


def _make_memory(keys: Tensor, values: Tensor) -> Memory:
    """Build a memory without padding."""
    return Memory(keys, values, torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device))


# Cost of a step


@torch.inference_mode()
def measure_attention_cost(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure operations, bytes and seconds of one step over sources of each length, with projected keys.

    Of a row's options, `alignment` is global, local-m or local-p, `size` that of queries and keys, and `repeats` how
    often a step is timed.
    """
    size = row.options["size"]
    torch.manual_seed(1)
    use_gpu = workspace.scale == "full" and torch.cuda.is_available()
    device = workspace.device or torch.device("cuda" if use_gpu else "cpu")
    alignments: dict[str, Alignment] = {
        "global": Global(),
        "local-m": LocalMonotonic(WINDOW),
        "local-p": LocalPredictive(size, WINDOW, size),
    }
    attention = Attention(General(size, size), alignments[row.options["alignment"]]).to(device)
    points: dict[str, list[list[float]]] = {"operations": [], "bytes": [], "seconds": []}
    for length in SOURCE_LENGTHS:
        keys = torch.randn(1, length, size, device=device)
        memory = attention.prepare(_make_memory(keys, keys))
        query = torch.randn(1, 1, size, device=device)
        costs = _measure_step_cost(attention, query, memory, row.options["repeats"])
        for name, value in costs.items():
            points[name].append([length, value])
    growth = {f"growth_{name}": values[-1][1] / values[0][1] for name, values in points.items()}
    return {**points, **growth}


def _measure_step_cost(attention: Attention, query: Tensor, memory: Memory, repeats: int) -> dict[str, float]:
    """Return operations of products, bytes written, and the shortest time of several repetitions."""
    with FlopCounterMode(display=False) as operations, WrittenBytesCounter() as written:
        attention(query, memory)
    best = float("inf")
    for _ in range(repeats):
        start = _read_synchronized_clock(query.device)
        attention(query, memory)
        best = min(best, _read_synchronized_clock(query.device) - start)
    return {"operations": float(operations.get_total_flops()), "bytes": float(written.byte_count), "seconds": best}


def _read_synchronized_clock(device: torch.device) -> float:
    """Return the time, after all work of the device is finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class WrittenBytesCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes that operations write; views do not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte_count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        argument_storages = {_find_storage_address(tensor) for tensor in args if isinstance(tensor, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and _find_storage_address(tensor) not in argument_storages:
                self.byte_count += tensor.numel() * tensor.element_size()
        return result


def _find_storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# Scaled dot product


def measure_attention_scaling(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the gradient of the scores and the entropy of the weights at each d_k, then a short training.

    Of a row's options, `score` is dot or scaled; the training is with d_k = `width` and has `steps` updates.
    """
    torch.manual_seed(1)
    attention = Attention(Dot() if row.options["score"] == "dot" else ScaledDot(), Global())
    by_width = [(width, *_measure_gradient_and_entropy(attention, width)) for width in KEY_SIZES]
    losses = _train_projections(attention, row.options["width"], row.options["steps"])
    gradients = [[width, gradient] for width, gradient, _ in by_width]
    return {
        "gradients": gradients,
        "entropies": [[width, entropy] for width, _, entropy in by_width],
        "losses": losses,
        "gradient_kept": gradients[-1][1] / gradients[0][1],
        "entropy": by_width[-1][2],
        "loss": losses[-1][1],
    }


def _measure_gradient_and_entropy(attention: Attention, width: int) -> tuple[float, float]:
    """Return gradient norm of the scores and entropy of the weights, for standard normal queries and keys."""
    query, keys = torch.randn(QUERY_COUNT, 1, width), torch.randn(QUERY_COUNT, KEY_COUNT, width)
    values = torch.randn(QUERY_COUNT, KEY_COUNT, VALUE_SIZE)
    scores = attention.score(query, keys, None).requires_grad_()
    weights = attention.alignment.weigh(scores, torch.ones(QUERY_COUNT, 1, KEY_COUNT, dtype=torch.bool), None)
    assert isinstance(weights, Tensor)
    (weights @ values).sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    entropy = torch.special.entr(weights).sum(-1).mean()
    return scores.grad.norm(dim=-1).mean().item(), entropy.item()


def _train_projections(attention: Attention, width: int, steps: int) -> list[list[float]]:
    """Train W_q and W_k to attend to the keys of one of four classes; return points of step and loss.

    The target is the mean of the values at the keys of the query's class, so the loss reaches W_q and W_k through the
    attention.
    """
    W_q, W_k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
    for layer in (W_q, W_k):
        nn.init.xavier_uniform_(layer.weight)
    optimizer = torch.optim.Adam([*W_q.parameters(), *W_k.parameters()], lr=1e-3)
    class_vectors, losses = torch.randn(KEY_CLASSES, width), []
    key_classes = torch.arange(KEY_COUNT).expand(QUERY_COUNT, -1) % KEY_CLASSES
    for step in range(1, steps + 1):
        query_classes = torch.randint(KEY_CLASSES, (QUERY_COUNT,))
        keys = class_vectors[key_classes] + torch.randn(QUERY_COUNT, KEY_COUNT, width)
        values = torch.randn(QUERY_COUNT, KEY_COUNT, VALUE_SIZE)
        context = attention(W_q(class_vectors[query_classes])[:, None], _make_memory(W_k(keys), values)).context
        target_weights = (key_classes == query_classes[:, None]).float() * (KEY_CLASSES / KEY_COUNT)
        loss = (context - target_weights[:, None] @ values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % max(1, steps // 20) == 0:
            losses.append([step, loss.item()])
    return losses
