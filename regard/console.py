"""What a person sees while something works: a bar on a terminal, plain lines elsewhere. All of it on standard error."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator


class _StandardError:
    """Standard error, where output is dropped once its terminal or the reading end of its pipe is closed.

    Training goes on then, and saves a checkpoint: Ctrl-C ends `tee` in `regard train … 2>&1 | tee log` as well.
    """

    def write(self, text: str) -> int:
        with _output_dropped_if_closed():
            _own_stderr().write(text)
        return len(text)

    def flush(self) -> None:
        with _output_dropped_if_closed():
            _own_stderr().flush()

    def __getattr__(self, name: str) -> Any:
        if name == "rich_proxied_file":  # by which rich would write to the stream itself
            raise AttributeError(name)
        return getattr(_own_stderr(), name)


def _own_stderr() -> Any:
    if sys.stderr is None:  # closed before the start, as by `2>&-`
        return _null_file()
    return getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # rich replaces it while it draws a bar


@cache
def _null_file() -> IO[str]:
    return Path(os.devnull).open("w", encoding="utf-8")


@contextmanager
def _output_dropped_if_closed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _own_stderr().fileno())
        os.close(nowhere)


@cache
def _make_console() -> Console:
    """Standard error; one for all, so that a line said while a bar is drawn stands above it."""
    error = cast("IO[str]", _StandardError())
    return Console(file=error, highlight=False, soft_wrap=True, quiet=not is_rank0())


def log_message(message: str) -> None:
    """One line, as it is."""
    _make_console().print(message, markup=False)


def is_terminal() -> bool:
    """Whether a person watches standard error."""
    return bool(_own_stderr().isatty()) and is_rank0()


def is_rank0() -> bool:
    """Whether this process is the one that speaks, of several that torchrun has started, or alone."""
    return os.environ.get("RANK", "0") == "0"


def make_progress_bar(threaded: bool = True) -> Progress:
    """A progress bar with speed and time left; silent where nobody watches.

    Without its thread it is drawn by `refresh` alone.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=_make_console(),
        auto_refresh=threaded,
        disable=not is_terminal(),
    )
