"""Device, mixed precision (autocast, gradient scaler), random generators, peak memory, and number of CPU threads.

The threads of one operation wait for the slowest one. If another process competes for a core, all threads run at the
pace of that core: two threads on two cores, one of them busy, are slower than one thread. A new run therefore uses only
the idle cores. The number is stored in the run's config, because sums depend on it in the last bit.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from regard.console import log_message
from regard.errors import UserError
from regard.fast.eligibility import compute_dtype, fast_paths_enabled
from regard.fast.gemm import TORCH_GEMM
from regard.fast.kernels.fp16 import select_gemm, use_fp16_gemm
from regard.recipes.recipe import TrainingSettings


def choose_device(device_name: str = "auto", option_name: str = "training.device=") -> torch.device:
    """Return the device; `auto` is a GPU if there is one. `option_name` is named in the error."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(name for name, usable in available.items() if usable) if device_name == "auto" else device_name
    if not available[chosen]:
        raise UserError(f"{option_name}{device_name}, but this machine has no {device_name}")
    return torch.device("cuda", torch.cuda.current_device()) if chosen == "cuda" else torch.device(chosen)


def build_autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of the settings; `auto` is bf16 on a GPU that supports it, else fp32.

    A GPU before Ampere (V100, T4, RTX 20) only emulates bf16, which is slower than fp32. `mixed` is like `auto` on a
    GPU; on a CPU, matrix products use fp16 kernels where they are faster.
    """
    supports_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if settings.precision == "mixed" and device.type == "cpu":
        return use_fp16_gemm()
    if settings.precision == "fp16":
        return torch.autocast(device.type, dtype=torch.float16)
    if settings.precision == "bf16" or (settings.precision in ("auto", "mixed") and supports_bf16):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def describe_arithmetic(settings: TrainingSettings, device: torch.device) -> dict[str, str]:
    """Return what the last digits of losses and weights depend on, besides data and settings."""
    with build_autocast(settings, device):
        weight = torch.zeros(1, device=device)
        uses_fp16_kernels = select_gemm(weight) is not TORCH_GEMM
        precision = "fp16 kernels" if uses_fp16_kernels else str(compute_dtype(weight)).removeprefix("torch.")
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": precision,
        "implementation": "fast" if fast_paths_enabled() else "reference",
        "torch": torch.__version__,
    }


def build_grad_scaler(settings: TrainingSettings, device: torch.device) -> torch.amp.GradScaler:
    """Return the gradient scaler, which is active for fp16 only."""
    return torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed PyTorch's random generators of the CPU and of the device; those of other GPUs do not change."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def preserve_generators(device: torch.device) -> AbstractContextManager[object]:
    """Restore the random generators of CPU and GPU on exit: training seeds them, but they belong to the caller."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def measure_peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory so far, in MB: of the GPU, or of this process; NaN on Windows, where it is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1e3  # macOS counts bytes, Linux kB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


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
