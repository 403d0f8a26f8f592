"""Where a model works, and that it works alone: several make an ensemble in translation only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.errors import UserError
from regard.runs import Run


def only(runs: Sequence[str | Path], does: str) -> Run:
    """The one run among `runs`; `does` is what its model does."""
    if len(runs) != 1:
        raise UserError(f"a model that {does} works alone, not beside others: {', '.join(map(str, runs))}")
    return Run(Path(runs[0]))


def where(device: str | torch.device | None) -> torch.device:
    """The device that is named, or a GPU where there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
