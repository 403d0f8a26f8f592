"""The interface of decoding backends, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from regard.console import log_message
from regard.errors import UserError
from regard.fast.decoding import int8_model
from regard.fast.eligibility import fast_paths_enabled
from regard.search import Hypothesis
from regard.search.ensemble import SearchModel
from regard.translate.backends import AUTO, CTRANSLATE2, ENGINES, FP32, INT8, ONNX, PRECISIONS, SHORTLIST, TORCH
from regard.translate.backends.ctranslate2 import CTranslate2Backend, CTranslate2Model
from regard.translate.backends.exports import (
    LoadedRun,
    check_installed,
    check_on_cpu,
    export_ctranslate2,
    export_onnx,
    is_installed,
    load_shortlist,
    make_load_error,
)
from regard.translate.backends.torch import TorchBackend
from regard.translate.options import CompiledOptions
from regard.translate.segmentation import EncodedSegment


class Backend(Protocol):
    """Searches targets; made by `choose_backend`."""

    models: Sequence[SearchModel]  # decode step by step, for continuous batching and options that `search` lacks
    reason: str  # a sentence for the user: which implementation decodes, and why

    def search(self, segments: Sequence[EncodedSegment], compiled: CompiledOptions) -> list[list[Hypothesis]]:
        """Return the hypotheses of each segment, best first; all segments have words."""
        ...


def check_engine_options(engine: str, precision: str | None, shortlist: bool = False) -> None:
    """Raise UserError for an unknown engine or precision, or a combination that does not exist."""
    if engine not in ENGINES:
        raise UserError(f"the engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if precision not in (None, *PRECISIONS):
        raise UserError(f"the precision must be {' or '.join(PRECISIONS)}, not {precision!r}")
    if shortlist and engine == CTRANSLATE2:
        raise UserError(f"a {SHORTLIST} works with {TORCH} and {ONNX}; for {CTRANSLATE2} export it with the model")


def choose_backend(engine: str, precision: str | None, runs: Sequence[LoadedRun], shortlist: bool = False) -> Backend:
    """Return the backend for an engine; its `reason` says why, and is logged if `auto` has found something faster.

    `auto` uses an export of the run for CTranslate2 or ONNX Runtime if there is one, and PyTorch otherwise, on a GPU,
    or if REGARD_FAST is 0. For int8 it prefers the int8 kernels to an export if they support this processor and model.
    CTranslate2 decodes one model without a shortlist, and leaves constrained segments to PyTorch.
    """
    check_engine_options(engine, precision, shortlist)
    if engine == CTRANSLATE2 and len(runs) > 1:
        raise UserError(f"the engine {engine} runs one model at a time, not an ensemble of {len(runs)}")
    device, first = next(runs[0].model.parameters()).device, runs[0]
    if len(runs) == 1 and not shortlist and (export := _find_ctranslate2_export(engine, precision, first)):
        reason = "CTranslate2, as requested" if engine == CTRANSLATE2 else _log_choice(f"decoding with {export}")
        return CTranslate2Backend(_load_ctranslate2_model(export), TorchBackend([first.model], device), reason)
    allowed = load_shortlist(runs) if shortlist else None
    chosen = [_choose_model(engine, precision, run) for run in runs]
    reasons = dict.fromkeys(reason for _, reason in chosen)
    return TorchBackend([model for model, _ in chosen], device, "; ".join(reasons), allowed)


def _find_ctranslate2_export(engine: str, precision: str | None, run: LoadedRun) -> Path | None:
    """Return a run's export for CTranslate2, which is written if CTranslate2 is requested.

    With the engine `auto` return None if there is no export or the int8 kernels are faster.
    """
    if engine == CTRANSLATE2:
        check_on_cpu(run, CTRANSLATE2)
        check_installed("ctranslate2")
        return run.find_export(CTRANSLATE2, precision) or export_ctranslate2(run, precision or FP32, reuse=True)
    if engine != AUTO or not _may_have_export(run) or not is_installed("ctranslate2"):
        return None
    has_int8_kernels = precision == INT8 and int8_model.find_int8_obstacle(run.model) is None
    return None if has_int8_kernels else run.find_export(CTRANSLATE2, precision)


def _load_ctranslate2_model(folder: Path) -> CTranslate2Model:
    try:
        return CTranslate2Model(folder, torch.get_num_threads())
    except (RuntimeError, OSError, ValueError) as error:
        raise make_load_error(folder, error) from error


def _may_have_export(run: LoadedRun) -> bool:
    """Return whether `auto` looks for exports: on a CPU, unless REGARD_FAST is 0."""
    return (run.run.folder / "engines").exists() and run.device == "cpu" and fast_paths_enabled()


def _choose_model(engine: str, precision: str | None, run: LoadedRun) -> tuple[SearchModel, str]:
    """Return the model that decodes, which has the interface of `Seq2Seq`, and the reason."""
    if engine == TORCH and precision == INT8:
        return _make_int8_model(run), "int8 kernels, as requested"
    if engine == ONNX:
        export = run.find_export(ONNX, precision) or export_onnx(run, precision or FP32, reuse=True)
        return _load_onnx_model(run, export), "ONNX Runtime, as requested"
    if engine != AUTO:
        return run.model, "PyTorch, as requested"
    if precision is None and not _may_have_export(run):
        return run.model, f"PyTorch: {run.run.folder} has no export that can be used here"
    if run.device == "cpu" and fast_paths_enabled():
        return _choose_fastest(precision, run)
    reason = f"decoding in {FP32}: " + ("REGARD_FAST is 0" if run.device == "cpu" else f"{INT8} is for the CPU")
    return run.model, _log_choice(reason) if precision == INT8 else "PyTorch: exports are for the CPU"


def _choose_fastest(precision: str | None, run: LoadedRun) -> tuple[SearchModel, str]:
    """Return the int8 kernels if int8 is requested and they run, else a usable ONNX export, else PyTorch."""
    folder, unsupported = run.run.folder, int8_model.find_int8_obstacle(run.model) if precision == INT8 else ""
    if unsupported is None:
        return _make_int8_model(run), _log_choice(f"decoding {folder} in {INT8}")
    export = run.find_export(ONNX, precision)
    if export is None and precision is not None:
        without = f" (no int8 kernels: {unsupported})" if unsupported else ""
        raise UserError(
            f"{folder} has no {precision} export of its model; run: regard export {folder} "
            f"--precision {precision}{without}"
        )
    if export is None:
        for old in filter(Path.exists, (run.get_export_folder(ONNX, other) for other in PRECISIONS)):
            log_message(f"{old} is not used: it is outdated or damaged; export it again")
        return run.model, f"PyTorch: {folder} has no export that can be used"
    if not is_installed("onnxruntime"):
        why = f"{export} is not used: onnxruntime is not installed (pip install 'regard[export]')"
        return run.model, _log_choice(why)
    reason = _log_choice(f"decoding with {export}")
    return _load_onnx_model(run, export), reason


def _log_choice(reason: str) -> str:
    log_message(reason)
    return reason


def _make_int8_model(loaded: LoadedRun) -> SearchModel:
    """Return the model with int8 kernels; raise UserError with the reason if they cannot run it."""
    check_on_cpu(loaded, f"{TORCH} in {INT8}")
    if (why := int8_model.find_int8_obstacle(loaded.model)) is not None:
        command = f"regard export {loaded.run.folder} --precision {INT8}"
        raise UserError(f"{TORCH} does not decode {loaded.run.folder} in {INT8}: {why}; instead run: {command}")
    return int8_model.quantize_model(loaded.model)


def _load_onnx_model(loaded: LoadedRun, folder: Path) -> SearchModel:
    """Load an export with ONNX Runtime."""
    check_on_cpu(loaded, ONNX)
    check_installed("onnxruntime")
    from regard.export.onnx.engine import OnnxModel

    try:
        return OnnxModel(loaded.model, folder)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise make_load_error(folder, error) from error
