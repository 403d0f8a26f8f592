"""Thread pools with a bounded queue: work beyond it is refused."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from regard.serve.engine.background import BoundedThreadPool
from regard.serve.errors import OverloadedError


def test_full_pool_refuses_work_and_recovers() -> None:
    gate = threading.Semaphore(0)

    def work(number: int) -> int:
        gate.acquire()
        return number

    async def fill_pool() -> None:
        pool = BoundedThreadPool(threads=1, queue_size=2)
        tasks = [asyncio.create_task(pool(work, number)) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="3 tasks run or wait already"):
            await pool(work, 3)
        gate.release(9)
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        assert await pool(work, 4) == 4
        pool.close()

    asyncio.run(fill_pool())


def test_cancelled_work_counts_until_its_thread_is_free() -> None:
    started, gate, finished = threading.Event(), threading.Event(), list[str]()

    def work(name: str) -> None:
        started.set()
        gate.wait()
        finished.append(name)

    async def cancel_work() -> None:
        pool = BoundedThreadPool(threads=1, queue_size=1)
        running = asyncio.ensure_future(pool(work, "running"))
        while not started.is_set():
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        queued = asyncio.ensure_future(pool(work, "queued"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="2 tasks run or wait already"):  # the thread runs the cancelled work
            await pool(work, "refused")
        queued.cancel()
        with suppress(asyncio.CancelledError):
            await queued
        next_one = asyncio.ensure_future(pool(work, "next"))  # cancelled work that had not started is dropped
        await asyncio.sleep(0)
        gate.set()
        await next_one
        gate.clear()
        last = [asyncio.ensure_future(pool(work, "last")) for _ in range(2)]  # both slots are free, and no third one
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="2 tasks run or wait already"):
            await pool(work, "refused")
        gate.set()
        await asyncio.gather(*last)
        pool.close()

    try:
        asyncio.run(cancel_work())
    finally:
        gate.set()  # or a failed assertion would leave the thread waiting
    assert finished == ["running", "next", "last", "last"]


def test_exception_reaches_the_caller_and_frees_the_thread() -> None:
    async def fail() -> None:
        pool = BoundedThreadPool(threads=1, queue_size=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await pool(divmod, 1, 0)
        assert await pool(divmod, 7, 2) == (3, 1)
        pool.close()

    asyncio.run(fail())
