"""Worker processes that decode batches, so that decoding and the event loop do not share one GIL.

A batch goes through a pipe to an idle worker. After each step the worker sends its results, which also asks for more
segments, and goes on while the answer is under way; it waits for it only if it has nothing else to do.
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
from typing import Any, Generic, NamedTuple

import torch

from regard.errors import UserError
from regard.search import Hypothesis
from regard.serve.engine.batching import DecodeBatch, K, R, S
from regard.serve.http.errors import OverloadedError
from regard.serve.metrics import log_event
from regard.translate import Options, Translator, load
from regard.translate.translation import EncodedSegment

WorkerMain = Callable[[Connection], None]  # main function of a worker, which gets its end of the pipe

STABLE_LIFETIME = 60.0  # seconds after which the death of a worker does not suggest that the next one dies as well
MAX_PAUSE = 30.0  # seconds between a death and the start of the next worker


class WorkerMessage(NamedTuple):
    """Message from a worker to the service."""

    results: Sequence[tuple[int, Any]] = ()  # with the numbers of their segments
    is_end: bool = False  # of the batch
    error: Exception | None = None  # that ended the batch


class Worker(Generic[S, R, K]):
    """A worker process and the service's end of its pipe."""

    def __init__(self, main: WorkerMain) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit locks, but not the threads that hold them
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=main, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.lock = threading.Lock()  # if two threads ask for the exit code at once, one may not get it
        self.started = time.monotonic()
        self.is_ready = False

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        with self.lock:
            return self.process.is_alive()

    def wait(self) -> int | None:
        """Wait for the end of the process and return its exit code."""
        wait([self.process.sentinel])
        with self.lock:
            self.process.join()
            return self.process.exitcode

    def wait_until_ready(self) -> None:
        """Wait until the worker has loaded its model; EOFError if it ends before."""
        if not self.is_ready:
            self.pipe.recv()
            self.is_ready = True

    def decode(
        self, segments: Sequence[S], key: K, report: Callable[[int, R], None], take_more: Callable[[], Sequence[S]]
    ) -> None:
        """Decode a batch; RuntimeError if the worker dies."""
        try:
            self.pipe.send((key, list(segments)))
            while not (message := self._receive(report)).is_end:
                self.pipe.send(list(take_more()))
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the decoder process has ended with {self.wait()}") from error
        if message.error:
            raise message.error

    def _receive(self, report: Callable[[int, R], None]) -> WorkerMessage:
        message: WorkerMessage = self.pipe.recv()
        for number, result in message.results:
            report(number, result)
        return message

    def close(self) -> None:
        """End the worker, which notices that its pipe is closed, unless it is still loading."""
        self.pipe.close()
        if not self.is_ready:
            self.process.kill()
        self.wait()


