"""Several processes that train one model, as torchrun starts them; or this one alone."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from regard.errors import UserError

COUNT, LOCAL, HERE = "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# Rank 0 may validate for as long. If its process dies, its connections are closed and the other ranks end at once. A
# rank 0 that hangs, or whose host loses power, is noticed only after this time.
LONG_TIMEOUT = timedelta(hours=24)


@dataclass(frozen=True)
class Processes:
    """Rank, world size, and the collectives that training needs."""

    rank: int = 0
    count: int = 1
    long_group: dist.ProcessGroup | None = None  # of the same processes; for waiting while rank 0 works alone

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of all processes, added up; they are on the CPU, so that no GPU is waited for."""
        return self._add_up(numbers, None)

    def mean(self, tensor: Tensor) -> None:
        """Puts the mean over all processes in the tensor's place."""
        if self.count > 1:
            dist.all_reduce(tensor)
            tensor /= self.count

    def any(self, happened: bool) -> bool:
        """Whether it happened to one of them."""
        return self.sums([float(happened)])[0] > 0

    def of_first(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers of rank 0, which may take up to `LONG_TIMEOUT` to get there."""
        return self._add_up([number if self.first else 0.0 for number in numbers], self.long_group)

    def wait(self) -> None:
        """Wait until all processes have come this far, for up to `LONG_TIMEOUT`."""
        self._add_up([0.0], self.long_group)

    def _add_up(self, numbers: Sequence[float], group: dist.ProcessGroup | None) -> list[float]:
        if self.count == 1:
            return list(numbers)
        together = _buffer(len(numbers))
        together.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(together, group=group)
        return together.tolist()


@cache
def _buffer(length: int) -> Tensor:
    """Return a tensor that Python never frees.

    A thread of the group that drops the last reference to a Python tensor needs the GIL. Whoever destroys the group may
    hold the GIL while it waits for the group's threads, and neither would ever go on.
    """
    return torch.zeros(length, dtype=torch.float64)


ALONE = Processes()


def copies(module: nn.Module, processes: Processes, device: torch.device) -> DistributedDataParallel | None:
    """A module beside its copies in other processes, where there are any."""
    if processes.count == 1:
        return None
    index = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # `broadcast_buffers` has another name from PyTorch 2.13 on
        return DistributedDataParallel(module, device_ids=index, broadcast_buffers=False, gradient_as_bucket_view=True)


@contextmanager
def joined(wanted: str = "auto") -> Iterator[Processes]:
    """The processes that torchrun has started with this one; alone where it has started none."""
    if COUNT not in os.environ:
        yield ALONE
        return
    gpu = wanted in ("auto", "cuda") and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(own_card(int(os.environ[LOCAL])))
    store, rank, count = next(rendezvous("env://"))
    # torchrun keeps one store over its restarts: without a prefix a process may meet the address of one that is dead
    own = PrefixStore(f"start {os.environ.get(RESTARTS, '0')}", store)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=own, rank=rank, world_size=count)
    try:
        yield Processes(rank, count, dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))
    finally:
        gc.collect()  # of DDP, which refers to the group and would destroy it while it holds the GIL
        dist.destroy_process_group()


def own_card(number: int) -> int:
    """The GPU of the process of a number on this machine."""
    there = torch.cuda.device_count()
    if number >= there:
        raise UserError(
            f"torchrun has started {os.environ.get(HERE)} processes on this machine, which has {there} GPUs: each "
            f"needs its own (--nproc-per-node={there}, or training.device=cpu)"
        )
    return number


def several() -> bool:
    """Whether torchrun has started more than this one."""
    return int(os.environ.get(COUNT, "1")) > 1


def was_restarted() -> bool:
    """Whether torchrun has started this again, because one of the processes ended."""
    return int(os.environ.get(RESTARTS, "0")) > 0
