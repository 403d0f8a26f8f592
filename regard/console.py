"""What a person sees while something works: a bar on a terminal, plain lines elsewhere. All of it on standard error."""

from __future__ import annotations

import os
import sys
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@cache
def console() -> Console:
    """Standard error; one for all, so that a line said while a bar is drawn stands above it."""
    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not is_first())


def say(message: str) -> None:
    """One line, as it is."""
    console().print(message, markup=False)


def is_terminal() -> bool:
    """Whether a person watches standard error."""
    return sys.stderr.isatty() and is_first()


def is_first() -> bool:
    """Whether this process is the one that speaks, of several that torchrun has started, or alone."""
    return os.environ.get("RANK", "0") == "0"


def bar() -> Progress:
    """A progress bar with speed and time left; silent where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console(),
        disable=not is_terminal(),
    )
