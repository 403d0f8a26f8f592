"""Data that comes through a pipe can be read once, and training reads it more often: a run keeps a copy."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from regard.console import say
from regard.data.corpus import recognised
from regard.data.disk import digest
from regard.data.files import STANDARD_INPUT, name_of
from regard.errors import UserError


class Copies:
    """What came through pipes, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipes: dict[Path, Path] = {}  # of which pipe each copy is that was not there before
        self.folders: list[Path] = []  # those that were not there before, the innermost first

    def settled(self, paths: Sequence[Path]) -> list[Path]:
        """The same files, each pipe among them copied into the folder; one alone holds pairs."""
        return [self.copy(path, path == STANDARD_INPUT or len(paths) == 1) if is_pipe(path) else path for path in paths]

    def copy(self, pipe: Path, of_pairs: bool) -> Path:
        """A copy of what comes through a pipe, named by its content, and of pairs also by their format."""
        self.folders = self.folders or [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=self.folder, delete=False) as beside:
            self.pipes[Path(beside.name)] = pipe
            if pipe == STANDARD_INPUT:
                shutil.copyfileobj(sys.stdin.buffer, beside)
            else:
                with pipe.open("rb") as content:
                    shutil.copyfileobj(content, beside)
        ending = recognised(Path(beside.name)) if of_pairs else ""
        place = self.folder / f"{digest(Path(beside.name))[:24]}{ending}"
        if not place.exists():
            self.pipes[place] = pipe
        Path(beside.name).replace(place)
        del self.pipes[Path(beside.name)]
        return place

    def keep(self) -> None:
        """They are a run's from now on."""
        for place, pipe in self.pipes.items():
            say(f"what came through {pipe} is kept as {place}, for the run to go on from")
        self.pipes, self.folders = {}, []

    def remove(self) -> None:
        """They are nobody's."""
        for place in self.pipes:
            place.unlink(missing_ok=True)
        for folder in self.folders:
            with suppress(OSError):  # something else is in there
                folder.rmdir()


@contextmanager
def copying(folder: Path) -> Iterator[Copies]:
    """Copies that are gone at the end, unless they were to be kept; what is said of them is said of their pipes."""
    copies = Copies(folder)
    try:
        yield copies
    except UserError as error:
        said = str(error)
        for place, pipe in copies.pipes.items():
            said = said.replace(str(place), name_of(pipe))
        raise UserError(said) from error
    finally:
        copies.remove()


def is_pipe(path: Path) -> bool:
    """Whether a path can be read only once."""
    return path == STANDARD_INPUT or path.is_fifo()
