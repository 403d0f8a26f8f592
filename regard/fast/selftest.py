"""Self-tests of kernels on this machine: whether they run, and whether they are faster."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import torch

from regard.console import log_message

MIN_SECONDS = 0.05  # duration of the repetitions


def runs_without_error(purpose: str, work: Callable[[], object]) -> bool:
    """Return whether a call succeeds; if not, log what `purpose` runs without, and why."""
    try:
        work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton raises many kinds of errors
        log_message(f"{purpose} runs without Triton kernels: {' '.join(str(error).split())[:200]}")
        return False
    return True


def cpu_time_ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> float:
    """Return the CPU time of `ours` divided by that of `theirs`, each the best of several rounds in turns.

    Wall-clock time would include other processes. PyTorch is limited to one thread; the threads of libraries below it
    are counted in CPU time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(measure_cpu_seconds(ours), measure_cpu_seconds(theirs)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    return min(one for one, _ in times) / min(other for _, other in times)


def measure_cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, averaged over repetitions because the clock may be coarse."""
    began, times, spent = process_time(), 0, 0.0
    while spent < MIN_SECONDS:
        work()
        times, spent = times + 1, process_time() - began
    return spent / times
