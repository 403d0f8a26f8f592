"""Whether kernels do what they should on this machine: tried once, before they are relied on."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from regard.console import say


def succeeds(purpose: str, work: Callable[[], object]) -> bool:
    """Whether the work can be done; if not, what the purpose goes without is said, and why."""
    try:
        work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has many ways to fail, and its own errors
        say(f"{purpose} goes without kernels of its own: {' '.join(str(error).split())[:200]}")
        return False
    return True


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> float:
    """How many times as long the one takes as the other, each at its fastest; in turns: others work here, too."""
    times = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    return min(one for one, _ in times) / min(other for _, other in times)


def seconds(work: Callable[[], object]) -> float:
    """That it takes."""
    began = perf_counter()
    work()
    return perf_counter() - began
