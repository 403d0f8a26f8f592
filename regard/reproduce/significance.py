"""Statistical rules that decide whether a claim holds.

A difference decides nothing unless it exceeds its margin at the 95 % level: t times the standard error √(σ₁²/n₁ +
σ₂²/n₂), where σ is the standard deviation between seeds, n their number, and t that of Welch's test (2 for many seeds).
For a row that was trained once, σ is assumed to be typical of the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from regard.reproduce.experiment import Claim, ClaimRule, MetricValues, SeedDeviation, find_metric


class ClaimResult(StrEnum):
    """Result of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    UNDECIDED = "not decided"


class Finding(NamedTuple):
    """The result of a claim, and the values that it is based on."""

    result: ClaimResult
    evidence: str


MIN_DEVIATION_FRACTION = 0.1  # lower bound of σ, as a fraction of the typical one: few seeds may agree by chance
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; then 2.
STUDENT_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
DEVIATIONS_KEY, SEED_COUNT_KEY = "deviations", "seeds"  # further keys of the values of a row with several seeds


class Measurements:
    """Measured values by row and metric, and their uncertainty."""

    def __init__(self, values: Mapping[str, MetricValues], scale: str) -> None:
        self.values = values
        self.scale = scale

    def estimate_variance(self, row: str, metric: str) -> VarianceEstimate:
        """Return the variance of a mean, from its seeds, or of a typical single value."""
        values = self.values[row]
        typical_deviation: SeedDeviation = getattr(find_metric(metric), self.scale)
        typical = typical_deviation.compute_at(float(values[metric]))
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
        is_assumed = total > 0 and any(error.degrees_of_freedom is None for error in errors)
        return SignificanceMargin(t * math.sqrt(total), is_assumed)


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


def _compute_gain_gap(limit: float, low: float, middle: float, high: float) -> float:
    """Return a gap in favour of "more than half of the gain from low to high"; gains up to the limit do not count."""
    return 2 * middle - low - high if high - low > limit else 0.0  # doubled, as the margin is


# By rule: the gap in favour of a claim, from its limit and the values of its rows.
_GAPS: dict[ClaimRule, Callable[..., float]] = {
    "higher": lambda limit, value, other: value - other,
    "lower": lambda limit, value, other: other - value,
    "above": lambda limit, value: value - limit,
    "below": lambda limit, value: limit - value,
    "similar": lambda limit, value, other: limit - abs(value - other),
    "most of gain": _compute_gain_gap,
}
_EVIDENCE_FORMATS = {
    "above": "limit {limit:g}, {margin}",
    "below": "limit {limit:g}, {margin}",
    "similar": "{margin}; alike is within {limit:g}",
}


def decide_claim(claim: Claim, measurements: Measurements) -> Finding:
    """Decide a claim by the gap in its favour, if that is larger than the margin."""
    values = {row: measurements.values.get(row, {}).get(claim.metric) for row in claim.rows}
    measured = {row: float(value) for row, value in values.items() if value is not None}
    evidence = ", ".join(f"{row} {value:.4g}" for row, value in measured.items())
    if missing := [row for row in claim.rows if row not in measured]:
        reason = f"{claim.metric} of {' and '.join(missing)} was not measured"
        return Finding(ClaimResult.UNDECIDED, f"{evidence}, {reason}" if evidence else reason)
    if claim.margin is None:
        margin = measurements.compute_margin(claim.metric, *claim.rows)
    else:
        margin = SignificanceMargin(claim.margin)
    gap = _GAPS[claim.rule](claim.limit, *measured.values())
    note = _EVIDENCE_FORMATS.get(claim.rule, "{margin}").format(limit=claim.limit, margin=margin)
    return Finding(compare_with_margin(gap, margin.size), f"{evidence}, {note}")


def compare_with_margin(gap: float, margin: float) -> ClaimResult:
    """Return the result of a claim with this gap in its favour."""
    if gap > margin:
        return ClaimResult.HOLDS
    return ClaimResult.FAILS if gap < -margin else ClaimResult.UNDECIDED
