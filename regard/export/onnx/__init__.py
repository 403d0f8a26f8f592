"""ONNX export, and decoding with onnxruntime."""
