"""Self-tests of kernels on this machine: whether they run, and whether they are faster.

Triton kernels are tried once before they are used: Triton may be missing, or find no C compiler, or the GPU may be too
old or too small for a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from time import process_time
from typing import Any

import torch
from torch import Tensor

from regard.console import log_message
from regard.fast.eligibility import compute_dtype, has_kernel_dtype

MIN_SECONDS, ROUNDS = 0.05, 4  # duration of the repetitions, and rounds


@cache
def load_triton(module: str, purpose: str) -> Any:
    """Import a module of Triton kernels, or return None without Triton, which is logged once."""
    try:
        return import_module(module)
    except ImportError as error:
        log_message(f"{purpose}: Triton kernels are not available: {error}")
        return None


class TritonKernels:
    """Triton kernels for the training batches of one model."""

    def __init__(self, purpose: str, module: str) -> None:
        """`purpose` is what log messages name."""
        self.purpose, self.module = purpose, module
        self.is_working: dict[torch.dtype, bool] = {}  # results of self-tests

    def select(self, weights: Sequence[Tensor], is_training: bool, selftest: Callable[[Any], object]) -> Any:
        """Return the module of the kernels, or None where they do not run.

        `selftest` gets the module; it is called for the first training batch of each dtype.
        """
        if not weights[0].is_cuda or not has_kernel_dtype(weights):
            return None
        kernels, dtype = load_triton(self.module, self.purpose), compute_dtype(weights[0])
        if kernels is not None and is_training and dtype not in self.is_working:
            self.is_working[dtype] = runs_without_error(self.purpose, partial(selftest, kernels))
        return kernels if self.is_working.get(dtype) else None


def runs_without_error(purpose: str, work: Callable[[], object]) -> bool:
    """Return whether a call succeeds; if not, log what `purpose` runs without, and why."""
    error = find_error(work)
    if error is not None:
        log_message(f"{purpose} runs without Triton kernels: {error}")
    return error is None


def find_error(work: Callable[[], object]) -> str | None:
    """Return why a call fails, shortened to one line, or None."""
    try:
        work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton raises many kinds of errors
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


def check_products(precision: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor], tolerance: float) -> str:
    """Return "" if products are right, up to a relative error, and faster than in fp32, otherwise what is wrong."""
    exact = theirs()
    if not (ours() - exact).norm() < tolerance * exact.norm():
        return f"the {precision} kernels give wrong results here"
    time_ratio = cpu_time_ratio(ours, theirs, ROUNDS)
    return f"{precision} products take {time_ratio:.2f} times as long" if time_ratio > 1 else ""


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
