"""Work of the GPU recorded as CUDA graphs: one launch for all of it, not one each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.console import say


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
            # other threads may go on meanwhile, as those that read data ahead
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            failed = reason(error)
        if failed:
            self.able = False
            torch.cuda.empty_cache()
            say(f"{self.purpose} goes on without CUDA graphs, and more slowly: {failed}")
            return None
        return graph.replay


def aside(work: Callable[[], None]) -> None:
    """Does it beside the main stream: kernels are compiled, and libraries make what they need."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        work()
    torch.cuda.current_stream().wait_stream(beside)


def reason(error: RuntimeError) -> str:
    """Why a recording failed, in a line; one that was broken off says only that it was."""
    first = error.__context__ or error
    return "out of memory" if isinstance(first, torch.OutOfMemoryError) else str(first).split("\n")[0]