class WorkerPool(Generic[S, R, K]):
    """A fixed number of workers. One that dies is replaced, after a pause if it died soon after its start."""

    def __init__(self, main: WorkerMain, count: int) -> None:
        self.main = main
        self.workers: list[Worker[S, R, K]] = [Worker(main) for _ in range(count)]
        self.changed = threading.Condition()  # held while one of the next three is changed
        self.idle: list[Worker[S, R, K]] = []
        self.failing: set[int] = set()  # indices of workers whose latest replacement died before it was ready
        self.is_closed = False
        self.watchers = [threading.Thread(target=self._keep_alive, args=(n,), daemon=True) for n in range(count)]

    def wait_until_ready(self) -> None:
        """Wait until all workers are ready; UserError if one dies before. Those that die later are replaced."""
        for worker in self.workers:
            try:
                worker.wait_until_ready()
            except (EOFError, OSError) as error:
                raise UserError(
                    f"a decoder process ended with exit code {worker.wait()} before its model was loaded; "
                    f"--jobs 0 decodes in the service itself"
                ) from error
        self.idle += self.workers
        for watcher in self.watchers:
            watcher.start()

    @property
    def is_available(self) -> bool:
        """True if at least one worker can decode."""
        return any(worker.is_ready and worker.is_alive for worker in self.workers)

    def decode(
        self, segments: Sequence[S], key: K, report: Callable[[int, R], None], take_more: Callable[[], Sequence[S]]
    ) -> None:
        """Decode a batch in an idle worker; OverloadedError if none can be started."""
        worker = self._take()
        try:
            worker.decode(segments, key, report, take_more)
        finally:
            self._put_back(worker)

    def _take(self) -> Worker[S, R, K]:
        with self.changed:
            while True:
                while self.idle:
                    if (worker := self.idle.pop(0)).is_alive:
                        return worker
                if self.is_closed or len(self.failing) == len(self.workers):
                    raise OverloadedError("no decoder process runs", "The decoder restarts; try again in a moment")
                self.changed.wait()

    def _put_back(self, worker: Worker[S, R, K]) -> None:
        with self.changed:
            self.idle.append(worker)
            self.changed.notify()

    def _mark_as_failing(self, index: int) -> None:
        self.failing.add(index)
        self.changed.notify_all()  # threads may wait for this worker

    def _keep_alive(self, index: int) -> None:
        """Replace a worker whenever it dies, in a thread of its own."""
        pause = 0.0
        while True:
            worker = self.workers[index]
            exit_code = worker.wait()
            with self.changed:
                if not worker.is_ready:
                    self._mark_as_failing(index)
                if self.is_closed:
                    return
                pause = next_pause(pause, time.monotonic() - worker.started)
                log_event("decoder died", logging.ERROR, exit_code=exit_code, restart_in=pause)
                worker.pipe.close()
                while self.workers[index] is worker:
                    if self.changed.wait_for(lambda: self.is_closed, pause):
                        return
                    try:
                        self.workers[index] = Worker(self.main)
                    except OSError as error:  # no memory, processes or file descriptors are left
                        self._mark_as_failing(index)
                        pause = next_pause(pause, 0.0)
                        log_event("decoder cannot be started", logging.ERROR, error, retry_in=pause)
                worker = self.workers[index]
            with suppress(EOFError, OSError):  # it died while it loaded, or was closed
                worker.wait_until_ready()
                with self.changed:
                    self.failing.discard(index)
                self._put_back(worker)

    def close(self) -> None:
        """End the workers after their current batches."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for worker in self.workers:
            worker.close()
        for watcher in self.watchers:
            if watcher.ident:
                watcher.join()


def next_pause(pause: float, lifetime: float) -> float:
    """Return the seconds before a worker is replaced that died `lifetime` seconds after its start.

    Those that die soon are replaced after 0.1, 0.2, 0.4, … seconds, others at once.
    """
    return min(MAX_PAUSE, 2 * pause or 0.1) if lifetime < STABLE_LIFETIME else 0.0


def work(pipe: Connection, decode: DecodeBatch[S, K, R]) -> None:
    """Decode batches in a worker, until the service closes its end of the pipe."""
    with suppress(EOFError, OSError):
        pipe.send(WorkerMessage())
        while True:
            key, segments = pipe.recv()
            session: BatchSession[S, R, K] = BatchSession(pipe, len(segments))
            pipe.send(session.run(decode, segments, key))


class BatchSession(Generic[S, R, K]):
    """A batch in the worker that decodes it."""

    def __init__(self, pipe: Connection, running: int) -> None:
        self.pipe = pipe
        self.running = running  # segments without a result
        self.unsent: list[tuple[int, R]] = []  # results
        self.awaits_segments = False  # sent results, and got no answer yet

    def run(self, decode: DecodeBatch[S, K, R], segments: Sequence[S], key: K) -> WorkerMessage:
        """Decode the batch, and return the last message about it."""
        error = None
        try:
            decode(segments, key, self.report, self.take_more)
        except (EOFError, OSError):
            raise
        except Exception as raised:
            raised.add_note(traceback.format_exc())  # pickling loses the traceback
            error = raised
        if self.awaits_segments:  # segments that come now fail with the batch
            self._receive_segments()
        return WorkerMessage(self.unsent, is_end=True, error=error)

    def report(self, number: int, result: R) -> None:
        """Keep a result, which is sent after the current step."""
        self.unsent.append((number, result))
        self.running -= 1

    def take_more(self) -> list[S]:
        """Send the results, and return the segments that have arrived; wait for them only if there is nothing to do.

        Only one question is open at a time: otherwise both sides could write and neither read.
        """
        segments: list[S] = []
        if self.awaits_segments and (not self.running or self.pipe.poll()):
            segments += self._receive_segments()
        if not self.awaits_segments:
            self.pipe.send(WorkerMessage(self.unsent))
            self.unsent, self.awaits_segments = [], True
        if not self.running and not segments:
            segments += self._receive_segments()
        self.running += len(segments)
        return segments

    def _receive_segments(self) -> list[S]:
        self.awaits_segments = False
        segments: list[S] = self.pipe.recv()
        return segments


@dataclass(frozen=True)
class BatchKey:
    """Search options that all segments of a batch share."""

    beam: int
    n_best: int


@dataclass(frozen=True)
class LocalDecoder:
    """Decode batches in this process."""

    translator: Translator
    is_available = True

    def decode(
        self,
        segments: Sequence[EncodedSegment],
        key: BatchKey,
        report: Callable[[int, list[Hypothesis]], None],
        take_more: Callable[[], Sequence[EncodedSegment]],
    ) -> None:
        """Decode a batch; alignments are computed later, from the attention of the hypotheses."""
        options = self.translator.compile_options(Options(beam=key.beam, n_best=key.n_best))
        self.translator.decode_continuously(segments, options, report, take_more)

    def close(self) -> None:
        """Do nothing: there is no process to end."""


def run_decoder_process(
    folder: Path, threads: int, device: torch.device | None, precision: str | None, pipe: Connection
) -> None:
    """Load a run and decode batches of the service, which alone decides when to end, signals do not."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):  # Windows has no SIGHUP
            signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    decoder = LocalDecoder(load(folder, device=device, precision=precision))
    freeze_garbage_collector()
    work(pipe, decoder.decode)


def freeze_garbage_collector() -> None:
    """Exclude the loaded models from garbage collection, which blocks all threads of the process.

    A collection over a quarter of a million objects takes a seventh of a second, over those of requests next to none.
    """
    gc.collect()
    gc.freeze()
