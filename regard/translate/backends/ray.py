"""Corpus-sized translation: workers on a Ray cluster, each with the run in its memory.

Ray's `ActorPool` hands out the chunks: it gives results back in the order of the input and takes a chunk when it is
told to, so that standard input, and a corpus of any size, goes through in the same memory; Ray itself restarts a worker
that died and gives it its chunk again. Ray Data would want the input as a dataset that its own readers can see, which
standard input is not, and pandas and pyarrow besides.
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
MAX_TRIES_PER_CHUNK = 3  # of one chunk, each with a worker that is new
MAX_WORKER_RESTARTS = (
    20  # of one worker in all: one that is killed before it can do anything has no chunk that would count
)
CHUNKS_PER_WORKER = 2  # chunks a worker has: the one it works on, and the next, so that it never waits for this end
SLOW_START_S = 30.0  # seconds after which workers that are not ready are worth a word
INPUT_WAIT_S = 0.05  # seconds that input may take to come before results are waited for instead


class RayWorker:
    """Translates chunks: one actor of the cluster, with its own cores or GPU."""

    def __init__(self, runs: Sequence[Path], options: Options, threads: int) -> None:
        self.runs = runs
        self.options = options
        self.threads = threads

    # Not in the constructor: what goes wrong in there comes back wrapped in words of Ray's, a task's error as it was.
    @cached_property
    def translator_and_options(self) -> tuple[Translator, CompiledOptions]:
        """The run, and the options as its vocabularies spell them."""
        torch.set_num_threads(self.threads)
        translator = load(*self.runs)
        return translator, translator.compile_options(self.options)

    def load(self) -> None:
        """Makes ready; whatever is wrong with the run or the options shows here."""
        assert self.translator_and_options

    def translate_chunk(self, texts: Sequence[str]) -> list[Translation]:
        """A translation of each text."""
        translator, plan = self.translator_and_options
        return translator.translate_chunk(texts, plan)


class WorkerAllocation(NamedTuple):
    """How many workers, and what each of them has."""

    workers: int
    cpus: int
    gpus: int


def allocate_workers(nodes: Sequence[Mapping[str, float]], requested: int | None) -> WorkerAllocation:
    """Divides the cores of a cluster's nodes among its workers; each has a GPU to itself where there are any.

    Without a wish there is a worker for each GPU, or for each core: many small workers translate faster than a few that
    spread one batch over many cores.
    """
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes))

    def count_fitting_workers(cpus: int) -> int:
        """Workers of so many cores that find a place."""
        needs = {name: need for name, need in (("CPU", cpus), ("GPU", gpus)) if need}
        return sum(min(int(node.get(name, 0) // need) for name, need in needs.items()) for node in nodes)

    fewest = 0 if gpus else 1  # a machine may have more GPUs than cores; a worker waits for its GPU most of the time
    most, workers = count_fitting_workers(fewest), requested or count_fitting_workers(fewest)
    if not 1 <= workers <= most:
        unit = "GPU" if gpus else "core"
        raise UserError(
            f"there is room for {most} workers on this Ray cluster, one a {unit}, not for {workers}; ask for fewer by "
            f"--workers"
        )
    return WorkerAllocation(
        workers,
        max(cpus for cpus in range(fewest, _count_cpus(nodes) + 1) if count_fitting_workers(cpus) >= workers),
        gpus,
    )


def _count_cpus(nodes: Sequence[Mapping[str, float]]) -> int:
    """Those of all nodes."""
    return int(sum(node.get("CPU", 0) for node in nodes))


def _import_ray() -> Any:
    """Ray, which is an extra."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray, which is not installed: pip install 'regard[cluster]'") from error
    return ray


@contextmanager
def _connect_to_ray() -> Iterator[Any]:
    """Ray, connected to the cluster of RAY_ADDRESS, or to one that lives on this machine as long as this is needed."""
    ray = _import_ray()
    if ray.is_initialized():  # by the program that this is part of, which will end it as well
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
    """After SIGTERM the workers are put away; Ray's own handler would print where each thread was."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _check_reachable(address: str) -> None:
    """Sees that somebody listens at `host:port`; Ray itself would go on trying for a quarter of an hour."""
    host, colon, port = address.split("://")[-1].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def set_private_cluster_env() -> None:
    """What a cluster for one command needs: it tells nobody that it exists, and listens to nobody without its token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray leaves one in the home folder


