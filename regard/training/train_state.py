"""Training state: step, position in the data, best validations; saved in `state.json` of a checkpoint."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.data.sampler import SamplerPosition


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


@dataclass
class TrainState:
    """Everything that changes from update to update, except weights and optimizer state."""

    step: int = 0  # updates so far
    place: SamplerPosition = field(default_factory=SamplerPosition)  # position in the data after the last update
    ranked: list[ValidationRecord] = field(default_factory=list)  # the best validations, best first
    bad_validations: int = 0  # since the best one
    validated: int = 0  # the step of the last validation
    skipped: int = 0  # updates skipped because of NaN or inf, in total
    skipped_in_row: int = 0
    pieces: int = 1  # micro-batches per batch, so that it fits into memory
    seconds: float = 0.0

    @property
    def best_validation(self) -> ValidationRecord | None:
        """The best validation so far, or None."""
        return self.ranked[0] if self.ranked else None

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types; `best` is for human readers."""
        return {
            **asdict(self),
            "place": self.place._asdict(),
            "best": asdict(self.best_validation) if self.best_validation else None,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> TrainState:
        """Read the state that `to_json` wrote, ignoring other keys; raise ValueError if it is invalid."""
        simple = ("step", "bad_validations", "validated", "skipped", "skipped_in_row", "pieces", "seconds")
        try:
            train_state = cls(
                place=SamplerPosition(**state["place"]),
                ranked=[ValidationRecord.from_json(best) for best in state["ranked"]],
                **{name: state[name] for name in simple},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{' '.join(str(error).split())} is not as expected") from error
        counts = [getattr(train_state, name) for name in simple[:-1]]
        for count in (*counts, *train_state.place, *(best.step for best in train_state.ranked)):
            if type(count) is not int or count < 0:
                raise ValueError(f"{count!r} is not a count of updates, batches or validations")
        for number in (
            train_state.seconds,
            *(number for best in train_state.ranked for number in (best.loss, best.score)),
        ):
            if type(number) not in (int, float):
                raise ValueError(f"{number!r} is not a number")
        return train_state
