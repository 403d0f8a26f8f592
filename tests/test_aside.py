"""Work that is done beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from regard.serve.aside import Aside
from regard.serve.refusal import OverloadedError


def test_what_a_thread_works_on_counts_until_it_is_done() -> None:
    begun, go, noted = threading.Event(), threading.Event(), list[str]()

    def work(name: str) -> None:
        begun.set()
        go.wait(timeout=20)
        noted.append(name)

    async def many() -> None:
        aside = Aside(threads=1, room=1)
        gone = asyncio.ensure_future(aside(work, "gone"))
        while not begun.is_set():
            await asyncio.sleep(0)
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        assert aside.busy == 1, "nobody waits for it, but the thread is at it"
        late = asyncio.ensure_future(aside(work, "late"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="2 are at work or wait already"):
            await aside(work, "too many")
        late.cancel()
        with suppress(asyncio.CancelledError):
            await late
        assert aside.busy == 1, "what had not begun never will"
        go.set()
        await aside(work, "last")
        aside.close()
        assert aside.busy == 0

    asyncio.run(many())
    assert noted == ["gone", "last"]


def test_what_goes_wrong_is_told_and_counts_no_longer() -> None:
    async def failing() -> None:
        aside = Aside(threads=1, room=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await aside(divmod, 1, 0)
        aside.close()
        assert aside.busy == 0

    asyncio.run(failing())
