"""Work beside the event loop: bounded thread pools, and helper processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from regard.serve.errors import OverloadedError

T = TypeVar("T")


SHORT_TEXT = 2000  # characters that are read so soon that no thread is needed


async def run_on_texts(texts: Sequence[str], function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that reads texts; in a thread, unless they are short."""
    if sum(map(len, texts)) > SHORT_TEXT:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


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


def start_process(main: Callable[..., None], *arguments: Any) -> tuple[SpawnProcess, Connection]:
    """Start a process with one end of a pipe and the arguments, and return it with the other end.

    It should end when the pipe is closed, and call `ignore_signals` first.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks, but not the threads that hold them
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments), daemon=True)
    with _block_signals():  # which the process inherits: it may get some before `ignore_signals`
        process.start()
    theirs.close()
    return process, ours


# They end the service. All its processes may get them, but it lets its helpers finish. Windows has no SIGHUP.
_END_SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}


@contextmanager
def _block_signals() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def ignore_signals() -> None:
    """Ignore the signals that end the service."""
    for number in _END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
