"""Rules that say of figures whether a claim holds.

A difference decides nothing while it is no larger than what chance may make of it once in twenty times: t times its
standard error √(σ₁²/n₁ + σ₂²/n₂), σ the deviation between trainings with other seeds, n their number, and t that of
Welch's test, 2 where there are many. Where a row was trained once, σ is assumed: what is typical of the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple


class Verdict(StrEnum):
    """What the figures say of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    OPEN = "not decided"


class Finding(NamedTuple):
    """A verdict, and the figures that it rests on."""

    verdict: Verdict
    figures: str


class Deviation(NamedTuple):
    """How far trainings of the same model with other seeds are apart: so much, and such a share of the figure."""

    absolute: float = 0.0
    share: float = 0.0

    def of(self, value: float) -> float:
        """At a figure of this size."""
        return self.absolute + self.share * abs(value)


# Small: what translators and taggers have was measured, docs/reproduce.md says how. The others, and full: guessed.
TYPICAL: dict[str, dict[str, Deviation]] = {
    "small": {
        "bleu": Deviation(6.5),
        "replaced": Deviation(9.6),
        "perplexity": Deviation(share=0.13),
        "aer": Deviation(0.083),
        "entropy": Deviation(0.06),
        "faint": Deviation(0.03),
        "kept": Deviation(0.1),
        "accuracy": Deviation(2.1),
        "recall": Deviation(2.0),
        "r2": Deviation(0.001),
        "error": Deviation(share=0.1),
        "gradient_kept": Deviation(share=0.05),
        "loss": Deviation(share=0.05),
        "training_speed": Deviation(share=0.2),
        "decoding_speed": Deviation(share=0.2),
        "growth_seconds": Deviation(share=0.2),
    },
    "full": {
        "bleu": Deviation(0.3),
        "replaced": Deviation(0.3),
        "perplexity": Deviation(share=0.01),
        "aer": Deviation(0.005),
        "entropy": Deviation(0.02),
        "faint": Deviation(0.01),
        "kept": Deviation(0.02),
        "accuracy": Deviation(0.2),
        "recall": Deviation(2.0),
        "r2": Deviation(0.01),
        "error": Deviation(share=0.1),
        "gradient_kept": Deviation(share=0.05),
        "loss": Deviation(share=0.05),
        "training_speed": Deviation(share=0.05),
        "decoding_speed": Deviation(share=0.05),
        "growth_seconds": Deviation(share=0.2),
    },
}
FLOOR = 0.1  # of what is typical: few seeds that agree by chance do not make σ smaller than this share of it
# Student's t that is exceeded to either side once in twenty times, for 1, 2, … degrees of freedom; then 2.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
DEVIATIONS, SEEDS = "deviations", "seeds"  # what the values of a row have besides, where it was trained several times
SAME = 0.5  # BLEU of one model that is asked in two ways: no seed comes between


class Figures:
    """What was measured, by row and measure, and how sure it is."""

    def __init__(self, values: Mapping[str, Mapping[str, Any]], scale: str) -> None:
        self.values = values
        self.typical = TYPICAL[scale]

    def value(self, row: str, measure: str) -> float | None:
        """A number, where it was measured."""
        found = self.values.get(row, {}).get(measure)
        return None if found is None else float(found)

    def error(self, row: str, measure: str) -> Error:
        """That of the number, by its seeds, or by what is typical of one."""
        values = self.values[row]
        typical = self.typical.get(measure, Deviation()).of(float(values[measure]))
        if measure not in values.get(DEVIATIONS, {}):
            return Error(typical**2, None)
        deviation = max(float(values[DEVIATIONS][measure]), FLOOR * typical)
        return Error(deviation**2 / values[SEEDS], values[SEEDS] - 1)

    def chance(self, measure: str, *rows: str) -> Chance:
        """What chance may make of the difference between rows, or between one and a number."""
        errors = [self.error(row, measure) for row in rows]
        total = sum(error.variance for error in errors)
        free = sum(error.variance**2 / error.freedom for error in errors if error.freedom)
        t = student(total**2 / free) if free else 2.0
        return Chance(t * math.sqrt(total), any(error.freedom is None for error in errors) and total > 0)


class Error(NamedTuple):
    """The square of a standard error, and how many degrees of freedom it was measured with; None: it is assumed."""

    variance: float
    freedom: int | None


