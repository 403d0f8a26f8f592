"""Device and processes: mixed precision, random generators, CPU threads, signals; torchrun's process group, DDP, FSDP.

The threads of one operation wait for the slowest one. If another process competes for a core, all threads run at the
pace of that core: two threads on two cores, one of them busy, are slower than one thread. A new run therefore uses only
the idle cores. The number is stored in the run's config, because sums depend on it in the last bit.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from regard.console import log_message
from regard.data.dataset import Batch
from regard.data.loader import STOP_SIGNALS
from regard.errors import UserError
from regard.fast.eligibility import compute_dtype, fast_paths_enabled
from regard.fast.gemm import TORCH_GEMM
from regard.fast.kernels.fp16 import select_gemm, use_fp16_gemm
from regard.models.base import Model
from regard.recipes.recipe import TrainingSettings

_WORLD_SIZE_VARIABLE, _LOCAL_RANK_VARIABLE, _LOCAL_WORLD_SIZE_VARIABLE = "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
_RESTART_COUNT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
# Time limit for rank 0 to validate while the other ranks wait. If its process dies, its connections close and the other
# ranks end at once; if it hangs, or its host loses power, they notice only after this time.
LONG_TIMEOUT = timedelta(hours=24)


@dataclass(frozen=True)
class DistributedContext:
    """Rank, world size, and the collectives that training needs."""

    rank: int = 0
    world_size: int = 1
    long_group: dist.ProcessGroup | None = None  # same ranks, long timeout: for waiting while rank 0 works alone

    @property
    def is_rank0(self) -> bool:
        """True for the process that writes files and log lines."""
        return self.rank == 0

    def all_reduce_sum(self, numbers: Sequence[float], group: dist.ProcessGroup | None = None) -> list[float]:
        """Return the sums over all ranks; the numbers are on the CPU, so that no GPU has to synchronise."""
        if self.world_size == 1:
            return list(numbers)
        buffer = _get_permanent_buffer(len(numbers))
        buffer.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(buffer, group=group)
        return buffer.tolist()

    def all_reduce_mean_(self, tensor: Tensor) -> None:
        """Replace the tensor by its mean over all ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
            tensor /= self.world_size

    def broadcast_from_rank0(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers of rank 0 on all ranks; rank 0 may take up to `LONG_TIMEOUT`."""
        return self.all_reduce_sum([number if self.is_rank0 else 0.0 for number in numbers], self.long_group)

    def barrier(self) -> None:
        """Wait for all ranks, for up to `LONG_TIMEOUT`."""
        self.all_reduce_sum([0.0], self.long_group)


@cache
def _get_permanent_buffer(length: int) -> Tensor:
    """Return a tensor that Python never frees.

    A thread of the process group that drops the last reference to a Python tensor needs the GIL. The thread that
    destroys the group may hold the GIL while it waits for the group's threads: a deadlock.
    """
    return torch.zeros(length, dtype=torch.float64)


SINGLE_PROCESS = DistributedContext()


def wrap_ddp(
    module: nn.Module, distributed: DistributedContext, device: torch.device
) -> DistributedDataParallel | None:
    """Wrap a module in DistributedDataParallel; return None for a single process."""
    if distributed.world_size == 1:
        return None
    index = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 renames `broadcast_buffers`
        return DistributedDataParallel(module, device_ids=index, broadcast_buffers=False, gradient_as_bucket_view=True)


@contextmanager
def init_distributed(device_name: str = "auto") -> Iterator[DistributedContext]:
    """Join the process group that torchrun has started; without torchrun, yield `SINGLE_PROCESS`."""
    if _WORLD_SIZE_VARIABLE not in os.environ:
        yield SINGLE_PROCESS
        return
    gpu = device_name in ("auto", "cuda") and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(choose_local_gpu(int(os.environ[_LOCAL_RANK_VARIABLE])))
    store, rank, count = next(rendezvous("env://"))
    # torchrun keeps one store across restarts: without a prefix, a process may read the address of a dead one.
    prefixed_store = PrefixStore(f"start {os.environ.get(_RESTART_COUNT_VARIABLE, '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if gpu and dist.is_nccl_available() else "gloo"  # Windows has no NCCL
    dist.init_process_group(backend, store=prefixed_store, rank=rank, world_size=count)
    try:
        yield DistributedContext(rank, count, dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))
    finally:
        gc.collect()  # frees DDP, which refers to the group and would destroy it while holding the GIL
        dist.destroy_process_group()


def choose_local_gpu(local_rank: int) -> int:
    """Return the index of the GPU for a local rank; raise UserError if there are fewer GPUs than processes."""
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise UserError(
            f"torchrun has started {os.environ.get(_LOCAL_WORLD_SIZE_VARIABLE)} processes on this machine, which has "
            f"{num_gpus} GPUs: each needs its own (--nproc-per-node={num_gpus}, or training.device=cpu)"
        )
    return local_rank


def is_distributed() -> bool:
    """Return whether torchrun has started more than one process."""
    return int(os.environ.get(_WORLD_SIZE_VARIABLE, "1")) > 1


def was_restarted() -> bool:
    """Return whether torchrun has restarted this process after another one failed."""
    return int(os.environ.get(_RESTART_COUNT_VARIABLE, "0")) > 0


class ModelWithLoss(nn.Module):
    """Model and loss as one module, so that DDP and FSDP can wrap both."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch | None, scale: float = 0.0) -> Tensor:
        """Return the summed loss of a batch times `scale`; without a batch, a zero that depends on every weight."""
        if batch is None:
            return torch.stack([weight.sum() for weight in self.parameters()]).sum() * 0.0
        return self.model.loss_sum(*batch) * scale

    def compute_loss_denominator(self, batches: Sequence[Batch]) -> float:
        """Return the number that the summed loss of the batches is divided by."""
        return float(sum(int(self.model.loss_count(*batch)) for batch in batches))


def apply_fsdp(model_with_loss: ModelWithLoss, distributed: DistributedContext, device: torch.device) -> None:
    """Shard the weights over all ranks with FSDP; each unit gathers its weights while it runs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (distributed.world_size,))
    for unit in model_with_loss.model.fsdp_units():
        fully_shard(unit, mesh=mesh)
        if hasattr(unit, "project"):
            register_fsdp_forward_method(unit, "project")
    fully_shard(model_with_loss, mesh=mesh)


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """Return a sharded tensor in full, on the CPU; a collective call. Other tensors are returned unchanged."""
    return tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor


def take_local_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor, sharded like `like`."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


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
    GPU; on an ARM CPU, matrix products use fp16 kernels where they are faster.
    """
    supports_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if settings.precision == "mixed" and device.type == "cpu" and platform.machine().lower() in ("aarch64", "arm64"):
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


_SIGHUP = getattr(signal, "SIGHUP", None)


class Interrupted(Exception):  # noqa: N818 - an event, not a mistake
    """Training was stopped by a signal (Ctrl-C, SIGTERM, SIGHUP) and has saved a checkpoint.

    Step None: several runs.
    """

    def __init__(self, step: int | None, signal_number: int) -> None:
        super().__init__(step, signal_number)  # all arguments, so that it can be pickled
        self.step = step
        self.signal_number = signal_number

    def __str__(self) -> str:
        return "stopped" if self.step is None else f"stopped at step {self.step}, checkpoint saved"


class StopSignals:
    """Records signals of `STOP_SIGNALS`, so that training stops after the current update.

    A second Ctrl-C stops at once.

    Only a user repeats Ctrl-C deliberately. Supervisors repeat signals, and torchrun forwards signals that its
    processes may have received themselves.
    """

    def __init__(self) -> None:
        self.received_signal = 0  # number of the first signal; 0: none

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        if self.received_signal and signal_number == signal.SIGINT and not is_distributed():
            raise KeyboardInterrupt
        self.received_signal = self.received_signal or signal_number

    @contextmanager
    def install_handlers(self) -> Iterator[None]:
        """Install the handler, and restore the previous ones on exit; an ignored SIGHUP (nohup) stays ignored."""
        handled = [number for number in STOP_SIGNALS if number != _SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
        try:
            previous_handlers = {number: signal.signal(number, self._handle_signal) for number in handled}
        except ValueError:  # not the main thread, where Python allows no handlers
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
