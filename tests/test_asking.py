"""What threads ask of an event loop, which may end before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from regard.serve.asking import Asking


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


def test_the_loop_answers(thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
    asking = Asking()
    given = thread.submit(asking, double(4), loop)
    assert loop.run_until_complete(asyncio.wrap_future(given, loop=loop)) == 8
    assert not asking.open


def test_what_a_loop_took_on_and_never_began_is_not_waited_for(
    thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop
) -> None:
    asking = Asking()
    given = thread.submit(asking, double(4), loop)
    while not asking.open:
        pass
    loop.close()
    asking.close()
    with pytest.raises(CancelledError):
        given.result()
    assert not asking.open


def test_who_asks_after_the_end_is_told_so(thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
    asking = Asking()
    asking.close()
    with pytest.raises(CancelledError):
        thread.submit(asking, double(4), loop).result()
    loop.close()
    with pytest.raises(CancelledError):
        thread.submit(Asking(), double(4), loop).result()
