"""Training state, and saving and resuming checkpoints.

A checkpoint is a folder `checkpoints/step-N` of the run. It holds the complete state between two updates:

1. the weights of the model to use, with EMA the moving average (`model.safetensors`); tied weights occur once,
   sharded ones in full;
2. the optimizer's tensors, named by parameter index and key, such as `0.exp_avg` (`optimizer.safetensors`);
3. with EMA the raw weights, such as `weight.0` (`optimizer.safetensors`);
4. the `TrainState`: step, data position, best validations, counters (`state.json`);
5. the gradient scaler of fp16 (`state.json`);
6. conditions of resuming: fingerprint of the training data, number of processes, format version, checksums of the
   files, and `interim`, True if the checkpoint was written only because the run was stopped (`state.json`);
7. device, precision, implementation and PyTorch version that computed it (`state.json`, `arithmetic`): resuming with
   others is possible, and logged.

Data order, dropout and learning rate are pure functions of (seed, step, data position), so no random generator is
saved. On a CPU, a resumed run gives the same weights, bit by bit, as one that was never stopped.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.console import log_message
from regard.data.dataset import TrainingDataset
from regard.data.loader import SamplerPosition, TokenBatchSampler
from regard.errors import UserError
from regard.models.base import Model
from regard.recipes.recipe import TrainingSettings
from regard.runs import Run, checkpoint
from regard.training.distributed import DistributedContext, gather_full_tensor, take_local_shard
from regard.training.optimizer import ExponentialMovingAverage


@dataclass(frozen=True)
class ValidationRecord:
    """Result of a validation that is among the best so far."""

    step: int
    loss: float
    score: float  # higher is better
    measure: str  # metric of the score: bleu, accuracy, …

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> ValidationRecord:
        """Read a validation from `state.json`: null is NaN; the first release stored only BLEU."""
        if "bleu" in state:
            state = {"score": state["bleu"], "measure": "bleu"} | state
            del state["bleu"]
        numbers = [name for name in ("loss", "score") if name in state and state[name] is None]
        return cls(**state | dict.fromkeys(numbers, math.nan))

    def compare(self, other: ValidationRecord, by_loss: bool) -> int:
        """Return 1 if this validation is better than the other, 0 if they are equally good, -1 if it is worse.

        The score decides, unless `by_loss`; the loss decides if the scores are equal, or of different metrics: a run
        may have been started by a version that only had BLEU. NaN and inf are worse than any number.
        """
        by_score = not by_loss and self.measure == other.measure

        def make_sort_key(record: ValidationRecord) -> list[float]:
            numbers = [record.score, -record.loss] if by_score else [-record.loss]
            return [number if math.isfinite(number) else -math.inf for number in numbers]

        return (make_sort_key(self) > make_sort_key(other)) - (make_sort_key(self) < make_sort_key(other))


_JSON_NAMES = {  # names in state.json of the fields that have another name there
    "data_position": "place",
    "best_validations": "ranked",
    "validated_step": "validated",
    "micro_batches": "pieces",
}
_COUNTS = ("step", "bad_validations", "validated_step", "skipped", "skipped_in_row", "micro_batches")
_FRACTIONS = ("validation_seconds", "validated_progress")  # absent from older checkpoints


@dataclass
class TrainState:
    """Everything that changes from update to update, except weights and optimizer state."""

    step: int = 0  # updates so far
    data_position: SamplerPosition = field(default_factory=SamplerPosition)  # after the last update
    best_validations: list[ValidationRecord] = field(default_factory=list)  # best first
    bad_validations: int = 0  # since the best one
    validated_step: int = 0  # the step of the last validation
    skipped: int = 0  # updates skipped because of NaN or inf, in total
    skipped_in_row: int = 0
    micro_batches: int = 1  # per batch, so that it fits into memory
    seconds: float = 0.0  # of training so far, validations included
    validation_seconds: float = 0.0  # of the last validation, with its checkpoint
    validated_progress: float = 0.0  # fraction of training that had passed at the last validation

    @property
    def minutes(self) -> float:
        """Minutes of training so far, with another validation: what `training.minutes` limits."""
        return (self.seconds + self.validation_seconds) / 60

    @property
    def best_validation(self) -> ValidationRecord | None:
        """The best validation so far, or None."""
        return self.best_validations[0] if self.best_validations else None

    def add_validation(self, record: ValidationRecord, rank: int, keep_best: int) -> None:
        """Add a validation that is worse than `rank` of the best ones; keep the `keep_best` best."""
        self.best_validations.insert(rank, record)
        del self.best_validations[keep_best:]
        self.validated_step = self.step
        self.bad_validations = 0 if rank == 0 else self.bad_validations + 1

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types; `best` is for human readers."""
        values = {_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}
        best = asdict(self.best_validation) if self.best_validation else None
        return values | {"place": self.data_position._asdict(), "best": best}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> TrainState:
        """Read the state that `to_json` wrote, ignoring other keys; raise ValueError if it is invalid."""
        try:
            train_state = cls(
                data_position=SamplerPosition(**state["place"]),
                best_validations=[ValidationRecord.from_json(best) for best in state["ranked"]],
                **{name: state[_JSON_NAMES.get(name, name)] for name in (*_COUNTS, "seconds")},
                **{name: state.get(name, 0.0) for name in _FRACTIONS},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{' '.join(str(error).split())} is not as expected") from error
        best = train_state.best_validations
        counts = [getattr(train_state, name) for name in _COUNTS]
        for count in (*counts, *train_state.data_position, *(record.step for record in best)):
            if type(count) is not int or count < 0:
                raise ValueError(f"{count!r} is not a count of updates, batches or validations")
        numbers = [getattr(train_state, name) for name in ("seconds", *_FRACTIONS)]
        for number in (*numbers, *(number for record in best for number in (record.loss, record.score))):
            if type(number) not in (int, float):
                raise ValueError(f"{number!r} is not a number")
        return train_state


@dataclass(frozen=True)
class Checkpointer:
    """Saves and restores model, EMA weights, optimizer and training state; only rank 0 writes."""

    run: Run
    model: Model
    ema: ExponentialMovingAverage
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    dataset: TrainingDataset
    sampler: TokenBatchSampler
    settings: TrainingSettings
    distributed: DistributedContext
    arithmetic: Mapping[str, str]  # of `describe_arithmetic`

    def save(self, train_state: TrainState, interim: bool) -> None:
        """Write a checkpoint; an interim one, written because the run was stopped, is removed after the next one."""
        optimizer_state = self.collect_optimizer_state()  # 2. and 3. of the list above
        with self.ema.use_average():
            model = self.collect_weights()  # 1.
            if self.distributed.is_rank0:
                state = {
                    **train_state.to_json(),  # 4.
                    "epochs": self.sampler.compute_epochs(train_state.data_position),
                    "minutes": train_state.minutes,
                    "data": self.dataset.fingerprint,
                    "scaler": self.scaler.state_dict(),  # 5.
                    "interim": interim,  # 6., with "data" and "processes"
                    "processes": self.distributed.world_size,
                    "arithmetic": self.arithmetic,  # 7.
                }
                checkpoint.write_checkpoint(self.run.checkpoint_folder(train_state.step), model, optimizer_state, state)

    def collect_weights(self) -> dict[str, Tensor]:
        """Return the model's tensors; sharded ones are gathered."""
        return _gather_all(checkpoint.collect_model_tensors(self.model))

    def collect_optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors and, with EMA, the raw weights that the model file does not contain."""
        raw_weights = {f"weight.{index}": weight.detach().clone() for index, weight in enumerate(self.ema.weights)}
        return _gather_all(checkpoint.collect_optimizer_tensors(self.optimizer) | raw_weights)

    def remove_old_checkpoints(self, train_state: TrainState) -> None:
        """Remove checkpoints that are neither among the newest nor the best, and remains of interrupted writes."""
        if not self.distributed.is_rank0:
            return
        best = {record.step for record in train_state.best_validations}
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

    def resume(self) -> TrainState:
        """Load the newest intact checkpoint and return its training state; damaged checkpoints are skipped."""
        step, state = self.run.recover_newest_checkpoint(self._find_problem) if self.distributed.is_rank0 else (0, {})
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
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        recorded = state.get("arithmetic")  # absent from older checkpoints
        for name, before in recorded.items() if isinstance(recorded, dict) else ():
            if before != (now := self.arithmetic.get(name)):
                change = f"was trained with {name} {before}, now {now}"
                log_message(f"{self.run.folder} {change}: results differ in the last digits")
        return TrainState.from_json(state)

    def _find_problem(self, state: dict[str, Any]) -> str | None:
        """Describe why a damaged state cannot be resumed, or return None.

        Raise UserError if it belongs to another run.
        """
        if state["data"] != self.dataset.fingerprint:
            raise UserError(
                f"the training data differs from that of {self.run.folder}: restore its files, or "
                f"fine-tune it to the new ones: regard train DATA --init-from {self.run.folder} --out RUN"
            )
        if state["processes"] != self.distributed.world_size:
            raise UserError(
                f"{self.run.folder} was trained by {state['processes']} processes, not "
                f"{self.distributed.world_size}; resume it with the same number"
            )
        try:
            position = TrainState.from_json(state).data_position
        except ValueError as error:
            return f"has no valid training state: {error}"
        return None if self.sampler.has_position(position) else "has a data position that does not exist"

    @torch.no_grad()
    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the optimizer's tensors and, with EMA, the raw weights."""
        checkpoint.load_optimizer_tensors(tensors, self.optimizer, take_local_shard)
        for index, weight in enumerate(self.ema.weights):
            weight.copy_(take_local_shard(tensors[f"weight.{index}"], weight))

    @torch.no_grad()
    def load_model_state(self, tensors: dict[str, Tensor]) -> None:
        """Copy saved weights into the model."""
        expected = checkpoint.collect_model_tensors(self.model)
        checkpoint.check_tensors_match(self.run.folder, tensors, expected)
        for name, tensor in expected.items():
            tensor.copy_(take_local_shard(tensors[name], tensor))

    def save_average(self, steps: Sequence[int], weights: dict[str, Tensor], validation: ValidationRecord) -> None:
        """Save the average of the checkpoints of the given steps, and its validation result."""
        state = {"steps": list(steps), "best": asdict(replace(validation, step=steps[-1]))}
        checkpoint.write_checkpoint(self.run.average_folder, weights, {}, state)

    def average_steps(self, steps: Sequence[int]) -> dict[str, Tensor]:
        """Return the average weights of the checkpoints of the given steps, summed in double precision."""
        total: dict[str, Tensor] = {}
        for step in steps:
            weights = checkpoint.read_tensors(self.run.checkpoint_folder(step), checkpoint.MODEL_FILE)
            for name, tensor in weights.items():
                total[name] = total.get(name, 0) + tensor.double() if tensor.is_floating_point() else tensor
        return {
            name: (tensor / len(steps)).float() if tensor.is_floating_point() else tensor
            for name, tensor in total.items()
        }

    def remove_average(self) -> None:
        """Remove the averaged checkpoint, which is outdated once newer checkpoints exist."""
        if self.distributed.is_rank0:
            shutil.rmtree(self.run.average_folder, ignore_errors=True)


def _gather_all(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: gather_full_tensor(tensor) for name, tensor in tensors.items()}
