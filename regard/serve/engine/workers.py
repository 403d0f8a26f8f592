"""Batches in processes of their own: who decodes is then not held up by who listens, nor the other way round.

In one process only one thread at a time runs Python, and a step of a decoder is mostly Python. A batch goes over a
line to a process that is free. After each step the process says what it has found, which also asks for more, and goes
on while the answer is on its way; it waits for it only where it has nothing else to do.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from regard.search import Hypothesis
from regard.serve.engine.batching import Find
from regard.serve.http.errors import OverloadedError
from regard.serve.metrics import note
from regard.translate import Options, Translator, load
from regard.translate.segmentation import EncodedSegment

P = TypeVar("P")
R = TypeVar("R")
K = TypeVar("K")

Start = Callable[[Connection], None]  # what a process does with its end of the line

STEADY = 60.0  # seconds after whose end the death of a process is no sign that the next dies as well
LONGEST_PAUSE = 30.0  # seconds between a death and the start of the next process


class Told(NamedTuple):
    """What a process says."""

    found: Sequence[tuple[int, Any]] = ()  # results, by the numbers of their pieces
    over: bool = False  # whether the batch has ended
    error: Exception | None = None  # why it has, where it failed


class Process(Generic[P, R, K]):
    """A decoder process, and this side's end of the line to it."""

    def __init__(self, start: Start) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would have the locks of threads, and not the threads
        self.line, theirs = context.Pipe()
        self.body = context.Process(target=start, args=(theirs,), daemon=True)
        self.body.start()
        theirs.close()
        self.status = threading.Lock()  # of two threads that ask for the exit code at once, one may not get it
        self.since = time.monotonic()
        self.loaded = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        with self.status:
            return self.body.is_alive()

    def wait(self) -> int | None:
        """Wait for the end of the process; its exit code."""
        wait([self.body.sentinel])
        with self.status:
            self.body.join()
            return self.body.exitcode

    def ready(self) -> None:
        """Wait until it has said that it can work; EOFError if it ends before."""
        if not self.loaded:
            self.line.recv()
            self.loaded = True

    def find(
        self, pieces: Sequence[P], kind: K, tell: Callable[[int, R], None], more: Callable[[], Sequence[P]]
    ) -> None:
        """Decode a batch; RuntimeError if the process dies of it."""
        try:
            self.line.send((kind, list(pieces)))
            while not (told := self.heard(tell)).over:
                self.line.send(list(more()))
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the process that decodes has ended, with {self.wait()}") from error
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
        self.wait()


class Processes(Generic[P, R, K]):
    """A fixed number of decoder processes. One that dies is replaced, after a pause if it died soon after its start."""

    def __init__(self, start: Start, count: int) -> None:
        self.start = start
        self.all: list[Process[P, R, K]] = [Process(start) for _ in range(count)]
        self.changed = threading.Condition()  # held while one of the next three is changed
        self.free: list[Process[P, R, K]] = []
        self.failing: set[int] = set()  # indices in `all` whose latest replacement died before it was ready
        self.closed = False
        self.watchers = [threading.Thread(target=self._keep_alive, args=(n,), daemon=True) for n in range(count)]

    def ready(self) -> None:
        """Wait until all can work; from then on, those that die are replaced."""
        for process in self.all:
            process.ready()
        self.free += self.all
        for watcher in self.watchers:
            watcher.start()

    @property
    def available(self) -> bool:
        """Whether at least one process can decode."""
        return any(process.loaded and process.alive for process in self.all)

    def find(
        self, pieces: Sequence[P], kind: K, tell: Callable[[int, R], None], more: Callable[[], Sequence[P]]
    ) -> None:
        """Decode a batch in a process that is free; OverloadedError if none can be started."""
        process = self._take()
        try:
            process.find(pieces, kind, tell, more)
        finally:
            with self.changed:
                self.free.append(process)
                self.changed.notify()

    def _take(self) -> Process[P, R, K]:
        with self.changed:
            while True:
                while self.free:
                    if (process := self.free.pop(0)).alive:
                        return process
                if self.closed or len(self.failing) == len(self.all):
                    raise OverloadedError("no process can decode", "The decoder restarts; try again in a moment")
                self.changed.wait()

    def _keep_alive(self, index: int) -> None:
        pause = 0.0
        while True:
            process = self.all[index]
            code = process.wait()
            with self.changed:
                if not process.loaded:
                    self.failing.add(index)
                    self.changed.notify_all()  # those who wait for this one
                if self.closed:
                    return
                pause = next_pause(pause, time.monotonic() - process.since)
                note("decoder died", logging.ERROR, exit_code=code, restart_in=pause)
                process.line.close()
                while self.all[index] is process:
                    if self.changed.wait_for(lambda: self.closed, pause):
                        return
                    try:
                        self.all[index] = Process(self.start)
                    except OSError as error:  # no memory, processes or file descriptors are left
                        self.failing.add(index)
                        self.changed.notify_all()
                        pause = next_pause(pause, 0.0)
                        note("decoder cannot be started", logging.ERROR, error, retry_in=pause)
                process = self.all[index]
            with suppress(EOFError, OSError):  # it died while it loaded, or was closed
                process.ready()
                with self.changed:
                    self.failing.discard(index)
                    self.free.append(process)
                    self.changed.notify()

    def close(self) -> None:
        """Ends them, when what they work on is done."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for process in self.all:
            process.close()
        for watcher in self.watchers:
            if watcher.ident:
                watcher.join()


def next_pause(pause: float, lifetime: float) -> float:
    """Return the seconds to wait before a process is replaced that died `lifetime` seconds after its start.

    Those that die soon are replaced after 0.1, 0.2, 0.4, … seconds, others at once.
    """
    return min(LONGEST_PAUSE, 2 * pause or 0.1) if lifetime < STEADY else 0.0


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


@dataclass(frozen=True)
class Kind:
    """What sentences of one batch have in common."""

    beam: int
    n_best: int

    def options(self) -> Options:
        """How they are searched for; whether anybody asks where the model looked changes nothing in that."""
        return Options(beam=self.beam, n_best=self.n_best)


@dataclass(frozen=True)
class Decoding:
    """Batches of pieces by one translator."""

    translator: Translator
    available = True  # as long as the service runs

    def find(
        self,
        pieces: Sequence[EncodedSegment],
        kind: Kind,
        tell: Callable[[int, list[Hypothesis]], None],
        more: Callable[[], Sequence[EncodedSegment]],
    ) -> None:
        """A batch, for the batcher."""
        self.translator.decode_continuously(pieces, self.translator.compile_options(kind.options()), tell, more)

    def close(self) -> None:
        """Nothing of it is left running."""


def decode(folder: Path, threads: int, precision: str | None, line: Connection) -> None:
    """A process: loads a run and decodes what it is sent. When to end is for the service to say, not for a signal."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):  # Windows has no SIGHUP
            signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    decoding = Decoding(load(folder, precision=precision))
    settle()
    work(line, decoding.find)


def settle() -> None:
    """Takes what is loaded, and stays, out of what the garbage collector looks through: that holds everybody up.

    Over a quarter of a million objects a look takes a seventh of a second, over those of requests alone next to none.
    """
    gc.collect()
    gc.freeze()
