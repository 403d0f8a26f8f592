"""How far a training run is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.data.sampler import SamplerPosition


@dataclass(frozen=True)
class ValidationRecord:
    """A validation that is among the best so far."""

    step: int
    loss: float
    score: float  # the higher the better …
    measure: str  # … and what it is: bleu, accuracy and the like

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> ValidationRecord:
        """Read a validation from `state.json`: null is NaN, and the first release had BLEU alone."""
        if "bleu" in state:
            state = {"score": state["bleu"], "measure": "bleu"} | state
            del state["bleu"]
        numbers = [name for name in ("loss", "score") if name in state and state[name] is None]
        return cls(**state | dict.fromkeys(numbers, math.nan))


@dataclass
class TrainState:
    """All that changes from update to update, but for weights and optimizer."""

    step: int = 0  # updates made
    place: SamplerPosition = field(default_factory=SamplerPosition)  # in the order of the data, behind the last update
    ranked: list[ValidationRecord] = field(default_factory=list)  # the best validations, best first
    bad_validations: int = 0  # since the best one
    validated: int = 0  # the step of the last validation
    skipped: int = 0  # updates left out because a gradient was no number, in all
    skipped_in_row: int = 0
    pieces: int = 1  # that a batch is cut into, so that it fits into the memory
    seconds: float = 0.0

    @property
    def best_validation(self) -> ValidationRecord | None:
        """The best validation so far."""
        return self.ranked[0] if self.ranked else None

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `best` is for readers."""
        return {
            **asdict(self),
            "place": self.place._asdict(),
            "best": asdict(self.best_validation) if self.best_validation else None,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> TrainState:
        """What `document` wrote, among other things; a ValueError where it cannot have written that."""
        simple = ("step", "bad_validations", "validated", "skipped", "skipped_in_row", "pieces", "seconds")
        try:
            found = cls(
                place=SamplerPosition(**state["place"]),
                ranked=[ValidationRecord.from_json(best) for best in state["ranked"]],
                **{name: state[name] for name in simple},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{' '.join(str(error).split())} is not as expected") from error
        counts = [getattr(found, name) for name in simple[:-1]]
        for count in (*counts, *found.place, *(best.step for best in found.ranked)):
            if type(count) is not int or count < 0:
                raise ValueError(f"{count!r} is no number of updates, batches or validations")
        for number in (found.seconds, *(number for best in found.ranked for number in (best.loss, best.score))):
            if type(number) not in (int, float):
                raise ValueError(f"{number!r} is not a number")
        return found
