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


class ClaimResult(StrEnum):
    """What the figures say of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    UNDECIDED = "not decided"


class Finding(NamedTuple):
    """A verdict, and the figures that it rests on."""

    result: ClaimResult
    evidence: str


class SeedDeviation(NamedTuple):
    """How far trainings of the same model with other seeds are apart: so much, and such a share of the figure."""

    absolute: float = 0.0
    relative: float = 0.0

    def compute_at(self, value: float) -> float:
        """At a figure of this size."""
        return self.absolute + self.relative * abs(value)


# Small: what translators and taggers have was measured, docs/reproduce.md says how. The others, and full: guessed.
TYPICAL_DEVIATIONS: dict[str, dict[str, SeedDeviation]] = {
    "small": {
        "bleu": SeedDeviation(6.5),
        "replaced": SeedDeviation(9.6),
        "perplexity": SeedDeviation(relative=0.13),
        "aer": SeedDeviation(0.083),
        "entropy": SeedDeviation(0.06),
        "faint": SeedDeviation(0.03),
        "kept": SeedDeviation(0.1),
        "accuracy": SeedDeviation(2.1),
        "recall": SeedDeviation(2.0),
        "r2": SeedDeviation(0.001),
        "error": SeedDeviation(relative=0.1),
        "gradient_kept": SeedDeviation(relative=0.05),
        "loss": SeedDeviation(relative=0.05),
        "training_speed": SeedDeviation(relative=0.2),
        "decoding_speed": SeedDeviation(relative=0.2),
        "growth_seconds": SeedDeviation(relative=0.2),
    },
    "full": {
        "bleu": SeedDeviation(0.3),
        "replaced": SeedDeviation(0.3),
        "perplexity": SeedDeviation(relative=0.01),
        "aer": SeedDeviation(0.005),
        "entropy": SeedDeviation(0.02),
        "faint": SeedDeviation(0.01),
        "kept": SeedDeviation(0.02),
        "accuracy": SeedDeviation(0.2),
        "recall": SeedDeviation(2.0),
        "r2": SeedDeviation(0.01),
        "error": SeedDeviation(relative=0.1),
        "gradient_kept": SeedDeviation(relative=0.05),
        "loss": SeedDeviation(relative=0.05),
        "training_speed": SeedDeviation(relative=0.05),
        "decoding_speed": SeedDeviation(relative=0.05),
        "growth_seconds": SeedDeviation(relative=0.2),
    },
}
MIN_DEVIATION_FRACTION = (
    0.1  # of what is typical: few seeds that agree by chance do not make σ smaller than this share of it
)
# Student's t that is exceeded to either side once in twenty times, for 1, 2, … degrees of freedom; then 2.
STUDENT_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
DEVIATIONS_KEY, SEED_COUNT_KEY = (
    "deviations",
    "seeds",
)  # what the values of a row have besides, where it was trained several times
SAME_MODEL_MARGIN = 0.5  # BLEU of one model that is asked in two ways: no seed comes between


class Measurements:
    """What was measured, by row and measure, and how sure it is."""

    def __init__(self, values: Mapping[str, Mapping[str, Any]], scale: str) -> None:
        self.values = values
        self.typical_deviations = TYPICAL_DEVIATIONS[scale]

    def find_value(self, row: str, metric: str) -> float | None:
        """A number, where it was measured."""
        found = self.values.get(row, {}).get(metric)
        return None if found is None else float(found)

    def estimate_variance(self, row: str, metric: str) -> VarianceEstimate:
        """That of the number, by its seeds, or by what is typical of one."""
        values = self.values[row]
        typical = self.typical_deviations.get(metric, SeedDeviation()).compute_at(float(values[metric]))
        if metric not in values.get(DEVIATIONS_KEY, {}):
            return VarianceEstimate(typical**2, None)
        deviation = max(float(values[DEVIATIONS_KEY][metric]), MIN_DEVIATION_FRACTION * typical)
        return VarianceEstimate(deviation**2 / values[SEED_COUNT_KEY], values[SEED_COUNT_KEY] - 1)

    def compute_margin(self, metric: str, *rows: str) -> SignificanceMargin:
        """What chance may make of the difference between rows, or between one and a number."""
        errors = [self.estimate_variance(row, metric) for row in rows]
        total = sum(error.variance for error in errors)
        free = sum(error.variance**2 / error.degrees_of_freedom for error in errors if error.degrees_of_freedom)
        t = _find_student_t(total**2 / free) if free else 2.0
        return SignificanceMargin(
            t * math.sqrt(total), any(error.degrees_of_freedom is None for error in errors) and total > 0
        )


class VarianceEstimate(NamedTuple):
    """The square of a standard error, and how many degrees of freedom it was measured with; None: it is assumed."""

    variance: float
    degrees_of_freedom: int | None


class SignificanceMargin(NamedTuple):
    """What chance may do, and whether somebody has assumed that."""

    size: float
    is_assumed: bool = False

    def __str__(self) -> str:
        return f"± {_format_two_digits(self.size)}{' assumed' if self.is_assumed else ''}"


def _find_student_t(degrees_of_freedom: float) -> float:
    """T for so many degrees of freedom, a part of one not counted."""
    whole = max(1, math.floor(degrees_of_freedom))
    return STUDENT_T_95[whole - 1] if whole <= len(STUDENT_T_95) else 2.0


def _format_two_digits(number: float) -> str:
    """Two digits, and never as a power of ten."""
    return f"{float(f'{number:.2g}'):,.10g}"


ClaimRule = Callable[[Measurements], Finding]


def expect_higher(metric: str, row: str, than: str, margin: float | None = None) -> ClaimRule:
    """One row has more of a measure than another; `spread` is what decides nothing, where it is not for the seeds."""
    return lambda figures: _compare_rows(figures, metric, row, than, 1, margin)


def expect_lower(metric: str, row: str, than: str, margin: float | None = None) -> ClaimRule:
    """One row has less of a measure than another."""
    return lambda figures: _compare_rows(figures, metric, row, than, -1, margin)


def expect_above(metric: str, row: str, limit: float) -> ClaimRule:
    """A row has more of a measure than a number."""
    return lambda figures: _compare_with_limit(figures, metric, row, limit, 1)


def expect_below(metric: str, row: str, limit: float) -> ClaimRule:
    """A row has less of a measure than a number."""
    return lambda figures: _compare_with_limit(figures, metric, row, limit, -1)


def expect_similar(metric: str, row: str, other: str, tolerance: float, margin: float | None = None) -> ClaimRule:
    """Two rows differ by no more than so much, whatever chance did."""

    def rule(measurements: Measurements) -> Finding:
        first, second = measurements.find_value(row, metric), measurements.find_value(other, metric)
        if first is None or second is None:
            return _describe_missing_values(measurements, metric, row, other)
        chance = measurements.compute_margin(metric, row, other) if margin is None else SignificanceMargin(margin)
        verdict = decide_claim(tolerance - abs(first - second), chance.size)
        return Finding(verdict, f"{row} {first:.4g}, {other} {second:.4g}, {chance}; alike is within {tolerance:g}")

    return rule


def expect_most_of_gain(metric: str, row: str, endpoints: tuple[str, str], margin: float) -> ClaimRule:
    """A row has more than half of what the second of two others has beyond the first; less than `spread` is nothing."""

    def rule(measurements: Measurements) -> Finding:
        names = (endpoints[0], row, endpoints[1])
        low, middle, high = (measurements.find_value(name, metric) for name in names)
        if low is None or middle is None or high is None:
            return _describe_missing_values(measurements, metric, *names)
        told = f"{endpoints[0]} {low:.4g}, {row} {middle:.4g}, {endpoints[1]} {high:.4g}, {SignificanceMargin(margin)}"
        if high - low <= margin:
            return Finding(ClaimResult.UNDECIDED, told)
        return Finding(decide_claim(middle - (low + high) / 2, margin / 2), told)

    return rule


def _compare_rows(
    measurements: Measurements, metric: str, row: str, than: str, sign: int, margin: float | None
) -> Finding:
    """Two rows, of which the first is to have more (sign 1) or less (sign −1)."""
    first, second = measurements.find_value(row, metric), measurements.find_value(than, metric)
    if first is None or second is None:
        return _describe_missing_values(measurements, metric, row, than)
    chance = measurements.compute_margin(metric, row, than) if margin is None else SignificanceMargin(margin)
    return Finding(
        decide_claim(sign * (first - second), chance.size), f"{row} {first:.4g}, {than} {second:.4g}, {chance}"
    )


def _compare_with_limit(measurements: Measurements, metric: str, row: str, limit: float, sign: int) -> Finding:
    """A row against a number."""
    found = measurements.find_value(row, metric)
    if found is None:
        return _describe_missing_values(measurements, metric, row)
    chance = measurements.compute_margin(metric, row)
    return Finding(decide_claim(sign * (found - limit), chance.size), f"{row} {found:.4g}, limit {limit:g}, {chance}")


def decide_claim(gap: float, margin: float) -> ClaimResult:
    """What a gap in the claim's favour says."""
    if gap > margin:
        return ClaimResult.HOLDS
    return ClaimResult.FAILS if gap < -margin else ClaimResult.UNDECIDED


def _describe_missing_values(measurements: Measurements, metric: str, *rows: str) -> Finding:
    """What was not measured decides nothing; what was is told."""
    found = {row: measurements.find_value(row, metric) for row in rows}
    told = [f"{row} {value:.4g}" for row, value in found.items() if value is not None]
    lacks = [row for row, value in found.items() if value is None]
    return Finding(ClaimResult.UNDECIDED, ", ".join([*told, f"{metric} of {' and '.join(lacks)} was not measured"]))
