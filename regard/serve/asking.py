"""What threads ask of the event loop. When that has ended, nobody waits for an answer that will not come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class Asking:
    """Waits in a thread for what the loop does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held by who changes the next two
        self.open: dict[Future[Any], Coroutine[Any, Any, Any]] = {}
        self.over = False

    def __call__(self, wanted: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        """What it gives; CancelledError where the loop ends before."""
        with self.lock:
            if self.over or loop.is_closed():
                wanted.close()
                raise CancelledError
            answer = asyncio.run_coroutine_threadsafe(wanted, loop)
            self.open[answer] = wanted
        try:
            return answer.result()
        finally:
            with self.lock:
                del self.open[answer]

    def close(self) -> None:
        """Called when the loop is closed: what it took on in its last moments, it has never begun."""
        with self.lock:
            self.over = True
            for answer, wanted in self.open.items():
                answer.cancel()
                wanted.close()
