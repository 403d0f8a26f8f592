"""Several processes that train one model, as torchrun starts them; or this one alone."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from regard.errors import UserError

COUNT, LOCAL, HERE = "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True)
class Processes:
    """Which of how many this one is, and what they tell each other."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of all processes, added up; they are on the CPU, so that no GPU is waited for."""
        if self.count == 1:
            return list(numbers)
        together = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(together)
        return together.tolist()

    def mean(self, tensor: Tensor) -> None:
        """Puts the mean over all processes in the tensor's place."""
        if self.count > 1:
            dist.all_reduce(tensor)
            tensor /= self.count

    def any(self, happened: bool) -> bool:
        """Whether it happened to one of them."""
        return self.sums([float(happened)])[0] > 0

    def of_first(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of the first process, in all of them."""
        return self.sums([number if self.first else 0.0 for number in numbers])

    def wait(self) -> None:
        """Until all have come this far."""
        self.sums([0.0])


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
        yield Processes(rank, count)
    finally:
        gc.collect()  # what refers to the group must be gone before it: the last one to go would wait for its threads …
        time.sleep(0.1)  # … and these for Python's lock, to drop their last tensors; neither would ever get it
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
