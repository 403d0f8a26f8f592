"""When products are counted in half precision: where somebody asked for it, and kernels for this CPU are faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from regard.console import say
from regard.fast.compiled import MissingError
from regard.fast.halves.library import library
from regard.fast.halves.product import Halved
from regard.fast.products import EXACT, Products

TRIAL, ROUNDS = (256, 512, 512), 8  # the shape of products by which the two are compared, and how many of each
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
        remembered(Path(kernels._name).with_suffix(".trial"), found)
    except MissingError as error:
        say(f"products on this CPU stay in fp32: {error}")
        return None
    return found


def remembered(path: Path, found: Halved) -> None:
    """What a trial has said, once for all runs on this machine: one that goes on counts as it did before."""
    try:
        verdict = path.read_text(encoding="utf-8")
    except OSError:
        verdict = tried(found)
        with suppress(OSError):
            path.write_text(verdict, encoding="utf-8")
    if verdict:
        raise MissingError(verdict)


def tried(found: Products) -> str:
    """Nothing, if products are right, and take less time than in single precision; otherwise what is wrong."""
    M, K, N = TRIAL
    with torch.random.fork_rng(devices=[]):
        a, b = torch.randn(M, K), torch.randn(K, N)
    exact = a @ b
    if not (found.mm(a, b) - exact).norm() < CLOSE * exact.norm():
        return "kernels for half precision give wrong numbers here"
    rounds = [(seconds(found, a, b), seconds(EXACT, a, b)) for _ in range(ROUNDS)]  # in turns: others work here, too
    ours, theirs = map(min, zip(*rounds, strict=True))
    return f"in half precision they would take {ours / theirs:.2f} times as long" if ours > theirs else ""


def seconds(one: Products, a: Tensor, b: Tensor) -> float:
    """That a product takes."""
    begin = perf_counter()
    one.mm(a, b)
    return perf_counter() - begin
