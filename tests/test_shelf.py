"""Translated files that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.server import FakeClock

from regard.serve.refusal import Refusal
from regard.serve.shelf import KEPT, LEAST, Shelf


@contextmanager
def shelved(room: int, clock: FakeClock | None = None) -> Iterator[Shelf]:
    shelf = Shelf(room, clock or FakeClock())
    try:
        yield shelf
    finally:
        shelf.close()


def put(shelf: Shelf, owner: str, content: bytes = b"x", name: str = "a.txt") -> str:
    return asyncio.run(shelf.put(owner, name, content))


def there(shelf: Shelf, key: str) -> bool:
    path = shelf.get(key)
    return path is not None and path.is_file()


def test_nobody_pushes_anybody_elses_files_out() -> None:
    with shelved(room=30 * LEAST) as shelf:
        first = put(shelf, "a", b"mine")
        own = [put(shelf, "b") for _ in range(500)]
        assert [there(shelf, key) for key in own] == [False] * 497 + [True] * 3, (
            "a tenth of the room, and the oldest goes"
        )
        path = shelf.get(first)
        assert path is not None
        assert path.read_bytes() == b"mine"
        assert len(list(Path(shelf.folder.name).iterdir())) == 4, "what has gone is gone from the disk as well"


def test_a_share_is_counted_in_bytes() -> None:
    with shelved(room=40 * LEAST) as shelf:
        large = put(shelf, "a", b"x" * 2 * LEAST)
        small = [put(shelf, "a") for _ in range(2)]
        assert all(there(shelf, key) for key in [large, *small])
        another = put(shelf, "a")
        assert [there(shelf, key) for key in [large, *small, another]] == [False, True, True, True]
        with pytest.raises(
            Refusal, match=r"the file \(400001\) exceeds what is kept for one client \(400000\)"
        ) as refused:
            put(shelf, "a", b"x" * (4 * LEAST + 1))
        assert refused.value.status == 413


def test_a_full_shelf_says_when_to_come_again() -> None:
    clock = FakeClock()
    with shelved(room=10 * LEAST, clock=clock) as shelf:
        keys = []
        for number in range(10):
            clock.now = float(number)
            keys.append(put(shelf, f"client {number}"))
        with pytest.raises(Refusal, match="Too many translated files") as refused:
            shelf.check("another", 1)
        assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": str(int(KEPT) - 9)})
        with pytest.raises(Refusal, match="Too many translated files"):
            put(shelf, "another")
        assert all(there(shelf, key) for key in keys)
        assert there(shelf, put(shelf, "client 3")), "who has a file there may have another instead"
        assert [there(shelf, key) for key in keys] == [True] * 3 + [False] + [True] * 6
        clock.now = KEPT + 0.5
        assert not there(shelf, keys[0])
        assert there(shelf, put(shelf, "another"))


class Remembering(asyncio.SelectorEventLoop):
    """A loop that remembers what is to be done later, and does it when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        self.later.append((delay, lambda: callback(*args)))


def test_a_file_goes_when_its_time_is_over_whether_another_comes_or_not() -> None:
    with shelved(room=30 * LEAST) as shelf, asyncio.Runner(loop_factory=Remembering) as runner:
        keys = [runner.run(shelf.put("a", "a.txt", b"x")) for _ in range(2)]
        loop = runner.get_loop()
        assert isinstance(loop, Remembering)
        own = [one for delay, one in loop.later if delay == KEPT]
        assert len(own) == 2
        shelf.drop(keys[1])
        for one in own:
            one()
        assert list(Path(shelf.folder.name).iterdir()) == []
        assert shelf.used() == 0


def test_nobody_else_may_read_a_file() -> None:
    with shelved(room=30 * LEAST) as shelf:
        path = shelf.get(put(shelf, "a"))
        assert path is not None
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_file_that_cannot_be_written_takes_no_room(tmp_path: Path) -> None:
    with shelved(room=10 * LEAST) as shelf:
        shelf.folder.cleanup()
        for _ in range(3):
            with pytest.raises(OSError, match="No such file"):
                put(shelf, "a")
        assert shelf.used() == 0
