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

    def compare(self, other: ValidationRecord, by_loss: bool) -> int:
        """Return 1 if this validation is better than the other, 0 if they are equally good, -1 if it is worse.

        The score decides, unless `by_loss`; the loss decides if the scores are equal, or of different metrics: a run
        may have been started by a version that only had BLEU. NaN and inf are worse than any number.
        """
        by_score = not by_loss and self.measure == other.measure

        def make_sort_key(record: ValidationRecord) -> list[float]:
            numbers = [record.score, -record.loss] if by_score else [-record.loss]
            return [number if math.isfinite(number) else -math.inf for number in numbers]

        return (make_sort_key(self) > make_sort_key(other)) - (make_sort_key(self) < make_sort_key(other))


_JSON_NAMES = {  # names in state.json of the fields that have another name there
    "data_position": "place",
    "best_validations": "ranked",
    "validated_step": "validated",
    "micro_batches": "pieces",
}
_COUNTS = ("step", "bad_validations", "validated_step", "skipped", "skipped_in_row", "micro_batches")


@dataclass
class TrainState:
    """Everything that changes from update to update, except weights and optimizer state."""

    step: int = 0  # updates so far
    data_position: SamplerPosition = field(default_factory=SamplerPosition)  # after the last update
    best_validations: list[ValidationRecord] = field(default_factory=list)  # best first
    bad_validations: int = 0  # since the best one
    validated_step: int = 0  # the step of the last validation
    skipped: int = 0  # updates skipped because of NaN or inf, in total
    skipped_in_row: int = 0
    micro_batches: int = 1  # per batch, so that it fits into memory
    seconds: float = 0.0

    @property
    def best_validation(self) -> ValidationRecord | None:
        """The best validation so far, or None."""
        return self.best_validations[0] if self.best_validations else None

    def add_validation(self, record: ValidationRecord, rank: int, keep_best: int) -> None:
        """Add a validation that is worse than `rank` of the best ones; keep the `keep_best` best."""
        self.best_validations.insert(rank, record)
        del self.best_validations[keep_best:]
        self.validated_step = self.step
        self.bad_validations = 0 if rank == 0 else self.bad_validations + 1

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types; `best` is for human readers."""
        values = {_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}
        best = asdict(self.best_validation) if self.best_validation else None
        return values | {"place": self.data_position._asdict(), "best": best}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> TrainState:
        """Read the state that `to_json` wrote, ignoring other keys; raise ValueError if it is invalid."""
        try:
            train_state = cls(
                data_position=SamplerPosition(**state["place"]),
                best_validations=[ValidationRecord.from_json(best) for best in state["ranked"]],
                **{name: state[_JSON_NAMES.get(name, name)] for name in (*_COUNTS, "seconds")},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{' '.join(str(error).split())} is not as expected") from error
        best = train_state.best_validations
        counts = [getattr(train_state, name) for name in _COUNTS]
        for count in (*counts, *train_state.data_position, *(record.step for record in best)):
            if type(count) is not int or count < 0:
                raise ValueError(f"{count!r} is not a count of updates, batches or validations")
        for number in (train_state.seconds, *(number for record in best for number in (record.loss, record.score))):
            if type(number) not in (int, float):
                raise ValueError(f"{number!r} is not a number")
        return train_state
