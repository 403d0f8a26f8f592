"""Training loop, in `Trainer.fit`: updates, logging, validation, checkpoints, stop signals."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from regard.console import draw_live, is_terminal, log_detail, log_message
from regard.data.dataset import TrainingDataset
from regard.data.loader import (
    STOP_SIGNALS,
    BatchLoader,
    TokenBatchSampler,
    UpdateBatches,
    iterate_batch_requests,
    report_worker_errors,
)
from regard.data.split import BaseDataSettings
from regard.errors import UserError
from regard.fast import release_decoding_memory
from regard.models.base import Model
from regard.recipes.recipe import TrainingSettings
from regard.runs import Run, checkpoint
from regard.runs.run import is_finished
from regard.tasks.base import OnBestCallback, ValidateFunction, Validation
from regard.training.checkpointer import Checkpointer, TrainState, ValidationRecord
from regard.training.distributed import (
    SINGLE_PROCESS,
    DistributedContext,
    Interrupted,
    ModelWithLoss,
    StopSignals,
    apply_fsdp,
    describe_arithmetic,
    measure_peak_memory_mb,
    preserve_generators,
)
from regard.training.live_view import LiveView
from regard.training.metrics import (
    EtaEstimator,
    MetricsWriter,
    Throughput,
    TrainingCost,
    compute_validation_interval,
    format_duration,
    format_estimate,
    format_metrics,
    format_time_left,
    format_update_metrics,
    warn_about_limits,
)
from regard.training.optimizer import (
    ExponentialMovingAverage,
    GradientAccumulator,
    build_optimizer,
    compute_learning_rate,
    compute_progress,
)

ZERO_BLEU_STEP = 1000  # the first validation from this step on reports a BLEU of 0
MIN_ESTIMATED_STEPS = 200  # shorter trainings begin without an estimate


@dataclass(eq=False, repr=False)
class Trainer:
    """Trains one model on one dataset into one run."""

    model: Model
    dataset: TrainingDataset
    validate: ValidateFunction
    settings: TrainingSettings
    run: Run
    device: torch.device
    data_settings: BaseDataSettings = field(default_factory=BaseDataSettings)
    distributed: DistributedContext = SINGLE_PROCESS
    on_best: OnBestCallback | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        model, dataset, settings, run = self.model, self.dataset, self.settings, self.run
        device, distributed = self.device, self.distributed
        sharded = settings.shard and distributed.world_size > 1
        self.validation_model = copy.deepcopy(model) if sharded else model  # unsharded copy
        self.model = (model if sharded else model.to(device)).train()
        model_with_loss = ModelWithLoss(self.model)
        if sharded:
            apply_fsdp(model_with_loss, distributed, device)
        self.optimizer = build_optimizer(model, settings)
        self.schedule: Callable[[int, float, float], float] = partial(compute_learning_rate, settings)
        self.ema = ExponentialMovingAverage(model, settings.ema)
        self.train_state = TrainState()
        self.sampler = TokenBatchSampler(
            dataset.sizes, settings.batch_tokens, settings.pool, settings.seed, dataset.parts, settings.curriculum
        )
        self.stop_signals = StopSignals()
        self.throughput = Throughput()
        self.eta = EtaEstimator(self.clock)
        self.view = LiveView(settings.best == "loss") if is_terminal() else None
        self.accumulator = GradientAccumulator(model_with_loss, settings, device, distributed)
        scaler, arithmetic = self.accumulator.scaler, describe_arithmetic(settings, device)
        self.checkpointer = Checkpointer(
            run, model, self.ema, self.optimizer, scaler, dataset, self.sampler, settings, distributed, arithmetic
        )
        self.metrics = MetricsWriter(run, settings.tensorboard, distributed.is_rank0, self.view)
        self.start_time = 0.0
        self.last_saved_step = -1  # the step of the newest checkpoint
        self.is_checkpoint_stale = False  # True if a validation came after that checkpoint was written

    def resume(self) -> None:
        """Resume from the newest intact checkpoint."""
        self.train_state = self.checkpointer.resume()
        self.last_saved_step = self.train_state.step

    def fit(self) -> TrainState:
        """Train until a limit is reached; the last checkpoint and the best ones are then on disk."""
        with (
            preserve_generators(self.device),
            self.stop_signals.install_handlers(),
            report_worker_errors(),
            closing(self.load_update_batches()) as batches,  # forks workers, so it must come before threads start
            closing(self.metrics),
            draw_live(self.view),
        ):
            self._start()
            while not self.has_finished():
                # 1. Update the weights.
                step_metrics, stop_signal = self.train_step(self.read_batches(batches))
                # 2. Show or log progress, validate and save, as far as they are due.
                self.log_validate_and_save(step_metrics)
                # 3. Stop on a signal.
                if stop_signal:
                    self.save(interim=True)
                    self._show_end("stopped")
                    raise Interrupted(self.train_state.step, stop_signal)
            # 4. Last validation and checkpoint, and the average of checkpoints.
            if self.train_state.validated_step != self.train_state.step:
                self.validate_and_record()
            self.save()
            self.try_checkpoint_average()
            self._show_end(f"finished after {format_duration(self.train_state.seconds)}")
        return self.train_state

    def _start(self) -> None:
        """Open the metrics, and repeat what an interruption has prevented: a validation, or `on_best`."""
        state = self.train_state
        self.metrics.open_after(state.step, state.validated_step)
        self.start_time = self.clock() - state.seconds
        self.throughput.reset()
        self.eta.start(state.step)
        if self.has_finished():
            log_message(f"{self.run.folder} has already finished, at step {state.step}; --init-from trains it further")
        else:
            warn_about_limits(self.settings, self.estimate_last_step())
            if state.step:
                log_message(f"resumed at step {state.step}{format_time_left(self.settings.minutes, state.seconds)}")
            else:
                self._log_estimate()
            is_initialized = bool(self.settings.init_from) and not state.step and state.best_validation is None
            if is_initialized or self._is_validation_due():  # the initial model may stay the best one
                self.validate_and_record()
                self.save()
            self.checkpointer.remove_average()  # outdated by the checkpoints to come
        if state.step and state.best_validation is not None:
            self._rerun_on_best()

    def load_update_batches(self) -> BatchLoader:
        """Return the batches of this rank, update by update; a finished run starts no workers."""
        position, distributed, data = self.train_state.data_position, self.distributed, self.data_settings
        requests = iterate_batch_requests(
            self.sampler, position, self.settings.accumulate, distributed.rank, distributed.world_size
        )
        workers = 0 if self.has_finished() else data.workers
        return BatchLoader(self.dataset, requests, workers, data.timeout, self.device.type == "cuda")

    def read_batches(self, batches: BatchLoader) -> UpdateBatches:
        """Return the batches of the next update; if that fails, save a checkpoint of the progress so far."""
        try:
            return next(batches)
        except Exception:
            if self.distributed.world_size == 1 and self.train_state.step > max(self.last_saved_step, 0):
                self.save(interim=True)
            raise

    def train_step(self, update_batches: UpdateBatches) -> tuple[dict[str, float], int]:
        """Run one update; return its metrics, and the number of the signal that asks to stop, or 0.

        An update with NaN or inf in loss or gradients is skipped and counted. If ranks received different signals, all
        return the highest number.
        """
        state, batches, step = self.train_state, update_batches.batches, self.train_state.step + 1
        # 1. Learning rate, a function of step and epoch.
        epoch = self.sampler.compute_epochs(state.data_position)
        rate = self.schedule(step, epoch, self.compute_progress(step))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # 2. Forward and backward passes of all micro-batches; gradients are summed over batches and ranks.
        loss_tensor, num_micro_batches = self.accumulator.accumulate(batches, step, state.micro_batches)
        # 3. Clip the gradient norm.
        norm_tensor = self.accumulator.clip_norm(self.optimizer)
        local_loss, norm = torch.stack([loss_tensor, norm_tensor.to(loss_tensor.dtype)]).tolist()  # the only host sync
        # 4. Sum losses, tokens and received signals over ranks, with the time of rank 0. Losses are per token.
        signal_flags = [float(self.stop_signals.received_signal == number) for number in STOP_SIGNALS]
        counts = [sum(batch.num_targets for batch in batches), sum(batch.num_tokens for batch in batches)]
        summed_loss, targets, tokens, state.seconds, *signal_counts = self.distributed.all_reduce_sum(
            [local_loss, *counts, self._measure_seconds(), *signal_flags]
        )
        loss = summed_loss / max(1.0, targets)
        # 5. Update the weights and their moving average, unless there is NaN or inf.
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            self.accumulator.step(self.optimizer)
            self.ema.update(step)
        self.accumulator.scaler.update()
        # 6. Advance the state, which a checkpoint saves.
        state.step, state.data_position, state.micro_batches = step, update_batches.position, num_micro_batches
        self._track_skipped_updates(is_finite, loss, norm)
        # 7. Metrics.
        self.throughput.tokens += tokens
        step_metrics = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens_per_second": round(self.throughput.compute_tokens_per_second(), 1),
            "epoch": epoch,
            "seconds": round(state.seconds, 3),
            "memory_mb": round(measure_peak_memory_mb(self.device), 1),
            "skipped": state.skipped,
        }
        received = [int(number) for number, count in zip(STOP_SIGNALS, signal_counts, strict=True) if count]
        return step_metrics, max(received, default=0)

    def _track_skipped_updates(self, is_finite: bool, loss: float, norm: float) -> None:
        """Count skipped updates; raise UserError after `training.bad_updates` in a row."""
        train_state = self.train_state
        train_state.skipped_in_row = 0 if is_finite else train_state.skipped_in_row + 1
        train_state.skipped += not is_finite
        if train_state.skipped_in_row >= self.settings.bad_updates:
            raise self._make_divergence_error(
                f"the loss is {loss} and the gradient norm {norm}; {train_state.skipped_in_row} updates in a row had "
                f"NaN or inf"
            )

    def _make_divergence_error(self, problem: str) -> UserError:
        """Build the error for a diverged run (NaN or inf in loss or gradients)."""
        steps = self.run.list_steps()
        kept = f"checkpoint step-{steps[-1]} is kept" if steps else "there is no checkpoint yet"
        return UserError(
            f"at step {self.train_state.step} {problem}; {kept}. Try a lower training.learning_rate (now "
            f"{self.settings.learning_rate}), a longer training.warmup or a smaller training.clip"
        )

    def log_validate_and_save(self, step_metrics: dict[str, float]) -> None:
        """Write a log line, validate and save a checkpoint after an update, as far as they are due."""
        step, settings = self.train_state.step, self.settings
        is_log_step = step % settings.log_every == 0
        if is_log_step:
            self.metrics.write("train", step, **step_metrics)
            self.throughput.reset()
        if self.view or is_log_step or self.eta.is_log_due():
            self._show_progress(step_metrics)
        if self.train_state.skipped_in_row:  # the run may be diverging: do not replace good checkpoints
            return
        if self._is_validation_due() or self.has_finished():
            self.save(prune=False)  # validation may take longer than the time between SIGTERM and SIGKILL
            self.validate_and_record()
        every = settings.checkpoint_every
        if self.is_checkpoint_stale or step // every > max(self.last_saved_step, 0) // every:
            self.save()

    def _show_progress(self, step_metrics: dict[str, float]) -> None:
        """Show an update in the live view of a terminal, or else as a log line."""
        step, last, minutes = self.train_state.step, self.estimate_last_step(), self.settings.minutes
        remaining = self.eta.format_remaining_time(step, last, self.settings.patience is not None)
        if minutes is not None:
            remaining = f"{format_duration(60 * minutes - self.train_state.seconds)} left"
        if self.view:
            self.view.show_update(step, last, step_metrics, remaining, self.compute_progress(step))
        else:
            total = "" if last is None else f"/{last}"
            log_message(f"step {step}{total}  {format_update_metrics(step_metrics)}{remaining and '  '}{remaining}")

    def _show_end(self, note: str) -> None:
        if self.view:
            self.view.finish(note)

    def _is_validation_due(self) -> bool:
        """Return whether to validate: by steps, or by the fraction of training that has passed."""
        state = self.train_state
        if (every := self.settings.validate_every) is not None:
            return state.step // every > state.validated_step // every
        interval = compute_validation_interval(self.settings, state.validation_seconds, state.best_validation is None)
        progress = self.compute_progress(state.step)
        is_near_end = progress > 1 - interval / 2  # where a validation follows anyway
        return not is_near_end and progress - state.validated_progress >= interval

    def compute_progress(self, step: int) -> float:
        """Return the fraction of training that has passed at a step; the last validation is part of the time."""
        state, minutes = self.train_state, self.settings.minutes
        seconds = state.seconds / max(1e-9, 1 - (state.validation_seconds / (60 * minutes) if minutes else 0.0))
        return compute_progress(self.settings, step, self.sampler.compute_epochs(state.data_position), seconds)

    def _measure_seconds(self) -> float:
        """Return the seconds so far; 0 on other ranks than 0, so that the sum over ranks is that of rank 0."""
        return self.clock() - self.start_time if self.distributed.is_rank0 else 0.0

    def _log_estimate(self) -> None:
        """Log the time and memory of training, by one update without the optimizer, whose two moments are added."""
        settings, last = self.settings, self.estimate_last_step()
        if (last or 0) < MIN_ESTIMATED_STEPS and not (settings.minutes or settings.init_from):
            return
        seconds = self.accumulator.time_update(self.dataset, self.sampler, self.clock)
        memory_mb = measure_peak_memory_mb(self.device) + 8e-6 * sum(map(Tensor.numel, self.accumulator.weights))
        cost = TrainingCost(seconds, memory_mb)
        log_message(format_estimate(cost, last, settings, self.device.type == "cpu"))

    def estimate_last_step(self) -> int | None:
        """Return the total number of updates, estimated if it is limited by epochs; None without a limit."""
        settings = self.settings
        per_epoch = self.sampler.batches_per_epoch / settings.accumulate / self.distributed.world_size
        by_epochs = None if settings.epochs is None else math.ceil(settings.epochs * per_epoch)
        limits = [limit for limit in (settings.steps, by_epochs) if limit is not None]
        return min(limits) if limits else None

    def has_finished(self) -> bool:
        """Return whether the limit of steps, epochs or minutes is reached, or the patience of early stopping."""
        train_state = self.train_state
        epochs = None if self.settings.epochs is None else self.sampler.compute_epochs(train_state.data_position)
        counts = {"step": train_state.step, "bad_validations": train_state.bad_validations}
        return is_finished(vars(self.settings), {**counts, "epochs": epochs, "minutes": train_state.minutes})

    def validate_and_record(self) -> None:
        """Validate, update the list of the best validations, and write metrics and samples."""
        train_state = self.train_state
        with self.ema.use_average(), self.view.show_activity("validating") if self.view else nullcontext():
            is_sharded = self.validation_model is not self.model
            weights = self.checkpointer.collect_weights() if is_sharded else None
            validation, record, num_better = self.run_validation(weights)
        previous_step = train_state.validated_step
        train_state.add_validation(record, num_better, self.settings.keep_best)
        train_state.validated_progress = self.compute_progress(train_state.step)
        self.is_checkpoint_stale = True
        if validation is not None:
            step, metrics = train_state.step, validation.metrics
            self.metrics.write("dev", step, loss=record.loss, **metrics, measure=record.measure)
            self.metrics.write_samples(validation.samples, step)
            if previous_step < ZERO_BLEU_STEP <= step and metrics.get("bleu") == 0:
                log_message(
                    f"dev BLEU is 0: no word is right, or no output has four words. Check samples/step-{step}.jsonl: "
                    "the direction of source and target, the dev pairs, and the words that evaluation.tokenize finds"
                )
            criterion = " by chrF" if record.measure == "chrf" and self.settings.best != "loss" else ""
            best_note = f" (best{criterion})" if num_better == 0 else ""
            log = log_detail if self.view else log_message  # the live view shows validations
            log(f"step {step}: dev loss {record.loss:.3f}, {format_metrics(metrics)}{best_note}")
        self.throughput.reset()

    def run_validation(
        self, weights: dict[str, Tensor] | None = None, accept_ties: bool = False
    ) -> tuple[Validation | None, ValidationRecord, int]:
        """Validate on rank 0, optionally with other weights, and broadcast loss and score.

        Return the validation (None on other ranks), its record, and the number of better validations among the best so
        far: 0 makes this the best. An equal one counts as better, unless `accept_ties`.
        """
        validation, record, num_better = None, ValidationRecord(self.train_state.step, 0.0, 0.0, ""), 0
        if self.distributed.is_rank0:
            with self._use_validation_weights(weights):
                try:
                    validation = self.validate(self.validation_model.to(self.device), self.device)
                except ArithmeticError as error:  # weights so large that search gets only NaN or inf
                    if weights is None and self.last_saved_step == self.train_state.step:
                        checkpoint.remove_checkpoint(self.run.checkpoint_folder(self.train_state.step))
                    raise self._make_divergence_error(f"validation failed: {error}") from error
                step, measure = self.train_state.step, validation.selection_metric
                record = ValidationRecord(step, validation.loss, validation.score, measure)
                by_loss, min_gain = self.settings.best == "loss", 0 if accept_ties else 1
                num_better = sum(record.compare(best, by_loss) < min_gain for best in self.train_state.best_validations)
                if num_better == 0 and self.on_best is not None:
                    self.on_best(self.validation_model, self.device)
        loss, score, better, seconds = self.distributed.broadcast_from_rank0(
            [record.loss, record.score, num_better, self._measure_seconds()]
        )
        self.train_state.validation_seconds = seconds - self.train_state.seconds
        self.train_state.seconds = seconds
        return validation, replace(record, loss=loss, score=score), int(better)

    @contextmanager
    def _use_validation_weights(self, weights: dict[str, Tensor] | None) -> Iterator[None]:
        """Load other weights into the validated model, and restore its own on exit; None keeps its own."""
        model = self.validation_model
        own_weights, training = checkpoint.collect_model_tensors(model), model.training
        saved_weights = None if weights is None else {name: tensor.clone() for name, tensor in own_weights.items()}
        try:
            if weights is not None:
                checkpoint.check_tensors_match(self.run.folder, weights, own_weights)
                model.load_state_dict(weights, strict=False)  # tied weights are saved under one name
            yield
        finally:
            release_decoding_memory(model)
            if saved_weights is not None:
                model.load_state_dict(saved_weights, strict=False)
            model.train(training)
            if model is not self.model:
                model.cpu()  # frees GPU memory for training

    def _rerun_on_best(self) -> None:
        """Call `on_best` for the best checkpoint of a resumed run; its result is missing, or of a deleted average."""
        if self.on_best is not None and self.distributed.is_rank0:
            weights = self.run.load_weights(self.validation_model, self.run.list_checkpoints_best_first())
            with self._use_validation_weights(weights):
                self.on_best(self.validation_model.to(self.device), self.device)
        self.distributed.barrier()

    def save(self, interim: bool = False, prune: bool = True) -> None:
        """Write a checkpoint, unless this step already has one, and with `prune` remove outdated ones.

        An interim checkpoint, written because the run was stopped, is removed when the next one is written.
        """
        train_state = self.train_state
        if self.is_checkpoint_stale or self.last_saved_step != train_state.step:
            self.is_checkpoint_stale, self.last_saved_step = False, train_state.step
            self.checkpointer.save(train_state, interim)
        if prune:
            self.checkpointer.remove_old_checkpoints(train_state)

    def try_checkpoint_average(self) -> None:
        """Average the newest checkpoints, if enabled; the average becomes the model if it is no worse than the best."""
        self.distributed.barrier()  # wait until rank 0 has written the last checkpoint
        steps = self.run.list_steps()[-self.settings.average :]
        self.checkpointer.remove_average()
        if self.settings.average < 2 or len(steps) < 2:
            return
        weights = self.checkpointer.average_steps(steps) if self.distributed.is_rank0 else None
        _, record, num_better = self.run_validation(weights, accept_ties=True)
        log_message(
            f"average of steps {', '.join(map(str, steps))}: dev loss {record.loss:.3f}, "
            f"{format_metrics({record.measure: record.score})}, "
            f"{'not used: it is worse than the best checkpoint' if num_better else 'used as the model'}"
        )
        if weights is not None and num_better == 0:
            self.checkpointer.save_average(steps, weights, record)
