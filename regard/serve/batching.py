"""Pieces of many requests through one model together.

Whoever waits is served in turn, a piece at a time: a request of ten thousand pieces has in each batch the share that a
request of one has. What is found for a piece is handed over when it is known, not when its batch has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from regard.serve.refusal import OverloadedError

P = TypeVar("P")
R = TypeVar("R")
K = TypeVar("K")

Find = Callable[[Sequence[P], K, Callable[[int, R], None]], None]  # tells each result, by its number, when it is known


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


class Batcher(Generic[P, R, K]):
    """One queue and the threads that work on it; all but `work` runs in the event loop's own thread."""

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

        `noted` is told how many pieces each batch has, and how many still wait.
        """
        self.find = find
        self.size = size
        self.tokens = tokens
        self.most = most
        self.room = room
        self.noted = noted
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
        self.waiting.append(request)
        self.count += len(pieces)
        self.start()
        return await answer

    def start(self) -> None:
        """Sets idle threads to work while anybody waits."""
        while self.idle and (batch := self.next()):
            self.idle -= 1
            self.noted(len(batch), self.count)
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self.threads, self.work, batch, loop)
            future.add_done_callback(lambda done, batch=batch: self.ended(batch, done))  # type: ignore[misc]

    def next(self) -> list[Place[P, R, K]]:
        """The next batch: of each request that waits a piece in turn, as long as there is room for it."""
        batch: list[Place[P, R, K]] = []
        passed: list[Waiting[P, R, K]] = []
        longest = 0
        while self.waiting and len(batch) < self.most:
            request = self.waiting.popleft()
            if not request.wanted:
                self.count -= len(request.left)
                continue
            size = self.size(request.pieces[request.left[0]])
            other = batch and request.kind != batch[0][0].kind
            if other or (batch and max(longest, size) * (len(batch) + 1) > self.tokens):
                passed.append(request)
                continue
            batch.append((request, request.left.popleft()))
            longest = max(longest, size)
            self.count -= 1
            if request.left:
                self.waiting.append(request)  # behind all others
        self.waiting.extendleft(reversed(passed))  # who had to stand back is first the next time
        self.freed.set()
        return batch

    def work(self, batch: list[Place[P, R, K]], loop: asyncio.AbstractEventLoop) -> None:
        """One batch, in a thread."""

        def tell(number: int, result: R) -> None:
            request, place = batch[number]
            loop.call_soon_threadsafe(self.known, request, place, result)

        self.find([request.pieces[place] for request, place in batch], batch[0][0].kind, tell)

    def known(self, request: Waiting[P, R, K], place: int, result: R) -> None:
        """One piece more; the last one is the answer."""
        if request.results[place] is None:
            request.results[place] = result
            request.missing -= 1
        if not request.missing and request.wanted:
            request.answer.set_result([result for result in request.results if result is not None])

    def ended(self, batch: list[Place[P, R, K]], done: asyncio.Future[None]) -> None:
        """A thread is free again; what it could not do, those who wait are told."""
        self.idle += 1
        error = done.exception()
        for request, place in batch:
            if request.wanted and request.results[place] is None:
                request.answer.set_exception(error or RuntimeError("a batch ended without one of its results"))
        self.start()

    def close(self) -> None:
        """Ends the threads, when what they work on is done."""
        self.threads.shutdown()
