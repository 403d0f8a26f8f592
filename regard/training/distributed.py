"""Distributed training with torchrun: process group, DDP and FSDP; or a single process."""

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

from regard.data.dataset import Batch
from regard.errors import UserError
from regard.models.base import Model

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
