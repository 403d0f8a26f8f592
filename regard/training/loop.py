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

from regard.console import bar, is_terminal, say
from regard.data.loader import STOPPING, LoadedBatches, Share, Source, load, reported, requests
from regard.data.order import Order
from regard.data.settings import ReadingSettings
from regard.errors import UserError
from regard.fast import rest
from regard.models import Model
from regard.runs import Run, checkpoint
from regard.runs.summary import is_finished
from regard.tasks import OnBest, Validate, Validation
from regard.training.averages import RunningMean
from regard.training.device import memory, preserve_generators
from regard.training.gradients import Gradients
from regard.training.keeping import Keeper
from regard.training.metrics import Metrics
from regard.training.objective import Objective
from regard.training.optimizer import optimizer
from regard.training.pace import Pace
from regard.training.position import Best, Position
from regard.training.processes import ALONE, Processes, copies
from regard.training.schedule import learning_rate
from regard.training.settings import TrainingSettings
from regard.training.sharding import shard
from regard.training.signals import Interrupted, Signals

NAMES = {  # as they are written
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
        model: Model,
        source: Source[Any],
        validate: Validate,
        settings: TrainingSettings,
        run: Run,
        device: torch.device,
        data: ReadingSettings | None = None,
        processes: Processes = ALONE,
        on_best: OnBest | None = None,
    ) -> None:
        sharded = settings.shard and processes.count > 1
        self.whole = copy.deepcopy(model) if sharded else model  # which can be validated
        self.model = (model if sharded else model.to(device)).train()
        self.objective = Objective(self.model)
        if sharded:
            shard(self.objective, processes, device)
        self.source = source
        self.validate = validate
        self.on_best = on_best
        self.settings = settings
        self.data = data or ReadingSettings()
        self.run = run
        self.device = device
        self.processes = processes
        self.optimizer = optimizer(model, settings)
        self.mean = RunningMean(model, settings.ema)
        self.keeper = Keeper(run, model, self.mean, self.optimizer, settings, processes)
        self.position = Position()
        self.order = Order(
            source.sizes, settings.batch_tokens, settings.pool, settings.seed, source.parts, settings.curriculum
        )
        self.signals = Signals()
        self.speed = Speed()
        self.pace = Pace()
        self.gradients = Gradients(
            self.objective, settings, device, processes, None if sharded else copies(self.objective, processes, device)
        )
        self.metrics = Metrics(run, settings.tensorboard, processes.first)
        self.started = 0.0
        self.saved = -1  # the step of the newest checkpoint
        self.stale = False  # whether more is known of that step than its checkpoint says

    def fit(self) -> Position:
        """Trains to the end; the last checkpoint and the best ones are then on disk."""
        with (
            preserve_generators(self.device),
            self.signals.watched(),
            reported(),
            closing(self.shares()) as shares,  # forks workers, so it comes before what starts threads
            closing(self.metrics),
            bar() as progress,
        ):
            self.metrics.begin(self.position.step)
            self.started = time.monotonic() - self.position.seconds
            self.speed.restart()
            self.pace.begin(self.position.step)
            if self.finished():
                say(f"{self.run.folder} has finished already, at step {self.position.step}")
            else:
                self.announce()
                if self.settings.init_from and not self.position.step and self.position.best is None:
                    self.measure()  # what it starts from may be the best there is
                    self.save()
                self.keeper.forget_average()  # of checkpoints that will not be the newest for long
            if self.position.step and self.position.best is not None:
                self.recall_best()
            task = progress.add_task("training", total=self.last_step(), completed=self.position.step, note="")
            while not self.finished():
                figures, stop = self.update(self.read_batches(shares))
                short = f"loss {figures['loss']:.2f}, {figures['tokens_per_second'] / 1000:.1f}k tokens/s"
                progress.update(task, completed=self.position.step, note=short)
                self.after(figures)
                if stop:
                    self.save(interim=True)
                    raise Interrupted(self.position.step, stop)
            if self.position.validated != self.position.step:
                self.measure()
            self.save()
            self.average()
        return self.position

    def shares(self) -> LoadedBatches:
        """Return the batches of this process, update after update; a finished run needs none and starts no workers."""
        wanted = requests(
            self.order, self.position.place, self.settings.accumulate, self.processes.rank, self.processes.count
        )
        workers = 0 if self.finished() else self.data.workers
        return load(self.source, wanted, workers, self.data.timeout, self.device.type == "cuda")

    def read_batches(self, shares: LoadedBatches) -> Share:
        """Return the batches of the next update; if that fails, save what was trained since the last checkpoint."""
        try:
            return next(shares)
        except Exception:
            if self.processes.count == 1 and self.position.step > max(self.saved, 0):
                self.save(interim=True)
            raise

    def after(self, figures: dict[str, float]) -> None:
        """What is due after an update: a line, a validation, a checkpoint."""
        step, settings = self.position.step, self.settings
        if step % settings.log_every == 0:
            self.metrics.write("train", step, **figures)
            self.speed.restart()
        if not is_terminal() and (step % settings.log_every == 0 or self.pace.due()):
            last = self.last_step()
            say(f"step {step}/{last or '?'}  {note(figures)}{self.pace.left(step, last)}")
        if self.position.skipped_in_row:  # what is about to fail is not kept in place of what was whole
            return
        if step // settings.validate_every > self.position.validated // settings.validate_every or self.finished():
            self.measure()
        if step // settings.checkpoint_every > max(self.saved, 0) // settings.checkpoint_every or self.stale:
            self.save()

    def announce(self) -> None:
        """Says so where epochs end before the updates that were asked for, or these before the warm-up."""
        settings, last = self.settings, self.last_step()
        if not self.processes.first or last is None:
            return
        if settings.steps is not None and last < settings.steps:
            first = f"training.epochs={settings.epochs:g} ends before training.steps={settings.steps}"
            say(f"about {last:,} updates: {first}")
        if last < settings.warmup:
            say(f"training.warmup={settings.warmup} is longer than {last:,} updates: the learning rate stays low")

    def last_step(self) -> int | None:
        """The number of updates in all; of epochs it is an estimate."""
        settings = self.settings
        per_epoch = self.order.per_epoch / settings.accumulate / self.processes.count
        by_epochs = None if settings.epochs is None else math.ceil(settings.epochs * per_epoch)
        limits = [limit for limit in (settings.steps, by_epochs) if limit is not None]
        return min(limits) if limits else None

    def finished(self) -> bool:
        """Whether a limit is reached or patience is over."""
        position = self.position
        epochs = None if self.settings.epochs is None else self.order.epochs(position.place)
        state = {"step": position.step, "epochs": epochs, "bad_validations": position.bad_validations}
        return is_finished(vars(self.settings), state)

    def update(self, share: Share) -> tuple[dict[str, float], int]:
        """One update of the weights: what it cost and found, and the signal to stop that came meanwhile, or 0.

        An update that is no number is left out, and counted. Of different signals to several processes, all return the
        one with the highest number.
        """
        position, step = self.position, self.position.step + 1
        epoch = self.order.epochs(position.place)
        rate = learning_rate(self.settings, step, epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        added = self.gradients.add(share.batches, step, position.pieces)
        norm = self.gradients.clip(self.optimizer)
        numbers = torch.stack([added.loss, norm.to(added.loss.dtype)]).tolist()
        arrived = [float(self.signals.number == each) for each in STOPPING]
        targets, read = (sum(getattr(batch, name) for batch in share.batches) for name in ("targets", "tokens"))
        summed, trained, seen, *stopped = self.processes.sums([numbers[0], targets, read, *arrived])
        loss = summed / max(1.0, trained)  # whatever it is divided by to be minimised: so it is beside the dev loss
        finite = math.isfinite(loss) and math.isfinite(numbers[1])
        if finite:
            self.gradients.step(self.optimizer)
            self.mean.update(step)
        self.gradients.scaler.update()
        position.step, position.place, position.pieces = step, share.place, added.pieces
        self.count(finite, loss, numbers[1])
        self.speed.tokens += seen
        figures = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": numbers[1],
            "tokens_per_second": round(self.speed.per_second(), 1),
            "epoch": epoch,
            "memory_mb": round(memory(self.device), 1),
            "skipped": position.skipped,
        }
        stop = max((int(each) for each, count in zip(STOPPING, stopped, strict=True) if count), default=0)
        return figures, stop

    def count(self, finite: bool, loss: float, norm: float) -> None:
        """Keeps count of updates that were left out; too many in a row, and the run is not to be saved by itself."""
        position = self.position
        position.skipped_in_row = 0 if finite else position.skipped_in_row + 1
        position.skipped += not finite
        if position.skipped_in_row >= self.settings.bad_updates:
            raise self.lost(
                f"the loss is {loss} and the gradient's norm {norm}, and {position.skipped_in_row} updates in a row "
                f"were no better"
            )

    def lost(self, found: str) -> UserError:
        """What is said of a run that has learnt its way out of all numbers."""
        steps = self.run.steps()
        kept = f"checkpoint step-{steps[-1]} is kept" if steps else "there is no checkpoint yet"
        return UserError(
            f"at step {self.position.step} {found}; {kept}. Try a lower training.learning_rate (now "
            f"{self.settings.learning_rate}), a longer training.warmup or a smaller training.clip"
        )

    def measure(self) -> None:
        """Validates, keeps count of the best, and writes samples."""
        position = self.position
        with self.mean.used():
            found, new, rank = self.validated(self.keeper.weights() if self.whole is not self.model else None)
        better = rank == 0
        position.ranked.insert(rank, new)
        del position.ranked[self.settings.keep_best :]
        position.validated = position.step
        position.bad_validations = 0 if better else position.bad_validations + 1
        self.stale = True
        if found is not None:
            self.metrics.write("dev", position.step, loss=new.loss, **found.figures, measure=found.measure)
            self.metrics.show(found.samples, position.step)
            by = " by chrF" if new.measure == "chrf" and self.settings.best != "loss" else ""
            best = f" (best{by})" if better else ""
            say(f"step {position.step}: dev loss {new.loss:.3f}, {told(found.figures)}{best}")
        self.speed.restart()

    def validated(
        self, weights: dict[str, Tensor] | None = None, or_equal: bool = False
    ) -> tuple[Validation | None, Best, int]:
        """Validate the model, or the model with other weights, in the first process, and tell the others.

        Returns what was measured (None in the other processes), the part that is kept, and how many of the best
        validations so far are better: 0 makes this the best. Equally good ones count as better, unless `or_equal`.
        """
        found, new, rank = None, Best(self.position.step, 0.0, 0.0, ""), 0
        if self.processes.first:
            with self.loaded(weights):
                try:
                    found = self.validate(self.whole.to(self.device), self.device)
                except ArithmeticError as error:  # of weights so large that the search finds no number
                    raise self.lost(f"there is nothing to validate: {error}") from error
                new = Best(self.position.step, found.loss, found.score, found.measure)
                gains = [self.gain(new, old) for old in self.position.ranked]
                rank = sum(not (gain > 0 or (or_equal and gain == 0)) for gain in gains)
                if rank == 0 and self.on_best is not None:
                    self.on_best(self.whole, self.device)
        loss, score, better = self.processes.of_first([new.loss, new.score, rank])
        return found, replace(new, loss=loss, score=score), int(better)

    @contextmanager
    def loaded(self, weights: dict[str, Tensor] | None) -> Iterator[None]:
        """Give the model that is validated other weights, all of them, and restore its own on exit; None: its own."""
        own, training = checkpoint.unique_tensors(self.whole), self.whole.training
        kept = None if weights is None else {name: tensor.clone() for name, tensor in own.items()}
        try:
            if weights is not None:
                checkpoint.check_fit(self.run.folder, weights, own)
                self.whole.load_state_dict(weights, strict=False)  # tied weights have one of their names
            yield
        finally:
            rest(self.whole)
            if kept is not None:
                self.whole.load_state_dict(kept, strict=False)
            self.whole.train(training)
            if self.whole is not self.model:
                self.whole.cpu()  # until the next time its place is for training

    def gain(self, new: Best, old: Best) -> float:
        """Return 1 if `new` is the better validation, 0 if both are equally good, -1 if it is the worse one.

        The score decides, and the loss if the scores are equal, as at the very beginning, or not of the same metric: a
        run may have been started by a version that knew BLEU alone. NaN and inf are worse than any number.
        """
        by_score = self.settings.best != "loss" and new.measure == old.measure

        def key(one: Best) -> list[float]:
            numbers = [one.score, -one.loss] if by_score else [-one.loss]
            return [number if math.isfinite(number) else -math.inf for number in numbers]

        return float((key(new) > key(old)) - (key(new) < key(old)))

    def save(self, interim: bool = False) -> None:
        """Writes a checkpoint, if this step has none yet, and removes what is not to be kept.

        One that is there only because somebody stopped the run is gone when the next is written.
        """
        position = self.position
        if self.stale or self.saved != position.step:
            self.stale, self.saved = False, position.step
            position.seconds = time.monotonic() - self.started
            more = {
                "epochs": self.order.epochs(position.place),  # for readers
                "data": self.source.fingerprint,
                "scaler": self.gradients.scaler.state_dict(),
                "interim": interim,
            }
            self.keeper.save(position, more)
        self.keeper.prune(position)

    def resume(self) -> None:
        """Takes up a run where its newest whole checkpoint left it."""
        state = self.keeper.resume(self.wrong)
        self.position = Position.of(state)
        if state["scaler"]:
            self.gradients.scaler.load_state_dict(state["scaler"])
        self.saved = self.position.step

    def wrong(self, state: dict[str, Any]) -> str | None:
        """What keeps this run from going on from a state, if it is damaged; what belongs to another run is an error."""
        if state["data"] != self.source.fingerprint:
            raise UserError(
                f"the training data is not what {self.run.folder} was trained on so far; it can go on with that only"
            )
        if state["processes"] != self.processes.count:
            raise UserError(
                f"{self.run.folder} was trained by {state['processes']} processes, not {self.processes.count}: others "
                f"would add up in another order, and it would not be the same run"
            )
        try:
            place = Position.of(state).place
        except ValueError as error:
            return f"does not say how far training is: {error}"
        return None if self.order.has(place) else "names a place in the data that is not there"

    def recall_best(self) -> None:
        """Call `on_best` for the best checkpoint of a resumed run: its result is missing, or of a deleted average."""
        if self.on_best is not None and self.processes.first:
            with self.loaded(self.run.weights(self.whole, self.run.candidates())):
                self.on_best(self.whole.to(self.device), self.device)
        self.processes.wait()

    def average(self) -> None:
        """The mean of the newest checkpoints, where one is wanted; it is the model if it is no worse than the best."""
        self.processes.wait()  # for the last checkpoint to be written
        steps = self.run.steps()[-self.settings.average :]
        self.keeper.forget_average()
        if self.settings.average < 2 or len(steps) < 2:
            return
        weights = self.keeper.averaged(steps) if self.processes.first else None
        _, found, rank = self.validated(weights, or_equal=True)
        better = rank == 0
        say(
            f"the mean of steps {', '.join(map(str, steps))}: dev loss {found.loss:.3f}, "
            f"{told({found.measure: found.score})}, "
            f"{'which is the model from now on' if better else 'which is no better than the best'}"
        )
        if better and self.processes.first:
            self.keeper.average(steps, found)


def told(figures: Mapping[str, float]) -> str:
    """What was measured, in words; a share of one has more digits than per cents."""
    each = ((NAMES.get(name, name), value, 2 if abs(value) >= 1 else 4) for name, value in figures.items())
    return ", ".join(f"{name} {value:.{digits}f}" for name, value, digits in each)


def note(figures: dict[str, float]) -> str:
    """An update in a few words."""
    return (
        f"loss {figures['loss']:.3f}  lr {figures['learning_rate']:.2e}  norm {figures['gradient_norm']:.2f}  "
        f"{figures['tokens_per_second']:,.0f} tokens/s  {figures['memory_mb']:,.0f} MB  epoch {figures['epoch']:.2f}"
    )
