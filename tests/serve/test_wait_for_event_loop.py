"""Threads that wait for a coroutine of an event loop (`Asking`), which may close before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from regard.serve.engine.thread_pool import Asking


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
    asking = Asking()
    result = thread.submit(asking, double(4), loop)
    assert loop.run_until_complete(asyncio.wrap_future(result, loop=loop)) == 8
    assert not asking.open


def test_closing_cancels_a_coroutine_the_loop_never_started(
    thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop
) -> None:
    asking = Asking()
    result = thread.submit(asking, double(4), loop)
    while not asking.open:
        pass
    loop.close()
    asking.close()
    with pytest.raises(CancelledError):
        result.result()
    assert not asking.open


def test_request_after_closing_is_cancelled(thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
    asking = Asking()
    asking.close()
    with pytest.raises(CancelledError):
        thread.submit(asking, double(4), loop).result()
    loop.close()
    with pytest.raises(CancelledError):
        thread.submit(Asking(), double(4), loop).result()
