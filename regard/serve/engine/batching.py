"""Continuous batching: segments of concurrent requests are decoded together.

Requests take turns, one segment at a time: in each batch, a request of ten thousand segments gets as many as a request
of one. A result is returned when it is known, not when its batch ends; new segments join a running batch in the place
of finished ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from regard.serve.http.errors import OverloadedError

S = TypeVar("S")  # segment
R = TypeVar("R")  # result
K = TypeVar("K")  # key: segments of one batch have the same

# Decode segments. Reports each result when it is known, by the number of its segment in the order in which they came;
# may take more segments.
DecodeBatch = Callable[[Sequence[S], K, Callable[[int, R], None], Callable[[], Sequence[S]]], None]

SLICE = 4  # batches of one request that wait at once


@dataclass(eq=False)
class PendingRequest(Generic[S, R, K]):
    """Segments of a request, and the results so far."""

    key: K
    segments: Sequence[S]
    answer: asyncio.Future[list[R]] = field(repr=False)
    waiting: deque[int] = field(default_factory=deque)  # numbers of segments that are not in a batch yet
    results: dict[int, R] = field(default_factory=dict)

    @property
    def is_awaited(self) -> bool:
        """True unless it was answered, has failed, or its client has left."""
        return not self.answer.done()


Place = tuple[PendingRequest[S, R, K], int]  # a request and the number of one of its segments


@dataclass(eq=False)
class RunningBatch(Generic[S, R, K]):
    """Segments that one thread decodes."""

    key: K
    running: dict[int, Place[S, R, K]] = field(default_factory=dict)  # those without a result, by their number
    count: int = 0  # segments so far

    def add(self, places: Sequence[Place[S, R, K]]) -> list[S]:
        """Add segments and return them."""
        self.running.update(enumerate(places, self.count))
        self.count += len(places)
        return [request.segments[number] for request, number in places]


class ContinuousBatcher(Generic[S, R, K]):
    """A queue of segments, and threads that decode batches of them."""

    def __init__(
        self,
        decode: DecodeBatch[S, K, R],
        size: Callable[[S], int],
        *,
        max_tokens: int,
        max_segments: int,
        max_waiting: int,
        threads: int = 1,
        on_admit: Callable[[int, int], None] = lambda admitted, waiting: None,
    ) -> None:
        """Limit the tokens of a batch, padding included, its segments, and the segments in the queue.

        `on_admit` gets the number of segments that were added to a batch at once, and of those that still wait.
        """
        self.decode = decode
        self.size = size
        self.max_tokens = max_tokens
        self.max_segments = max_segments
        self.max_waiting = max_waiting
        self.on_admit = on_admit
        self.lock = threading.Lock()  # held while one of the next two is changed
        self.queue: deque[PendingRequest[S, R, K]] = deque()
        self.waiting = 0  # segments in the queue
        self.space_freed = asyncio.Event()
        self.idle_threads = threads
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    async def __call__(self, segments: Sequence[S], key: K) -> list[R]:
        """Decode the segments of a request and return the results in their order.

        A request puts a few batches into the queue at a time, whatever its size, and is never refused once it began.
        """
        results: list[R] = []
        step = SLICE * self.max_segments
        for start in range(0, len(segments), step):
            part = segments[start : start + step]
            while self.waiting and self.waiting + len(part) > self.max_waiting:
                if not start:
                    raise OverloadedError(f"{self.waiting} segments wait, {len(part)} more are too many")
                self.space_freed.clear()
                await self.space_freed.wait()
            results += await self._enqueue(part, key)
        return results

    async def _enqueue(self, segments: Sequence[S], key: K) -> list[R]:
        answer: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        request = PendingRequest(key, segments, answer, deque(range(len(segments))))
        with self.lock:
            self.queue.append(request)
            self.waiting += len(segments)
        self._start_batches()
        try:
            return await answer
        finally:
            self._withdraw(request)

    def _withdraw(self, request: PendingRequest[S, R, K]) -> None:
        """Remove what is left of a request from the queue, because it was cancelled or has failed."""
        with self.lock:
            if request.waiting:  # then it is in the queue
                self.queue.remove(request)
                self.waiting -= len(request.waiting)
                request.waiting.clear()
        self.space_freed.set()

    def _start_batches(self) -> None:
        """Start a batch in each idle thread, as long as segments wait."""
        while self.idle_threads and (places := self._admit()):
            self.idle_threads -= 1
            loop = asyncio.get_running_loop()
            batch: RunningBatch[S, R, K] = RunningBatch(places[0][0].key)
            future = loop.run_in_executor(self.executor, self._run_batch, batch, batch.add(places), loop)
            future.add_done_callback(partial(self._end_batch, batch))
        self.space_freed.set()

    def _end_batch(self, batch: RunningBatch[S, R, K], future: asyncio.Future[None]) -> None:
        self.idle_threads += 1
        if error := future.exception():  # not an `Exception`, such as a panic of a library in Rust
            self._fail(batch.running.values(), error)
        self._start_batches()

    def _admit(self, batch: RunningBatch[S, R, K] | None = None) -> list[Place[S, R, K]]:
        """Take the next segments from the queue, one of each request in turn, as long as the batch has room.

        A running batch is not joined ahead of requests that have waited longer and do not fit into it: it would never
        end, and they wait for its end.
        """
        running = [] if batch is None else [request.segments[n] for request, n in list(batch.running.values())]
        longest = max(map(self.size, running), default=0)
        admitted: list[Place[S, R, K]] = []
        skipped: list[PendingRequest[S, R, K]] = []
        with self.lock:
            while self.queue and len(running) + len(admitted) < self.max_segments and not (batch and skipped):
                request = self.queue.popleft()
                if not request.is_awaited:
                    self.waiting -= len(request.waiting)
                    request.waiting.clear()
                    continue
                size = self.size(request.segments[request.waiting[0]])
                key = batch.key if batch else admitted[0][0].key if admitted else request.key
                count = len(running) + len(admitted)
                if request.key != key or (count and max(longest, size) * (count + 1) > self.max_tokens):
                    skipped.append(request)
                    continue
                admitted.append((request, request.waiting.popleft()))
                longest = max(longest, size)
                self.waiting -= 1
                if request.waiting:
                    self.queue.append(request)  # behind all others
            self.queue.extendleft(reversed(skipped))
        if admitted:
            self.on_admit(len(admitted), self.waiting)
        return admitted

    def _run_batch(
        self, batch: RunningBatch[S, R, K], segments: Sequence[S], loop: asyncio.AbstractEventLoop, grows: bool = True
    ) -> None:
        """Decode a batch, in a thread, until no segment joins it any more.

        If a batch of several segments fails, each that has no result yet is tried alone: only those fail that fail by
        themselves.
        """

        def report(number: int, result: R) -> None:
            loop.call_soon_threadsafe(self._store_result, *batch.running.pop(number), result)

        def take_more() -> list[S]:
            if not grows or not self.waiting:
                return []
            admitted = self._admit(batch)
            loop.call_soon_threadsafe(self.space_freed.set)
            return batch.add(admitted)

        error: Exception | None = None
        try:
            self.decode(segments, batch.key, report, take_more)
        except Exception as raised:
            error = raised
        left = list(batch.running.values())
        if error is None or isinstance(error, OverloadedError) or len(left) == 1:
            loop.call_soon_threadsafe(self._fail, left, error)
            return
        for request, number in left:
            if request.is_awaited:
                single: RunningBatch[S, R, K] = RunningBatch(batch.key)
                self._run_batch(single, single.add([(request, number)]), loop, grows=False)

    def _fail(self, places: Iterable[Place[S, R, K]], error: BaseException | None) -> None:
        for request, _ in places:
            if request.is_awaited:
                request.answer.set_exception(error or RuntimeError("a batch ended without one of its results"))

    def _store_result(self, request: PendingRequest[S, R, K], number: int, result: R) -> None:
        """Store a result; the last one answers the request."""
        request.results[number] = result
        if len(request.results) == len(request.segments) and request.is_awaited:
            request.answer.set_result([request.results[n] for n in range(len(request.segments))])

    def close(self) -> None:
        """Wait for the running batches and end the threads."""
        self.executor.shutdown()
