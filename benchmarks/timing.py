"""Timing of alternatives that run in turns, so that other programs on the machine slow down all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

Runs = Mapping[str, Callable[[], object]]


def measure_in_turns(
    runs: Runs, rounds: int, clock: Callable[[], float] = time.perf_counter, warmup: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each run in each round, without those of the `warmup` rounds before."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(warmup + rounds):
        for name, run in runs.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: times[warmup:] for name, times in seconds.items()}


def measure_matrix_product(size: int, rounds: int) -> float:
    """Return the operations per second of a large matrix product in fp32 on the CPU."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    (times,) = measure_in_turns({"product": lambda: left @ right}, rounds, warmup=0).values()
    return 2 * size**3 / min(times)
