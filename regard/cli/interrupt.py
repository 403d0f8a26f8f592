"""Print how to resume when training is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def print_resume_command_on_interrupt(command: str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM print how to resume, and exit with 128 plus the signal number."""
    from regard.console import log_message
    from regard.training import Interrupted

    try:
        yield
    except Interrupted as stop:
        log_message(f"{stop}; resume with: {command}")
        raise typer.Exit(128 + stop.signal_number) from stop
