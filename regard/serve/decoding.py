"""What is decoded together, and how: by this process, or as a process does it that is there for nothing else."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from regard.search import Hypothesis
from regard.serve.processes import work
from regard.serve.settling import settle
from regard.translate import Options, Translator, load
from regard.translate.segmentation import EncodedSegment


@dataclass(frozen=True)
class Kind:
    """What sentences of one batch have in common."""

    beam: int
    n_best: int

    def options(self) -> Options:
        """How they are searched for; whether anybody asks where the model looked changes nothing in that."""
        return Options(beam=self.beam, n_best=self.n_best)


@dataclass(frozen=True)
class Decoding:
    """Batches of pieces by one translator."""

    translator: Translator
    available = True  # as long as the service runs

    def find(
        self,
        pieces: Sequence[EncodedSegment],
        kind: Kind,
        tell: Callable[[int, list[Hypothesis]], None],
        more: Callable[[], Sequence[EncodedSegment]],
    ) -> None:
        """A batch, for the batcher."""
        self.translator.decode_continuously(pieces, self.translator.compile_options(kind.options()), tell, more)

    def close(self) -> None:
        """Nothing of it is left running."""


def decode(folder: Path, threads: int, precision: str | None, line: Connection) -> None:
    """A process: loads a run and decodes what it is sent. When to end is for the service to say, not for a signal."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):  # Windows has no SIGHUP
            signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    decoding = Decoding(load(folder, precision=precision))
    settle()
    work(line, decoding.find)
