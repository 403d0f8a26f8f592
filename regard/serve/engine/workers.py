"""Worker processes that decode batches, so that decoding and the event loop do not share one GIL.

A batch goes through a pipe to an idle worker. After each step the worker sends its results, which also asks for more
segments, and goes on while the answer is under way; it waits for it only if it has nothing else to do.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, NamedTuple

import torch

from regard.errors import UserError
from regard.search import Hypothesis
from regard.serve.engine.background import ignore_signals, start_process
from regard.serve.engine.batching import DecodeBatch, K, R, S
from regard.serve.errors import OverloadedError
from regard.serve.metrics import log_event
from regard.translate import Options, Translator, load
from regard.translate.translation import EncodedSegment

WorkerMain = Callable[[Connection], None]  # main function of a worker, which gets its end of the pipe

RETRY_PAUSE = 10.0  # seconds after which the start of a worker is tried again if it has failed


class WorkerMessage(NamedTuple):
    """Message from a worker to the service."""

    results: Sequence[tuple[int, Any]] = ()  # with the numbers of their segments
    is_end: bool = False  # of the batch
    error: Exception | None = None  # that ended the batch


class Worker:
    """A worker process and the service's end of its pipe."""

    def __init__(self, main: WorkerMain) -> None:
        self.process, self.pipe = start_process(main)
        self.is_ready = False

    def wait(self) -> int | None:
        """Wait for the end of the process and return its exit code."""
        self.process.join()
        return self.process.exitcode

    def wait_until_ready(self) -> None:
        """Wait until the worker has loaded its model; EOFError if it ends before."""
        self.pipe.recv()
        self.is_ready = True

    def close(self) -> None:
        """End the worker, which notices that its pipe is closed, unless it is still loading."""
        self.pipe.close()
        if not self.is_ready:
            self.process.kill()
        self.wait()


class WorkerPool(Generic[S, R, K]):
    """A fixed number of workers. One that has died is replaced when a batch needs it."""

    def __init__(self, main: WorkerMain, count: int) -> None:
        self.main = main
        self.count = count
        self.idle = [Worker(main) for _ in range(count)]
        self.changed = threading.Condition()  # held while `idle` is changed
        self.retry_at = 0.0  # time before which no start is tried, because the latest one has failed

    def wait_until_ready(self) -> None:
        """Wait until all workers are ready; UserError if one dies before."""
        for worker in self.idle:
            try:
                worker.wait_until_ready()
            except (EOFError, OSError) as error:
                raise UserError(
                    f"a decoder process ended with exit code {worker.wait()} before its model was loaded; "
                    f"--jobs 0 decodes in the service itself"
                ) from error

    @property
    def is_available(self) -> bool:
        """True unless all workers have died, and the latest one could not be replaced."""
        with self.changed:
            is_dead = len(self.idle) == self.count and not any(worker.process.is_alive() for worker in self.idle)
            return not is_dead or time.monotonic() >= self.retry_at

    def decode(
        self, segments: Sequence[S], key: K, report: Callable[[int, R], None], take_more: Callable[[], Sequence[S]]
    ) -> None:
        """Decode a batch in an idle worker; OverloadedError if none can be started, RuntimeError if it dies."""
        worker = self._take()
        try:
            if not worker.process.is_alive():
                worker = self._replace(worker)
            worker.pipe.send((key, list(segments)))
            while True:
                message: WorkerMessage = worker.pipe.recv()
                for number, result in message.results:
                    report(number, result)
                if message.is_end:
                    break
                worker.pipe.send(list(take_more()))
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the decoder process has ended with {worker.wait()}") from error
        finally:
            with self.changed:
                self.idle.append(worker)
                self.changed.notify_all()
        if message.error:
            raise message.error

    def _take(self) -> Worker:
        """Take a worker that runs, or, if all of them are busy or dead, a dead one that may be replaced."""
        with self.changed:
            while True:
                running = [worker for worker in self.idle if worker.process.is_alive()]
                may_start = time.monotonic() >= self.retry_at
                if running or (self.idle and may_start):
                    worker = running[0] if running else self.idle[0]
                    self.idle.remove(worker)
                    return worker
                if len(self.idle) == self.count:
                    raise OverloadedError("no decoder process runs", "The decoder restarts; try again in a moment")
                self.changed.wait()

    def _replace(self, dead: Worker) -> Worker:
        log_event("decoder died", logging.ERROR, exit_code=dead.wait())
        try:
            worker = Worker(self.main)
            worker.wait_until_ready()
        except (EOFError, OSError) as error:  # OSError: no memory, processes or file descriptors are left
            self.retry_at = time.monotonic() + RETRY_PAUSE
            log_event("decoder cannot be started", logging.ERROR, error, retry_in=RETRY_PAUSE)
            raise OverloadedError("no decoder process starts", "The decoder restarts; try again in a moment") from error
        dead.pipe.close()
        return worker

    def close(self) -> None:
        """End the workers, after their current batches."""
        for worker in self.idle:
            worker.close()


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
    """Load a run and decode batches of the service."""
    ignore_signals()
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
