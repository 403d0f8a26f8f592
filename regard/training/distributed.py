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
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from regard.data.loader import TrainingBatch
from regard.errors import UserError
from regard.models import Model

if TYPE_CHECKING:  # what lies apart is rare, and takes a second to load
    from torch.distributed.tensor import DTensor


_WORLD_SIZE_VARIABLE, _LOCAL_RANK_VARIABLE, _LOCAL_WORLD_SIZE_VARIABLE = "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
_RESTART_COUNT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
# Rank 0 may validate for as long. If its process dies, its connections are closed and the other ranks end at once. A
# rank 0 that hangs, or whose host loses power, is noticed only after this time.
LONG_TIMEOUT = timedelta(hours=24)


@dataclass(frozen=True)
class DistributedContext:
    """Rank, world size, and the collectives that training needs."""

    rank: int = 0
    world_size: int = 1
    long_group: dist.ProcessGroup | None = None  # of the same processes; for waiting while rank 0 works alone

    @property
    def is_rank0(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of all processes, added up; they are on the CPU, so that no GPU is waited for."""
        return self._all_reduce(numbers, None)

    def all_reduce_mean_(self, tensor: Tensor) -> None:
        """Puts the mean over all processes in the tensor's place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
            tensor /= self.world_size

    def is_true_on_any_rank(self, condition: bool) -> bool:
        """Whether it happened to one of them."""
        return self.all_reduce_sum([float(condition)])[0] > 0

    def broadcast_from_rank0(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers of rank 0, which may take up to `LONG_TIMEOUT` to get there."""
        return self._all_reduce([number if self.is_rank0 else 0.0 for number in numbers], self.long_group)

    def barrier(self) -> None:
        """Wait until all processes have come this far, for up to `LONG_TIMEOUT`."""
        self._all_reduce([0.0], self.long_group)

    def _all_reduce(self, numbers: Sequence[float], group: dist.ProcessGroup | None) -> list[float]:
        if self.world_size == 1:
            return list(numbers)
        together = _get_permanent_buffer(len(numbers))
        together.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(together, group=group)
        return together.tolist()


@cache
def _get_permanent_buffer(length: int) -> Tensor:
    """Return a tensor that Python never frees.

    A thread of the group that drops the last reference to a Python tensor needs the GIL. Whoever destroys the group may
    hold the GIL while it waits for the group's threads, and neither would ever go on.
    """
    return torch.zeros(length, dtype=torch.float64)


SINGLE_PROCESS = DistributedContext()


def wrap_ddp(
    module: nn.Module, distributed: DistributedContext, device: torch.device
) -> DistributedDataParallel | None:
    """A module beside its copies in other processes, where there are any."""
    if distributed.world_size == 1:
        return None
    index = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # `broadcast_buffers` has another name from PyTorch 2.13 on
        return DistributedDataParallel(module, device_ids=index, broadcast_buffers=False, gradient_as_bucket_view=True)


@contextmanager
def init_distributed(device_name: str = "auto") -> Iterator[DistributedContext]:
    """The processes that torchrun has started with this one; alone where it has started none."""
    if _WORLD_SIZE_VARIABLE not in os.environ:
        yield SINGLE_PROCESS
        return
    gpu = device_name in ("auto", "cuda") and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(choose_local_gpu(int(os.environ[_LOCAL_RANK_VARIABLE])))
    store, rank, count = next(rendezvous("env://"))
    # torchrun keeps one store over its restarts: without a prefix a process may meet the address of one that is dead
    own = PrefixStore(f"start {os.environ.get(_RESTART_COUNT_VARIABLE, '0')}", store)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=own, rank=rank, world_size=count)
    try:
        yield DistributedContext(rank, count, dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))
    finally:
        gc.collect()  # of DDP, which refers to the group and would destroy it while it holds the GIL
        dist.destroy_process_group()


def choose_local_gpu(local_rank: int) -> int:
    """The GPU of the process of a number on this machine."""
    there = torch.cuda.device_count()
    if local_rank >= there:
        raise UserError(
            f"torchrun has started {os.environ.get(_LOCAL_WORLD_SIZE_VARIABLE)} processes on this machine, which has {there} GPUs: each "
            f"needs its own (--nproc-per-node={there}, or training.device=cpu)"
        )
    return local_rank


def is_distributed() -> bool:
    """Whether torchrun has started more than this one."""
    return int(os.environ.get(_WORLD_SIZE_VARIABLE, "1")) > 1


def was_restarted() -> bool:
    """Whether torchrun has started this again, because one of the processes ended."""
    return int(os.environ.get(_RESTART_COUNT_VARIABLE, "0")) > 0


class ModelWithLoss(nn.Module):
    """Batch by batch, the loss's share of an update."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TrainingBatch | None, scale: float = 0.0) -> Tensor:
        """The summed loss of a batch times `share`; without a batch a zero that every weight has a part in."""
        if batch is None:
            return torch.stack([weight.sum() for weight in self.parameters()]).sum() * 0.0
        return self.model.loss_sum(*batch) * scale

    def compute_loss_denominator(self, batches: Sequence[TrainingBatch]) -> float:
        """What the summed loss of batches is divided by."""
        return float(sum(int(self.model.loss_count(*batch)) for batch in batches))


def apply_fsdp(model_with_loss: ModelWithLoss, distributed: DistributedContext, device: torch.device) -> None:
    """Leaves each process a part of every weight; those of a unit come together while it is at work."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (distributed.world_size,))
    for unit in model_with_loss.model.fsdp_units():
        fully_shard(unit, mesh=mesh)
        if hasattr(unit, "project"):
            register_fsdp_forward_method(unit, "project")
    fully_shard(model_with_loss, mesh=mesh)


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """A tensor of which every process has a part, put together; all of them must ask. Any other is as it is."""
    return tensor.full_tensor().cpu() if _is_dtensor(tensor) else tensor


def take_local_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, cut as `like` is."""
    if _is_dtensor(like):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor


def _is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has a part of a tensor only."""
    return hasattr(tensor, "full_tensor")
