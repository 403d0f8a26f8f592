"""Protocol between a worker and its driver, line by line over stdin and stdout.

    run decode-rnn-4         wall-clock and processor seconds of one run; `none` if the toolkit has no such workload
    operations decode-rnn-4  operations of PyTorch's matrix products in one run
    peak                     operations per second of a large product in fp32, by both clocks

A waiting worker sleeps in read(), so that the running one has the machine for itself.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.peers.workloads import LENGTH, SENTENCES, Workload

Run = Callable[[], list[int] | float]  # decoding: the tokens of each target of whole batches; training: a token's loss
MIN_SECONDS = 0.5  # minimum length of a measurement


def answer_requests(build: Callable[[Workload], Run | None]) -> None:
    """Answer requests until stdin is closed; `build` returns None for a workload that the contestant does not have."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries must not mix with answers
    torch.manual_seed(0)
    bench = WorkerBench(build)
    for line in sys.stdin:
        word, *name = line.split()
        try:
            answer = str(getattr(bench, word)(*name))
        except Exception as error:  # the driver goes on without this one
            traceback.print_exc()
            answer = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        answers.write(answer + "\n")


def make_update_run(optimizer: Any, loss: Callable[[], Any]) -> Run:
    """Return a function that makes one update: forward, backward, optimizer step."""

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        optimizer.step()
        return float(found.item())

    return run


class WorkerBench:
    """Measures one workload at a time, built and warmed up at its first request."""

    def __init__(self, build: Callable[[Workload], Run | None]) -> None:
        self.build = build
        self.name = ""
        self.work: Run | None = None
        self.last_times = RunTimes(0.0, 0.0)

    def prepare_run(self, name: str) -> Run | None:
        """Return a workload that has run once with a correct result."""
        if name != self.name:
            self.work, self.name = None, ""
            self.work = self.build(Workload.parse_name(name))
            if self.work is not None:
                self.last_times = measure_run(self.work)
                check_result(Workload.parse_name(name), self.work())
            self.name = name
        return self.work

    def run(self, name: str) -> str:
        """Return the mean seconds of as many runs as take MIN_SECONDS."""
        work = self.prepare_run(name)
        if work is None:
            return "none"
        if self.last_times.wall < MIN_SECONDS:
            work()  # wakes up threads and fills caches
        times = [measure_run(work)]
        while sum(one.wall for one in times) < MIN_SECONDS:  # of several batches at once, so much of each
            times.append(measure_run(work))
        self.last_times = RunTimes(*(sum(clock) / len(times) for clock in zip(*times, strict=True)))
        return f"{self.last_times.wall!r} {self.last_times.processor!r}"

    def operations(self, name: str) -> str:
        """Return the operations of all matrix products of a batch, on one thread: the counter sees no others."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        work = self.build(Workload.parse_name(name))
        torch.set_num_threads(threads)
        if work is None:
            return "none"
        in_place = {torch.ops.aten.addmm_: lambda into, a, b, **_: 2 * a[0] * a[1] * b[1]}  # which it would not count
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            work()
        return str(counter.get_total_flops())

    def peak(self) -> str:
        """Return the operations per second of a product that is large enough to come near the limit."""
        left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
        times = [measure_run(lambda: left @ right) for _ in range(40)]
        return " ".join(repr(2 * 1024**3 / min(clock)) for clock in zip(*times, strict=True))


class RunTimes(NamedTuple):
    """Wall-clock seconds, and processor seconds of all threads of the process."""

    wall: float
    processor: float


def measure_run(work: Callable[[], object]) -> RunTimes:
    """Measure one batch; the time of a run of several batches is divided by their number."""
    wall, processor = time.perf_counter(), time.process_time()
    done = work()
    many = len(done) // SENTENCES if isinstance(done, list) else 1
    return RunTimes((time.perf_counter() - wall) / many, (time.process_time() - processor) / many)


def check_result(work: Workload, done: list[int] | float) -> None:
    """Raise ValueError if a contestant computed something else."""
    if isinstance(done, float):
        chance = math.log(work.sizes.vocabulary_size)
        if not 0.5 * chance < done < 2 * chance:
            raise ValueError(f"a loss of {done} a token, where guessing has {chance}")
    elif list(done) != [LENGTH] * len(done) or not done or len(done) % SENTENCES:
        raise ValueError(f"targets of {sorted(set(done))} tokens, not {LENGTH}, for {len(done)} sources")
