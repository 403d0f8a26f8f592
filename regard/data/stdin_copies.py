"""Copies of piped data: a pipe can be read only once, but training reads its data several times and when it resumes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from regard.console import log_message
from regard.data.readers.dispatch import detect_suffix
from regard.data.readers.text import STANDARD_INPUT, format_path
from regard.errors import UserError
from regard.paths import compute_sha256


class PipeCopies:
    """Copies of piped data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new_copies: dict[Path, Path] = {}  # copy -> pipe, for copies that did not exist before
        self.new_folders: list[Path] = []  # folders that did not exist before, the innermost first

    def copy_pipes(self, paths: Sequence[Path]) -> list[Path]:
        """Return the paths, with each pipe replaced by a copy of its data; a single path holds sentence pairs."""
        return [
            self._copy_pipe(path, path == STANDARD_INPUT or len(paths) == 1) if is_pipe(path) else path
            for path in paths
        ]

    def _copy_pipe(self, pipe: Path, holds_pairs: bool) -> Path:
        """Copy piped data to a file named by its hash, with the suffix of its format if it holds sentence pairs."""
        self.new_folders = self.new_folders or [
            folder for folder in (self.folder, *self.folder.parents) if not folder.exists()
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=self.folder, delete=False) as partial_copy:
            self.new_copies[Path(partial_copy.name)] = pipe
            if pipe == STANDARD_INPUT:
                shutil.copyfileobj(sys.stdin.buffer, partial_copy)
            else:
                with pipe.open("rb") as content:
                    shutil.copyfileobj(content, partial_copy)
        suffix = detect_suffix(Path(partial_copy.name)) if holds_pairs else ""
        copy = self.folder / f"{compute_sha256(Path(partial_copy.name))[:24]}{suffix}"
        if not copy.exists():
            self.new_copies[copy] = pipe
        Path(partial_copy.name).replace(copy)
        del self.new_copies[Path(partial_copy.name)]
        return copy

    def keep_copies(self) -> None:
        """Keep the copies, as part of the run."""
        for copy, pipe in self.new_copies.items():
            log_message(f"data from {pipe} is copied to {copy}, so that training can be resumed")
        self.new_copies, self.new_folders = {}, []

    def remove_copies(self) -> None:
        """Remove the copies that are not kept."""
        for copy in self.new_copies:
            copy.unlink(missing_ok=True)
        for folder in self.new_folders:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


@contextmanager
def open_pipe_copies(folder: Path) -> Iterator[PipeCopies]:
    """Yield copies that are removed at the end unless they are kept; error messages name the pipes instead."""
    copies = PipeCopies(folder)
    try:
        yield copies
    except UserError as error:
        message = str(error)
        for copy, pipe in copies.new_copies.items():
            message = message.replace(str(copy), format_path(pipe))
        raise UserError(message) from error
    finally:
        copies.remove_copies()


def is_pipe(path: Path) -> bool:
    """Return True if a path can be read only once."""
    return path == STANDARD_INPUT or path.is_fifo()
