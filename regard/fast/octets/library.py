"""The kernels in C, and the structures that they are handed, as `octets.h` and `decoder.c` have them."""

from __future__ import annotations

import ctypes
from pathlib import Path

from regard.fast import compiled
from regard.fast.compiled import PLACE, SINGLE, WHOLE, YES


class Product(ctypes.Structure):
    """y = W x + b, with W in bytes."""

    _fields_ = (
        *((name, PLACE) for name in ("panels", "scales", "bias", "sums")),
        *((name, WHOLE) for name in ("inside", "outside")),
    )


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
        *(("post", YES), ("last", PLACE)),
    )


class Embedding(ctypes.Structure):
    """E x · scale, plus positions."""

    _fields_ = (("words", PLACE), ("positions", PLACE), ("count", WHOLE), ("scale", SINGLE))


class Words(ctypes.Structure):
    """What a step knows of its rows."""

    _fields_ = (
        *(("rows", WHOLE), ("many", WHOLE), ("who", PLACE), ("sources", WHOLE), ("places", WHOLE)),
        *(("pairs", PLACE), ("mask", PLACE)),
        *((name, WHOLE) for name in ("groups", "slots", "positions", "used")),
        *(("past", PLACE), ("table", PLACE)),
    )


class Viewpoint(ctypes.Structure):
    """Whose look at the source is given out."""

    _fields_ = (("layer", WHOLE), ("head", WHOLE))


class Asked(ctypes.Structure):
    """What is asked of targets."""

    _fields_ = (
        *(("least", WHOLE), ("limits", PLACE), ("end", ctypes.c_int64)),
        *(("never", PLACE), ("many", WHOLE), ("names", PLACE)),
    )


class Going(ctypes.Structure):
    """Targets on their way."""

    _fields_ = tuple((name, PLACE) for name in ("who", "read", "places", "reached", "done"))


class Written(ctypes.Structure):
    """What was written in some steps."""

    _fields_ = tuple((name, PLACE) for name in ("tokens", "log_probs", "seen", "logits"))


class Rows(ctypes.Structure):
    """Numbers in bytes."""

    _fields_ = (("panels", PLACE), ("scales", PLACE))


STACK, WORDS, EMBEDDING, PRODUCT = map(ctypes.POINTER, (Stack, Words, Embedding, Product))
DECODER = [STACK, WORDS, EMBEDDING, PRODUCT, Viewpoint]
SIGNATURES: compiled.Signatures = {
    "octets_wide": (WHOLE, []),
    "octets_room": (WHOLE, [WHOLE, WHOLE]),
    "octets_quantise": (None, [PLACE, WHOLE, WHOLE, Rows]),
    "octets_multiply": (None, [Rows, PRODUCT, WHOLE, PLACE, YES]),
    "octets_encode_space": (WHOLE, [STACK, WHOLE]),
    "octets_encode": (YES, [STACK, EMBEDDING, PLACE, PLACE, WHOLE, WHOLE, PLACE, WHOLE, WHOLE, PLACE, PLACE]),
    "octets_step_space": (WHOLE, [STACK, WORDS, WHOLE]),
    "octets_step": (YES, [*DECODER, *[PLACE] * 5]),
    "octets_write": (None, [*DECODER, *map(ctypes.POINTER, (Asked, Going, Written)), WHOLE, PLACE]),
}


def library(*flags: str) -> ctypes.CDLL:
    """All of them, or a `MissingError`; a compiler may be told more."""
    return compiled.library(Path(__file__).parent, SIGNATURES, flags=flags)
