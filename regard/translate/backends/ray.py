"""Translate large corpora on a Ray cluster: each worker has the run in its memory.

Workers get chunks in turn, and results are returned in the order of the input; few chunks are submitted at a time, so
memory is bounded for standard input and for a corpus of any size. Ray itself restarts a worker that died and gives it
its chunk again. Ray Data would need the input as a dataset for its own readers, which standard input is not, and also
pandas and pyarrow.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.console import log_message
from regard.data.readers.text import iterate_available_chunks
from regard.errors import UserError
from regard.translate.options import CompiledOptions, Options
from regard.translate.translation import Translation
from regard.translate.translator import Translator, load

LOCAL_CLUSTER = "local"  # Ray's name for a cluster that is started on this machine
MAX_TRIES_PER_CHUNK = 3  # each with a restarted worker
MAX_WORKER_RESTARTS = 20  # per worker: one that is killed before it has a chunk is not limited by the tries of a chunk
CHUNKS_PER_WORKER = 2  # the one it translates and the next, so that it never waits for this process
SLOW_START_S = 30.0  # seconds after which a message says that workers are not ready


@dataclass(eq=False, repr=False)  # Ray calls repr, for the log, where the constructor has failed as well
class RayWorker:
    """A Ray actor that translates chunks, with its own cores or GPU."""

    runs: Sequence[Path]
    options: Options
    threads: int

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
            f"this Ray cluster has room for {most} workers, one per {unit}, not for {workers}; use fewer --jobs"
        )
    total = int(sum(node.get("CPU", 0) for node in nodes))
    cpus = max(cpus for cpus in range(fewest, total + 1) if count_fitting_workers(cpus) >= workers)
    return WorkerAllocation(workers, cpus, gpus)


@contextmanager
def _connect_to_ray() -> Iterator[Any]:
    """Connect to the cluster at RAY_ADDRESS, or start a local one that is shut down at the end."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray, which is not installed: pip install 'regard[cluster]'") from error
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
            host, colon, port = address.split("://")[-1].rpartition(":")
            if colon and port.isdigit():  # Ray would retry for 15 minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(address, **quiet)
    except (RuntimeError, ValueError, OSError) as error:
        is_local = address == LOCAL_CLUSTER
        where = "Ray does not start on this machine" if is_local else f"no Ray cluster at RAY_ADDRESS={address}"
        raise UserError(f"{where}: {str(error).strip().splitlines()[0]}") from error
    try:
        if threading.current_thread() is threading.main_thread():
            # Shut workers down on SIGTERM; Ray's own handler would print all stack traces.
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        yield ray
    finally:
        ray.shutdown()


def set_private_cluster_env() -> None:
    """Disable Ray's usage statistics and require an authentication token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray leaves one in the home folder


@dataclass(eq=False, repr=False)
class RayWorkerPool:
    """Workers with loaded runs that share one input."""

    ray: Any
    workers: Sequence[Any]

    def translate_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Translation]]:
        """Yield the translations of each chunk, in order, while more chunks arrive."""
        for submitted in iterate_available_chunks(self._submit(chunks), 1, CHUNKS_PER_WORKER * len(self.workers)):
            for lines, result in submitted:
                with convert_ray_errors(self.ray, lines):
                    translations: list[Translation] = self.ray.get(result)
                yield translations

    def _submit(self, chunks: Iterable[Sequence[str]]) -> Iterator[tuple[str, Any]]:
        """Submit each chunk to the next worker; yield the lines of the input that it has, and the future result."""
        first = 1
        for chunk, worker in zip(chunks, itertools.cycle(self.workers), strict=False):
            last = first + len(chunk) - 1
            yield f"at lines {first:,} to {last:,} of the input", worker.translate_chunk.remote(chunk)
            first = last + 1


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
                loaded = [actor.load.remote() for actor in actors]
                _, late = ray.wait(loaded, num_returns=count, timeout=SLOW_START_S)
                if late:
                    log_message(
                        f"waiting for {len(late)} of {count} workers: the cluster is busy, or the model takes long to "
                        f"load"
                    )
                ray.get(loaded)
            yield RayWorkerPool(ray, actors)
        finally:
            for actor in actors:
                ray.kill(actor)


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
            f"memory: use fewer --jobs or a smaller --beam, or find the cause with --engine torch"
        ) from error
