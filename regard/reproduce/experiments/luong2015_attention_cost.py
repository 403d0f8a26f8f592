"""Experiment: cost of an attention step by source length, global against local (Luong 2015, section 3.2)."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.nn import Alignment, Attention, General, Global, LocalMonotonic, LocalPredictive, Memory
from regard.reproduce.experiment import Claim, CurveChart, Experiment, ExperimentRow, MetricValues
from regard.reproduce.significance import expect_above, expect_below
from regard.reproduce.workspace import Workspace

SOURCE_LENGTHS = [2**power for power in range(5, 14)]  # 32 … 8,192 words
WINDOW = 10
SIZE_BY_SCALE, REPEATS_BY_SCALE = {"small": 128, "full": 1000}, {"small": 20, "full": 100}


def _build_cost_rows(scale: str) -> list[ExperimentRow]:
    """Return the three alignments with one score."""
    size = {"size": SIZE_BY_SCALE[scale], "repeats": REPEATS_BY_SCALE[scale]}
    return [ExperimentRow(name, (), {"alignment": name, **size}) for name in ("global", "local-m", "local-p")]


def _make_alignment(name: str, size: int) -> Alignment:
    """Build an alignment by its name."""
    if name == "global":
        return Global()
    return LocalMonotonic(WINDOW) if name == "local-m" else LocalPredictive(size, WINDOW, size)


@torch.inference_mode()
def _measure_attention_cost(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure operations, bytes and seconds of one step over sources of each length, with projected keys."""
    size = row.options["size"]
    torch.manual_seed(1)
    device = torch.device("cuda" if workspace.scale == "full" and torch.cuda.is_available() else "cpu")
    attention = Attention(General(size, size), _make_alignment(row.options["alignment"], size)).to(device)
    points: dict[str, list[list[float]]] = {"operations": [], "bytes": [], "seconds": []}
    for length in SOURCE_LENGTHS:
        keys = torch.randn(1, length, size, device=device)
        memory = attention.prepare(Memory(keys, keys, torch.ones(1, length, dtype=torch.bool, device=device)))
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


ATTENTION_COST = Experiment(
    name="cost",
    title="Cost of an attention step",
    source="Luong, Pham & Manning 2015, section 3.2: global attention has to attend to all source words for each "
    "target word, which is expensive; local attention attends to a window",
    description="One step over sources of 32 to 8,192 words, window 10 to each side; the figures of the table are "
    "those at 8,192 words divided by those at 32. Operations (of products) and the bytes that a step writes are "
    "counted, with keys already projected; seconds are measured.",
    rows=_build_cost_rows,
    measure=_measure_attention_cost,
    measures_time=True,
    columns=("growth_operations", "growth_bytes", "growth_seconds"),
    claims=(
        Claim(
            "global: operations grow with the source, 256 times the words, over 100 times the work",
            expect_above("growth_operations", "global", 100),
            "definition",
        ),
        Claim("local-m: operations stay the same", expect_below("growth_operations", "local-m", 1.01), "definition"),
        Claim("local-p: operations stay the same", expect_below("growth_operations", "local-p", 1.01), "definition"),
        Claim("global: bytes written grow with the source", expect_above("growth_bytes", "global", 10), "definition"),
        Claim("local-m: bytes written stay the same", expect_below("growth_bytes", "local-m", 1.1), "definition"),
        Claim("local-p: bytes written stay the same", expect_below("growth_bytes", "local-p", 1.1), "definition"),
        Claim("global: time grows, by more than 4 times", expect_above("growth_seconds", "global", 4)),
        Claim("local-p: time grows by less than 2 times", expect_below("growth_seconds", "local-p", 2)),
    ),
    charts=(
        CurveChart("operations", "Operations of one step", "words of the source", "operations", log_scale=True),
        CurveChart("bytes", "Bytes that one step writes", "words of the source", "bytes", log_scale=True),
        CurveChart("seconds", "Time of one step", "words of the source", "seconds", log_scale=True),
    ),
    cpu_minutes=0.1,
)
