"""CUDA graph capture: memory pool, side stream, static buffers, and recovery from a failed capture."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from regard.console import log_message

T = TypeVar("T")
OUT_OF_MEMORY = "out of memory"
CAPTURE_LOCK = RLock()  # all threads share the capture stream


class GraphMemoryPool:
    """Memory pool that CUDA graphs share, because no two of them run at the same time."""

    def __init__(self) -> None:
        self.is_enabled = True
        self.handle: Any = None
        self.alive_graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    @contextmanager
    def capture(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture the enclosed work as a CUDA graph.

        Other threads, such as data loaders, may go on meanwhile, but only one thread of the process captures at a
        time. If a capture fails, the current stream is the one from before.
        """
        if not self.alive_graphs:  # PyTorch frees a pool without graphs
            self.handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with CAPTURE_LOCK, _pause_gc(), torch.cuda.stream(get_side_stream(torch.cuda.current_device())):
            graph.capture_begin(pool=self.handle, capture_error_mode="thread_local")
            try:
                yield graph
            finally:
                _end_capture(graph, self.handle)
        self.alive_graphs.add(graph)


def _end_capture(graph: torch.cuda.CUDAGraph, handle: Any) -> None:
    """End a capture. After a failed one, PyTorch leaves pool and generator in an invalid state, which is repaired."""
    try:
        graph.capture_end()
    except RuntimeError:
        with suppress(RuntimeError, AttributeError):  # it may have ended already
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), handle)
        with suppress(RuntimeError):
            _reset_rng_after_failed_capture()
        raise


def _reset_rng_after_failed_capture() -> None:
    """Capture an empty graph: until then the CUDA generator believes that it is being captured, and fails."""
    number, empty_graph = torch.empty(1, device="cuda"), torch.cuda.CUDAGraph()
    empty_graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
    number.zero_()
    empty_graph.capture_end()


@contextmanager
def _pause_gc() -> Iterator[None]:
    """Pause garbage collection: freeing graphs of a deleted model during a capture would invalidate it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class StaticBuffers(dict[Hashable, Tensor]):
    """Buffers at fixed addresses that CUDA graphs read and write, shared by role where they are large enough."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = GraphMemoryPool()  # for temporary tensors

    def allocate(self, role: Hashable, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a tensor of this shape for a role."""
        count, key = torch.Size(shape).numel(), (role, like.dtype, like.device)
        if key not in self or self[key].numel() < count:
            self[key] = torch.zeros(count, dtype=like.dtype, device=like.device)
        return self[key][:count].view(*shape).detach()  # autocast does not cache casts of views

    def allocate_like(self, role: str, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return one tensor for each of these tensors."""
        return [
            None if tensor is None else self.allocate((role, number), tensor.shape, tensor)
            for number, tensor in enumerate(tensors)
        ]


def run_on_side_stream(work: Callable[[], T]) -> T:
    """Run work on the capture stream: kernels are compiled, and libraries allocate their workspaces there."""
    side_stream = get_side_stream(torch.cuda.current_device())
    side_stream.wait_stream(torch.cuda.current_stream())
    with CAPTURE_LOCK, torch.cuda.stream(side_stream):
        result = work()
    torch.cuda.current_stream().wait_stream(side_stream)
    return result


@cache
def get_side_stream(device: int) -> Any:
    """Return the capture stream of a device, always the same: cached memory of one stream is not reused on another."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def try_capture(purpose: str, make: Callable[[], T], clear: Callable[[], None] = lambda: None) -> T | None:
    """Return the result of a capture, or None after two failures, which are logged.

    When out of memory, the second attempt follows `empty_cache`, which is not possible during a capture and too slow
    before each one. After the second failure `clear` frees other graphs.
    """
    for last in (False, True):
        try:
            return make()
        except RuntimeError as error:
            failure = describe_failure(error)
        if last or failure != OUT_OF_MEMORY:
            break
        with CAPTURE_LOCK:
            torch.cuda.empty_cache()
    clear()
    torch.cuda.empty_cache()
    log_message(f"{purpose} continues without CUDA graphs, and more slowly: {failure}")
    return None


def describe_failure(error: RuntimeError) -> str:
    """Return the reason of a failed capture in one line; an invalidated capture hides it in the context."""
    cause = error.__context__ or error
    # Errors of the driver have no type.
    is_out_of_memory = isinstance(cause, torch.OutOfMemoryError) or OUT_OF_MEMORY in str(cause)
    return OUT_OF_MEMORY if is_out_of_memory else str(cause).split("\n")[0]
