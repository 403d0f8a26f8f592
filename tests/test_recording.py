"""What shares the memory of graphs, and what must not happen while one is recorded; PyTorch's part is played."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from regard.fast.recording import Pool, Recorder, reason


class Pretended:
    """A graph that notes what it was recorded with."""

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        self.pool, self.collecting = pool, gc.isenabled()
        assert capture_error_mode == "thread_local"

    def capture_end(self) -> None:
        self.ended = True

    def replay(self) -> None:
        """Plays nothing."""


@contextmanager
def stream(_: object) -> Iterator[None]:
    yield


class Card:
    """Streams and pools that are only counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pools = 0
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Pretended)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self.handle)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr("regard.fast.recording.beside", lambda _: None)

    def handle(self) -> int:
        self.pools += 1
        return self.pools


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


def recorded(pool: Pool) -> Any:
    with pool.recording() as graph:
        pass
    return graph


def test_graphs_share_a_pool_as_long_as_one_of_them_lives(card: Card) -> None:
    pool = Pool()
    first, second = recorded(pool), recorded(pool)
    assert (first.pool, second.pool) == (1, 1)
    del first
    assert recorded(pool).pool == 1
    del second
    assert recorded(pool).pool == 2, "of the first pool no graph is left"


def test_a_graph_that_failed_keeps_no_pool(card: Card) -> None:
    pool = Pool()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="short"), pool.recording():
            raise RuntimeError("short")
    assert card.pools == 2


def test_a_graph_that_was_broken_off_is_closed_and_sets_chance_free(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed = list[Any](), list[Any]()

    class Broken(Pretended):
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            super().capture_begin(pool, capture_error_mode)
            made.append(self)

        def capture_end(self) -> None:
            if len(made) == 1:
                raise RuntimeError("invalidated")
            super().capture_end()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Broken)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *which: closed.append(which), raising=False)
    monkeypatch.setattr(torch, "empty", lambda size, device: torch.ones(size))
    with pytest.raises(RuntimeError, match="invalidated"), Pool().recording():
        pass
    assert closed == [(0, made[0].pool)]
    assert [hasattr(each, "ended") for each in made] == [False, True]
    assert made[1].pool != made[0].pool


@pytest.mark.parametrize("was", [True, False])
def test_nothing_is_collected_during_a_recording(card: Card, was: bool) -> None:
    before = gc.isenabled()
    (gc.enable if was else gc.disable)()
    try:
        assert not recorded(Pool()).collecting
        assert gc.isenabled() is was
    finally:
        (gc.enable if before else gc.disable)()


def test_a_recorder_goes_on_with_the_pool_of_what_it_has_recorded(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.recording.aside", lambda work: work())
    done: list[int] = []
    recorder = Recorder("decoding")
    replays = [recorder.record(lambda: done.append(0)) for _ in range(2)]
    assert all(replays)
    assert (card.pools, len(done)) == (1, 4)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be …"), "out of memory"),
        (RuntimeError("operation not permitted\nmore of it"), "operation not permitted"),
    ],
)
def test_why_a_recording_failed_is_a_line(error: RuntimeError, why: str) -> None:
    assert reason(error) == why
