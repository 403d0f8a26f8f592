"""Decoding backends of the translator: PyTorch, int8 kernels, ONNX Runtime, CTranslate2, threads and Ray."""
