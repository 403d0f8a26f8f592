"""How near numbers are to what is right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.tasks.regression.files import Table


def figures(gold: Sequence[Table], found: Sequence[Table]) -> dict[str, float]:
    """The root of the mean square error, and R²: the share of the variance that is accounted for, 1 at best.

    Of several outputs R² is the mean; one that never varies has 0.
    """
    right, made = np.concatenate(gold), np.concatenate(found)
    squares = np.square(right - made)
    spread = np.square(right - right.mean(0)).mean(0)
    missed = np.divide(squares.mean(0), spread, out=np.ones_like(spread), where=spread > 0)
    return {"rmse": float(np.sqrt(squares.mean())), "r2": float((1 - missed).mean())}
