"""What decodes: PyTorch, or onnxruntime with graphs that are made of a run once and kept beside it."""

from __future__ import annotations

import hashlib
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from regard.console import say
from regard.errors import UserError
from regard.models import Seq2Seq

AUTO, TORCH, ONNX = ENGINES = ("auto", "torch", "onnx")
FP32, INT8 = PRECISIONS = ("fp32", "int8")
STAMP = "made-of.json"


def check(engine: str, precision: str | None) -> None:
    """Refuses what there is not."""
    if engine not in ENGINES:
        raise UserError(f"the engine is one of {', '.join(ENGINES)}, not {engine!r}")
    if precision not in (None, *PRECISIONS):
        raise UserError(f"the precision is {' or '.join(PRECISIONS)}, not {precision!r}")
    if precision == INT8 and engine == TORCH:
        raise UserError(f"{INT8} is a precision of the engine {ONNX}; {TORCH} counts in {FP32}")


def engaged(engine: str, precision: str | None, run: Path, model: Seq2Seq) -> Any:
    """A run's model in the hands of an engine: something to search with, as with the model itself.

    `auto` takes graphs that `regard export` has made beside the run, if they are of this very model, and PyTorch where
    there are none or a GPU is at hand.
    """
    check(engine, precision)
    on_cpu = next(model.parameters()).device.type == "cpu"
    if engine == AUTO and on_cpu:
        made = [one for one in (precision,) if one] or [INT8, FP32]
        ready = [one for one in made if fresh(place(run, one), model)]
        return decoded(model, place(run, ready[0])) if ready else model
    if engine != ONNX:
        return model
    if not on_cpu:
        raise UserError(f"the engine {ONNX} runs on the CPU; with a GPU {TORCH} is the faster one")
    return decoded(model, exported(model, place(run, precision or FP32), precision or FP32))


def place(run: Path, precision: str) -> Path:
    """Where a run's graphs are kept."""
    return run / "engines" / f"{ONNX}-{precision}"


def decoded(model: Seq2Seq, folder: Path) -> Any:
    """The model in onnxruntime's hands."""
    needed()
    from regard.fast.runtime import OnnxModel

    return OnnxModel(model, folder)


def exported(model: Seq2Seq, folder: Path, precision: str) -> Path:
    """A folder with the graphs of a model; those of this very model that are there already stay."""
    needed()
    from regard.fast.graphs import export

    if fresh(folder, model):
        return folder
    began = time.perf_counter()
    (folder / STAMP).unlink(missing_ok=True)
    export(model, folder, precision == INT8)
    (folder / STAMP).write_text(json.dumps({"weights": digest(model)}) + "\n", encoding="utf-8")
    say(f"{folder}: made in {time.perf_counter() - began:.0f} s")
    return folder


def needed() -> None:
    """Refuses where something is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed: pip install 'regard[export]'")


def fresh(folder: Path, model: nn.Module) -> bool:
    """Whether a folder's graphs are of this very model."""
    try:
        known = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return bool(known["weights"] == digest(model))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def digest(model: nn.Module) -> str:
    """Tells one model's weights from another's."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().float().contiguous().numpy().data)
    return found.hexdigest()
