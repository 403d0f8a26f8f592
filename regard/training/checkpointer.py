"""Saving and resuming checkpoints: model, EMA, optimizer and training state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from regard.models import Model
from regard.runs import Run, checkpoint
from regard.training.distributed import DistributedContext, gather_full_tensor, take_local_shard
from regard.training.settings import TrainingSettings
from regard.training.train_state import TrainState, ValidationRecord
from regard.training.weight_averaging import ExponentialMovingAverage, average_checkpoints


class Checkpointer:
    """Saves and restores model, EMA weights, optimizer and training state; only rank 0 writes."""

    def __init__(
        self,
        run: Run,
        model: Model,
        ema: ExponentialMovingAverage,
        optimizer: torch.optim.Optimizer,
        settings: TrainingSettings,
        distributed: DistributedContext,
    ) -> None:
        self.run = run
        self.model = model
        self.ema = ema
        self.optimizer = optimizer
        self.settings = settings
        self.distributed = distributed

    def save(self, train_state: TrainState, extra_state: dict[str, Any]) -> None:
        """Write a checkpoint of the training state and of `extra_state`, all that the next update depends on."""
        optimizer_state = self.collect_optimizer_state()
        with self.ema.use_average():
            model = self.collect_weights()
            if self.distributed.is_rank0:
                state = {**train_state.to_json(), **extra_state, "processes": self.distributed.world_size}
                checkpoint.write_checkpoint(self.run.checkpoint_folder(train_state.step), model, optimizer_state, state)

    def collect_weights(self) -> dict[str, Tensor]:
        """Return the model's tensors; sharded ones are gathered."""
        return {
            name: gather_full_tensor(tensor) for name, tensor in checkpoint.collect_model_tensors(self.model).items()
        }

    def collect_optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors and, with EMA, the raw weights that the model file does not contain."""
        trained_weights = {
            f"weight.{index}": weight.detach().clone() for index, weight in self.ema.list_trained_weights()
        }
        tensors = checkpoint.collect_optimizer_tensors(self.optimizer) | trained_weights
        return {name: gather_full_tensor(tensor) for name, tensor in tensors.items()}

    def remove_old_checkpoints(self, train_state: TrainState) -> None:
        """Remove checkpoints that are neither among the newest nor the best, and remains of interrupted writes."""
        if not self.distributed.is_rank0:
            return
        best = {record.step for record in train_state.ranked}
        interim = [step for step in self.run.list_steps() if self.is_interim(step)]
        regular = [step for step in self.run.list_steps() if step not in interim]
        for step in (*regular[: -self.settings.keep], *(step for step in interim if step != train_state.step)):
            if step not in best:
                checkpoint.remove_checkpoint(self.run.checkpoint_folder(step))
        checkpoint.remove_partial_checkpoints(self.run.checkpoint_folder(0).parent)

    def is_interim(self, step: int) -> bool:
        """Return whether a checkpoint was written only because the run was stopped."""
        try:
            return bool(checkpoint.read_state(self.run.checkpoint_folder(step)).get("interim"))
        except checkpoint.CorruptCheckpointError:
            return False

    def resume(self, find_problem: Callable[[dict[str, Any]], str | None]) -> dict[str, Any]:
        """Load the newest intact checkpoint and return its state.

        `find_problem` describes what is wrong with a state, or returns None; checkpoints with a problem are skipped.
        """
        step, state = self.run.recover_newest_checkpoint(find_problem) if self.distributed.is_rank0 else (0, {})
        step = int(self.distributed.broadcast_from_rank0([step])[0])
        folder = self.run.checkpoint_folder(step)
        state = state or checkpoint.read_state(folder)
        self.load_model_state(checkpoint.read_tensors(folder, checkpoint.MODEL_FILE))
        self.ema.reset()
        try:
            self.load_optimizer_state(checkpoint.read_tensors(folder, checkpoint.OPTIMIZER_FILE))
        except (KeyError, RuntimeError, ValueError) as error:
            raise checkpoint.make_corrupt_error(
                folder, f"{checkpoint.OPTIMIZER_FILE} does not fit the run: {error}"
            ) from error
        return state

    @torch.no_grad()
    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the optimizer's tensors and, with EMA, the raw weights."""
        checkpoint.load_optimizer_tensors(tensors, self.optimizer, take_local_shard)
        for index, weight in self.ema.list_trained_weights():
            weight.copy_(take_local_shard(tensors[f"weight.{index}"], weight))

    @torch.no_grad()
    def load_model_state(self, tensors: dict[str, Tensor]) -> None:
        """Copy saved weights into the model."""
        expected = checkpoint.collect_model_tensors(self.model)
        checkpoint.check_tensors_match(self.run.folder, tensors, expected)
        for name, tensor in expected.items():
            tensor.copy_(take_local_shard(tensors[name], tensor))

    def save_average(self, steps: Sequence[int], validation: ValidationRecord) -> None:
        """Save the average of the checkpoints of the given steps, and its validation result."""
        state = {"steps": list(steps), "best": asdict(replace(validation, step=steps[-1]))}
        checkpoint.write_checkpoint(self.run.average_folder, self.average_steps(steps), {}, state)

    def average_steps(self, steps: Sequence[int]) -> dict[str, Tensor]:
        """Return the average weights of the checkpoints of the given steps."""
        return average_checkpoints([self.run.checkpoint_folder(step) for step in steps])

    def remove_average(self) -> None:
        """Remove the averaged checkpoint, which is outdated once newer checkpoints exist."""
        if self.distributed.is_rank0:
            shutil.rmtree(self.run.average_folder, ignore_errors=True)
