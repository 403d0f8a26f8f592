"""The update: gradient accumulation, optimizers (Adam, AdamW, SGD, Adadelta), learning rate schedules, and EMA.

Gradients are accumulated over batches and ranks, with smaller micro-batches after an out-of-memory error.

A schedule (constant, inverse-sqrt, halving, cosine, linear; with linear warm-up) is a pure function of step, epoch and
the fraction of training that has passed, so there is no state to save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from regard.console import log_message
from regard.data.dataset import Batch, TrainingDataset
from regard.data.loader import (
    SamplerPosition,
    TokenBatchSampler,
    is_out_of_memory,
    iterate_batch_requests,
    mix_seeds,
)
from regard.errors import UserError
from regard.recipes.recipe import TrainingSettings
from regard.training.distributed import (
    DistributedContext,
    ModelWithLoss,
    build_autocast,
    gather_full_tensor,
    seed_generators,
    wrap_ddp,
)


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Build the optimizer from the settings; the learning rate is set before each update.

    Fused implementations pass over the weights once, on a CPU as well. They do not support sharded weights (DTensors).
    """
    parameters = list(model.parameters())
    fused = all(type(weight) is nn.Parameter for weight in parameters)
    rate, decay = settings.learning_rate, settings.weight_decay
    betas, epsilon = (settings.betas[0], settings.betas[1]), settings.epsilon
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adam": lambda: torch.optim.Adam(parameters, rate, betas, epsilon, decay, fused=fused),
        "adamw": lambda: torch.optim.AdamW(parameters, rate, betas, epsilon, decay, fused=fused),
        "sgd": lambda: torch.optim.SGD(parameters, rate, weight_decay=decay, fused=fused),
        "adadelta": lambda: torch.optim.Adadelta(parameters, rate, rho=0.95, eps=epsilon, weight_decay=decay),
    }
    return makers[settings.optimizer]()


def _inverse_sqrt(settings: TrainingSettings, step: int, epoch: float, progress: float) -> float:
    """Return √(warmup / step) after the warm-up: Vaswani 2017, eq. 3, with the peak as the learning rate."""
    return math.sqrt(max(1, settings.warmup) / max(step, settings.warmup, 1))


def _halving(settings: TrainingSettings, step: int, epoch: float, progress: float) -> float:
    """Return ½ from `halve_after` epochs on, halved again every `halve_every` epochs (Sutskever 2014, Luong 2015)."""
    if epoch < settings.halve_after:
        return 1.0
    return float(0.5 ** (1 + math.floor((epoch - settings.halve_after) / settings.halve_every)))


def _cosine(settings: TrainingSettings, step: int, epoch: float, progress: float) -> float:
    """Return half a cosine from the end of the warm-up down to 0 at the last step, which therefore changes no weight.

    It stays as it is: a cosine that ends above 0 would change the rates of runs that are resumed.
    """
    assert settings.steps is not None
    after_warmup = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, after_warmup))))


def _linear(settings: TrainingSettings, step: int, epoch: float, progress: float) -> float:
    """Return the fraction of training that is left."""
    return 1.0 - progress


_SCHEDULES: dict[str, Callable[[TrainingSettings, int, float, float], float]] = {
    "constant": lambda settings, step, epoch, progress: 1.0,
    "inverse-sqrt": _inverse_sqrt,
    "halving": _halving,
    "cosine": _cosine,
    "linear": _linear,
}
MAX_SECONDS_FOR_CACHES = 5.0  # longer first passes of an update are not repeated to measure the time
MAX_WARMUP = 0.1  # fraction of training that the warm-up may take with the linear schedule


def compute_progress(settings: TrainingSettings, step: int, epoch: float, seconds: float) -> float:
    """Return the fraction of training that has passed, by the nearest of its limits."""
    minutes = settings.minutes
    limits = (step, settings.steps), (epoch, settings.epochs), (seconds, None if minutes is None else 60 * minutes)
    return min(1.0, max((value / limit if limit else 1.0 for value, limit in limits if limit is not None), default=0.0))


