"""Signals that stop training after the current update: Ctrl-C, SIGTERM, SIGHUP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from regard.data.loader import STOP_SIGNALS
from regard.training.distributed import is_distributed

_SIGHUP = getattr(signal, "SIGHUP", None)


class Interrupted(Exception):  # noqa: N818 - an event, not a mistake
    """Training was stopped by a signal (Ctrl-C, SIGTERM, SIGHUP) and has saved a checkpoint.

    Step None: several runs.
    """

    def __init__(self, step: int | None, signal_number: int) -> None:
        super().__init__(step, signal_number)  # all arguments, so that it can be pickled
        self.step = step
        self.signal_number = signal_number

    def __str__(self) -> str:
        return "stopped" if self.step is None else f"stopped at step {self.step}, checkpoint saved"


class StopSignals:
    """Records signals of `STOP_SIGNALS`, so that training stops after the current update.

    A second Ctrl-C stops at once.

    Only a user repeats Ctrl-C deliberately. Supervisors repeat signals, and torchrun forwards signals that its
    processes may have received themselves.
    """

    def __init__(self) -> None:
        self.received_signal = 0  # number of the first signal; 0: none

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        if self.received_signal and signal_number == signal.SIGINT and not is_distributed():
            raise KeyboardInterrupt
        self.received_signal = self.received_signal or signal_number

    @contextmanager
    def install_handlers(self) -> Iterator[None]:
        """Install the handler, and restore the previous ones on exit; an ignored SIGHUP (nohup) stays ignored."""
        handled = [number for number in STOP_SIGNALS if number != _SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
        try:
            previous_handlers = {number: signal.signal(number, self._handle_signal) for number in handled}
        except ValueError:  # not the main thread, where Python allows no handlers
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
