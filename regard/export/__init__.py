"""Export to other runtimes: ONNX and CTranslate2."""
