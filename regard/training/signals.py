"""Signals that ask training to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from regard.data.loader import STOP_SIGNALS
from regard.training.distributed import is_distributed

_SIGHUP = getattr(signal, "SIGHUP", None)


class Interrupted(Exception):  # noqa: N818 - an event, not a mistake
    """Training was asked to stop (Ctrl-C, SIGTERM, SIGHUP) and has saved a checkpoint; or several runs were."""

    def __init__(self, step: int | None, signal_number: int) -> None:
        super().__init__(step, signal_number)  # so that it comes whole out of another process
        self.step = step
        self.signal_number = signal_number

    def __str__(self) -> str:
        return "stopped" if self.step is None else f"stopped at step {self.step}, checkpoint saved"


class StopSignals:
    """Note signals of `STOPPING`, to stop after the current update; another Ctrl-C stops at once.

    Only Ctrl-C is repeated by a user. Supervisors repeat signals, and torchrun passes on what its processes may have
    received themselves.
    """

    def __init__(self) -> None:
        self.received_signal = 0  # of the signal that came

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        """Handle one signal."""
        if self.received_signal and signal_number == signal.SIGINT and not is_distributed():
            raise KeyboardInterrupt
        self.received_signal = self.received_signal or signal_number

    @contextmanager
    def install_handlers(self) -> Iterator[None]:
        """Install the handler, and restore the previous ones on exit. An ignored SIGHUP (nohup) stays ignored."""
        noted = [number for number in STOP_SIGNALS if number != _SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
        try:
            before = set_signal_handlers(dict.fromkeys(noted, self._handle_signal))
        except ValueError:  # not the main thread: whoever runs there has their own way to stop
            yield
            return
        try:
            yield
        finally:
            set_signal_handlers(before)


def set_signal_handlers(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Sets handlers; gives back those that were set before."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
