"""The training loop. A checkpoint holds all that it holds between two updates: a run that goes on is the same run.

Data order, noise and learning rate are pure functions of (seed, step, place): there is no generator to save.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from regard.console import bar, is_terminal, say
from regard.data.loader import Share, Source, load, reported, requests
from regard.data.order import Order
from regard.data.settings import DataSettings
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import Run, checkpoint
from regard.training.averages import RunningMean, averaged
from regard.training.device import memory
from regard.training.gradients import Gradients
from regard.training.metrics import Metrics
from regard.training.objective import Objective, tokens
from regard.training.optimizer import optimizer
from regard.training.position import Best, Position
from regard.training.processes import ALONE, Processes
from regard.training.schedule import learning_rate
from regard.training.settings import TrainingSettings
from regard.training.signals import Interrupted, Signals
from regard.training.validation import Validation

Validate = Callable[[Seq2Seq, torch.device], Validation]


@dataclass
class Speed:
    """Tokens trained on since the last line."""

    tokens: float = 0.0
    since: float = 0.0

    def restart(self) -> None:
        """From now on."""
        self.tokens, self.since = 0.0, time.monotonic()

    def per_second(self) -> float:
        """So far."""
        return self.tokens / max(1e-9, time.monotonic() - self.since)


class Trainer:
    """Trains one model on one source of batches into one run."""

    def __init__(
        self,
        model: Seq2Seq,
        source: Source[Any],
        validate: Validate,
        settings: TrainingSettings,
        run: Run,
        device: torch.device,
        data: DataSettings | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.model = model.to(device).train()
        self.source = source
        self.validate = validate
        self.settings = settings
        self.data = data or DataSettings()
        self.run = run
        self.device = device
        self.processes = processes
        self.optimizer = optimizer(model, settings)
        self.mean = RunningMean(model, settings.ema)
        self.position = Position()
        self.order = Order(
            source.sizes, settings.batch_tokens, settings.pool, settings.seed, source.parts, settings.curriculum
        )
        self.signals = Signals()
        self.speed = Speed()
        self.started = 0.0
        self.saved = -1  # the step of the newest checkpoint
        self.scaler_state: dict[str, Any] = {}

    def fit(self) -> Position:
        """Trains to the end; the last checkpoint and the best ones are then on disk."""
        self.gradients = Gradients(Objective(self.model), self.settings, self.device, self.processes)
        self.restore_scaler()
        self.metrics = Metrics(self.run, self.position.step, self.settings.tensorboard, self.processes.first)
        self.started = time.monotonic() - self.position.seconds
        self.speed.restart()
        try:
            with self.signals.watched(), reported(), bar() as progress:
                if self.finished():
                    say(f"{self.run.folder} has finished already, at step {self.position.step}")
                task = progress.add_task("training", total=self.last_step(), completed=self.position.step, note="")
                shares = self.shares()
                while not self.finished():
                    figures, stop = self.update(next(shares))
                    short = f"loss {figures['loss']:.2f}, {figures['tokens_per_second'] / 1000:.1f}k tokens/s"
                    progress.update(task, completed=self.position.step, note=short)
                    self.after(figures)
                    if stop:
                        self.save()
                        raise Interrupted(self.position.step, stop)
                if self.position.validated != self.position.step:
                    self.measure()
                self.save()
                self.prune()
                self.average()
        finally:
            self.metrics.close()
        return self.position

    def shares(self) -> Any:
        """The batches of this process, update after update."""
        wanted = requests(
            self.order, self.position.place, self.settings.accumulate, self.processes.rank, self.processes.count
        )
        return load(self.source, wanted, self.data.workers, self.data.timeout, self.device.type == "cuda")

    def after(self, figures: dict[str, float]) -> None:
        """What is due after an update: a line, a validation, a checkpoint."""
        step, settings = self.position.step, self.settings
        if step % settings.log_every == 0:
            self.metrics.write("train", step, **figures)
            self.speed.restart()
            if not is_terminal():
                say(f"step {step}/{self.last_step() or '?'}  {note(figures)}")
        if self.position.skipped_in_row:  # what is about to fail is not kept in place of what was whole
            return
        if step % settings.validate_every == 0 or self.finished():
            self.measure()
        if step % settings.checkpoint_every == 0 or self.position.validated == step:
            self.save()

    def last_step(self) -> int | None:
        """The number of updates in all; of epochs it is an estimate."""
        settings = self.settings
        per_epoch = self.order.per_epoch() / settings.accumulate / self.processes.count
        by_epochs = None if settings.epochs is None else math.ceil(settings.epochs * per_epoch)
        limits = [limit for limit in (settings.steps, by_epochs) if limit is not None]
        return min(limits) if limits else None

    def finished(self) -> bool:
        """Whether a limit is reached or patience is over."""
        settings, position = self.settings, self.position
        return (
            (settings.steps is not None and position.step >= settings.steps)
            or (settings.epochs is not None and self.order.epochs(position.place) >= settings.epochs)
            or (settings.patience is not None and position.bad_validations >= settings.patience)
        )

    def update(self, share: Share) -> tuple[dict[str, float], int]:
        """One update of the weights: what it cost and found, and the signal to stop that came meanwhile, or 0.

        An update that is no number is left out, and counted.
        """
        position, step = self.position, self.position.step + 1
        epoch = self.order.epochs(position.place)
        rate = learning_rate(self.settings, step, epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        added = self.gradients.add(share.batches, step, position.pieces)
        norm = self.gradients.clip(self.optimizer)
        numbers = torch.stack([added.loss, norm.to(added.loss.dtype)]).tolist()
        signal = self.signals.number
        loss, trained, stop, stopped = self.processes.sums([numbers[0], tokens(share.batches), signal, signal > 0])
        finite = math.isfinite(loss) and math.isfinite(numbers[1])
        if finite:
            self.gradients.scaler.step(self.optimizer)
        self.gradients.scaler.update()
        position.step, position.place, position.pieces = step, share.place, added.pieces
        self.count(finite, loss, numbers[1])
        self.mean.update(step)
        self.speed.tokens += trained
        figures = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": numbers[1],
            "tokens_per_second": round(self.speed.per_second(), 1),
            "epoch": epoch,
            "memory_mb": round(memory(self.device), 1),
            "skipped": position.skipped,
        }
        return figures, int(stop / max(1.0, stopped))

    def count(self, finite: bool, loss: float, norm: float) -> None:
        """Keeps count of updates that were left out; too many in a row, and the run is not to be saved by itself."""
        position = self.position
        position.skipped_in_row = 0 if finite else position.skipped_in_row + 1
        position.skipped += not finite
        if position.skipped_in_row >= self.settings.bad_updates:
            steps = self.run.steps()
            kept = f"checkpoint step-{steps[-1]} is kept" if steps else "there is no checkpoint yet"
            raise UserError(
                f"at step {position.step} the loss is {loss} and the gradient's norm {norm}, and "
                f"{position.skipped_in_row} updates in a row were no better; {kept}. Try a lower "
                f"training.learning_rate (now {self.settings.learning_rate}), a longer training.warmup or a smaller "
                f"training.clip"
            )

    def measure(self) -> None:
        """Validates, keeps count of the best, and writes samples."""
        position = self.position
        with self.mean.used():
            found = self.validate(self.model, self.device)
        loss, bleu = self.processes.of_first([found.loss, found.bleu])
        new = Best(position.step, loss, bleu)
        better = position.best is None or self.rank(new) > self.rank(position.best)
        position.ranked = sorted([*position.ranked, new], key=self.rank, reverse=True)[: self.settings.keep_best]
        position.validated = position.step
        position.bad_validations = 0 if better else position.bad_validations + 1
        self.saved = -1  # a checkpoint of this step would not know of this
        self.metrics.write("dev", position.step, loss=loss, perplexity=found.perplexity, bleu=bleu)
        self.metrics.show(found.samples, position.step)
        say(
            f"step {position.step}: dev loss {loss:.3f}, perplexity {found.perplexity:.2f}, "
            f"BLEU {bleu:.1f}{' (best)' if better else ''}"
        )
        self.speed.restart()

    def rank(self, found: Validation | Best) -> tuple[float, float]:
        """The higher the better; among equal BLEUs, as at the very beginning, the loss decides."""
        return (found.bleu if self.settings.best == "bleu" else 0.0, -found.loss)

    def save(self) -> None:
        """Writes a checkpoint, if this step has none yet."""
        position = self.position
        if self.saved == position.step:
            return
        self.saved = position.step
        position.seconds = time.monotonic() - self.started
        if not self.processes.first:
            return
        gathered = self.gathered()
        with self.mean.used():
            model = checkpoint.unique_tensors(self.model)
            checkpoint.write(self.run.checkpoint_folder(position.step), model, gathered, self.state())
        self.prune()

    def prune(self) -> None:
        """Removes checkpoints that are neither new nor among the best, and what is left of a write that was killed."""
        if not self.processes.first:
            return
        best = {found.step for found in self.position.ranked}
        for step in self.run.steps()[: -self.settings.keep]:
            if step not in best:
                checkpoint.remove(self.run.checkpoint_folder(step))
        checkpoint.sweep(self.run.checkpoint_folder(0).parent)

    def gathered(self) -> dict[str, torch.Tensor]:
        """What goes beside the model's weights: the optimizer's tensors; with a running mean, the weights behind it."""
        behind = {f"weight.{number}": weight.detach().clone() for number, weight in self.mean.behind()}
        return checkpoint.optimizer_tensors(self.optimizer) | behind

    def state(self) -> dict[str, Any]:
        """What the next update depends on, beside weights and optimizer."""
        return {
            **self.position.document(),
            "data": self.source.fingerprint,
            "processes": self.processes.count,
            "scaler": self.gradients.scaler.state_dict(),
        }

    def resume(self) -> None:
        """Takes up a run where its newest whole checkpoint left it."""
        step, state = self.run.recover()
        if state["data"] != self.source.fingerprint:
            raise UserError(
                f"the training data is not what {self.run.folder} was trained on so far; it can go on with that only"
            )
        if state["processes"] != self.processes.count:
            raise UserError(
                f"{self.run.folder} was trained by {state['processes']} processes, not {self.processes.count}: others "
                f"would add up in another order, and it would not be the same run"
            )
        folder = self.run.checkpoint_folder(step)
        checkpoint.read_model(folder, self.model)
        tensors = checkpoint.read_tensors(folder, checkpoint.OPTIMIZER)
        try:
            self.restore(tensors)
        except (KeyError, RuntimeError, ValueError) as error:
            raise checkpoint.damaged(folder, f"{checkpoint.OPTIMIZER} does not fit the run: {error}") from error
        self.position = Position.of(state)
        if not self.order.has(self.position.place):
            raise checkpoint.damaged(folder, f"{checkpoint.STATE} names a place in the data that is not there")
        self.scaler_state = state["scaler"]
        self.saved = self.position.step

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Optimizer, and with a running mean, the mean and the weights behind it."""
        checkpoint.read_optimizer(tensors, self.optimizer)
        self.mean = RunningMean(self.model, self.settings.ema)
        with torch.no_grad():
            for number, weight in self.mean.behind():
                weight.copy_(tensors[f"weight.{number}"])

    def restore_scaler(self) -> None:
        """What the scaler of fp16 had found out."""
        if self.scaler_state:
            self.gradients.scaler.load_state_dict(self.scaler_state)

    def average(self) -> None:
        """The mean of the newest checkpoints, where one is wanted; kept if it is no worse than the best."""
        steps = self.run.steps()[-self.settings.average :]
        shutil.rmtree(self.run.average_folder, ignore_errors=True)
        if len(steps) < 2:
            return
        weights = averaged([self.run.checkpoint_folder(step) for step in steps])
        own = {name: tensor.clone() for name, tensor in checkpoint.unique_tensors(self.model).items()}
        self.model.load_state_dict(weights, strict=False)
        found = self.validate(self.model, self.device)
        self.model.load_state_dict(own, strict=False)
        loss, bleu = self.processes.of_first([found.loss, found.bleu])
        best = self.position.best
        better = best is None or self.rank(Best(0, loss, bleu)) >= self.rank(best)
        say(
            f"the mean of steps {', '.join(map(str, steps))}: dev loss {loss:.3f}, BLEU {bleu:.1f}"
            f"{', which is the model from now on' if better else ', not better than the best'}"
        )
        if better and self.processes.first:
            state = {"steps": steps, "best": {"step": steps[-1], "loss": loss, "bleu": bleu}}
            checkpoint.write(self.run.average_folder, weights, {}, state)


def note(figures: dict[str, float]) -> str:
    """An update in a few words."""
    return (
        f"loss {figures['loss']:.3f}  lr {figures['learning_rate']:.2e}  norm {figures['gradient_norm']:.2f}  "
        f"{figures['tokens_per_second']:,.0f} tokens/s  {figures['memory_mb']:,.0f} MB  epoch {figures['epoch']:.2f}"
    )
