"""Translate large corpora on a Ray cluster: each worker has the run in its memory.

Ray's `ActorPool` hands out the chunks: it returns results in the order of the input and takes one chunk at a time, so
memory is bounded for standard input and for a corpus of any size. Ray itself restarts a worker that died and gives it
its chunk again. Ray Data would need the input as a dataset for its own readers, which standard input is not, and also
pandas and pyarrow.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.console import log_message
from regard.errors import UserError
from regard.translate.options import CompiledOptions, Options
from regard.translate.segmentation import Translation
from regard.translate.translator import Translator, load

LOCAL_CLUSTER = "local"  # Ray's name for a cluster that is started on this machine
MAX_TRIES_PER_CHUNK = 3  # each with a restarted worker
MAX_WORKER_RESTARTS = 20  # per worker: one that is killed before it has a chunk is not limited by the tries of a chunk
CHUNKS_PER_WORKER = 2  # the one it translates and the next, so that it never waits for this process
SLOW_START_S = 30.0  # seconds after which a message says that workers are not ready
INPUT_WAIT_S = 0.05  # seconds to wait for input before waiting for results instead


class RayWorker:
    """A Ray actor that translates chunks, with its own cores or GPU."""

    def __init__(self, runs: Sequence[Path], options: Options, threads: int) -> None:
        self.runs = runs
        self.options = options
        self.threads = threads

    # Not in the constructor: Ray wraps errors of a constructor in a message of its own, but passes on those of a task.
    @cached_property
    def translator_and_options(self) -> tuple[Translator, CompiledOptions]:
        """The loaded translator, and the options compiled for its vocabularies."""
        torch.set_num_threads(self.threads)
        translator = load(*self.runs)
        return translator, translator.compile_options(self.options)

    def load(self) -> None:
        """Load the runs now, so that errors in the run or the options show before the first chunk."""
        assert self.translator_and_options

    def translate_chunk(self, texts: Sequence[str]) -> list[Translation]:
        """Translate the texts of a chunk."""
        translator, options = self.translator_and_options
        return translator.translate_chunk(texts, options)


class WorkerAllocation(NamedTuple):
    """Number of workers, and the cores and GPUs of each."""

    workers: int
    cpus: int
    gpus: int


def allocate_workers(nodes: Sequence[Mapping[str, float]], requested: int | None) -> WorkerAllocation:
    """Divide the cores of a cluster among its workers; each has one GPU if there are any.

    By default there is one worker per GPU, or per core: many small workers translate faster than a few that spread one
    batch over many cores.
    """
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes))

    def count_fitting_workers(cpus: int) -> int:
        """Return the number of workers with that many cores that fit."""
        needs = {name: need for name, need in (("CPU", cpus), ("GPU", gpus)) if need}
        return sum(min(int(node.get(name, 0) // need) for name, need in needs.items()) for node in nodes)

    fewest = 0 if gpus else 1  # a machine may have more GPUs than cores; a worker waits for its GPU most of the time
    most, workers = count_fitting_workers(fewest), requested or count_fitting_workers(fewest)
    if not 1 <= workers <= most:
        unit = "GPU" if gpus else "core"
        raise UserError(
            f"this Ray cluster has room for {most} workers, one per {unit}, not for {workers}; use fewer --workers"
        )
    return WorkerAllocation(
        workers,
        max(cpus for cpus in range(fewest, _count_cpus(nodes) + 1) if count_fitting_workers(cpus) >= workers),
        gpus,
    )


def _count_cpus(nodes: Sequence[Mapping[str, float]]) -> int:
    """Return the total number of cores."""
    return int(sum(node.get("CPU", 0) for node in nodes))


def _import_ray() -> Any:
    """Import Ray, an optional dependency."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray, which is not installed: pip install 'regard[cluster]'") from error
    return ray


@contextmanager
def _connect_to_ray() -> Iterator[Any]:
    """Connect to the cluster at RAY_ADDRESS, or start a local one that is shut down at the end."""
    ray = _import_ray()
    if ray.is_initialized():  # by the calling program, which also shuts it down
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", LOCAL_CLUSTER)
    quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    try:
        if address == LOCAL_CLUSTER:
            set_private_cluster_env()
            ray.init(LOCAL_CLUSTER, include_dashboard=False, **quiet)
        else:
            _check_reachable(address)
            ray.init(address, **quiet)
    except (RuntimeError, ValueError, OSError) as error:
        where = (
            "Ray does not start on this machine"
            if address == LOCAL_CLUSTER
            else f"no Ray cluster at RAY_ADDRESS={address}"
        )
        raise UserError(f"{where}: {str(error).strip().splitlines()[0]}") from error
    try:
        _exit_on_sigterm()
        yield ray
    finally:
        ray.shutdown()


def _exit_on_sigterm() -> None:
    """Exit on SIGTERM, so that workers are shut down; Ray's own handler would print all stack traces."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _check_reachable(address: str) -> None:
    """Raise OSError if `host:port` does not accept connections; Ray would retry for 15 minutes."""
    host, colon, port = address.split("://")[-1].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def set_private_cluster_env() -> None:
    """Disable Ray's usage statistics and require an authentication token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray leaves one in the home folder


