"""Work beside the event loop: bounded thread pools, and threads that leave it time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from regard.serve.http.errors import OverloadedError

T = TypeVar("T")
ITEMS_PER_PAUSE, PAUSE = 1000, 0.001  # items, seconds


class BoundedThreadPool:
    """Thread pool with a bounded queue: work beyond it is refused.

    anyio's CapacityLimiter would free the slot of a cancelled request although its thread still runs.
    """

    def __init__(self, threads: int, queue_size: int) -> None:
        self.executor = ThreadPoolExecutor(threads)
        self.capacity = threads + queue_size
        self.slots = threading.Semaphore(self.capacity)  # a cancelled task has one until its thread is free

    async def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread and return its result."""
        if not self.slots.acquire(blocking=False):
            raise OverloadedError(f"{self.capacity} tasks run or wait already")
        future = self.executor.submit(function, *arguments)
        future.add_done_callback(lambda _: self.slots.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for the running work and end the threads."""
        self.executor.shutdown()


def pause_between(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and sleep a moment after many of them.

    A thread that computes gives up the GIL only when the event loop has waited for it, at each of the loop's system
    calls; while it sleeps, the loop answers a request without waiting.
    """
    for number, item in enumerate(items):
        if number % ITEMS_PER_PAUSE == 0:
            time.sleep(PAUSE)
        yield item
