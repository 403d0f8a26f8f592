"""Pieces of many requests through one model together.

Whoever waits is served in turn, a piece at a time: a request of ten thousand pieces has in each batch the share that a
request of one has. What is found for a piece is handed over when it is known, not when its batch has ended; and who
comes later goes into a batch that is under way, in the place of what is done.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from regard.serve.http.errors import OverloadedError

P = TypeVar("P")
R = TypeVar("R")
K = TypeVar("K")

# Tells each result, by its number in the order in which the pieces came, when it is known; may ask for more pieces.
Find = Callable[[Sequence[P], K, Callable[[int, R], None], Callable[[], Sequence[P]]], None]


SLICE = 4  # batches of one request that wait at once


@dataclass(eq=False)
class Waiting(Generic[P, R, K]):
    """A request, with what is left of it."""

    kind: K
    pieces: Sequence[P]
    left: deque[int]  # numbers of pieces that nobody works on yet
    results: list[R | None]
    missing: int
    answer: asyncio.Future[list[R]] = field(repr=False)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.answer.done()


Place = tuple[Waiting[P, R, K], int]  # a request, and the number of one of its pieces


@dataclass(eq=False)
class Batch(Generic[P, R, K]):
    """What one thread works on."""

    kind: K
    going: dict[int, Place[P, R, K]] = field(default_factory=dict)  # what is not known yet, by its number
    count: int = 0  # of places it ever had

    def add(self, places: Sequence[Place[P, R, K]]) -> list[P]:
        """The pieces of further places."""
        self.going.update(enumerate(places, self.count))
        self.count += len(places)
        return [request.pieces[number] for request, number in places]


class Batcher(Generic[P, R, K]):
    """One queue and the threads that work on it, each on a batch that pieces leave and come into."""

    def __init__(
        self,
        find: Find[P, K, R],
        size: Callable[[P], int],
        *,
        tokens: int,
        most: int,
        room: int,
        threads: int = 1,
        noted: Callable[[int, int], None] = lambda pieces, waiting: None,
    ) -> None:
        """`tokens` a batch may have, padding counted, and at most so many pieces; `room` for pieces that wait.

        `noted` is told how many pieces come into a batch together, and how many still wait.
        """
        self.find = find
        self.size = size
        self.tokens = tokens
        self.most = most
        self.room = room
        self.noted = noted
        self.queue = threading.Lock()  # held by who changes the next two
        self.waiting: deque[Waiting[P, R, K]] = deque()
        self.count = 0  # of pieces that wait
        self.slice = SLICE * most
        self.freed = asyncio.Event()  # that some no longer wait
        self.idle = threads
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    async def __call__(self, pieces: Sequence[P], kind: K) -> list[R]:
        """The results of all pieces, in their order. Pieces of one kind alone come into a batch together.

        A request takes room for a few batches at a time, whatever its size; what has begun is not turned away later.
        """
        found: list[R] = []
        for start in range(0, len(pieces), self.slice):
            some = pieces[start : start + self.slice]
            while self.count and self.count + len(some) > self.room:
                if not start:
                    raise OverloadedError(f"{self.count} pieces wait, {len(some)} more are too many")
                self.freed.clear()
                await self.freed.wait()
            found += await self.together(some, kind)
        return found

    async def together(self, pieces: Sequence[P], kind: K) -> list[R]:
        """A few pieces, which wait together."""
        answer: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        left, results = deque(range(len(pieces))), list[R | None]([None] * len(pieces))
        request = Waiting(kind, pieces, left, results, len(pieces), answer)
        with self.queue:
            self.waiting.append(request)
            self.count += len(pieces)
        self.start()
        try:
            return await answer
        finally:
            self._withdraw(request)

    def _withdraw(self, request: Waiting[P, R, K]) -> None:
        """Take out of the queue what is left of a request that was cancelled, or that failed."""
        with self.queue:
            if request.left:  # as long as it has any, it is in the queue
                self.waiting.remove(request)
                self.count -= len(request.left)
                request.left.clear()
        self.freed.set()

    def start(self) -> None:
        """Sets idle threads to work while anybody waits."""
        while self.idle and (places := self.next()):
            self.idle -= 1
            batch: Batch[P, R, K] = Batch(places[0][0].kind)
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self.threads, self.work, batch, batch.add(places), loop)
            future.add_done_callback(lambda done, batch=batch: self.ended(batch, done))  # type: ignore[misc]
        self.freed.set()

    def next(self, going: Batch[P, R, K] | None = None) -> list[Place[P, R, K]]:
        """What comes next: of each request that waits a piece in turn, as long as there is room for it.

        Into a batch that is under way nobody comes before those who have waited longer: it would never end, and they
        would wait for its end.
        """
        there = [] if going is None else [self.size(one.pieces[number]) for one, number in list(going.going.values())]
        found: list[Place[P, R, K]] = []
        passed: list[Waiting[P, R, K]] = []
        longest = max(there, default=0)
        with self.queue:
            while self.waiting and len(there) + len(found) < self.most and not (going and passed):
                request = self.waiting.popleft()
                if not request.wanted:
                    self.count -= len(request.left)
                    request.left.clear()
                    continue
                size = self.size(request.pieces[request.left[0]])
                kind = going.kind if going else found[0][0].kind if found else request.kind
                count = len(there) + len(found)
                if request.kind != kind or (count and max(longest, size) * (count + 1) > self.tokens):
                    passed.append(request)
                    continue
                found.append((request, request.left.popleft()))
                longest = max(longest, size)
                self.count -= 1
                if request.left:
                    self.waiting.append(request)  # behind all others
            self.waiting.extendleft(reversed(passed))  # who had to stand back is first the next time
        if found:
            self.noted(len(found), self.count)
        return found

    def work(self, batch: Batch[P, R, K], pieces: Sequence[P], loop: asyncio.AbstractEventLoop) -> None:
        """One batch, in a thread, until nothing is left that could come into it.

        Where a batch of several pieces fails, each that has no result yet is tried alone: only those fail that fail
        by themselves.
        """

        def tell(number: int, result: R) -> None:
            loop.call_soon_threadsafe(self.known, *batch.going.pop(number), result)

        def more() -> list[P]:
            if not self.count:
                return []
            found = self.next(batch)
            loop.call_soon_threadsafe(self.freed.set)
            return batch.add(found)

        try:
            self.find(pieces, batch.kind, tell, more)
        except OverloadedError:
            raise
        except Exception:
            if len(batch.going) == 1:
                raise
            for request, number in [batch.going.pop(each) for each in list(batch.going)]:
                if request.wanted:
                    self._decode_alone(request, number, loop)

    def _decode_alone(self, request: Waiting[P, R, K], number: int, loop: asyncio.AbstractEventLoop) -> None:
        found: list[R] = []
        error: Exception | None = None
        try:
            self.find([request.pieces[number]], request.kind, lambda _, result: found.append(result), lambda: [])
        except Exception as raised:
            error = raised
        if found:
            loop.call_soon_threadsafe(self.known, request, number, found[0])
        else:
            loop.call_soon_threadsafe(self._fail, request, error)

    def _fail(self, request: Waiting[P, R, K], error: BaseException | None) -> None:
        if request.wanted:
            request.answer.set_exception(error or RuntimeError("a batch ended without one of its results"))

    def known(self, request: Waiting[P, R, K], place: int, result: R) -> None:
        """One piece more; the last one is the answer."""
        request.results[place] = result
        request.missing -= 1
        if not request.missing and request.wanted:
            request.answer.set_result([result for result in request.results if result is not None])

    def ended(self, batch: Batch[P, R, K], done: asyncio.Future[None]) -> None:
        """A thread is free again; what it could not do, those who wait are told."""
        self.idle += 1
        error = done.exception()
        for request, _ in batch.going.values():
            self._fail(request, error)
        self.start()

    def close(self) -> None:
        """Ends the threads, when what they work on is done."""
        self.threads.shutdown()
