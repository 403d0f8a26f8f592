"""Rules that say of figures whether a claim holds.

A difference decides nothing while it is no larger than what chance may make of it: twice its standard error, that is
2 √(σ₁²/n₁ + σ₂²/n₂), σ the deviation between trainings with other seeds and n their number. Where a row was trained
once, σ is what is typical of the scale.
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


# Small: what translators have was measured, docs/reproduce.md says how. The others, and full: assumed.
TYPICAL: dict[str, dict[str, Deviation]] = {
    "small": {
        "bleu": Deviation(7.2),
        "replaced": Deviation(7.2),
        "perplexity": Deviation(share=0.14),
        "aer": Deviation(0.09),
        "entropy": Deviation(0.06),
        "faint": Deviation(0.03),
        "kept": Deviation(0.1),
        "accuracy": Deviation(0.5),
        "recall": Deviation(2.0),
        "r2": Deviation(0.01),
        "error": Deviation(share=0.1),
        "gradient_kept": Deviation(share=0.05),
        "loss": Deviation(share=0.05),
        "training_speed": Deviation(share=0.1),
        "decoding_speed": Deviation(share=0.1),
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

    def variance(self, row: str, measure: str) -> float:
        """Of the number, by its seeds, or by what is typical of one."""
        values = self.values[row]
        if measure in values.get(DEVIATIONS, {}):
            return float(values[DEVIATIONS][measure] ** 2 / values[SEEDS])
        return self.typical.get(measure, Deviation()).of(float(values[measure])) ** 2

    def chance(self, measure: str, *rows: str) -> float:
        """What chance may make of the difference between rows, or between one and a number."""
        return 2 * math.sqrt(sum(self.variance(row, measure) for row in rows))


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
            return missing(measure, row, other)
        chance = figures.chance(measure, row, other) if spread is None else spread
        verdict = decided(within - abs(first - second), chance)
        return Finding(verdict, f"{row} {first:.4g}, {other} {second:.4g}, ± {chance:.2g}; alike is within {within:g}")

    return rule


def compared(figures: Figures, measure: str, row: str, than: str, sign: int, spread: float | None) -> Finding:
    """Two rows, of which the first is to have more (sign 1) or less (sign −1)."""
    first, second = figures.value(row, measure), figures.value(than, measure)
    if first is None or second is None:
        return missing(measure, row, than)
    chance = figures.chance(measure, row, than) if spread is None else spread
    return Finding(decided(sign * (first - second), chance), f"{row} {first:.4g}, {than} {second:.4g}, ± {chance:.2g}")


def held(figures: Figures, measure: str, row: str, limit: float, sign: int) -> Finding:
    """A row against a number."""
    found = figures.value(row, measure)
    if found is None:
        return missing(measure, row)
    chance = figures.chance(measure, row)
    return Finding(decided(sign * (found - limit), chance), f"{row} {found:.4g}, limit {limit:g}, ± {chance:.2g}")


def decided(gap: float, chance: float) -> Verdict:
    """What a gap in the claim's favour says."""
    if gap > chance:
        return Verdict.HOLDS
    return Verdict.FAILS if gap < -chance else Verdict.OPEN


def missing(measure: str, *rows: str) -> Finding:
    """What was not measured decides nothing."""
    return Finding(Verdict.OPEN, f"{measure} of {' or '.join(rows)} was not measured at this scale")
