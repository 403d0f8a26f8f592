"""Statistical rules that decide whether a claim holds.

A difference decides nothing unless it exceeds its margin at the 95 % level: t times the standard error √(σ₁²/n₁ +
σ₂²/n₂), where σ is the standard deviation between seeds, n their number, and t that of Welch's test (2 for many seeds).
For a row that was trained once, σ is assumed to be typical of the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class ClaimResult(StrEnum):
    """Result of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    UNDECIDED = "not decided"


class Finding(NamedTuple):
    """The result of a claim, and the values that it is based on."""

    result: ClaimResult
    evidence: str


class SeedDeviation(NamedTuple):
    """Standard deviation between seeds of a model: an absolute part, and a part relative to the value."""

    absolute: float = 0.0
    relative: float = 0.0

    def compute_at(self, value: float) -> float:
        """Return the standard deviation at a value."""
        return self.absolute + self.relative * abs(value)


# Small scale, translation and tagging: measured, see docs/reproduce.md. All others are estimates.
_DEVIATIONS_SMALL_AND_FULL = {
    "bleu": (SeedDeviation(6.5), SeedDeviation(0.3)),
    "replaced": (SeedDeviation(9.6), SeedDeviation(0.3)),
    "perplexity": (SeedDeviation(relative=0.13), SeedDeviation(relative=0.01)),
    "aer": (SeedDeviation(0.083), SeedDeviation(0.005)),
    "entropy": (SeedDeviation(0.06), SeedDeviation(0.02)),
    "faint": (SeedDeviation(0.03), SeedDeviation(0.01)),
    "kept": (SeedDeviation(0.1), SeedDeviation(0.02)),
    "accuracy": (SeedDeviation(2.1), SeedDeviation(0.2)),
    "recall": (SeedDeviation(2.0), SeedDeviation(2.0)),
    "r2": (SeedDeviation(0.001), SeedDeviation(0.01)),
    "error": (SeedDeviation(relative=0.1), SeedDeviation(relative=0.1)),
    "gradient_kept": (SeedDeviation(relative=0.05), SeedDeviation(relative=0.05)),
    "loss": (SeedDeviation(relative=0.05), SeedDeviation(relative=0.05)),
    "training_speed": (SeedDeviation(relative=0.2), SeedDeviation(relative=0.05)),
    "decoding_speed": (SeedDeviation(relative=0.2), SeedDeviation(relative=0.05)),
    "growth_seconds": (SeedDeviation(relative=0.2), SeedDeviation(relative=0.2)),
}
TYPICAL_DEVIATIONS = {
    scale: {metric: deviations[index] for metric, deviations in _DEVIATIONS_SMALL_AND_FULL.items()}
    for index, scale in enumerate(("small", "full"))
}
MIN_DEVIATION_FRACTION = 0.1  # lower bound of σ, as a fraction of the typical one: few seeds may agree by chance
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; then 2.
STUDENT_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
DEVIATIONS_KEY, SEED_COUNT_KEY = "deviations", "seeds"  # further keys of the values of a row with several seeds
SAME_MODEL_MARGIN = 0.5  # BLEU of one model with two search settings, which does not depend on seeds


class Measurements:
    """Measured values by row and metric, and their uncertainty."""

    def __init__(self, values: Mapping[str, Mapping[str, Any]], scale: str) -> None:
        self.values = values
        self.typical_deviations = TYPICAL_DEVIATIONS[scale]

    def find_value(self, row: str, metric: str) -> float | None:
        """Return a value; None if it was not measured."""
        value = self.values.get(row, {}).get(metric)
        return None if value is None else float(value)

    def estimate_variance(self, row: str, metric: str) -> VarianceEstimate:
        """Return the variance of a mean, from its seeds, or of a typical single value."""
        values = self.values[row]
        typical = self.typical_deviations.get(metric, SeedDeviation()).compute_at(float(values[metric]))
        if metric not in values.get(DEVIATIONS_KEY, {}):
            return VarianceEstimate(typical**2, None)
        deviation = max(float(values[DEVIATIONS_KEY][metric]), MIN_DEVIATION_FRACTION * typical)
        return VarianceEstimate(deviation**2 / values[SEED_COUNT_KEY], values[SEED_COUNT_KEY] - 1)

    def compute_margin(self, metric: str, *rows: str) -> SignificanceMargin:
        """Return the margin of the difference between rows, or between one row and a constant."""
        errors = [self.estimate_variance(row, metric) for row in rows]
        total = sum(error.variance for error in errors)
        free = sum(error.variance**2 / error.degrees_of_freedom for error in errors if error.degrees_of_freedom)
        t = _find_student_t(total**2 / free) if free else 2.0
        return SignificanceMargin(
            t * math.sqrt(total), any(error.degrees_of_freedom is None for error in errors) and total > 0
        )