class RayWorkerPool:
    """The workers, ready, and the one input that they share."""

    def __init__(self, ray: Any, workers: Sequence[Any]) -> None:
        self.ray = ray
        self.workers = workers

    def _reset(self) -> None:
        """Nothing is under way; what an input that was left in the middle had under way is nobody's."""
        self.pool = self.ray.util.ActorPool([worker for _ in range(CHUNKS_PER_WORKER) for worker in self.workers])
        self.line_ranges: deque[tuple[int, int]] = deque()  # of the chunks under way: first line, last line
        self.submitted_lines = 0  # handed out so far

    def translate_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Translation]]:
        """The translations of each chunk, in order, while more chunks come.

        Where input makes it wait, what is under way is given out first: whoever writes a line and waits for the answer
        before writing the next gets it.
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
        """Gives a chunk to a worker that has room."""
        self.line_ranges.append((self.submitted_lines + 1, self.submitted_lines + len(chunk)))
        self.submitted_lines += len(chunk)
        self.pool.submit(lambda worker, texts: worker.translate_chunk.remote(texts), chunk)

    def _fetch_oldest_result(self) -> list[Translation]:
        """The translations of the oldest chunk that is under way."""
        first, last = self.line_ranges.popleft()
        with convert_ray_errors(self.ray, f"at lines {first:,} to {last:,} of the input"):
            made: list[Translation] = self.pool.get_next()
            return made


class _ChunkPrefetcher:
    """Reads ahead by one chunk in a thread of its own, so that nobody need wait for slow input."""

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
        while not self.ready_chunks.empty():  # or the thread would wait for ever for room
            self.ready_chunks.get()

    def _read_chunks(self) -> None:
        """All chunks, and what ended them: None, or what went wrong."""
        try:
            for chunk in self.chunks:
                self.ready_chunks.put(chunk)
                if self.stopped:
                    return
            self.ready_chunks.put(None)
        except Exception as error:
            self.ready_chunks.put(error)

    def has_chunk_ready(self) -> bool:
        """Whether a chunk is there, or comes at once; the end of the input is none, and neither is a mistake in it."""
        try:
            if not self.peeked:
                self.peeked.append(self.ready_chunks.get(timeout=INPUT_WAIT_S))
        except queue.Empty:
            return False
        return self.peeked[0] is not None and not isinstance(self.peeked[0], Exception)

    def wait_for_chunk(self) -> Sequence[str] | None:
        """The next chunk, whenever it comes; None at the end."""
        found = self.peeked[0] if self.peeked else self.ready_chunks.get()
        if isinstance(found, Exception):
            raise found
        self.peeked = [] if found is not None else [None]
        return found


@contextmanager
def open_worker_pool(
    runs: Sequence[Path], options: Options, workers: int | None = None, worker_class: type[RayWorker] = RayWorker
) -> Iterator[RayWorkerPool]:
    """Workers on the cluster with the runs loaded, each for its share of the cores and GPUs; gone at the end."""
    with _connect_to_ray() as ray:
        count, cpus, gpus = allocate_workers([node["Resources"] for node in ray.nodes() if node["Alive"]], workers)
        actor = ray.remote(worker_class).options(
            num_cpus=cpus,
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
            max_restarts=MAX_WORKER_RESTARTS,
            max_task_retries=MAX_TRIES_PER_CHUNK - 1,
        )
        folders = [run.resolve() for run in runs]
        hired = [actor.remote(folders, options, max(1, cpus)) for _ in range(count)]
        try:
            with convert_ray_errors(ray, "while it loaded the model"):
                _wait_until_loaded(ray, [worker.load.remote() for worker in hired])
            yield RayWorkerPool(ray, hired)
        finally:
            for worker in hired:
                ray.kill(worker)


def _wait_until_loaded(ray: Any, workers: Sequence[Any]) -> None:
    """Waits until all have loaded, with a word to whoever wonders why that takes so long."""
    _, late = ray.wait(workers, num_returns=len(workers), timeout=SLOW_START_S)
    if late:
        log_message(
            f"waiting for {len(late)} of {len(workers)} workers: the cluster is busy, or the model takes long to load"
        )
    ray.get(workers)


@contextmanager
def convert_ray_errors(ray: Any, when: str) -> Iterator[None]:
    """What goes wrong on the cluster, as a user can understand it."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayError as error:  # a worker, its memory or its machine is gone, and all tries are used up
        if getattr(error, "actor_init_failed", False):
            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"a worker does not start: {reason}; each machine of the cluster needs this regard"
            ) from error
        raise UserError(
            f"a worker died again and again {when}, though a new one took its place each time; most often there is not "
            f"enough memory: ask for fewer --workers or a smaller --beam, or see by --engine torch what happens"
        ) from error
