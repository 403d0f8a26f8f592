"""Gradient accumulation over batches and ranks, with smaller micro-batches after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from regard.console import log_message
from regard.data.dataset import Batch
from regard.data.loader import mix_seeds
from regard.errors import UserError
from regard.recipes.recipe import TrainingSettings
from regard.tasks.batched_inference import is_out_of_memory
from regard.training.device import build_autocast, build_grad_scaler, seed_generators
from regard.training.distributed import DistributedContext, ModelWithLoss, gather_full_tensor, wrap_ddp


class GradientAccumulator:
    """Computes in `.grad` the gradient of one large batch."""

    def __init__(
        self,
        model_with_loss: ModelWithLoss,
        settings: TrainingSettings,
        device: torch.device,
        distributed: DistributedContext,
    ) -> None:
        """Wrap the model in DDP if there are several ranks, unless FSDP shards it."""
        self.model_with_loss = model_with_loss
        self.weights = list(model_with_loss.parameters())  # listing them takes as long as many kernels of an update
        self.settings = settings
        self.device = device
        self.distributed = distributed
        self.scaler = build_grad_scaler(settings, device)
        self.is_sharded = settings.shard and distributed.world_size > 1
        self.ddp_model = None if self.is_sharded else wrap_ddp(model_with_loss, distributed, device)

    def accumulate(self, batches: Sequence[Batch], step: int, micro_batches: int) -> tuple[Tensor, int]:
        """Accumulate the gradients; return the summed loss of this rank's batches, and the number of micro-batches.

        Each batch is split into `micro_batches`. If one rank runs out of memory, all ranks retry with smaller ones.
        """
        # 1. The number that the loss is divided by, over all ranks.
        total = max(1.0, self.distributed.all_reduce_sum([self.model_with_loss.compute_loss_denominator(batches)])[0])
        longest = max(batch.num_rows for batch in batches)
        while True:
            # 2. Forward and backward passes of all micro-batches.
            for weight in self.weights:
                weight.grad = None
            loss = self._try_accumulate(batches, total, step, micro_batches)
            # 3. Out of memory on one rank: split further on all ranks.
            failed, divisible = self.distributed.all_reduce_sum([float(loss is None), float(micro_batches < longest)])
            if not failed:
                break
            if not divisible:
                raise UserError(
                    f"out of memory with a single example per batch; choose a smaller data.max_length or a smaller "
                    f"model (training.batch_tokens={self.settings.batch_tokens})"
                )
            micro_batches *= 2
            log_message(
                f"step {step}: out of memory; each batch is split into {micro_batches} micro-batches from now on"
            )
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        # 4. Sum of the gradients of all ranks: a zero loss through DDP, whose hooks reduce the existing `.grad`.
        if self.ddp_model:
            self.ddp_model(None).backward()
            for buffer in self.model_with_loss.buffers():  # such as the moving baseline of hard attention
                self.distributed.all_reduce_mean_(buffer)
        assert loss is not None
        return loss * total, micro_batches

    def _try_accumulate(self, batches: Sequence[Batch], total: float, step: int, micro_batches: int) -> Tensor | None:
        """Return the summed loss of all batches after accumulating their gradients; None if out of memory."""
        summed_loss = torch.zeros((), device=self.device)
        try:
            for batch_index, batch in enumerate(batches):
                for micro_batch_index, micro_batch in enumerate(batch.split_into(micro_batches)):
                    index = self.distributed.rank + batch_index * self.distributed.world_size
                    seed_generators(mix_seeds(self.settings.seed, step, index, micro_batch_index), self.device)
                    summed_loss = summed_loss + self._backward_batch(micro_batch.to(self.device), total)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self.is_sharded:  # the other ranks are inside a collective
                raise UserError(
                    "out of memory; choose a smaller training.batch_tokens (training.shard=true cannot split batches)"
                ) from error
            return None
        return summed_loss

    def _backward_batch(self, batch: Batch, total: float) -> Tensor:
        """Add the gradients of one batch to `.grad`; return its loss."""
        # Without DDP's gradient sync: if one rank runs out of memory, all ranks retry the update.
        with self.ddp_model.no_sync() if self.ddp_model else nullcontext():
            with build_autocast(self.settings, self.device):
                loss: Tensor = (self.ddp_model or self.model_with_loss)(batch, 1 / total)
            # DDP and FSDP average over ranks, but the sum is needed.
            self.scaler.scale(loss * self.distributed.world_size).backward()  # type: ignore[no-untyped-call]
        return loss.detach().float()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Run the optimizer; raise UserError if its state does not fit into memory."""
        try:
            self.scaler.step(optimizer)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"out of memory: the state of the optimizer {self.settings.optimizer} does not fit; choose a smaller "
                f"model, or several processes and training.shard=true"
            ) from error

    def clip_norm(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Clip the gradient norm; return the norm before clipping."""
        self.scaler.unscale_(optimizer)
        limit = float("inf") if self.settings.clip is None else self.settings.clip
        return gather_full_tensor(torch.nn.utils.clip_grad_norm_(self.weights, limit)).to(self.device)
