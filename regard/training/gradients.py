"""The gradient of one update: added up over batches, and over processes; what does not fit is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from regard.console import say
from regard.data.loader import Batch, mixed
from regard.errors import UserError
from regard.tasks.memory import lacks_memory
from regard.training.device import autocast, scaler, seed_generators
from regard.training.objective import Objective
from regard.training.processes import Processes
from regard.training.settings import TrainingSettings
from regard.training.sharding import whole


class Added(NamedTuple):
    """What adding up found."""

    loss: Tensor  # this process's part of the update's loss, summed
    pieces: int  # that each batch had to be cut into


class Gradients:
    """Leaves in `.grad` what one large batch would have given."""

    def __init__(
        self,
        objective: Objective,
        settings: TrainingSettings,
        device: torch.device,
        processes: Processes,
        copies: DistributedDataParallel | None = None,
    ) -> None:
        """`copies` is the objective beside its copies in other processes, where there are any."""
        self.objective = objective
        self.weights = list(objective.parameters())
        self.settings = settings
        self.device = device
        self.processes = processes
        self.scaler = scaler(settings, device)
        self.copies = copies

    def add(self, batches: Sequence[Batch], step: int, pieces: int) -> Added:
        """Adds the gradients up. Where one process runs out of memory, all begin again with smaller pieces."""
        total = max(1.0, self.processes.sums([self.objective.counts(batches)])[0])
        longest = max(batch.rows for batch in batches)
        while True:
            for weight in self.weights:
                weight.grad = None
            loss = self.attempt(batches, total, step, pieces)
            if not self.processes.any(loss is None):
                break
            if self.processes.sums([float(pieces < longest)])[0] == 0:
                raise UserError(
                    f"not even one pair at a time fits into the memory; a smaller data.max_length or a smaller model "
                    f"would (training.batch_tokens={self.settings.batch_tokens})"
                )
            pieces *= 2
            say(f"step {step}: out of memory; batches are cut into {pieces} pieces from now on")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        self.reduce()
        assert loss is not None
        return Added(loss * total, pieces)

    def attempt(self, batches: Sequence[Batch], total: float, step: int, pieces: int) -> Tensor | None:
        """The summed loss of all batches, their gradients added up; None where there is not enough memory."""
        found = torch.zeros((), device=self.device)
        try:
            for number, batch in enumerate(batches):
                for piece, part in enumerate(batch.pieces(pieces)):
                    index = self.processes.rank + number * self.processes.count
                    seed_generators(mixed(self.settings.seed, step, index, piece), self.device)
                    found = found + self.backward(part.to(self.device), total)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            if self.settings.shard and self.processes.count > 1:  # the others are in the middle of it
                raise UserError(
                    "out of memory; with training.shard=true training.batch_tokens must be smaller"
                ) from error
            return None
        return found

    def backward(self, batch: Batch, total: float) -> Tensor:
        """The loss of one batch, its gradients added to those that are there."""
        with self.alone():
            with autocast(self.settings, self.device):
                loss: Tensor = (self.copies or self.objective)(batch, 1 / total)
            # data parallelism takes the mean over processes, where the sum is wanted
            self.scaler.scale(loss * self.processes.count).backward()  # type: ignore[no-untyped-call]
        return loss.detach().float()

    def alone(self) -> AbstractContextManager[object]:
        """No word to the others: one of them may run out of memory, and then all begin again."""
        return self.copies.no_sync() if self.copies else nullcontext()

    def reduce(self) -> None:
        """Adds up over processes: a zero is sent back through every weight, and takes along what is there."""
        if self.copies:
            self.copies(None).backward()
            for buffer in self.objective.buffers():  # what a model has learnt besides, as hard attention its baseline
                self.processes.mean(buffer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Changes the weights."""
        try:
            self.scaler.step(optimizer)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise UserError(
                f"the optimizer's own numbers do not fit into the memory: {self.settings.optimizer} keeps some for "
                f"every weight; a smaller model, or several processes and training.shard=true, would"
            ) from error

    def clip(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Scales the gradients down to the norm that is allowed; the norm they had."""
        self.scaler.unscale_(optimizer)
        limit = float("inf") if self.settings.clip is None else self.settings.clip
        return whole(torch.nn.utils.clip_grad_norm_(self.weights, limit)).to(self.device)
