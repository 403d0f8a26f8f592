"""Runs and files on one command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import UserError


def split_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The runs that come first, and the files behind them: a run is a folder."""
    runs = [path for path in paths if path.is_dir()]
    files = [path for path in paths if not path.is_dir()]
    if not runs:
        raise UserError(f"there is no run {paths[0]}: a run is a folder that `regard train` wrote")
    for path in files:
        if not path.exists() and path != Path("-"):
            raise UserError(f"there is no run and no file {path}")
    return runs, files
