"""When products are counted in half precision: where somebody asked for it, and kernels for this CPU are faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from regard.console import log_message
from regard.fast.compiled import MissingError, approved
from regard.fast.halves.library import library
from regard.fast.halves.product import Halved
from regard.fast.products import EXACT, Products
from regard.fast.trial import ratio

TRIAL, ROUNDS = (256, 512, 512), 4  # the shape of products by which the two are compared, and how many turns
CLOSE = 0.01  # of the whole; what halves may be off by
ASKED = ContextVar("asked", default=False)


@contextmanager
def halved() -> Iterator[None]:
    """In here, and in the ways back of what is computed here, products are counted in half precision if they can be."""
    token = ASKED.set(True)
    try:
        yield
    finally:
        ASKED.reset(token)


def multiplying(x: Tensor) -> Products:
    """Who multiplies with x."""
    wanted = ASKED.get() and x.device.type == "cpu" and x.dtype == torch.float32
    return (halves() or EXACT) if wanted else EXACT


@cache
def halves() -> Halved | None:
    """Products in half precision; where there are none, or none that are faster, that is said once."""
    try:
        kernels = library()
        found = Halved(kernels)
        approved(kernels, lambda: tried(found))
    except MissingError as error:
        log_message(f"products on this CPU stay in fp32: {error}")
        return None
    return found


def tried(found: Products) -> str:
    """Nothing, if products are right, and take less time than in single precision; otherwise what is wrong."""
    M, K, N = TRIAL
    with torch.random.fork_rng(devices=[]):
        a, b = torch.randn(M, K, dtype=torch.float32), torch.randn(K, N, dtype=torch.float32)
    exact = a @ b
    if not (found.mm(a, b) - exact).norm() < CLOSE * exact.norm():
        return "kernels for half precision give wrong numbers here"
    times = ratio(lambda: found.mm(a, b), lambda: EXACT.mm(a, b), ROUNDS)
    return f"in half precision they would take {times:.2f} times as long" if times > 1 else ""
