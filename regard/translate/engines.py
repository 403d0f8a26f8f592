"""What decodes: PyTorch; or onnxruntime or CTranslate2, with what is made of a run once and kept beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.console import say
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.text import Tokenizers

AUTO, TORCH, ONNX, CTRANSLATE2 = ENGINES = ("auto", "torch", "onnx", "ctranslate2")
FP32, INT8 = PRECISIONS = ("fp32", "int8")
STAMP = "made-of.json"


def check(engine: str, precision: str | None) -> None:
    """Refuses what there is not."""
    if engine not in ENGINES:
        raise UserError(f"the engine is one of {', '.join(ENGINES)}, not {engine!r}")
    if precision not in (None, *PRECISIONS):
        raise UserError(f"the precision is {' or '.join(PRECISIONS)}, not {precision!r}")
    if precision == INT8 and engine == TORCH:
        raise UserError(f"{INT8} is a precision of the engines {ONNX} and {CTRANSLATE2}; {TORCH} counts in {FP32}")


def engaged(engine: str, precision: str | None, run: Path, model: Seq2Seq) -> Any:
    """A run's model in the hands of an engine: something to search with, as with the model itself.

    `auto` takes graphs that `regard export` has made beside the run, if they are of this very model, and PyTorch where
    there are none or a GPU is at hand. CTranslate2 has a search of its own: see `runtime`.
    """
    if engine == ONNX:
        on_cpu(model, engine)
        return decoded(model, exported(model, place(run, ONNX, precision or FP32), precision or FP32))
    if engine == AUTO and device(model) == "cpu":
        folders = [place(run, ONNX, one) for one in ([precision] if precision else (INT8, FP32))]
        return next((decoded(model, folder) for folder in folders if fresh(folder, model)), model)
    return model


def runtime(precision: str | None, run: Path, model: Seq2Seq, tokenizers: Tokenizers) -> Any:
    """CTranslate2 with a run's model, which searches by itself."""
    needed("ctranslate2")
    from regard.fast.ct2_runtime import Runtime

    on_cpu(model, CTRANSLATE2)
    folder = place(run, CTRANSLATE2, precision or FP32)
    return Runtime(rewritten(model, tokenizers, folder, precision or FP32), workers=torch.get_num_threads())


def device(model: Seq2Seq) -> str:
    """What a model is on."""
    return next(model.parameters()).device.type


def on_cpu(model: Seq2Seq, engine: str) -> None:
    """Refuses an engine that has nothing to do with where the model is."""
    if device(model) != "cpu":
        raise UserError(f"the engine {engine} runs on the CPU; on this machine's GPU {TORCH} is the faster one")


def place(run: Path, engine: str, precision: str) -> Path:
    """Where what an engine needs is kept."""
    return run / "engines" / f"{engine}-{precision}"


def decoded(model: Seq2Seq, folder: Path) -> Any:
    """The model in onnxruntime's hands."""
    needed("onnx", "onnxscript", "onnxruntime")
    from regard.fast.onnx_runtime import OnnxModel

    return OnnxModel(model, folder)


def exported(model: Seq2Seq, folder: Path, precision: str) -> Path:
    """A folder with a model's graphs; those of this very model that are there already stay."""
    needed("onnx", "onnxscript", "onnxruntime")
    from regard.fast.graphs import export

    return kept(folder, model, lambda: export(model, folder, precision == INT8))


def rewritten(model: Seq2Seq, tokenizers: Tokenizers, folder: Path, precision: str) -> Path:
    """A folder with a Transformer as CTranslate2 reads it, likewise."""
    needed("ctranslate2")
    from regard.fast.ctranslate2 import export

    source, target = (one.pieces(range(one.size)) for one in tokenizers)
    return kept(folder, model, lambda: export(model, source, target, folder, INT8 if precision == INT8 else None))


def kept(folder: Path, model: nn.Module, make: Callable[[], None]) -> Path:
    """A folder with what is made of a model, made anew unless it is of this very one."""
    if fresh(folder, model):
        return folder
    began = time.perf_counter()
    if folder.exists():
        shutil.rmtree(folder)
    make()
    (folder / STAMP).write_text(json.dumps({"weights": digest(model)}) + "\n", encoding="utf-8")
    say(f"{folder}: made in {time.perf_counter() - began:.0f} s")
    return folder


def needed(*names: str) -> None:
    """Refuses where something is not installed."""
    for name in names:
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