class RayWorkerPool:
    """Workers with loaded runs that share one input."""

    def __init__(self, ray: Any, workers: Sequence[Any]) -> None:
        self.ray = ray
        self.workers = workers

    def _reset(self) -> None:
        """Start with an empty pool; results of an earlier, unfinished input are dropped."""
        self.pool = self.ray.util.ActorPool([worker for _ in range(CHUNKS_PER_WORKER) for worker in self.workers])
        self.line_ranges: deque[tuple[int, int]] = deque()  # first and last line of each pending chunk
        self.submitted_lines = 0

    def translate_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Translation]]:
        """Yield the translations of each chunk, in order, while more chunks arrive.

        While input is slow, pending results are yielded first: a caller that writes a line and waits for its
        translation before writing the next one gets it.
        """
        self._reset()
        with _ChunkPrefetcher(chunks) as reader:
            while True:
                if self.pool.has_next() and not (self.pool.has_free() and reader.has_chunk_ready()):
                    yield self._fetch_oldest_result()
                elif (chunk := reader.wait_for_chunk()) is not None:
                    self._submit_chunk(chunk)
                else:
                    break

    def _submit_chunk(self, chunk: Sequence[str]) -> None:
        """Submit a chunk to a worker with free capacity."""
        self.line_ranges.append((self.submitted_lines + 1, self.submitted_lines + len(chunk)))
        self.submitted_lines += len(chunk)
        self.pool.submit(lambda worker, texts: worker.translate_chunk.remote(texts), chunk)

    def _fetch_oldest_result(self) -> list[Translation]:
        """Return the translations of the oldest pending chunk."""
        first, last = self.line_ranges.popleft()
        with convert_ray_errors(self.ray, f"at lines {first:,} to {last:,} of the input"):
            translations: list[Translation] = self.pool.get_next()
            return translations


class _ChunkPrefetcher:
    """Reads ahead by one chunk in a thread, so that slow input does not block pending results."""

    def __init__(self, chunks: Iterable[Sequence[str]]) -> None:
        self.chunks = chunks
        self.ready_chunks: queue.Queue[Sequence[str] | Exception | None] = queue.Queue(1)
        self.peeked: list[Sequence[str] | Exception | None] = []
        self.stopped = False

    def __enter__(self) -> _ChunkPrefetcher:
        threading.Thread(target=self._read_chunks, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True
        while not self.ready_chunks.empty():  # else the thread would wait for ever to put its chunk
            self.ready_chunks.get()

    def _read_chunks(self) -> None:
        """Queue all chunks, then None or the exception that ended them."""
        try:
            for chunk in self.chunks:
                self.ready_chunks.put(chunk)
                if self.stopped:
                    return
            self.ready_chunks.put(None)
        except Exception as error:
            self.ready_chunks.put(error)

    def has_chunk_ready(self) -> bool:
        """Return True if a chunk is available almost at once; False at the end of the input or after an error."""
        try:
            if not self.peeked:
                self.peeked.append(self.ready_chunks.get(timeout=INPUT_WAIT_S))
        except queue.Empty:
            return False
        return self.peeked[0] is not None and not isinstance(self.peeked[0], Exception)

    def wait_for_chunk(self) -> Sequence[str] | None:
        """Wait for the next chunk; None at the end."""
        chunk = self.peeked[0] if self.peeked else self.ready_chunks.get()
        if isinstance(chunk, Exception):
            raise chunk
        self.peeked = [] if chunk is not None else [None]
        return chunk


@contextmanager
def open_worker_pool(
    runs: Sequence[Path], options: Options, workers: int | None = None, worker_class: type[RayWorker] = RayWorker
) -> Iterator[RayWorkerPool]:
    """Start workers on the cluster with the runs loaded, dividing cores and GPUs; stop them at the end."""
    with _connect_to_ray() as ray:
        count, cpus, gpus = allocate_workers([node["Resources"] for node in ray.nodes() if node["Alive"]], workers)
        actor_class = ray.remote(worker_class).options(
            num_cpus=cpus,
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
            max_restarts=MAX_WORKER_RESTARTS,
            max_task_retries=MAX_TRIES_PER_CHUNK - 1,
        )
        folders = [run.resolve() for run in runs]
        actors = [actor_class.remote(folders, options, max(1, cpus)) for _ in range(count)]
        try:
            with convert_ray_errors(ray, "while it loaded the model"):
                _wait_until_loaded(ray, [actor.load.remote() for actor in actors])
            yield RayWorkerPool(ray, actors)
        finally:
            for actor in actors:
                ray.kill(actor)


def _wait_until_loaded(ray: Any, workers: Sequence[Any]) -> None:
    """Wait until all workers have loaded; log a message if that takes long."""
    _, late = ray.wait(workers, num_returns=len(workers), timeout=SLOW_START_S)
    if late:
        log_message(
            f"waiting for {len(late)} of {len(workers)} workers: the cluster is busy, or the model takes long to load"
        )
    ray.get(workers)


@contextmanager
def convert_ray_errors(ray: Any, when: str) -> Iterator[None]:
    """Convert errors of the cluster to UserError with advice."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayError as error:  # a worker, its memory or its machine is lost, and all retries failed
        if getattr(error, "actor_init_failed", False):
            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"a worker does not start: {reason}; install this version of regard on each machine of the cluster"
            ) from error
        raise UserError(
            f"a worker died repeatedly {when}, although it was restarted each time. The usual cause is too little "
            f"memory: use fewer --workers or a smaller --beam, or find the cause with --engine torch"
        ) from error
