"""A model whose weights lie apart, a part in each of several processes (FSDP2): for what one card cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from regard.training.objective import Objective
from regard.training.processes import Processes

if TYPE_CHECKING:  # what lies apart is rare, and takes a second to load
    from torch.distributed.tensor import DTensor


def shard(objective: Objective, processes: Processes, device: torch.device) -> None:
    """Leaves each process a part of every weight; those of a unit come together while it is at work."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (processes.count,))
    for unit in objective.model.units():
        fully_shard(unit, mesh=mesh)
        if hasattr(unit, "project"):
            register_fsdp_forward_method(unit, "project")
    fully_shard(objective, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which every process has a part, put together; all of them must ask. Any other is as it is."""
    return tensor.full_tensor().cpu() if apart(tensor) else tensor


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, cut as `like` is."""
    if apart(like):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor


def apart(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has a part of a tensor only."""
    return hasattr(tensor, "full_tensor")
