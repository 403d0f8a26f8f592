"""Data that comes through a pipe can be read once, and training reads it more often: a run keeps a copy."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from regard.console import say
from regard.data.disk import digest
from regard.data.files import STANDARD_INPUT


def settled(paths: Sequence[Path], folder: Path) -> list[Path]:
    """The same files, each pipe among them copied into the folder; one alone holds tab-separated pairs."""
    return [
        kept(path, folder, ".tsv" if path == STANDARD_INPUT or len(paths) == 1 else "") if is_pipe(path) else path
        for path in paths
    ]


def is_pipe(path: Path) -> bool:
    """Whether a path can be read only once."""
    return path == STANDARD_INPUT or path.is_fifo()


def kept(path: Path, folder: Path, ending: str) -> Path:
    """A copy of what comes through a pipe, named by its content."""
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, delete=False) as copy:
        if path == STANDARD_INPUT:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with path.open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
    place = Path(copy.name).replace(folder / f"{digest(Path(copy.name))[:24]}{ending}")
    say(f"what came through {path} is kept as {place}, for the run to go on from")
    return place
