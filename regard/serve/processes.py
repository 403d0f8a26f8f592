"""Batches in processes of their own: who decodes is then not held up by who listens, nor the other way round.

In one process only one thread at a time runs Python, and a step of a decoder is mostly Python. A batch goes over a
line to a process that is free. After each step the process says what it has found, which also asks for more, and goes
on while the answer is on its way; it waits for it only where it has nothing else to do.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from regard.serve.batching import Find

P = TypeVar("P")
R = TypeVar("R")
K = TypeVar("K")

Start = Callable[[Connection], None]  # what a process does with its end of the line


class Told(NamedTuple):
    """What a process says."""

    found: Sequence[tuple[int, Any]] = ()  # results, by the numbers of their pieces
    over: bool = False  # whether the batch has ended
    error: Exception | None = None  # why it has, where it failed


class Process(Generic[P, R, K]):
    """One of them, and this side's end of the line to it."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.begin()

    def begin(self) -> None:
        """Starts it."""
        context = multiprocessing.get_context("spawn")  # a fork would have the locks of threads, and not the threads
        self.line, theirs = context.Pipe()
        self.body = context.Process(target=self.start, args=(theirs,), daemon=True)
        self.body.start()
        theirs.close()
        self.loaded = False

    def ready(self) -> None:
        """Waits until it has said that it can work."""
        if not self.loaded:
            self.line.recv()
            self.loaded = True

    def find(
        self, pieces: Sequence[P], kind: K, tell: Callable[[int, R], None], more: Callable[[], Sequence[P]]
    ) -> None:
        """Has a batch decoded; it fails where the process dies of it. One that has died meanwhile is replaced."""
        if not self.body.is_alive():
            self.close()
            self.begin()
        try:
            self.ready()
            self.line.send((kind, list(pieces)))
            while not (told := self.heard(tell)).over:
                self.line.send(list(more()))
        except (EOFError, OSError) as error:
            self.body.join()
            raise RuntimeError(f"the process that decodes has ended, with {self.body.exitcode}") from error
        if told.error:
            raise told.error

    def heard(self, tell: Callable[[int, R], None]) -> Told:
        """What it says next, handed on."""
        told: Told = self.line.recv()
        for number, result in told.found:
            tell(number, result)
        return told

    def close(self) -> None:
        """Ends it: it sees that nobody is at the other end, unless it is not so far yet."""
        self.line.close()
        if not self.loaded:
            self.body.kill()
        self.body.join()


class Processes(Generic[P, R, K]):
    """So many of them; a batch goes to one that is free."""

    def __init__(self, start: Start, count: int) -> None:
        self.all: list[Process[P, R, K]] = [Process(start) for _ in range(count)]
        self.free: SimpleQueue[Process[P, R, K]] = SimpleQueue()
        for process in self.all:
            self.free.put(process)

    def ready(self) -> None:
        """Waits until all can work."""
        for process in self.all:
            process.ready()

    def find(
        self, pieces: Sequence[P], kind: K, tell: Callable[[int, R], None], more: Callable[[], Sequence[P]]
    ) -> None:
        """A batch, for the batcher."""
        process = self.free.get()
        try:
            process.find(pieces, kind, tell, more)
        finally:
            self.free.put(process)

    def close(self) -> None:
        """Ends them, when what they work on is done."""
        for process in self.all:
            process.close()


def work(line: Connection, find: Find[P, K, R]) -> None:
    """What goes on in such a process: batch after batch, until nobody is at the other end of the line."""
    try:
        line.send(Told())
        while True:
            kind, pieces = line.recv()
            order: Order[P, R, K] = Order(line, len(pieces))
            line.send(Told(over=True, error=order.carried_out(find, pieces, kind)))
    except (EOFError, OSError):
        return


class Order(Generic[P, R, K]):
    """A batch as the process that decodes it sees it."""

    def __init__(self, line: Connection, going: int) -> None:
        self.line = line
        self.going = going  # pieces whose results are not known
        self.found: list[tuple[int, R]] = []  # and not told yet
        self.asked = False  # whether the other side was told something, and has not answered yet

    def carried_out(self, find: Find[P, K, R], pieces: Sequence[P], kind: K) -> Exception | None:
        """The error that ended it, if one did."""
        error = None
        try:
            find(pieces, kind, self.tell, self.more)
        except (EOFError, OSError):
            raise
        except Exception as raised:
            raised.add_note(traceback.format_exc())  # of itself it would not come over the line
            error = raised
        if self.asked:  # what still comes fails with the batch
            self.answer()
        if self.found:
            self.ask()
            self.answer()
        return error

    def tell(self, number: int, result: R) -> None:
        """A result, which goes over the line after the step that it was found in."""
        self.found.append((number, result))
        self.going -= 1

    def more(self) -> list[P]:
        """What has come in. Whoever has nothing else to do waits for the answer.

        Only one question is open at a time, or both sides might write and neither read.
        """
        new: list[P] = []
        if self.asked and (not self.going or self.line.poll()):
            new += self.answer()
        if not self.asked:
            self.ask()
        if not self.going and not new:
            new += self.answer()
        self.going += len(new)
        return new

    def ask(self) -> None:
        """Says what was found, which asks for more."""
        self.line.send(Told(self.found))
        self.found = []
        self.asked = True

    def answer(self) -> list[P]:
        """What the other side has for the batch."""
        self.asked = False
        found: list[P] = self.line.recv()
        return found
