"""The kernels in C, and what they are handed."""

from __future__ import annotations

import ctypes
from pathlib import Path

from regard.fast import compiled

WHOLE, YES, SINGLE, PLACE = ctypes.c_long, ctypes.c_int, ctypes.c_float, ctypes.c_void_p


class Product(ctypes.Structure):
    """y = W x + b, with W in bytes."""

    _fields_ = (("panels", PLACE), ("scales", PLACE), ("bias", PLACE), ("inside", WHOLE), ("outside", WHOLE))


class Norm(ctypes.Structure):
    """A layer norm."""

    _fields_ = (("weight", PLACE), ("bias", PLACE), ("epsilon", SINGLE))


class Layer(ctypes.Structure):
    """One of an encoder lacks what looks at the source."""

    _fields_ = (
        *((name, Norm) for name in ("around_attention", "around_cross", "around_feedforward")),
        *((name, Product) for name in ("attention", "attention_out", "cross", "cross_out", "inner", "outer")),
    )


class Stack(ctypes.Structure):
    """Layers one above the other."""

    _fields_ = (
        ("layers", PLACE),
        *((name, WHOLE) for name in ("count", "size", "heads", "feedforward")),
        ("post", YES),
        ("last", PLACE),
    )


class Words(ctypes.Structure):
    """What a step knows of its rows."""

    _fields_ = (
        *((name, WHOLE) for name in ("rows", "many")),
        ("who", PLACE),
        *((name, WHOLE) for name in ("sources", "places")),
        *((name, PLACE) for name in ("pairs", "mask")),
        *((name, WHOLE) for name in ("groups", "slots", "positions", "used")),
        *((name, PLACE) for name in ("past", "table")),
    )


class Viewpoint(ctypes.Structure):
    """Whose look at the source is given out."""

    _fields_ = (("layer", WHOLE), ("head", WHOLE))


class Asked(ctypes.Structure):
    """What is asked of targets."""

    _fields_ = (
        *((name, WHOLE) for name in ("most", "least")),
        ("limits", PLACE),
        *((name, ctypes.c_int64) for name in ("begin", "end")),
        *(("never", PLACE), ("many", WHOLE), ("names", PLACE)),
    )


class Embedding(ctypes.Structure):
    """E x · scale, plus positions."""

    _fields_ = (("words", PLACE), ("positions", PLACE), ("scale", SINGLE))


class Rows(ctypes.Structure):
    """Numbers in bytes."""

    _fields_ = (("panels", PLACE), ("scales", PLACE))


STACK, WORDS, PRODUCT, EMBEDDING, ASKED = map(ctypes.POINTER, (Stack, Words, Product, Embedding, Asked))
DECODER = [STACK, WORDS, EMBEDDING, PRODUCT, Viewpoint]
SIGNATURES: compiled.Signatures = {
    "octets_quantise": (None, [PLACE, WHOLE, WHOLE, Rows]),
    "octets_multiply": (None, [Rows, PRODUCT, WHOLE, PLACE, YES]),
    "octets_encode_room": (WHOLE, [STACK, WHOLE]),
    "octets_encode": (None, [STACK, PLACE, PLACE, WHOLE, PLACE, WHOLE, WHOLE, WHOLE, PLACE, PLACE]),
    "octets_step_room": (WHOLE, [STACK, WORDS, WHOLE]),
    "octets_step": (None, [*DECODER, *[PLACE] * 5]),
    "octets_write": (None, [*DECODER, ASKED, *[PLACE] * 7]),
}


def library() -> ctypes.CDLL:
    """All of them, or a `MissingError`."""
    return compiled.library(Path(__file__).parent, SIGNATURES)
