"""Multiprocessing context of data workers, which ignore signals to the whole run."""

from __future__ import annotations

import signal
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.popen_fork import Popen
from multiprocessing.process import BaseProcess

from regard.data.loader import STOP_SIGNALS


class _WorkerPopen(Popen):
    """Fork a data worker with `STOP_SIGNALS` blocked from its first instruction.

    Supervisors send them to every process of a run. Only the process that trains reacts, and needs its workers until it
    has saved a checkpoint. It ends workers that do not exit by themselves with SIGKILL.
    """

    def __init__(self, process_obj: BaseProcess) -> None:
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            super().__init__(process_obj)  # does not return in the worker
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    def terminate(self) -> None:
        self.kill()


class _WorkerProcess(ForkProcess):
    _Popen = staticmethod(_WorkerPopen)


class WorkerContext(ForkContext):
    """Multiprocessing context for data workers that survive signals to the whole run."""

    Process = _WorkerProcess
