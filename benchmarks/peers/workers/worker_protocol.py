"""What a worker and its driver say to each other, line by line over stdin and stdout.

    run decode-rnn-4         the seconds of one run, and those of the processor's; `none` where there is no such work
    operations decode-rnn-4  how many additions and multiplications PyTorch's products make in one run
    peak                     operations a second in a large product in fp32, by both clocks

While it waits a worker sleeps in read(), so that the one at work has the machine for itself.
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
MIN_SECONDS = 0.5  # seconds that a measurement lasts at least


def answer_requests(build: Callable[[Workload], Run | None]) -> None:
    """Answers until nobody asks any more; `build` has None for a work that is not the contestant's."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
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
    """One update: forward, backward, the optimizer's step."""

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        optimizer.step()
        return float(found.item())

    return run


class WorkerBench:
    """One work at a time, built and warmed up when it is first asked for."""

    def __init__(self, build: Callable[[Workload], Run | None]) -> None:
        self.build = build
        self.name = ""
        self.work: Run | None = None
        self.last_times = RunTimes(0.0, 0.0)

    def prepare_run(self, name: str) -> Run | None:
        """A work that has been run once, and did what it should."""
        if name != self.name:
            self.work, self.name = None, ""
            self.work = self.build(Workload.parse_name(name))
            if self.work is not None:
                self.last_times = measure_run(self.work)
                check_result(Workload.parse_name(name), self.work())
            self.name = name
        return self.work

    def run(self, name: str) -> str:
        """Seconds of one run, the mean over as many as it takes to measure well."""
        work = self.prepare_run(name)
        if work is None:
            return "none"
        if self.last_times.wall < MIN_SECONDS:
            work()  # threads and caches come back from their sleep
        times = [measure_run(work)]
        while sum(one.wall for one in times) < MIN_SECONDS:  # of several batches at once, so much of each
            times.append(measure_run(work))
        self.last_times = RunTimes(*(sum(clock) / len(times) for clock in zip(*times, strict=True)))
        return f"{self.last_times.wall!r} {self.last_times.processor!r}"

    def operations(self, name: str) -> str:
        """Of all products of matrices in one batch, on one thread: the counter knows of no others."""
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
        """Of a product that is large enough to come near it."""
        left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
        times = [measure_run(lambda: left @ right) for _ in range(40)]
        return " ".join(repr(2 * 1024**3 / min(clock)) for clock in zip(*times, strict=True))


class RunTimes(NamedTuple):
    """Seconds by the clock, and those that processors spent on this process, all of its threads together."""

    wall: float
    processor: float


def measure_run(work: Callable[[], object]) -> RunTimes:
    """How long one batch takes: whoever decodes several at once may share their time among them."""
    wall, processor = time.perf_counter(), time.process_time()
    done = work()
    many = len(done) // SENTENCES if isinstance(done, list) else 1
    return RunTimes((time.perf_counter() - wall) / many, (time.process_time() - processor) / many)


def check_result(work: Workload, done: list[int] | float) -> None:
    """Refuses a contestant that did something else."""
    if isinstance(done, float):
        chance = math.log(work.sizes.vocabulary_size)
        if not 0.5 * chance < done < 2 * chance:
            raise ValueError(f"a loss of {done} a token, where guessing has {chance}")
    elif list(done) != [LENGTH] * len(done) or not done or len(done) % SENTENCES:
        raise ValueError(f"targets of {sorted(set(done))} tokens, not {LENGTH}, for {len(done)} sources")