class Chance(NamedTuple):
    """What chance may do, and whether somebody has assumed that."""

    size: float
    assumed: bool = False

    def __str__(self) -> str:
        return f"± {written(self.size)}{' assumed' if self.assumed else ''}"


def student(freedom: float) -> float:
    """T for so many degrees of freedom, a part of one not counted."""
    whole = max(1, math.floor(freedom))
    return STUDENT[whole - 1] if whole <= len(STUDENT) else 2.0


def written(number: float) -> str:
    """Two digits, and never as a power of ten."""
    return f"{float(f'{number:.2g}'):,.10g}"


Rule = Callable[[Figures], Finding]


def more(measure: str, row: str, than: str, spread: float | None = None) -> Rule:
    """One row has more of a measure than another; `spread` is what decides nothing, where it is not for the seeds."""
    return lambda figures: compared(figures, measure, row, than, 1, spread)


def less(measure: str, row: str, than: str, spread: float | None = None) -> Rule:
    """One row has less of a measure than another."""
    return lambda figures: compared(figures, measure, row, than, -1, spread)


def over(measure: str, row: str, limit: float) -> Rule:
    """A row has more of a measure than a number."""
    return lambda figures: held(figures, measure, row, limit, 1)


def under(measure: str, row: str, limit: float) -> Rule:
    """A row has less of a measure than a number."""
    return lambda figures: held(figures, measure, row, limit, -1)


def alike(measure: str, row: str, other: str, within: float, spread: float | None = None) -> Rule:
    """Two rows differ by no more than so much, whatever chance did."""

    def rule(figures: Figures) -> Finding:
        first, second = figures.value(row, measure), figures.value(other, measure)
        if first is None or second is None:
            return missing(figures, measure, row, other)
        chance = figures.chance(measure, row, other) if spread is None else Chance(spread)
        verdict = decided(within - abs(first - second), chance.size)
        return Finding(verdict, f"{row} {first:.4g}, {other} {second:.4g}, {chance}; alike is within {within:g}")

    return rule


def most(measure: str, row: str, of: tuple[str, str], spread: float) -> Rule:
    """A row has more than half of what the second of two others has beyond the first; less than `spread` is nothing."""

    def rule(figures: Figures) -> Finding:
        names = (of[0], row, of[1])
        low, middle, high = (figures.value(name, measure) for name in names)
        if low is None or middle is None or high is None:
            return missing(figures, measure, *names)
        told = f"{of[0]} {low:.4g}, {row} {middle:.4g}, {of[1]} {high:.4g}, {Chance(spread)}"
        if high - low <= spread:
            return Finding(Verdict.OPEN, told)
        return Finding(decided(middle - (low + high) / 2, spread / 2), told)

    return rule


def compared(figures: Figures, measure: str, row: str, than: str, sign: int, spread: float | None) -> Finding:
    """Two rows, of which the first is to have more (sign 1) or less (sign −1)."""
    first, second = figures.value(row, measure), figures.value(than, measure)
    if first is None or second is None:
        return missing(figures, measure, row, than)
    chance = figures.chance(measure, row, than) if spread is None else Chance(spread)
    return Finding(decided(sign * (first - second), chance.size), f"{row} {first:.4g}, {than} {second:.4g}, {chance}")


def held(figures: Figures, measure: str, row: str, limit: float, sign: int) -> Finding:
    """A row against a number."""
    found = figures.value(row, measure)
    if found is None:
        return missing(figures, measure, row)
    chance = figures.chance(measure, row)
    return Finding(decided(sign * (found - limit), chance.size), f"{row} {found:.4g}, limit {limit:g}, {chance}")


def decided(gap: float, chance: float) -> Verdict:
    """What a gap in the claim's favour says."""
    if gap > chance:
        return Verdict.HOLDS
    return Verdict.FAILS if gap < -chance else Verdict.OPEN


def missing(figures: Figures, measure: str, *rows: str) -> Finding:
    """What was not measured decides nothing; what was is told."""
    found = {row: figures.value(row, measure) for row in rows}
    told = [f"{row} {value:.4g}" for row, value in found.items() if value is not None]
    lacks = [row for row, value in found.items() if value is None]
    return Finding(Verdict.OPEN, ", ".join([*told, f"{measure} of {' and '.join(lacks)} was not measured"]))
