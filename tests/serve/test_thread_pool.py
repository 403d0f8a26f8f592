"""Work beside the event loop: thread pools, and threads that wait for a coroutine of a loop that may close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from regard.serve.engine.thread_pool import BoundedThreadPool, run_in_loop
from regard.serve.http.errors import OverloadedError


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
        assert pool.busy == 1, "the thread still runs the cancelled work"
        queued = asyncio.ensure_future(pool(work, "queued"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="2 tasks run or wait already"):
            await pool(work, "refused")
        queued.cancel()
        with suppress(asyncio.CancelledError):
            await queued
        assert pool.busy == 1, "cancelled work that had not started is dropped"
        gate.set()
        await pool(work, "last")
        pool.close()
        assert pool.busy == 0

    try:
        asyncio.run(cancel_work())
    finally:
        gate.set()  # or a failed assertion would leave the thread waiting
    assert finished == ["running", "last"]


def test_exception_reaches_the_caller_and_frees_the_thread() -> None:
    async def fail() -> None:
        pool = BoundedThreadPool(threads=1, queue_size=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await pool(divmod, 1, 0)
        pool.close()
        assert pool.busy == 0

    asyncio.run(fail())


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_thread_gets_the_result_of_a_coroutine(thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
    result = thread.submit(run_in_loop, double(4), loop)
    assert loop.run_until_complete(asyncio.wrap_future(result, loop=loop)) == 8


def test_thread_gets_the_timeout_of_a_coroutine(thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
    async def time_out() -> None:
        raise TimeoutError("late")

    result = thread.submit(run_in_loop, time_out(), loop)
    with pytest.raises(TimeoutError, match="late"):
        loop.run_until_complete(asyncio.wrap_future(result, loop=loop))


def test_result_that_comes_just_after_a_check_of_the_loop_is_returned(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateFuture(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if not self.done():
                self.set_result(8)
                raise TimeoutError
            return super().result(timeout)

    def schedule(coroutine: Coroutine[Any, Any, int], loop: asyncio.AbstractEventLoop) -> LateFuture:
        coroutine.close()
        return LateFuture()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", schedule)
    assert run_in_loop(double(4), loop) == 8


def test_coroutine_that_the_loop_never_started_is_cancelled_when_it_closes(
    thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.serve.engine.thread_pool.CLOSED_LOOP_CHECK", 0.01)
    scheduled = threading.Event()
    schedule = loop.call_soon_threadsafe

    def schedule_and_tell(*arguments: Any, **options: Any) -> None:
        schedule(*arguments, **options)
        scheduled.set()

    monkeypatch.setattr(loop, "call_soon_threadsafe", schedule_and_tell)
    result = thread.submit(run_in_loop, double(4), loop)
    assert scheduled.wait(60)
    loop.close()
    with pytest.raises(CancelledError):
        result.result()


def test_coroutine_of_a_closed_loop_is_cancelled(thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
    loop.close()
    with pytest.raises(CancelledError):
        thread.submit(run_in_loop, double(4), loop).result()
