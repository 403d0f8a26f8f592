"""Decoding backends of the translator: PyTorch, int8 kernels, ONNX Runtime, CTranslate2, threads and Ray."""

AUTO, TORCH, ONNX, CTRANSLATE2 = ENGINES = ("auto", "torch", "onnx", "ctranslate2")
FP32, INT8 = PRECISIONS = ("fp32", "int8")
SHORTLIST = "shortlist"
