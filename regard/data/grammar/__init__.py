"""A synchronous grammar that writes English and German sentence pairs with gold word alignments."""

from .corpus import make
from .sentences import Pair

__all__ = ["Pair", "make"]
