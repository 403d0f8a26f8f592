"""Memory pools of CUDA graphs and what must not happen during a capture, with a fake `torch.cuda`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from regard.fast.cuda_graphs.cache import GraphReplayer
from regard.fast.cuda_graphs.pool import GraphMemoryPool, describe_failure


class FakeGraph:
    """A CUDA graph that remembers how it was captured."""

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        self.pool, self.collecting = pool, gc.isenabled()
        assert capture_error_mode == "thread_local"

    def capture_end(self) -> None:
        self.ended = True

    def replay(self) -> None:
        """Do nothing."""


@contextmanager
def fake_stream(_: object) -> Iterator[None]:
    yield


class FakeCuda:
    """Streams and memory pools that are only counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pools = 0
        monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self.make_handle)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "stream", fake_stream)
        monkeypatch.setattr("regard.fast.cuda_graphs.pool.get_side_stream", lambda _: None)

    def make_handle(self) -> int:
        self.pools += 1
        return self.pools


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def capture(pool: GraphMemoryPool) -> Any:
    with pool.capture() as graph:
        pass
    return graph


def test_graphs_share_a_pool_while_one_of_them_lives(cuda: FakeCuda) -> None:
    pool = GraphMemoryPool()
    first, second = capture(pool), capture(pool)
    assert (first.pool, second.pool) == (1, 1)
    del first
    assert capture(pool).pool == 1
    del second
    assert capture(pool).pool == 2, "no graph of the first pool is left"


def test_failed_capture_keeps_no_pool(cuda: FakeCuda) -> None:
    pool = GraphMemoryPool()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="short"), pool.capture():
            raise RuntimeError("short")
    assert cuda.pools == 2


def test_invalidated_capture_is_closed_and_frees_the_random_generator(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs, closed = list[Any](), list[Any]()

    class InvalidatedGraph(FakeGraph):
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            super().capture_begin(pool, capture_error_mode)
            graphs.append(self)

        def capture_end(self) -> None:
            if len(graphs) == 1:
                raise RuntimeError("invalidated")
            super().capture_end()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", InvalidatedGraph)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *which: closed.append(which), raising=False)
    monkeypatch.setattr(torch, "empty", lambda size, device: torch.ones(size))
    with pytest.raises(RuntimeError, match="invalidated"), GraphMemoryPool().capture():
        pass
    assert closed == [(0, graphs[0].pool)]
    assert [hasattr(each, "ended") for each in graphs] == [False, True]
    assert graphs[1].pool != graphs[0].pool


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_off_during_a_capture(cuda: FakeCuda, enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert not capture(GraphMemoryPool()).collecting
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_second_call_captures_and_all_graphs_share_one_pool(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.cuda_graphs.cache.run_on_side_stream", lambda work: work())
    done: list[int] = []
    pool = GraphMemoryPool()
    replayers = [GraphReplayer(pool, 2) for _ in range(2)]
    for calls in (1, 3, 3):  # the second call runs the work and captures it, the third replays
        for replayer in replayers:
            replayer("steps", lambda: done.append(0))
        assert (cuda.pools, len(done)) == (min(1, calls - 1), 2 * calls)


def test_failed_capture_runs_the_work_once_and_disables_the_pool(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("regard.fast.cuda_graphs.cache.run_on_side_stream", lambda work: work())
    done: list[int] = []

    class FailingGraph(FakeGraph):
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FailingGraph)
    pool = GraphMemoryPool()
    first, second = GraphReplayer(pool, 2), GraphReplayer(pool, 2)
    for calls in range(1, 5):
        first("steps", lambda: done.append(0))
        second("steps", lambda: done.append(0))
        assert len(done) == 2 * calls
    assert not pool.is_enabled
    assert capsys.readouterr().err == "decoding continues without CUDA graphs, and more slowly: out of memory\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be …"), "out of memory"),
        (RuntimeError("operation not permitted\nmore of it"), "operation not permitted"),
    ],
)
def test_reason_of_a_failed_capture_is_one_line(error: RuntimeError, message: str) -> None:
    assert describe_failure(error) == message
