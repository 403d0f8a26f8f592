"""CUDA graph capture: memory pool, side stream, static buffers, and recovery from a failed capture."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from regard.console import log_message

T = TypeVar("T")
SHORT = "out of memory"
LOCK = RLock()  # all of a process share the stream that is recorded


class Pool:
    """The memory that graphs work in, and share: no two of them run at a time."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.living: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    @contextmanager
    def recording(self) -> Iterator[torch.cuda.CUDAGraph]:
        """A graph of what is done meanwhile.

        Other threads, as those that read data ahead or watch over several processes, may go on, but one of the process
        records at a time. If that fails, work goes on where it was before, not on the stream of the recording.
        """
        if not self.living:  # PyTorch does not go on with memory that no graph is left of
            self.handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with LOCK, uncollected(), torch.cuda.stream(beside(torch.cuda.current_device())):
            graph.capture_begin(pool=self.handle, capture_error_mode="thread_local")
            try:
                yield graph
            finally:
                end(graph, self.handle)
        self.living.add(graph)


def end(graph: torch.cuda.CUDAGraph, handle: Any) -> None:
    """Of a recording. One that the driver has broken off PyTorch leaves half open: that is mended before it is told."""
    try:
        graph.capture_end()
    except RuntimeError:
        with suppress(RuntimeError, AttributeError):  # it may have come as far as that
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), handle)
        with suppress(RuntimeError):
            set_free()
        raise


def set_free() -> None:
    """Whatever is random fails while its generator believes to be recorded, which ends with the next recording."""
    place, nothing = torch.empty(1, device="cuda"), torch.cuda.CUDAGraph()
    nothing.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
    place.zero_()
    nothing.capture_end()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: graphs of a model that is no more, freed during a recording, would break it off."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Recorder:
    """Records work; all that it has recorded shares its memory, so no two of them run at a time."""

    def __init__(self, purpose: str) -> None:
        """What is done without graphs, and more slowly, where they cannot be made: that is said once."""
        self.purpose = purpose
        self.able = True
        self.pool = Pool()

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """The work to be played back, which has been done once by then; None where it cannot be recorded."""
        aside(work)
        if not self.able:
            return None
        replay = attempted(self.purpose, partial(self.recorded, work))
        self.able = replay is not None
        return replay

    def recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a graph."""
        with self.pool.recording() as graph:
            work()
        return graph.replay


class Places(dict[Hashable, Tensor]):
    """The memory at which graphs read and write, the same for all of them where it is large enough."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()  # what they need besides, and share as well

    def take(self, role: Hashable, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor for this role."""
        size, name = torch.Size(shape).numel(), (role, like.dtype, like.device)
        if name not in self or self[name].numel() < size:
            self[name] = torch.zeros(size, dtype=like.dtype, device=like.device)
        return self[name][:size].view(*shape).detach()  # autocast keeps what it has cast, but not of a view

    def like(self, role: str, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """One for each of these tensors."""
        return [
            None if one is None else self.take((role, number), one.shape, one) for number, one in enumerate(tensors)
        ]


def aside(work: Callable[[], T]) -> T:
    """What it gives, done beside the main stream: kernels are compiled, and libraries make what they need."""
    side = beside(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with LOCK, torch.cuda.stream(side):
        given = work()
    torch.cuda.current_stream().wait_stream(side)
    return given


@cache
def beside(device: int) -> Any:
    """The same stream every time: memory that was in use on one is not given out on another."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def attempted(purpose: str, make: Callable[[], T], forget: Callable[[], None] = lambda: None) -> T | None:
    """A recording; None where it cannot be made, which is said when others were forgotten to free their memory.

    Where memory is short, it is made once more when all that is spare was given back: while a graph is recorded nothing
    can be, and to do so before each would cost its time.
    """
    for last in (False, True):
        try:
            return make()
        except RuntimeError as error:
            failed = reason(error)
        if last or failed != SHORT:
            break
        with LOCK:
            torch.cuda.empty_cache()
    forget()
    torch.cuda.empty_cache()
    log_message(f"{purpose} goes on without CUDA graphs, and more slowly: {failed}")
    return None


def reason(error: RuntimeError) -> str:
    """Why a recording failed, in a line; one that was broken off says only that it was."""
    first = error.__context__ or error
    short = isinstance(first, torch.OutOfMemoryError) or SHORT in str(first)  # the driver has no type for it
    return SHORT if short else str(first).split("\n")[0]
