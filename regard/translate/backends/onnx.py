"""Decoding with ONNX Runtime on the CPU, by an export of the model."""

from __future__ import annotations

from pathlib import Path

from regard.search import SearchModel
from regard.translate.backends import FP32, INT8, ONNX
from regard.translate.backends.exports import LoadedRun, check_installed, check_on_cpu, make_load_error, write_export


def make_onnx_model(loaded: LoadedRun, precision: str | None) -> SearchModel:
    """Return a run's model in ONNX Runtime, exported first if necessary."""
    folder = loaded.find_export(ONNX, precision) or export_onnx(loaded, precision or FP32, reuse=True)
    return load_onnx_model(loaded, folder)


def load_onnx_model(loaded: LoadedRun, folder: Path) -> SearchModel:
    """Load an export with ONNX Runtime."""
    check_on_cpu(loaded, ONNX)
    check_installed("onnxruntime")
    from regard.fast.onnx_runtime import OnnxModel

    try:
        return OnnxModel(loaded.model, folder)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise make_load_error(folder, error) from error


def export_onnx(loaded: LoadedRun, precision: str, out: Path | None = None, reuse: bool = False) -> Path:
    """Export a model to ONNX; with `reuse`, keep an export that another process has written meanwhile."""
    check_installed("onnx", "onnxscript", "onnxruntime")
    from regard.fast.graphs import export

    folder = out or loaded.get_export_folder(ONNX, precision)
    return write_export(loaded, folder, lambda to: export(loaded.model, to, precision == INT8), reuse)
