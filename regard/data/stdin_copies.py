"""Data that comes through a pipe can be read once, and training reads it more often: a run keeps a copy."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from regard.console import log_message
from regard.data.readers.dispatch import detect_suffix
from regard.data.readers.text_io import STANDARD_INPUT, format_path
from regard.errors import UserError
from regard.paths import compute_sha256


class PipeCopies:
    """What came through pipes, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new_copies: dict[Path, Path] = {}  # of which pipe each copy is that was not there before
        self.new_folders: list[Path] = []  # those that were not there before, the innermost first

    def copy_pipes(self, paths: Sequence[Path]) -> list[Path]:
        """The same files, each pipe among them copied into the folder; one alone holds pairs."""
        return [
            self._copy_pipe(path, path == STANDARD_INPUT or len(paths) == 1) if is_pipe(path) else path
            for path in paths
        ]

    def _copy_pipe(self, pipe: Path, holds_pairs: bool) -> Path:
        """A copy of what comes through a pipe, named by its content, and of pairs also by their format."""
        self.new_folders = self.new_folders or [
            place for place in (self.folder, *self.folder.parents) if not place.exists()
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=self.folder, delete=False) as beside:
            self.new_copies[Path(beside.name)] = pipe
            if pipe == STANDARD_INPUT:
                shutil.copyfileobj(sys.stdin.buffer, beside)
            else:
                with pipe.open("rb") as content:
                    shutil.copyfileobj(content, beside)
        ending = detect_suffix(Path(beside.name)) if holds_pairs else ""
        place = self.folder / f"{compute_sha256(Path(beside.name))[:24]}{ending}"
        if not place.exists():
            self.new_copies[place] = pipe
        Path(beside.name).replace(place)
        del self.new_copies[Path(beside.name)]
        return place

    def keep_copies(self) -> None:
        """They are a run's from now on."""
        for place, pipe in self.new_copies.items():
            log_message(f"what came through {pipe} is kept as {place}, for the run to go on from")
        self.new_copies, self.new_folders = {}, []

    def remove_copies(self) -> None:
        """They are nobody's."""
        for place in self.new_copies:
            place.unlink(missing_ok=True)
        for folder in self.new_folders:
            with suppress(OSError):  # something else is in there
                folder.rmdir()


@contextmanager
def open_pipe_copies(folder: Path) -> Iterator[PipeCopies]:
    """Copies that are gone at the end, unless they were to be kept; what is said of them is said of their pipes."""
    copies = PipeCopies(folder)
    try:
        yield copies
    except UserError as error:
        said = str(error)
        for place, pipe in copies.new_copies.items():
            said = said.replace(str(place), format_path(pipe))
        raise UserError(said) from error
    finally:
        copies.remove_copies()


def is_pipe(path: Path) -> bool:
    """Whether a path can be read only once."""
    return path == STANDARD_INPUT or path.is_fifo()
