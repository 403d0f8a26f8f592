"""The training loop. A checkpoint holds all that it holds between two updates: on a CPU a run that goes on is the same.

Data order, noise and learning rate are pure functions of (seed, step, place): there is no generator to save.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.console import is_terminal, log_message, make_progress_bar
from regard.data.loader import (
    STOP_SIGNALS,
    LoadedBatches,
    TrainingDataset,
    UpdateBatches,
    iterate_batch_requests,
    report_worker_errors,
    start_batch_loader,
)
from regard.data.sampler import TokenBatchSampler
from regard.data.settings import BaseDataSettings
from regard.errors import UserError
from regard.fast import rest
from regard.models import Model
from regard.runs import Run, checkpoint
from regard.runs.summary import is_finished
from regard.tasks import OnBestCallback, ValidateFunction, Validation
from regard.training.checkpointer import Checkpointer
from regard.training.distributed import SINGLE_PROCESS, DistributedContext, ModelWithLoss, apply_fsdp, wrap_ddp
from regard.training.gradient_accumulation import GradientAccumulator
from regard.training.lr_schedule import compute_learning_rate
from regard.training.metrics import EtaEstimator, MetricsWriter
from regard.training.optimizer import build_optimizer
from regard.training.precision import measure_peak_memory_mb, preserve_generators
from regard.training.settings import TrainingSettings
from regard.training.signals import Interrupted, StopSignals
from regard.training.train_state import TrainState, ValidationRecord
from regard.training.weight_averaging import ExponentialMovingAverage

_METRIC_LABELS = {  # as they are written
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "F1",
    "macro_f1": "macro-F1",
    "exact": "exact matches",
    "on_object": "on objects",
    "r2": "R²",
    "rmse": "RMSE",
}


@dataclass
class _Throughput:
    """Tokens trained on since the last line."""

    tokens: float = 0.0
    started_at: float = 0.0

    def reset(self) -> None:
        """From now on."""
        self.tokens, self.started_at = 0.0, time.monotonic()

    def compute_tokens_per_second(self) -> float:
        """So far."""
        return self.tokens / max(1e-9, time.monotonic() - self.started_at)


class Trainer:
    """Trains one model on one source of batches into one run."""

    def __init__(
        self,
        model: Model,
        dataset: TrainingDataset[Any],
        validate: ValidateFunction,
        settings: TrainingSettings,
        run: Run,
        device: torch.device,
        data_settings: BaseDataSettings | None = None,
        distributed: DistributedContext = SINGLE_PROCESS,
        on_best: OnBestCallback | None = None,
    ) -> None:
        sharded = settings.shard and distributed.world_size > 1
        self.validation_model = copy.deepcopy(model) if sharded else model  # which can be validated
        self.model = (model if sharded else model.to(device)).train()
        self.model_with_loss = ModelWithLoss(self.model)
        if sharded:
            apply_fsdp(self.model_with_loss, distributed, device)
        self.dataset = dataset
        self.validate = validate
        self.on_best = on_best
        self.settings = settings
        self.data_settings = data_settings or BaseDataSettings()
        self.run = run
        self.device = device
        self.distributed = distributed
        self.optimizer = build_optimizer(model, settings)
        self.ema = ExponentialMovingAverage(model, settings.ema)
        self.checkpointer = Checkpointer(run, model, self.ema, self.optimizer, settings, distributed)
        self.train_state = TrainState()
        self.sampler = TokenBatchSampler(
            dataset.sizes, settings.batch_tokens, settings.pool, settings.seed, dataset.parts, settings.curriculum
        )
        self.stop_signals = StopSignals()
        self.throughput = _Throughput()
        self.eta = EtaEstimator()
        self.accumulator = GradientAccumulator(
            self.model_with_loss,
            settings,
            device,
            distributed,
            None if sharded else wrap_ddp(self.model_with_loss, distributed, device),
        )
        self.metrics = MetricsWriter(run, settings.tensorboard, distributed.is_rank0)
        self.start_time = 0.0
        self.last_saved_step = -1  # the step of the newest checkpoint
        self.is_checkpoint_stale = False  # whether more is known of that step than its checkpoint says

    def fit(self) -> TrainState:
        """Trains to the end; the last checkpoint and the best ones are then on disk."""
        with (
            preserve_generators(self.device),
            self.stop_signals.install_handlers(),
            report_worker_errors(),
            closing(self.load_update_batches()) as batches,  # forks workers, so it comes before what starts threads
            closing(self.metrics),
            make_progress_bar() as progress,
        ):
            self.metrics.open_after(self.train_state.step)
            self.start_time = time.monotonic() - self.train_state.seconds
            self.throughput.reset()
            self.eta.start(self.train_state.step)
            if self.has_finished():
                log_message(f"{self.run.folder} has finished already, at step {self.train_state.step}")
            else:
                self._warn_about_limits()
                if self.settings.init_from and not self.train_state.step and self.train_state.best_validation is None:
                    self.validate_and_record()  # what it starts from may be the best there is
                    self.save()
                if self._is_validation_due():  # the run was stopped during this validation
                    self.validate_and_record()
                    self.save()
                self.checkpointer.remove_average()  # of checkpoints that will not be the newest for long
            if self.train_state.step and self.train_state.best_validation is not None:
                self._rerun_on_best()
            task = progress.add_task(
                "training", total=self.estimate_last_step(), completed=self.train_state.step, note=""
            )
            while not self.has_finished():
                figures, stop = self.train_step(self.read_batches(batches))
                short = f"loss {figures['loss']:.2f}, {figures['tokens_per_second'] / 1000:.1f}k tokens/s"
                progress.update(task, completed=self.train_state.step, note=short)
                self.log_validate_and_save(figures)
                if stop:
                    self.save(interim=True)
                    raise Interrupted(self.train_state.step, stop)
            if self.train_state.validated != self.train_state.step:
                self.validate_and_record()
            self.save()
            self.try_checkpoint_average()
        return self.train_state

    def load_update_batches(self) -> LoadedBatches:
        """Return the batches of this process, update after update; a finished run needs none and starts no workers."""
        wanted = iterate_batch_requests(
            self.sampler,
            self.train_state.place,
            self.settings.accumulate,
            self.distributed.rank,
            self.distributed.world_size,
        )
        workers = 0 if self.has_finished() else self.data_settings.workers
        return start_batch_loader(self.dataset, wanted, workers, self.data_settings.timeout, self.device.type == "cuda")

    def read_batches(self, batches: LoadedBatches) -> UpdateBatches:
        """Return the batches of the next update; if that fails, save what was trained since the last checkpoint."""
        try:
            return next(batches)
        except Exception:
            if self.distributed.world_size == 1 and self.train_state.step > max(self.last_saved_step, 0):
                self.save(interim=True)
            raise

    def log_validate_and_save(self, step_metrics: dict[str, float]) -> None:
        """What is due after an update: a line, a validation, a checkpoint."""
        step, settings = self.train_state.step, self.settings
        if step % settings.log_every == 0:
            self.metrics.write("train", step, **step_metrics)
            self.throughput.reset()
        if not is_terminal() and (step % settings.log_every == 0 or self.eta.is_log_due()):
            last = self.estimate_last_step()
            log_message(
                f"step {step}/{last or '?'}  {_format_progress(step_metrics)}{self.eta.format_remaining_time(step, last)}"
            )
        if self.train_state.skipped_in_row:  # what is about to fail is not kept in place of what was whole
            return
        if self._is_validation_due() or self.has_finished():
            self.save(prune=False)  # validation may take longer than the time between SIGTERM and SIGKILL
            self.validate_and_record()
        if (
            step // settings.checkpoint_every > max(self.last_saved_step, 0) // settings.checkpoint_every
            or self.is_checkpoint_stale
        ):
            self.save()

    def _is_validation_due(self) -> bool:
        every, state = self.settings.validate_every, self.train_state
        return state.step // every > state.validated // every

    def _warn_about_limits(self) -> None:
        """Says so where epochs end before the updates that were asked for, or these before the warm-up."""
        settings, last = self.settings, self.estimate_last_step()
        if not self.distributed.is_rank0 or last is None:
            return
        if settings.steps is not None and last < settings.steps:
            first = f"training.epochs={settings.epochs:g} ends before training.steps={settings.steps}"
            log_message(f"about {last:,} updates: {first}")
        if last < settings.warmup:
            log_message(
                f"training.warmup={settings.warmup} is longer than {last:,} updates: the learning rate stays low"
            )

    def estimate_last_step(self) -> int | None:
        """The number of updates in all; of epochs it is an estimate."""
        settings = self.settings
        per_epoch = self.sampler.batches_per_epoch / settings.accumulate / self.distributed.world_size
        by_epochs = None if settings.epochs is None else math.ceil(settings.epochs * per_epoch)
        limits = [limit for limit in (settings.steps, by_epochs) if limit is not None]
        return min(limits) if limits else None

    def has_finished(self) -> bool:
        """Whether a limit is reached or patience is over."""
        position = self.train_state
        epochs = None if self.settings.epochs is None else self.sampler.compute_epochs(position.place)
        state = {"step": position.step, "epochs": epochs, "bad_validations": position.bad_validations}
        return is_finished(vars(self.settings), state)

    def train_step(self, update_batches: UpdateBatches) -> tuple[dict[str, float], int]:
        """One update of the weights: what it cost and found, and the signal to stop that came meanwhile, or 0.

        An update that is no number is left out, and counted. Of different signals to several processes, all return the
        one with the highest number.
        """
        position, step = self.train_state, self.train_state.step + 1
        epoch = self.sampler.compute_epochs(position.place)
        rate = compute_learning_rate(self.settings, step, epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        added = self.accumulator.accumulate(update_batches.batches, step, position.pieces)
        norm = self.accumulator.clip_norm(self.optimizer)
        numbers = torch.stack([added.loss, norm.to(added.loss.dtype)]).tolist()
        arrived = [float(self.stop_signals.received_signal == each) for each in STOP_SIGNALS]
        targets, read = (
            sum(getattr(batch, name) for batch in update_batches.batches) for name in ("num_targets", "num_tokens")
        )
        summed, trained, seen, *stopped = self.distributed.all_reduce_sum([numbers[0], targets, read, *arrived])
        loss = summed / max(1.0, trained)  # whatever it is divided by to be minimised: so it is beside the dev loss
        finite = math.isfinite(loss) and math.isfinite(numbers[1])
        if finite:
            self.accumulator.step(self.optimizer)
            self.ema.update(step)
        self.accumulator.scaler.update()
        position.step, position.place, position.pieces = step, update_batches.position, added.micro_batches
        self._count_skipped_update(finite, loss, numbers[1])
        self.throughput.tokens += seen
        figures = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": numbers[1],
            "tokens_per_second": round(self.throughput.compute_tokens_per_second(), 1),
            "epoch": epoch,
            "memory_mb": round(measure_peak_memory_mb(self.device), 1),
            "skipped": position.skipped,
        }
        stop = max((int(each) for each, count in zip(STOP_SIGNALS, stopped, strict=True) if count), default=0)
        return figures, stop

    def _count_skipped_update(self, is_finite: bool, loss: float, norm: float) -> None:
        """Keeps count of updates that were left out; too many in a row, and the run is not to be saved by itself."""
        position = self.train_state
        position.skipped_in_row = 0 if is_finite else position.skipped_in_row + 1
        position.skipped += not is_finite
        if position.skipped_in_row >= self.settings.bad_updates:
            raise self._make_divergence_error(
                f"the loss is {loss} and the gradient's norm {norm}, and {position.skipped_in_row} updates in a row "
                f"were no better"
            )

    def _make_divergence_error(self, problem: str) -> UserError:
        """What is said of a run that has learnt its way out of all numbers."""
        steps = self.run.list_steps()
        kept = f"checkpoint step-{steps[-1]} is kept" if steps else "there is no checkpoint yet"
        return UserError(
            f"at step {self.train_state.step} {problem}; {kept}. Try a lower training.learning_rate (now "
            f"{self.settings.learning_rate}), a longer training.warmup or a smaller training.clip"
        )

    def validate_and_record(self) -> None:
        """Validates, keeps count of the best, and writes samples."""
        position = self.train_state
        with self.ema.use_average():
            found, new, rank = self.run_validation(
                self.checkpointer.collect_weights() if self.validation_model is not self.model else None
            )
        better = rank == 0
        position.ranked.insert(rank, new)
        del position.ranked[self.settings.keep_best :]
        position.validated = position.step
        position.bad_validations = 0 if better else position.bad_validations + 1
        self.is_checkpoint_stale = True
        if found is not None:
            self.metrics.write("dev", position.step, loss=new.loss, **found.metrics, measure=found.selection_metric)
            self.metrics.write_samples(found.samples, position.step)
            by = " by chrF" if new.measure == "chrf" and self.settings.best != "loss" else ""
            best = f" (best{by})" if better else ""
            log_message(f"step {position.step}: dev loss {new.loss:.3f}, {_format_metrics(found.metrics)}{best}")
        self.throughput.reset()

    def run_validation(
        self, weights: dict[str, Tensor] | None = None, ties_are_better: bool = False
    ) -> tuple[Validation | None, ValidationRecord, int]:
        """Validate the model, or the model with other weights, in the first process, and tell the others.

        Returns what was measured (None in the other processes), the part that is kept, and how many of the best
        validations so far are better: 0 makes this the best. Equally good ones count as better, unless `or_equal`.
        """
        found, new, rank = None, ValidationRecord(self.train_state.step, 0.0, 0.0, ""), 0
        if self.distributed.is_rank0:
            with self._use_validation_weights(weights):
                try:
                    found = self.validate(self.validation_model.to(self.device), self.device)
                except ArithmeticError as error:  # of weights so large that the search finds no number
                    if weights is None and self.last_saved_step == self.train_state.step:
                        checkpoint.remove_checkpoint(self.run.checkpoint_folder(self.train_state.step))
                    raise self._make_divergence_error(f"there is nothing to validate: {error}") from error
                new = ValidationRecord(self.train_state.step, found.loss, found.score, found.selection_metric)
                gains = [self._compare_validations(new, old) for old in self.train_state.ranked]
                rank = sum(not (gain > 0 or (ties_are_better and gain == 0)) for gain in gains)
                if rank == 0 and self.on_best is not None:
                    self.on_best(self.validation_model, self.device)
        loss, score, better = self.distributed.broadcast_from_rank0([new.loss, new.score, rank])
        return found, replace(new, loss=loss, score=score), int(better)

    @contextmanager
    def _use_validation_weights(self, weights: dict[str, Tensor] | None) -> Iterator[None]:
        """Give the model that is validated other weights, all of them, and restore its own on exit; None: its own."""
        own, training = checkpoint.collect_model_tensors(self.validation_model), self.validation_model.training
        kept = None if weights is None else {name: tensor.clone() for name, tensor in own.items()}
        try:
            if weights is not None:
                checkpoint.check_tensors_match(self.run.folder, weights, own)
                self.validation_model.load_state_dict(weights, strict=False)  # tied weights have one of their names
            yield
        finally:
            rest(self.validation_model)
            if kept is not None:
                self.validation_model.load_state_dict(kept, strict=False)
            self.validation_model.train(training)
            if self.validation_model is not self.model:
                self.validation_model.cpu()  # until the next time its place is for training

    def _compare_validations(self, new: ValidationRecord, old: ValidationRecord) -> float:
        """Return 1 if `new` is the better validation, 0 if both are equally good, -1 if it is the worse one.

        The score decides, and the loss if the scores are equal, as at the very beginning, or not of the same metric: a
        run may have been started by a version that knew BLEU alone. NaN and inf are worse than any number.
        """
        by_score = self.settings.best != "loss" and new.measure == old.measure

        def make_sort_key(one: ValidationRecord) -> list[float]:
            numbers = [one.score, -one.loss] if by_score else [-one.loss]
            return [number if math.isfinite(number) else -math.inf for number in numbers]

        return float((make_sort_key(new) > make_sort_key(old)) - (make_sort_key(new) < make_sort_key(old)))

    def save(self, interim: bool = False, prune: bool = True) -> None:
        """Writes a checkpoint, if this step has none yet, and removes what is not to be kept.

        One that is there only because somebody stopped the run is gone when the next is written.
        """
        position = self.train_state
        if self.is_checkpoint_stale or self.last_saved_step != position.step:
            self.is_checkpoint_stale, self.last_saved_step = False, position.step
            position.seconds = time.monotonic() - self.start_time
            more = {
                "epochs": self.sampler.compute_epochs(position.place),  # for readers
                "data": self.dataset.fingerprint,
                "scaler": self.accumulator.scaler.state_dict(),
                "interim": interim,
            }
            self.checkpointer.save(position, more)
        if prune:
            self.checkpointer.remove_old_checkpoints(position)

    def resume(self) -> None:
        """Takes up a run where its newest whole checkpoint left it."""
        state = self.checkpointer.resume(self._find_state_problem)
        self.train_state = TrainState.from_json(state)
        if state["scaler"]:
            self.accumulator.scaler.load_state_dict(state["scaler"])
        self.last_saved_step = self.train_state.step

    def _find_state_problem(self, state: dict[str, Any]) -> str | None:
        """What keeps this run from going on from a state, if it is damaged; what belongs to another run is an error."""
        if state["data"] != self.dataset.fingerprint:
            raise UserError(
                f"the training data is not what {self.run.folder} was trained on so far; it can go on with that only"
            )
        if state["processes"] != self.distributed.world_size:
            raise UserError(
                f"{self.run.folder} was trained by {state['processes']} processes, not {self.distributed.world_size}: others "
                f"would add up in another order, and it would not be the same run"
            )
        try:
            position = TrainState.from_json(state).place
        except ValueError as error:
            return f"does not say how far training is: {error}"
        return None if self.sampler.has_position(position) else "names a place in the data that is not there"

    def _rerun_on_best(self) -> None:
        """Call `on_best` for the best checkpoint of a resumed run: its result is missing, or of a deleted average."""
        if self.on_best is not None and self.distributed.is_rank0:
            with self._use_validation_weights(
                self.run.load_weights(self.validation_model, self.run.list_checkpoints_best_first())
            ):
                self.on_best(self.validation_model.to(self.device), self.device)
        self.distributed.barrier()

    def try_checkpoint_average(self) -> None:
        """The mean of the newest checkpoints, where one is wanted; it is the model if it is no worse than the best."""
        self.distributed.barrier()  # for the last checkpoint to be written
        steps = self.run.list_steps()[-self.settings.average :]
        self.checkpointer.remove_average()
        if self.settings.average < 2 or len(steps) < 2:
            return
        weights = self.checkpointer.average_steps(steps) if self.distributed.is_rank0 else None
        _, found, rank = self.run_validation(weights, ties_are_better=True)
        better = rank == 0
        log_message(
            f"the mean of steps {', '.join(map(str, steps))}: dev loss {found.loss:.3f}, "
            f"{_format_metrics({found.measure: found.score})}, "
            f"{'which is the model from now on' if better else 'which is no better than the best'}"
        )
        if better and self.distributed.is_rank0:
            self.checkpointer.save_average(steps, found)


def _format_metrics(metrics: Mapping[str, float]) -> str:
    """What was measured, in words; a share of one has more digits than per cents."""
    each = ((_METRIC_LABELS.get(name, name), value, 2 if abs(value) >= 1 else 4) for name, value in metrics.items())
    return ", ".join(f"{name} {value:.{digits}f}" for name, value, digits in each)


def _format_progress(step_metrics: dict[str, float]) -> str:
    """An update in a few words."""
    return (
        f"loss {step_metrics['loss']:.3f}  lr {step_metrics['learning_rate']:.2e}  norm {step_metrics['gradient_norm']:.2f}  "
        f"{step_metrics['tokens_per_second']:,.0f} tokens/s  {step_metrics['memory_mb']:,.0f} MB  epoch {step_metrics['epoch']:.2f}"
    )
