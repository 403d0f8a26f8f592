"""Work that is done beside the event loop, in a few threads of its own: whatever happens there, others go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from regard.serve.refusal import OverloadedError

T = TypeVar("T")
ITEMS_PER_PAUSE, PAUSE = 1000, 0.001  # items, seconds


async def at_once(work: Callable[..., T], *arguments: Any) -> T:
    """Done here and now: less trouble than handing it to a thread."""
    return work(*arguments)


def pause_between(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and sleep a moment after many of them.

    A thread that computes gives up the GIL only when the event loop has waited for it, at each of the loop's system
    calls; while it sleeps, the loop answers a request without waiting.
    """
    for number, item in enumerate(items):
        if number % ITEMS_PER_PAUSE == 0:
            time.sleep(PAUSE)
        yield item


class Aside:
    """So many threads, and room for so many that wait for one."""

    def __init__(self, threads: int, room: int) -> None:
        self.pool = ThreadPoolExecutor(threads)
        self.room = threads + room
        self.busy = 0  # what is worked on, and what waits; also where nobody waits for it any longer
        self.lock = threading.Lock()

    async def __call__(self, work: Callable[..., T], *arguments: Any) -> T:
        """What the work gives."""
        with self.lock:
            if self.busy >= self.room:
                raise OverloadedError(f"{self.busy} are at work or wait already")
            self.busy += 1
        future = self.pool.submit(work, *arguments)
        future.add_done_callback(self.ended)
        return await asyncio.wrap_future(future)

    def ended(self, future: Future[Any]) -> None:
        """Something is done, or was given up before it began."""
        with self.lock:
            self.busy -= 1

    def close(self) -> None:
        """Ends the threads, when what they work on is done."""
        self.pool.shutdown()
