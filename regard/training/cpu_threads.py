"""Number of CPU threads of a training run.

The threads of one operation wait for the slowest one. If another process competes for a core, all threads run at the
pace of that core: two threads on two cores, one of them busy, are slower than one thread. A new run therefore uses only
the idle cores. The number is stored in the run's config, because sums depend on it in the last bit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from regard.console import log_message

PROC_STAT = Path("/proc/stat")
SAMPLE_SECONDS = 0.2


def choose_threads() -> int:
    """Return the number of idle cores, or PyTorch's number of threads if that is smaller or the user has set it."""
    default = torch.get_num_threads()
    if default == 1 or "OMP_NUM_THREADS" in os.environ or sys.platform != "linux":
        return default
    idle = _count_idle_cores()
    if idle is None or idle >= default:
        return default
    log_message(
        f"training with {idle} of {default} CPU threads: other programs are running; training.threads sets the number"
    )
    return idle


def _count_idle_cores() -> int | None:
    """Return the number of idle cores among those that this process may use, rounded, at least 1; None if unknown."""
    before = _read_core_times()
    time.sleep(SAMPLE_SECONDS)
    after = _read_core_times()
    cores = os.sched_getaffinity(0)
    if not cores <= before.keys() & after.keys():  # some containers number the cores differently
        return None
    idle_cores = 0.0
    for core in cores:
        idle, total = (end - start for start, end in zip(before[core], after[core], strict=True))
        idle_cores += idle / total if total else 1.0  # a core that sleeps deeply may count no time at all
    return max(1, round(idle_cores))


def _read_core_times() -> dict[int, tuple[int, int]]:
    """Return the idle and the total time of each core since system start, in clock ticks; {} if unknown."""
    try:
        lines = PROC_STAT.read_text(encoding="ascii").splitlines()
    except OSError:  # sandboxes hide the file
        return {}
    times = {}
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(field) for field in fields[:8]]  # user, nice, system, idle, iowait, irq, softirq, steal
            times[int(name.removeprefix("cpu"))] = ticks[3] + ticks[4], sum(ticks)
    return times


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Set the number of PyTorch threads inside the context; None keeps PyTorch's number."""
    previous = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def choose_resumed_threads(threads: int | None) -> int | None:
    """Return the threads of a run's config, or None if this machine or `OMP_NUM_THREADS` offers fewer."""
    max_threads = torch.get_num_threads()
    if threads is None or threads <= max_threads:
        return threads
    log_message(
        f"training with {max_threads} CPU threads, not training.threads={threads} of the run, because no more are "
        "available: results may differ in the last digits"
    )
    return None
