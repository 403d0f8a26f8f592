"""Console output on standard error: log lines, and a progress bar if it is a terminal."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _StandardError:
    """Standard error that drops output once its terminal or the reading end of its pipe is closed.

    Training continues then, and saves a checkpoint: Ctrl-C ends `tee` in `regard train … 2>&1 | tee log` as well.
    """

    def write(self, text: str) -> int:
        with _output_dropped_if_closed():
            _own_stderr().write(text)
        return len(text)

    def flush(self) -> None:
        with _output_dropped_if_closed():
            _own_stderr().flush()

    def __getattr__(self, name: str) -> Any:
        if name == "rich_proxied_file":  # rich would use it to write to the stream directly
            raise AttributeError(name)
        return getattr(_own_stderr(), name)


def _own_stderr() -> Any:
    if sys.stderr is None:  # closed before Python started, as by `2>&-`
        return _null_file()
    return getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # rich replaces sys.stderr while it draws a bar


@cache
def _null_file() -> IO[str]:
    return Path(os.devnull).open("w", encoding="utf-8")


@contextmanager
def _output_dropped_if_closed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO, errno.EINVAL):  # EINVAL: a closed pipe on Windows
            raise
        null_descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_descriptor, _own_stderr().fileno())
        os.close(null_descriptor)


@cache
def _make_console() -> Console:
    """Return the console on standard error; there is only one, so that log lines appear above a progress bar."""
    error = cast("IO[str]", _StandardError())
    return Console(file=error, highlight=False, soft_wrap=True, quiet=not is_rank0())


@dataclass
class _Verbosity:
    quiet: bool = False
    verbose: bool = False


_VERBOSITY = _Verbosity()


def set_verbosity(quiet: bool = False, verbose: bool = False) -> None:
    """Leave out messages and progress bars, but not warnings, if `quiet`; print details if `verbose`."""
    _VERBOSITY.quiet, _VERBOSITY.verbose = quiet, verbose and not quiet


def apply_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with two keywords more, `quiet` and `verbose`."""

    @wraps(command)
    def run_command(*arguments: Any, quiet: bool = False, verbose: bool = False, **values: Any) -> None:
        set_verbosity(quiet, verbose)
        command(*arguments, **values)

    return run_command


def log_message(message: str) -> None:
    """Print one line on standard error, without interpreting markup or emoji codes; only rank 0 prints."""
    if not _VERBOSITY.quiet or message.startswith("warning: "):
        _make_console().print(message, markup=False, emoji=False)


def log_detail(message: str) -> None:
    """Print one line on standard error if the command has `--verbose`."""
    if _VERBOSITY.verbose:
        log_message(message)


def is_terminal() -> bool:
    """Return True if standard error is a terminal that can redraw lines and this process is rank 0."""
    return bool(_own_stderr().isatty()) and not _make_console().is_dumb_terminal and is_rank0()


def is_rank0() -> bool:
    """Return True if this process is rank 0 of those that torchrun started, or runs alone."""
    return os.environ.get("RANK", "0") == "0"


class _CountColumn(MofNCompleteColumn):
    """Show `3/5`, or the count alone if the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed):,}") if task.total is None else super().render(task)


class _TimeLeftColumn(TimeRemainingColumn):
    """Show `0:00:07 left`, or nothing at the end and if the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None or task.finished else super().render(task).append(" left")


def make_progress_bar(threaded: bool = True, transient: bool = False) -> Progress:
    """Return a progress bar with speed and time left; it draws nothing if standard error is not a terminal.

    With `threaded` false it is drawn only when `refresh` is called. A `transient` bar disappears at its end.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        _CountColumn(),
        TimeElapsedColumn(),
        _TimeLeftColumn(),
        TextColumn("{task.fields[note]}"),
        console=_make_console(),
        auto_refresh=threaded,
        transient=transient,
        disable=_VERBOSITY.quiet or not is_terminal(),
    )


def draw_live(renderable: RenderableType | None) -> AbstractContextManager[object]:
    """Draw a renderable, if given, below the log lines, four times a second; only on a terminal."""
    if renderable is None or _VERBOSITY.quiet or not is_terminal():
        return nullcontext()
    return Live(renderable, console=_make_console(), refresh_per_second=4)
