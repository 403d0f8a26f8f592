"""Decoding backends of the translator: PyTorch, int8 kernels, ONNX Runtime, CTranslate2, threads and Ray."""

from regard.errors import UserError

AUTO, TORCH, ONNX, CTRANSLATE2 = ENGINES = ("auto", "torch", "onnx", "ctranslate2")
FP32, INT8 = PRECISIONS = ("fp32", "int8")
SHORTLIST = "shortlist"


def check_engine_options(engine: str, precision: str | None, shortlist: bool = False) -> None:
    """Raise UserError for an unknown engine or precision, or a combination that does not exist."""
    if engine not in ENGINES:
        raise UserError(f"the engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if precision not in (None, *PRECISIONS):
        raise UserError(f"the precision must be {' or '.join(PRECISIONS)}, not {precision!r}")
    if shortlist and engine == CTRANSLATE2:
        raise UserError(f"a {SHORTLIST} works with {TORCH} and {ONNX}; for {CTRANSLATE2} export it with the model")
