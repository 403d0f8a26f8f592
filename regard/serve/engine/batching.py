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
from typing import Generic, TypeVar, cast

from regard.serve.errors import OverloadedError

S = TypeVar("S")  # segment
R = TypeVar("R")  # result
K = TypeVar("K")  # key: segments of one batch have the same

# Decode segments. Reports each result when it is known, by the number of its segment in the order in which they came;
# may take more segments.
DecodeBatch = Callable[[Sequence[S], K, Callable[[int, R], None], Callable[[], Sequence[S]]], None]

MAX_SHARE = 4  # batches: as many segments of a request count for the length of the queue


Item = tuple[S, "asyncio.Future[R]"]  # a segment, and its result to come; cancelled if its client has left


@dataclass(eq=False)
class PendingRequest(Generic[S, R, K]):
    """Segments of a request that are not in a batch yet."""

    key: K
    items: deque[Item[S, R]]


@dataclass(eq=False)
class RunningBatch(Generic[S, R, K]):
    """Segments that one thread decodes."""

    key: K | None = None  # until the first segment
    running: dict[int, Item[S, R]] = field(default_factory=dict)  # those without a result, by their number
    count: int = 0  # segments so far


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
        """Limit the tokens of a batch, padding included, its segments, and the load of the queue.

        `on_admit` gets the number of segments that were added to a batch at once, and of those that still wait.
        """
        self.decode = decode
        self.size = size
        self.max_tokens = max_tokens
        self.max_segments = max_segments
        self.max_waiting = max_waiting
        self.max_share = MAX_SHARE * max_segments
        self.on_admit = on_admit
        self.lock = threading.Lock()  # held while the queue is changed
        self.queue: deque[PendingRequest[S, R, K]] = deque()
        self.idle_threads = threads
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    @property
    def waiting(self) -> int:
        """Segments in the queue."""
        with self.lock:
            return sum(len(request.items) for request in self.queue)

    @property
    def load(self) -> int:
        """Segments in the queue; of a large request, which takes turns with others, only some count."""
        with self.lock:
            return sum(min(len(request.items), self.max_share) for request in self.queue)

    async def __call__(self, segments: Sequence[S], key: K) -> list[R]:
        """Decode the segments of a request and return the results in their order."""
        if not segments:
            return []
        load, added = self.load, min(len(segments), self.max_share)
        if load and load + added > self.max_waiting:
            raise OverloadedError(f"{load} segments wait, {added} more are too many")
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[R]] = [loop.create_future() for _ in segments]
        request = PendingRequest(key, deque(zip(segments, answers, strict=True)))
        with self.lock:
            self.queue.append(request)
        self._start_batches()
        try:
            return await asyncio.gather(*answers)
        finally:  # if it was cancelled or has failed, some of it is left
            with self.lock:
                if request.items:  # then it is in the queue
                    self.queue.remove(request)
                    request.items.clear()
            for answer in answers:
                answer.cancel()

    def _start_batches(self) -> None:
        """Start a batch in each idle thread, as long as segments wait."""
        loop = asyncio.get_running_loop()
        while self.idle_threads and (segments := self._admit(batch := RunningBatch[S, R, K]())):
            self.idle_threads -= 1
            future = loop.run_in_executor(self.executor, self._run_batch, batch, segments, loop)
            future.add_done_callback(partial(self._end_batch, batch))

    def _end_batch(self, batch: RunningBatch[S, R, K], future: asyncio.Future[None]) -> None:
        self.idle_threads += 1
        if error := future.exception():  # not an `Exception`, such as a panic of a library in Rust
            _fail(batch.running.values(), error)
        self._start_batches()

    def _admit(self, batch: RunningBatch[S, R, K]) -> list[S]:
        """Move the next segments from the queue to a batch, one of each request in turn, as long as it has room.

        A running batch is not joined ahead of requests that have waited longer and do not fit into it: it would never
        end, and they wait for its end.
        """
        is_new = not batch.count
        longest = max((self.size(segment) for segment, _ in batch.running.values()), default=0)
        admitted: list[S] = []
        skipped: list[PendingRequest[S, R, K]] = []
        with self.lock:
            while self.queue and len(batch.running) < self.max_segments and (is_new or not skipped):
                request = self.queue.popleft()
                segment, answer = item = request.items[0]
                if answer.done():  # its client has left
                    request.items.clear()
                    continue
                if not batch.count:
                    batch.key = request.key
                padded = max(longest, self.size(segment))
                count = len(batch.running) + 1
                if request.key != batch.key or (count > 1 and padded * count > self.max_tokens):
                    skipped.append(request)
                    continue
                batch.running[batch.count] = item
                batch.count += 1
                admitted.append(segment)
                longest = padded
                request.items.popleft()
                if request.items:
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
            _, answer = batch.running.pop(number)
            loop.call_soon_threadsafe(_answer, answer, result)

        def take_more() -> list[S]:
            return self._admit(batch) if grows and self.queue else []

        error: Exception | None = None
        try:
            self.decode(segments, cast("K", batch.key), report, take_more)
        except Exception as raised:
            error = raised
        left = list(batch.running.values())
        if error is None or isinstance(error, OverloadedError) or len(left) == 1:
            loop.call_soon_threadsafe(_fail, left, error)
            return
        for segment, answer in left:
            if not answer.done():
                single = RunningBatch(batch.key, {0: (segment, answer)}, 1)
                self._run_batch(single, [segment], loop, grows=False)

    def close(self) -> None:
        """Wait for the running batches and end the threads."""
        self.executor.shutdown()


def _answer(answer: asyncio.Future[R], result: R) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(items: Iterable[Item[S, R]], error: BaseException | None) -> None:
    for _, answer in items:
        if not answer.done():
            answer.set_exception(error or RuntimeError("a batch ended without one of its results"))