class VarianceEstimate(NamedTuple):
    """A squared standard error and its degrees of freedom; None: the variance is assumed."""

    variance: float
    degrees_of_freedom: int | None


class SignificanceMargin(NamedTuple):
    """Margin of a difference; `is_assumed` if its variance is."""

    size: float
    is_assumed: bool = False

    def __str__(self) -> str:
        return f"± {_format_two_digits(self.size)}{' assumed' if self.is_assumed else ''}"


def _find_student_t(degrees_of_freedom: float) -> float:
    """Return Student's t, with the degrees of freedom rounded down."""
    whole = max(1, math.floor(degrees_of_freedom))
    return STUDENT_T_95[whole - 1] if whole <= len(STUDENT_T_95) else 2.0


def _format_two_digits(number: float) -> str:
    """Format a number with two significant digits, without an exponent."""
    return f"{float(f'{number:.2g}'):,.10g}"


ClaimRule = Callable[[Measurements], Finding]


def _make_rule(
    metric: str, rows: Sequence[str], compute_gap: Callable[..., float], margin: float | None = None, note: str = "{}"
) -> ClaimRule:
    """Return a rule that compares a gap in favour of the claim with its margin.

    Args:
        metric: The metric that is compared.
        rows: Names of the rows.
        compute_gap: Function of the rows' values.
        margin: Margin of the gap; None: that of the difference between seeds.
        note: Text after the values of the rows, with `{}` in the place of the margin.
    """

    def rule(measurements: Measurements) -> Finding:
        values = {row: measurements.find_value(row, metric) for row in rows}
        measured = {row: value for row, value in values.items() if value is not None}
        evidence = ", ".join(f"{row} {value:.4g}" for row, value in measured.items())
        if missing := [row for row in rows if row not in measured]:
            reason = f"{metric} of {' and '.join(missing)} was not measured"
            return Finding(ClaimResult.UNDECIDED, f"{evidence}, {reason}" if evidence else reason)
        significance = measurements.compute_margin(metric, *rows) if margin is None else SignificanceMargin(margin)
        gap = compute_gap(*(measured[row] for row in rows))
        return Finding(decide_claim(gap, significance.size), f"{evidence}, {note.format(significance)}")

    return rule


def expect_higher(metric: str, row: str, than: str, margin: float | None = None) -> ClaimRule:
    """Return a rule: a row has a higher value than another; `margin` replaces that of the seeds."""
    return _make_rule(metric, (row, than), lambda value, other: value - other, margin)


def expect_lower(metric: str, row: str, than: str, margin: float | None = None) -> ClaimRule:
    """Return a rule: a row has a lower value than another; `margin` replaces that of the seeds."""
    return _make_rule(metric, (row, than), lambda value, other: other - value, margin)


def expect_above(metric: str, row: str, limit: float) -> ClaimRule:
    """Return a rule: a row has a value above a limit."""
    return _make_rule(metric, (row,), lambda value: value - limit, note=f"limit {limit:g}, {{}}")


def expect_below(metric: str, row: str, limit: float) -> ClaimRule:
    """Return a rule: a row has a value below a limit."""
    return _make_rule(metric, (row,), lambda value: limit - value, note=f"limit {limit:g}, {{}}")


def expect_similar(metric: str, row: str, other: str, tolerance: float) -> ClaimRule:
    """Return a rule: two rows differ by at most `tolerance`."""
    return _make_rule(
        metric,
        (row, other),
        lambda value, other_value: tolerance - abs(value - other_value),
        note=f"{{}}; alike is within {tolerance:g}",
    )


def expect_most_of_gain(metric: str, row: str, endpoints: tuple[str, str], margin: float) -> ClaimRule:
    """Return a rule: a row has more than half of the gain between two others; gains below `margin` do not count."""

    def compute_gap(low: float, middle: float, high: float) -> float:
        return 2 * middle - low - high if high - low > margin else 0.0  # doubled, as the margin is

    return _make_rule(metric, (endpoints[0], row, endpoints[1]), compute_gap, margin)


def decide_claim(gap: float, margin: float) -> ClaimResult:
    """Decide a claim by the gap in its favour."""
    if gap > margin:
        return ClaimResult.HOLDS
    return ClaimResult.FAILS if gap < -margin else ClaimResult.UNDECIDED