def compute_learning_rate(settings: TrainingSettings, step: int, epoch: float, progress: float = 0.0) -> float:
    """Return the learning rate of update `step`, counted from 1, at a fractional epoch.

    It rises linearly in the warm-up. The linear schedule falls by `progress`, the fraction of training that has passed.
    """
    warmup_factor = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    if settings.schedule == "linear":
        warmup_factor = max(warmup_factor, min(1.0, progress / MAX_WARMUP))
    return settings.learning_rate * warmup_factor * _SCHEDULES[settings.schedule](settings, step, epoch, progress)


class ExponentialMovingAverage:
    """EMA of the weights: w̄ ← d w̄ + (1 − d) w after each update.

    The decay d rises to `decay`, so that early weights are forgotten. Without decay there is no average, and `weights`
    is empty.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights: list[Tensor] = list(model.parameters()) if decay else []
        self.decay = decay
        self.reset()

    def reset(self) -> None:
        """Restart the average from the current weights."""
        self.average = [weight.detach().clone() for weight in self.weights]

    def update(self, step: int) -> None:
        """Update the average after update number `step`."""
        if self.weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            get_ema_multi_avg_fn(decay)(self.average, self.weights, step)  # type: ignore[no-untyped-call]

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """Give the model the averaged weights inside the context, and restore the raw weights on exit."""
        self._swap_weights()
        try:
            yield
        finally:
            self._swap_weights()

    @torch.no_grad()
    def _swap_weights(self) -> None:
        """Swap averaged and raw weights."""
        for weight, mean in zip(self.weights, self.average, strict=True):
            raw_weight = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(raw_weight)


@dataclass(eq=False, repr=False)
class GradientAccumulator:
    """Computes in `.grad` the gradient of one large batch."""

    model_with_loss: ModelWithLoss
    settings: TrainingSettings
    device: torch.device
    distributed: DistributedContext

    def __post_init__(self) -> None:
        """Wrap the model in DDP if there are several ranks, unless FSDP shards it."""
        self.weights = list(self.model_with_loss.parameters())  # listing takes as long as many kernels of an update
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.settings.precision == "fp16")
        self.is_sharded = self.settings.shard and self.distributed.world_size > 1
        self.ddp_model = None if self.is_sharded else wrap_ddp(self.model_with_loss, self.distributed, self.device)

    def accumulate(self, batches: Sequence[Batch], step: int, micro_batches: int) -> tuple[Tensor, int]:
        """Accumulate the gradients; return the summed loss of this rank's batches, and the micro-batches per batch.

        Each batch is split into `micro_batches` parts. If a rank runs out of memory, all ranks retry with smaller ones.
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
        """Accumulate the gradients of all batches; return their loss divided by `total`, or None if out of memory."""
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
        """Add the gradients of one batch to `.grad`; return its loss divided by `total`."""
        # Without DDP's gradient sync: if one rank runs out of memory, all ranks retry the update.
        with self.ddp_model.no_sync() if self.ddp_model else nullcontext():
            with build_autocast(self.settings, self.device):
                loss: Tensor = (self.ddp_model or self.model_with_loss)(batch, 1 / total)
            # DDP and FSDP average over ranks, but the sum is needed.
            self.scaler.scale(loss * self.distributed.world_size).backward()  # type: ignore[no-untyped-call]
        return loss.detach().float()

    def time_update(self, dataset: TrainingDataset, sampler: TokenBatchSampler, clock: Callable[[], float]) -> float:
        """Return the seconds that the gradient of the first update takes; the model stays unchanged.

        The second pass counts: the first one fills caches, and compiles kernels on a GPU. A long first pass on a CPU is
        not repeated.
        """
        accumulate, rank, world_size = self.settings.accumulate, self.distributed.rank, self.distributed.world_size
        request = next(iterate_batch_requests(sampler, SamplerPosition(), accumulate, rank, world_size))
        batches = [dataset.make_batch(rows, seed) for rows, seed in zip(request.rows, request.seeds, strict=True)]
        buffers = [buffer.clone() for buffer in self.model_with_loss.buffers()]
        for _ in range(2):
            start = clock()
            loss, _ = self.accumulate(batches, 1, 1)
            loss.item()  # waits for a GPU
            seconds = clock() - start
            if seconds > MAX_SECONDS_FOR_CACHES and loss.device.type == "cpu":
                break
        for buffer, before in zip(self.model_with_loss.buffers(), buffers, strict=True):
            buffer.copy_(before)
        return seconds

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
