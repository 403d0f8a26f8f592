"""Storage of translated files (`FileStore`): quotas per client, expiry, permissions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.serve.engine.documents import LIFETIME, MIN_SIZE, FileStore
from regard.serve.errors import HTTPError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder for the files of a test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def open_store(capacity: int) -> Iterator[FileStore]:
    files = FileStore(capacity)
    try:
        yield files
    finally:
        files.close()


def store(files: FileStore, owner: str, content: bytes = b"x", name: str = "a.txt") -> str:
    return asyncio.run(files.add(owner, name, content))


def is_stored(files: FileStore, key: str) -> bool:
    path = files.find(key)
    return path is not None and path.is_file()


def test_files_of_one_client_do_not_displace_those_of_another(folder: Path) -> None:
    with open_store(capacity=30 * MIN_SIZE) as files:
        first = store(files, "a", b"mine")
        keys = [store(files, "b") for _ in range(500)]
        assert [is_stored(files, key) for key in keys] == [False] * 497 + [True] * 3, (
            "a client has a tenth of the space, and its oldest file is dropped"
        )
        path = files.find(first)
        assert path is not None
        assert path.read_bytes() == b"mine"
        assert len(list(folder.iterdir())) == 4, "dropped files are deleted from the disk"
    assert list(folder.iterdir()) == []


def test_quota_of_a_client_is_counted_in_bytes() -> None:
    with open_store(capacity=40 * MIN_SIZE) as files:
        large = store(files, "a", b"x" * 2 * MIN_SIZE)
        small = [store(files, "a") for _ in range(2)]
        assert all(is_stored(files, key) for key in [large, *small])
        another = store(files, "a")
        assert [is_stored(files, key) for key in [large, *small, another]] == [False, True, True, True]
        with pytest.raises(
            HTTPError, match=r"the file \(400001\) exceeds what is kept for one client \(400000\)"
        ) as refused:
            store(files, "a", b"x" * (4 * MIN_SIZE + 1))
        assert refused.value.status == 413


def test_full_storage_is_a_503_with_retry_after() -> None:
    with open_store(capacity=10 * MIN_SIZE) as files:
        keys = [store(files, f"client {number}") for number in range(10)]
        with pytest.raises(HTTPError, match="Too many translated files") as refused:
            files.check_capacity("another", 1)
        assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "60"})
        with pytest.raises(HTTPError, match="Too many translated files"):
            store(files, "another")
        assert all(is_stored(files, key) for key in keys)
        assert is_stored(files, store(files, "client 3")), "a client with a file may replace it"
        assert [is_stored(files, key) for key in keys] == [True] * 3 + [False] + [True] * 6
        files.delete(keys[0])
        assert is_stored(files, store(files, "another"))


class RecordingLoop(asyncio.SelectorEventLoop):
    """An event loop that records delayed calls instead of making them."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        self.later.append((delay, lambda: callback(*args)))


def test_expired_files_are_deleted_without_further_requests(folder: Path) -> None:
    with open_store(capacity=30 * MIN_SIZE) as files, asyncio.Runner(loop_factory=RecordingLoop) as runner:
        keys = [runner.run(files.add("a", "a.txt", b"x")) for _ in range(2)]
        loop = runner.get_loop()
        assert isinstance(loop, RecordingLoop)
        expiries = [call for delay, call in loop.later if delay == LIFETIME]
        assert len(expiries) == 2
        files.delete(keys[1])
        for expire in expiries:
            expire()
        assert list(folder.iterdir()) == []
        assert files.count_bytes() == 0


def test_stored_files_are_readable_by_the_owner_only() -> None:
    with open_store(capacity=30 * MIN_SIZE) as files:
        path = files.find(store(files, "a"))
        assert path is not None
        assert path.stat().st_mode & 0o777 == 0o600


def test_failed_write_takes_no_quota(folder: Path) -> None:
    with open_store(capacity=10 * MIN_SIZE) as files:
        folder.rmdir()
        for _ in range(3):
            with pytest.raises(OSError, match="No such file"):
                store(files, "a")
        assert files.count_bytes() == 0


def test_files_of_killed_services_are_removed_after_their_lifetime(folder: Path) -> None:
    def make_old(name: str) -> Path:
        path = folder / name
        path.write_bytes(b"private")
        os.utime(path, (0, 0))
        return path

    stale, other = make_old("regard-document-stale"), make_old("letter")
    recent = folder / "regard-document-of-a-service-that-runs"
    recent.write_bytes(b"private")
    with open_store(capacity=30 * MIN_SIZE) as files:
        assert not stale.exists()
        make_old(stale.name)
        store(files, "a")
        assert not stale.exists(), "also while the service runs"
    assert sorted(folder.iterdir()) == sorted([other, recent])


def test_file_that_is_displaced_while_it_is_written_leaves_nothing_on_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(capacity=20 * MIN_SIZE) as files:

        def write_late(path: Path, content: bytes) -> None:
            for key in list(files.files):
                files.delete(key)
            path.write_bytes(content)

        monkeypatch.setattr("regard.serve.engine.documents._write_private", write_late)
        key = store(files, "a")
        assert files.find(key) is None
        assert list(folder.iterdir()) == []
