"""Work that is done beside the event loop, in a few threads of its own: whatever happens there, others go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from regard.serve.http.errors import OverloadedError

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
