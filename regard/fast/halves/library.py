"""The kernels of `halves.c` and `between.c`."""

from __future__ import annotations

import ctypes
from pathlib import Path

from regard.fast import compiled
from regard.fast.compiled import PLACE, SINGLE, WHOLE, YES

ROWS = [PLACE, WHOLE]  # a matrix, and how far its rows are apart
SIGNATURES: compiled.Signatures = {
    "halves_pack": (SINGLE, [*ROWS, YES, WHOLE, WHOLE, PLACE]),
    "halves_multiply": (None, [*ROWS, YES, SINGLE, PLACE, SINGLE, WHOLE, WHOLE, WHOLE, *ROWS, YES, PLACE, PLACE]),
    "between_entropy": (None, [*ROWS, WHOLE, WHOLE, PLACE, SINGLE, PLACE]),
    "between_lstm": (None, [*ROWS * 4, WHOLE, WHOLE]),
    "between_lstm_back": (None, [*ROWS * 7, WHOLE, WHOLE]),
    "between_squash": (None, [*ROWS * 2, WHOLE, WHOLE]),
    "between_squash_back": (None, [*ROWS * 4, WHOLE, WHOLE]),
    "between_gather": (None, [PLACE, *ROWS, PLACE, *[WHOLE] * 4]),
    "between_look": (None, [*ROWS, PLACE, PLACE, PLACE, *ROWS * 2, *[WHOLE] * 4]),
    "between_look_back": (None, [*ROWS * 3, PLACE, PLACE, *ROWS * 3, *[WHOLE] * 4]),
}


def library() -> ctypes.CDLL:
    """All of them, or a `MissingError`."""
    return compiled.library(Path(__file__).parent, SIGNATURES, threaded=True)
