"""Work of the GPU recorded as CUDA graphs: one launch for all of it, not one each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import torch

from regard.console import say

T = TypeVar("T")
LOCK = Lock()


class Recorder:
    """Records work; all that it has recorded shares its memory, so no two of them run at a time."""

    def __init__(self, purpose: str) -> None:
        """What is done without graphs, and more slowly, where they cannot be made: that is said once."""
        self.purpose = purpose
        self.able = True
        self.pool: Any = None

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """The work to be played back, which has been done once by then; None where it cannot be recorded."""
        aside(work)
        if not self.able:
            return None
        failed = ""
        try:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with recording(graph, self.pool):
                work()
        except RuntimeError as error:
            failed = reason(error)
        if failed:
            self.able = False
            torch.cuda.empty_cache()
            say(f"{self.purpose} goes on without CUDA graphs, and more slowly: {failed}")
            return None
        return graph.replay


def aside(work: Callable[[], T]) -> T:
    """What it gives, done beside the main stream: kernels are compiled, and libraries make what they need."""
    side = beside(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        given = work()
    torch.cuda.current_stream().wait_stream(side)
    return given


@cache
def beside(device: int) -> Any:
    """The same stream every time: memory that was in use on one is not given out on another."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Other threads, as those that read data ahead or watch over several processes, may go on meanwhile.

    But one thread of the process records at a time. If that fails, work goes on where it was before, not on the stream
    of the recording.
    """
    side = beside(torch.cuda.current_device())
    with (
        LOCK,
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"),
    ):
        yield


def reason(error: RuntimeError) -> str:
    """Why a recording failed, in a line; one that was broken off says only that it was."""
    first = error.__context__ or error
    return "out of memory" if isinstance(first, torch.OutOfMemoryError) else str(first).split("\n")[0]
