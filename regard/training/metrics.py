"""What is measured while training: a line of JSON each, and TensorBoard's events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from regard.console import say
from regard.errors import UserError
from regard.runs import Run
from regard.strict_json import dumps
from regard.tasks import Sample


class Metrics:
    """Appends to `metrics.jsonl`; figures also go to TensorBoard where it is wanted and installed.

    Of several processes the first writes, and the others keep silent.
    """

    def __init__(self, run: Run, tensorboard: bool, writes: bool = True) -> None:
        self.run = run
        self.tensorboard = tensorboard
        self.writes = writes
        self.file: TextIO | None = None
        self.board: Any = None

    def begin(self, step: int) -> None:
        """Goes on behind what was measured up to a step."""
        if self.writes:
            forget_after(self.run, step)
            self.file = self.run.metrics_path.open("a", encoding="utf-8")
            self.board = board(self.run.folder / "tensorboard", step) if self.tensorboard else None

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """One measurement."""
        if self.file is None:
            return
        self.file.write(dumps({"kind": kind, "step": step, **figures}) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in figures.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def show(self, samples: Sequence[Sample], step: int) -> None:
        """Some examples as the model does them now: in a file, and for TensorBoard where the model looked."""
        if self.file is None:
            return
        folder = self.run.folder / "samples"
        folder.mkdir(exist_ok=True)
        lines = (dumps(sample.told()) + "\n" for sample in samples)
        (folder / f"step-{step}.jsonl").write_text("".join(lines), encoding="utf-8")
        if self.board is not None:
            for number, sample in enumerate(samples, 1):
                if (picture := sample.picture()) is not None:
                    self.board.add_figure(f"attention/{number}", picture, step, close=False)
                told = [f"{name}: {text}" for name, text in sample.told().items()]
                self.board.add_text(f"sample/{number}", "  \n".join(told), step)

    def close(self) -> None:
        """Writes what is still in memory."""
        if self.file is not None:
            self.file.close()
        if self.board is not None:
            self.board.close()


def forget_after(run: Run, step: int) -> None:
    """Drops what was measured after the checkpoint that training goes on from: it will be measured again."""
    kept = [row for row in readable(run) if row["step"] <= step]
    beside = run.metrics_path.with_name(".metrics.jsonl.part")
    beside.write_text("".join(dumps(row) + "\n" for row in kept), encoding="utf-8")
    beside.replace(run.metrics_path)


def readable(run: Run) -> Iterator[dict[str, Any]]:
    """What was measured, without lines that nobody can read: training can do without them."""
    lines = run.metrics_path.read_bytes().split(b"\n")[:-1] if run.metrics_path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            yield run.measurement(line, number)
        except UserError:
            say(f"{run.metrics_path}:{number} cannot be read; it is left out")


def board(folder: Path, step: int) -> Any:
    """TensorBoard's writer, or None and a word about it where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("TensorBoard is not installed (pip install 'regard[tensorboard]'); metrics.jsonl has all figures")
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
