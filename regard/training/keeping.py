"""What a run keeps on the disk, and how it is taken up again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from regard.models import Model
from regard.runs import Run, checkpoint
from regard.training.averages import RunningMean, averaged
from regard.training.position import Best, Position
from regard.training.processes import Processes
from regard.training.settings import TrainingSettings
from regard.training.sharding import part, whole


class Keeper:
    """Saves and restores the model, its running mean and the optimizer. Of several processes the first writes."""

    def __init__(
        self,
        run: Run,
        model: Model,
        mean: RunningMean,
        optimizer: torch.optim.Optimizer,
        settings: TrainingSettings,
        processes: Processes,
    ) -> None:
        self.run = run
        self.model = model
        self.mean = mean
        self.optimizer = optimizer
        self.settings = settings
        self.processes = processes

    def save(self, position: Position, more: dict[str, Any]) -> None:
        """Writes a checkpoint of a position, and what else the next update depends on."""
        gathered = self.gathered()
        with self.mean.used():
            model = self.weights()
            if self.processes.first:
                state = {**position.document(), **more, "processes": self.processes.count}
                checkpoint.write(self.run.checkpoint_folder(position.step), model, gathered, state)

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors as they are now, whole."""
        return {name: whole(tensor) for name, tensor in checkpoint.unique_tensors(self.model).items()}

    def gathered(self) -> dict[str, Tensor]:
        """What goes beside the model's weights: the optimizer's tensors; with a running mean, the weights behind it."""
        behind = {f"weight.{number}": weight.detach().clone() for number, weight in self.mean.behind()}
        tensors = checkpoint.optimizer_tensors(self.optimizer) | behind
        return {name: whole(tensor) for name, tensor in tensors.items()}

    def prune(self, position: Position) -> None:
        """Removes checkpoints that are neither new nor among the best, and what is left of a write that was killed."""
        if not self.processes.first:
            return
        best = {found.step for found in position.ranked}
        interim = [step for step in self.run.steps() if self.is_interim(step)]
        regular = [step for step in self.run.steps() if step not in interim]
        for step in (*regular[: -self.settings.keep], *(step for step in interim if step != position.step)):
            if step not in best:
                checkpoint.remove(self.run.checkpoint_folder(step))
        checkpoint.sweep(self.run.checkpoint_folder(0).parent)

    def is_interim(self, step: int) -> bool:
        """Whether a checkpoint is there only because the run was stopped."""
        try:
            return bool(checkpoint.read_state(self.run.checkpoint_folder(step)).get("interim"))
        except checkpoint.DamageError:
            return False

    def resume(self, wrong: Callable[[dict[str, Any]], str | None]) -> dict[str, Any]:
        """Takes up a run where its newest whole checkpoint left it; the state of that, in which nothing is wrong."""
        step, state = self.run.recover(wrong) if self.processes.first else (0, {})
        step = int(self.processes.of_first([step])[0])
        folder = self.run.checkpoint_folder(step)
        state = state or checkpoint.read_state(folder)
        self.restore(checkpoint.read_tensors(folder, checkpoint.MODEL))
        self.mean.begin()
        try:
            self.restore_optimizer(checkpoint.read_tensors(folder, checkpoint.OPTIMIZER))
        except (KeyError, RuntimeError, ValueError) as error:
            raise checkpoint.damaged(folder, f"{checkpoint.OPTIMIZER} does not fit the run: {error}") from error
        return state

    @torch.no_grad()
    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """The optimizer, and with a running mean the weights behind it."""
        checkpoint.read_optimizer(tensors, self.optimizer, part)
        for number, weight in self.mean.behind():
            weight.copy_(part(tensors[f"weight.{number}"], weight))

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Gives the model weights that were saved."""
        own = checkpoint.unique_tensors(self.model)
        checkpoint.check_fit(self.run.folder, tensors, own)
        for name, tensor in own.items():
            tensor.copy_(part(tensors[name], tensor))

    def average(self, steps: Sequence[int], found: Best) -> None:
        """Keeps the mean of the checkpoints of some steps, with what it was found to be worth."""
        state = {"steps": list(steps), "best": asdict(replace(found, step=steps[-1]))}
        checkpoint.write(self.run.average_folder, self.averaged(steps), {}, state)

    def averaged(self, steps: Sequence[int]) -> dict[str, Tensor]:
        """The mean of the weights of some steps."""
        return averaged([self.run.checkpoint_folder(step) for step in steps])

    def forget_average(self) -> None:
        """A mean that is no longer that of the newest."""
        if self.processes.first:
            shutil.rmtree(self.run.average_folder, ignore_errors=True)
