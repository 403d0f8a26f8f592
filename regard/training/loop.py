"""The training loop. A checkpoint holds all that it holds between two updates: a run that goes on is the same run."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch

from regard.console import bar, is_terminal, say
from regard.data.batches import Batch, Indices, collate, order
from regard.data.sentences import Examples
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import Run, checkpoint
from regard.symbols import PAD
from regard.training.device import autocast
from regard.training.metrics import Metrics
from regard.training.optimizer import optimizer
from regard.training.schedule import learning_rate
from regard.training.settings import TrainingSettings
from regard.training.validation import Validation

Validate = Callable[[Seq2Seq, torch.device], Validation]


class Interrupted(Exception):  # noqa: N818 - an event, not a mistake
    """Training was asked to stop (Ctrl-C, SIGTERM) and has saved a checkpoint."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step
        self.signal_number = signal_number


@dataclass
class Best:
    """The best validation so far."""

    step: int
    loss: float
    bleu: float


@dataclass
class Position:
    """How far training is."""

    step: int = 0  # updates made
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are used up
    bad_validations: int = 0
    best: Best | None = None
    validated: int = 0  # the step of the last validation
    seconds: float = 0.0


class Trainer:
    """Trains one model on one set of examples into one run."""

    def __init__(
        self,
        model: Seq2Seq,
        examples: Examples,
        validate: Validate,
        settings: TrainingSettings,
        run: Run,
        device: torch.device,
    ) -> None:
        self.model = model.to(device).train()
        self.examples = examples
        self.validate = validate
        self.settings = settings
        self.run = run
        self.device = device
        self.optimizer = optimizer(model, settings)
        self.position = Position()
        self.batches: list[Indices] = self.order(0)
        self.stop_signal = 0
        self.started = 0.0
        self.saved = -1  # the step of the newest checkpoint
        self.tokens, self.since = 0, time.monotonic()  # for the speed: trained on, since the last line

    def order(self, epoch: int) -> list[Indices]:
        """The batches of an epoch."""
        settings = self.settings
        return order(self.examples.sizes, settings.batch_tokens, settings.pool, settings.seed, epoch)

    def fit(self) -> Position:
        """Trains to the end; the last checkpoint and the best one are then on disk."""
        self.metrics = Metrics(self.run, self.position.step, self.settings.tensorboard)
        self.started = time.monotonic() - self.position.seconds
        self.since = time.monotonic()
        try:
            if self.finished():
                say(f"{self.run.folder} has finished already, at step {self.position.step}")
            with self.signals(), bar() as progress:
                task = progress.add_task("training", total=self.last_step(), completed=self.position.step, note="")
                while not self.finished():
                    figures = self.update()
                    short = f"loss {figures['loss']:.2f}, {figures['tokens_per_second'] / 1000:.1f}k tokens/s"
                    progress.update(task, completed=self.position.step, note=short)
                    self.after(figures)
                if self.position.validated != self.position.step:
                    self.measure()
                self.save()
        finally:
            self.metrics.close()
        return self.position

    def after(self, figures: dict[str, float]) -> None:
        """What is due after an update: a line, a validation, a checkpoint, a stop."""
        step, settings = self.position.step, self.settings
        if step % settings.log_every == 0:
            self.metrics.write("train", step, **figures)
            self.tokens, self.since = 0, time.monotonic()
            if not is_terminal():
                say(f"step {step}/{self.last_step() or '?'}  {self.note(figures)}")
        if step % settings.validate_every == 0 or self.finished():
            self.measure()
        if step % settings.checkpoint_every == 0 or self.position.validated == step:
            self.save()
        if self.stop_signal:
            self.save()
            raise Interrupted(step, self.stop_signal)

    def last_step(self) -> int | None:
        """The number of updates in all; of epochs it is an estimate."""
        settings = self.settings
        per_epoch = -(-len(self.batches) // settings.accumulate)
        by_epochs = None if settings.epochs is None else math.ceil(settings.epochs * per_epoch)
        limits = [limit for limit in (settings.steps, by_epochs) if limit is not None]
        return min(limits) if limits else None

    def finished(self) -> bool:
        """Whether a limit is reached or patience is over."""
        settings, position = self.settings, self.position
        return (
            (settings.steps is not None and position.step >= settings.steps)
            or (settings.epochs is not None and self.epoch() >= settings.epochs)
            or (settings.patience is not None and position.bad_validations >= settings.patience)
        )

    def epoch(self) -> float:
        """Passes over the data so far, the one at hand in part."""
        return self.position.epoch + self.position.batch / len(self.batches)

    def next_batches(self) -> list[Batch]:
        """The batches of the next update; the last update of an epoch may have fewer."""
        position = self.position
        rows = self.batches[position.batch : position.batch + self.settings.accumulate]
        position.batch += len(rows)
        if position.batch >= len(self.batches):
            position.epoch, position.batch = position.epoch + 1, 0
            self.batches = self.order(position.epoch)
        return [collate(self.examples, some).to(self.device) for some in rows]

    def update(self) -> dict[str, float]:
        """One update of the weights; what it cost and what it found."""
        epoch = self.epoch()
        batches = self.next_batches()
        step = self.position.step + 1
        rate = learning_rate(self.settings, step, epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.gradients(batches)
        norm = float(self.clip())
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise self.not_finite(step, loss, norm)
        self.optimizer.step()
        self.position.step = step
        self.tokens += sum(int((batch.target_out != PAD).sum()) for batch in batches)
        speed = self.tokens / max(1e-9, time.monotonic() - self.since)
        return {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens_per_second": round(speed, 1),
            "epoch": epoch,
        }

    def gradients(self, batches: list[Batch]) -> float:
        """Adds up the gradients of the batches as if they were one; the loss of that one."""
        self.optimizer.zero_grad(set_to_none=True)
        counts = [float(self.model.criterion.count(batch.target_out)) for batch in batches]
        total = 0.0
        for batch, count in zip(batches, counts, strict=True):
            with autocast(self.settings, self.device):
                loss = self.model.loss(*batch) * (count / sum(counts))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def clip(self) -> torch.Tensor:
        """Scales the gradients down to the norm that is allowed; the norm they had."""
        limit = math.inf if self.settings.clip is None else self.settings.clip
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def not_finite(self, step: int, loss: float, norm: float) -> UserError:
        """What to say when the loss or a gradient is no number any more."""
        steps = self.run.steps()
        kept = f"checkpoint step-{steps[-1]} is kept" if steps else "there is no checkpoint yet"
        return UserError(
            f"at step {step} the loss is {loss} and the gradient's norm {norm}; {kept}. Try a lower "
            f"training.learning_rate (now {self.settings.learning_rate}), a longer training.warmup or a smaller "
            f"training.clip"
        )

    def measure(self) -> None:
        """Validates, keeps count of the best, and writes samples."""
        position = self.position
        found = self.validate(self.model, self.device)
        better = position.best is None or self.rank(found) > self.rank(position.best)
        position.validated = position.step
        self.saved = -1  # a checkpoint of this step would not know of this
        self.tokens, self.since = 0, time.monotonic()
        position.bad_validations = 0 if better else position.bad_validations + 1
        if better:
            position.best = Best(position.step, found.loss, found.bleu)
        figures = {"loss": found.loss, "perplexity": found.perplexity, "bleu": found.bleu}
        self.metrics.write("dev", position.step, **figures)
        say(
            f"step {position.step}: dev loss {found.loss:.3f}, perplexity {found.perplexity:.2f}, "
            f"BLEU {found.bleu:.1f}{' (best)' if better else ''}"
        )
        folder = self.run.folder / "samples"
        folder.mkdir(exist_ok=True)
        lines = (json.dumps(sample._asdict(), ensure_ascii=False) + "\n" for sample in found.samples)
        (folder / f"step-{position.step}.jsonl").write_text("".join(lines), encoding="utf-8")

    def rank(self, found: Validation | Best) -> tuple[float, float]:
        """The higher the better; among equal BLEUs, as at the very beginning, the loss decides."""
        return (found.bleu if self.settings.best == "bleu" else 0.0, -found.loss)

    def save(self) -> None:
        """Writes a checkpoint, if this step has none yet, and removes those that are neither new nor best."""
        position = self.position
        if self.saved == position.step:
            return
        position.seconds = time.monotonic() - self.started
        folder = self.run.checkpoint_folder(position.step)
        state = {**asdict(position), "random": random_state(self.device), "data": fingerprint(self.examples)}
        checkpoint.write(folder, self.model, self.optimizer, state)
        self.saved = position.step
        best = position.best.step if position.best else None
        for step in self.run.steps()[: -self.settings.keep]:
            if step != best:
                shutil.rmtree(self.run.checkpoint_folder(step))

    def resume(self) -> None:
        """Takes up a run where its newest checkpoint left it."""
        folder = self.run.checkpoint_folder(self.run.newest())
        state = checkpoint.read_state(folder)
        if state["data"] != fingerprint(self.examples):
            raise UserError(
                f"the training data is not what {self.run.folder} was trained on so far; it can go on with that only"
            )
        checkpoint.read_model(folder, self.model)
        checkpoint.read_optimizer(folder, self.optimizer)
        restore_random(state["random"], self.device)
        best = state["best"]
        fields = {name: state[name] for name in ("step", "epoch", "batch", "bad_validations", "validated", "seconds")}
        self.position = Position(best=Best(**best) if best else None, **fields)
        self.batches = self.order(self.position.epoch)
        self.saved = self.position.step

    def note(self, figures: dict[str, float]) -> str:
        """An update in a few words."""
        return (
            f"loss {figures['loss']:.3f}  lr {figures['learning_rate']:.2e}  "
            f"{figures['tokens_per_second']:,.0f} tokens/s  epoch {figures['epoch']:.2f}"
        )

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are noted, to stop after the update at hand; a second Ctrl-C stops at once."""

        def note(number: int, frame: FrameType | None) -> None:
            if self.stop_signal:
                raise KeyboardInterrupt
            self.stop_signal = number

        def install(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
            return {number: signal.signal(number, handler) for number, handler in handlers.items()}

        try:
            before = install({signal.SIGINT: note, signal.SIGTERM: note})
        except ValueError:  # not the main thread: whoever runs there has their own way to stop
            yield
            return
        try:
            yield
        finally:
            install(before)


def fingerprint(examples: Examples) -> str:
    """Tells one set of examples from another."""
    digest = hashlib.sha256()
    arrays = [examples.source.ids, examples.source.offsets, examples.target.ids, examples.target.offsets]
    for array in [*arrays, *(examples.links or ())]:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def random_state(device: torch.device) -> dict[str, str]:
    """The random generators, as text."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def restore_random(states: dict[str, str], device: torch.device) -> None:
    """Sets the random generators to what `random_state` wrote."""
    tensors = {
        name: torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy()) for name, text in states.items()
    }
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
