"""The models that are served, and the ways from one language to another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regard.errors import UserError
from regard.runs import Run
from regard.runs.summary import Summary, summary
from regard.search import Hypothesis
from regard.serve.batching import Batcher
from regard.serve.languages import code
from regard.serve.settings import Settings
from regard.translate import Translator
from regard.translate.translator import Piece, Plan


@dataclass(frozen=True)
class Kind:
    """What sentences of one batch have in common."""

    beam: int
    n_best: int


@dataclass(frozen=True)
class Given:
    """A run as the command line names it: `runs/x`, or `runs/x=en-de` where it does not know its languages."""

    folder: Path
    source: str
    target: str

    @classmethod
    def of(cls, written: str) -> Given:
        """From the command line's words."""
        place, _, pair = written.partition("=")
        folder = Path(place)
        config = Run(folder).config()
        if pair:
            source, _, target = pair.partition("-")
        else:
            source, target = (config["data"].get(side) or "" for side in ("source", "target"))
        if not source or not target:
            raise UserError(f"{folder} does not know its languages; name them: regard serve {folder}=en-de")
        return cls(folder, code(source), code(target))


class Served:
    """One model at work."""

    def __init__(self, name: str, given: Given, translator: Translator, settings: Settings) -> None:
        self.name = name
        self.folder = given.folder
        self.source = given.source
        self.target = given.target
        self.translator = translator
        self.plans: dict[Kind, Plan] = {}
        self.batcher: Batcher[Piece, list[Hypothesis], Kind] = Batcher(
            self.find,
            lambda piece: len(piece.ids) + 1,
            tokens=settings.batch_tokens,
            most=settings.batch_pieces,
            room=settings.queue,
            threads=settings.threads,
        )

    @cached_property
    def summary(self) -> Summary:
        """What is known of the run."""
        return summary(self.folder)
