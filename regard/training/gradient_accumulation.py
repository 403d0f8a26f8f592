"""The gradient of one update: added up over batches, and over processes; what does not fit is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from regard.console import log_message
from regard.data.loader import TrainingBatch, mix_seeds
from regard.errors import UserError
from regard.tasks.base import is_out_of_memory
from regard.training.distributed import DistributedContext, ModelWithLoss, gather_full_tensor
from regard.training.precision import build_autocast, build_grad_scaler, seed_generators
from regard.training.settings import TrainingSettings


class AccumulatedLoss(NamedTuple):
    """What adding up found."""

    loss: Tensor  # this process's part of the update's loss, summed
    micro_batches: int  # that each batch had to be cut into


class GradientAccumulator:
    """Leaves in `.grad` what one large batch would have given."""

    def __init__(
        self,
        model_with_loss: ModelWithLoss,
        settings: TrainingSettings,
        device: torch.device,
        distributed: DistributedContext,
        ddp_model: DistributedDataParallel | None = None,
    ) -> None:
        """`copies` is the objective beside its copies in other processes, where there are any."""
        self.model_with_loss = model_with_loss
        self.weights = list(model_with_loss.parameters())
        self.settings = settings
        self.device = device
        self.distributed = distributed
        self.scaler = build_grad_scaler(settings, device)
        self.ddp_model = ddp_model

    def accumulate(self, batches: Sequence[TrainingBatch], step: int, micro_batches: int) -> AccumulatedLoss:
        """Adds the gradients up. Where one process runs out of memory, all begin again with smaller pieces."""
        total = max(1.0, self.distributed.all_reduce_sum([self.model_with_loss.compute_loss_denominator(batches)])[0])
        longest = max(batch.num_rows for batch in batches)
        while True:
            for weight in self.weights:
                weight.grad = None
            loss = self._try_accumulate(batches, total, step, micro_batches)
            if not self.distributed.is_true_on_any_rank(loss is None):
                break
            if self.distributed.all_reduce_sum([float(micro_batches < longest)])[0] == 0:
                raise UserError(
                    f"not even one pair at a time fits into the memory; a smaller data.max_length or a smaller model "
                    f"would (training.batch_tokens={self.settings.batch_tokens})"
                )
            micro_batches *= 2
            log_message(f"step {step}: out of memory; batches are cut into {micro_batches} pieces from now on")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        self._all_reduce_gradients()
        assert loss is not None
        return AccumulatedLoss(loss * total, micro_batches)

    def _try_accumulate(
        self, batches: Sequence[TrainingBatch], total: float, step: int, micro_batches: int
    ) -> Tensor | None:
        """The summed loss of all batches, their gradients added up; None where there is not enough memory."""
        found = torch.zeros((), device=self.device)
        try:
            for number, batch in enumerate(batches):
                for micro_batch_index, micro_batch in enumerate(batch.split_into(micro_batches)):
                    index = self.distributed.rank + number * self.distributed.world_size
                    seed_generators(mix_seeds(self.settings.seed, step, index, micro_batch_index), self.device)
                    found = found + self._backward_batch(micro_batch.to(self.device), total)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self.settings.shard and self.distributed.world_size > 1:  # the others are in the middle of it
                raise UserError(
                    "out of memory; with training.shard=true training.batch_tokens must be smaller"
                ) from error
            return None
        return found

    def _backward_batch(self, batch: TrainingBatch, total: float) -> Tensor:
        """The loss of one batch, its gradients added to those that are there."""
        with self._no_sync():
            with build_autocast(self.settings, self.device):
                loss: Tensor = (self.ddp_model or self.model_with_loss)(batch, 1 / total)
            # data parallelism takes the mean over processes, where the sum is wanted
            self.scaler.scale(loss * self.distributed.world_size).backward()  # type: ignore[no-untyped-call]
        return loss.detach().float()

    def _no_sync(self) -> AbstractContextManager[object]:
        """No word to the others: one of them may run out of memory, and then all begin again."""
        return self.ddp_model.no_sync() if self.ddp_model else nullcontext()

    def _all_reduce_gradients(self) -> None:
        """Adds up over processes: a zero is sent back through every weight, and takes along what is there."""
        if self.ddp_model:
            self.ddp_model(None).backward()
            for (
                buffer
            ) in self.model_with_loss.buffers():  # what a model has learnt besides, as hard attention its baseline
                self.distributed.all_reduce_mean_(buffer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Changes the weights."""
        try:
            self.scaler.step(optimizer)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"the optimizer's own numbers do not fit into the memory: {self.settings.optimizer} keeps some for "
                f"every weight; a smaller model, or several processes and training.shard=true, would"
            ) from error

    def clip_norm(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Scales the gradients down to the norm that is allowed; the norm they had."""
        self.scaler.unscale_(optimizer)
        limit = float("inf") if self.settings.clip is None else self.settings.clip
        return gather_full_tensor(torch.nn.utils.clip_grad_norm_(self.weights, limit)).to(self.device)
