"""Rules that say of figures whether a claim holds.

A difference that is no larger than the spread decides nothing. The spread of a measure is what training the same model
again with another seed may change in it: so much, and so large a share of the smaller of two figures.
"""

from __future__ import annotations

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


class Spread(NamedTuple):
    """How much a measure may differ by chance."""

    absolute: float = 0.0
    share: float = 0.0

    def of(self, *values: float) -> float:
        """Between figures of this size."""
        return self.absolute + self.share * min(map(abs, values))


SPREADS = {
    "bleu": Spread(absolute=2.0),
    "replaced": Spread(absolute=2.0),
    "perplexity": Spread(share=0.03),
    "aer": Spread(absolute=0.02),
    "accuracy": Spread(absolute=1.0),
    "recall": Spread(absolute=1.0),
    "r2": Spread(absolute=0.02),
    "entropy": Spread(absolute=0.05),
    "faint": Spread(absolute=0.02),
    "kept": Spread(absolute=0.05),
    "training_speed": Spread(share=0.15),
    "decoding_speed": Spread(share=0.15),
    "growth_seconds": Spread(share=0.5),
    "error": Spread(share=0.15),
    "gradient_kept": Spread(share=0.1),
    "loss": Spread(share=0.1),
}

SAME = Spread(absolute=0.5)  # BLEU of one model that is asked in two ways: no seed comes between

Figures = Mapping[str, Mapping[str, Any]]  # what was measured, by row and measure
Rule = Callable[[Figures], Finding]


def more(measure: str, row: str, than: str, spread: Spread | None = None) -> Rule:
    """One row has more of a measure than another; `spread` is that of the measure where none is given."""
    return lambda figures: compared(figures, measure, row, than, 1, spread or SPREADS.get(measure, Spread()))


def less(measure: str, row: str, than: str, spread: Spread | None = None) -> Rule:
    """One row has less of a measure than another; `spread` likewise."""
    return lambda figures: compared(figures, measure, row, than, -1, spread or SPREADS.get(measure, Spread()))


def over(measure: str, row: str, limit: float) -> Rule:
    """A row has more of a measure than a number."""
    return lambda figures: held(figures, measure, row, limit, 1)


def under(measure: str, row: str, limit: float) -> Rule:
    """A row has less of a measure than a number."""
    return lambda figures: held(figures, measure, row, limit, -1)


def alike(measure: str, row: str, other: str, within: float) -> Rule:
    """Two rows differ by no more than so much; by how much chance may move them is not decided."""

    def rule(figures: Figures) -> Finding:
        first, second = value(figures, row, measure), value(figures, other, measure)
        if first is None or second is None:
            return missing(measure, row, other)
        gap, spread = abs(first - second), SPREADS.get(measure, Spread()).of(first, second)
        verdict = Verdict.HOLDS if gap <= within else Verdict.OPEN if gap <= within + spread else Verdict.FAILS
        return Finding(verdict, f"{row} {first:.4g}, {other} {second:.4g}; alike is within {within:g}")

    return rule


def compared(figures: Figures, measure: str, row: str, than: str, sign: int, by_chance: Spread) -> Finding:
    """Two rows, of which the first is to have more (sign 1) or less (sign −1)."""
    first, second = value(figures, row, measure), value(figures, than, measure)
    if first is None or second is None:
        return missing(measure, row, than)
    spread = by_chance.of(first, second)
    return Finding(decided(sign * (first - second), spread), f"{row} {first:.4g}, {than} {second:.4g}, ± {spread:.2g}")


def held(figures: Figures, measure: str, row: str, limit: float, sign: int) -> Finding:
    """A row against a number."""
    found = value(figures, row, measure)
    if found is None:
        return missing(measure, row)
    spread = SPREADS.get(measure, Spread()).of(found, limit)
    return Finding(decided(sign * (found - limit), spread), f"{row} {found:.4g}, limit {limit:g}, ± {spread:.2g}")


def decided(gap: float, spread: float) -> Verdict:
    """What a gap in the claim's favour says."""
    if gap > spread:
        return Verdict.HOLDS
    return Verdict.FAILS if gap < -spread else Verdict.OPEN


def value(figures: Figures, row: str, measure: str) -> float | None:
    """A number, where it was measured."""
    found = figures.get(row, {}).get(measure)
    return None if found is None else float(found)


def missing(measure: str, *rows: str) -> Finding:
    """What was not measured decides nothing."""
    return Finding(Verdict.OPEN, f"{measure} of {' or '.join(rows)} was not measured at this scale")
