"""Self-tests of kernels on this machine: whether they run, and whether they are faster."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import torch

from regard.console import log_message

LONG = 0.05  # seconds for which work is repeated


def succeeds(purpose: str, work: Callable[[], object]) -> bool:
    """Whether the work can be done; if not, what the purpose goes without is said, and why."""
    try:
        work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has many ways to fail, and its own errors
        log_message(f"{purpose} goes without kernels of its own: {' '.join(str(error).split())[:200]}")
        return False
    return True


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> float:
    """How many times as long the one keeps processors busy as the other, each at its best, in turns.

    A clock on the wall would go on while others have the processors, who may leave next to nothing to several threads
    that wait for each other. So PyTorch is to use one; what threads of a library below it do is counted, too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    return min(one for one, _ in times) / min(other for _, other in times)


def seconds(work: Callable[[], object]) -> float:
    """That it takes of processors, whose clock may tick slowly."""
    began, times, spent = process_time(), 0, 0.0
    while spent < LONG:
        work()
        times, spent = times + 1, process_time() - began
    return spent / times
