"""Rounding of shapes, so that batches of similar sizes share kernels and CUDA graphs."""

from __future__ import annotations

import math


def rounded(size: int) -> int:
    """Up to a number with three digits of two after its first: an eighth more at most."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def up(count: int, parts: int) -> int:
    """The next number that is a power of two and some of so many parts of it; 0 stays 0."""
    if not count:
        return 0
    step = max(1, (1 << (count.bit_length() - 1)) // parts)
    return math.ceil(count / step) * step


def reach(words: int) -> int:
    """How long sentences of batches that are alike may be, given the longest: a power of two, or one and a half.

    Short ones, for which kernels hold a power of two anyway, do not differ by less than that.
    """
    return max(16, up(words, 1 if words <= 128 else 2))


def power(size: int, least: int = 16) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length())
