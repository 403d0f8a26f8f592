"""Decoding backends of the translator: PyTorch, int8 kernels, ONNX Runtime, CTranslate2, threads and Ray."""

from regard.translate.options import (
    AUTO,
    CTRANSLATE2,
    ENGINES,
    FP32,
    INT8,
    ONNX,
    SHORTLIST,
    TORCH,
    check_engine_options,
)

__all__ = ["AUTO", "CTRANSLATE2", "ENGINES", "FP32", "INT8", "ONNX", "SHORTLIST", "TORCH", "check_engine_options"]
