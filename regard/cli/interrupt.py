"""What a command does when training is asked to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def print_resume_command_on_interrupt(command: str) -> Iterator[None]:
    """After Ctrl-C or SIGTERM: says where training stopped and how to go on; the exit code is the shell's usual."""
    from regard.console import log_message
    from regard.training import Interrupted

    try:
        yield
    except Interrupted as stop:
        log_message(f"{stop}; go on with: {command}")
        raise typer.Exit(128 + stop.signal_number) from stop
