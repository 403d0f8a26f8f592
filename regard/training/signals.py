"""Being asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):  # noqa: N818 - an event, not a mistake
    """Training was asked to stop (Ctrl-C, SIGTERM) and has saved a checkpoint; or several were, which had begun."""

    def __init__(self, step: int | None, signal_number: int) -> None:
        super().__init__(step, signal_number)  # so that it comes whole out of another process
        self.step = step
        self.signal_number = signal_number

    def __str__(self) -> str:
        return "stopped" if self.step is None else f"stopped at step {self.step}, checkpoint saved"


class Signals:
    """Notes Ctrl-C and SIGTERM, to stop after the update at hand; a second one stops at once."""

    def __init__(self) -> None:
        self.number = 0  # of the signal that came

    def note(self, number: int, frame: FrameType | None) -> None:
        """What happens when one comes."""
        if self.number:
            raise KeyboardInterrupt
        self.number = number

    @contextmanager
    def watched(self) -> Iterator[None]:
        """From here on; afterwards whoever watched before does so again."""
        try:
            before = install(dict.fromkeys(STOPPING, self.note))
        except ValueError:  # not the main thread: whoever runs there has their own way to stop
            yield
            return
        try:
            yield
        finally:
            install(before)


def install(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Sets handlers; gives back those that were set before."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
