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

from regard.console import say
from regard.errors import UserError
from regard.translate.options import Options
from regard.translate.plan import Plan
from regard.translate.translation import Translation
from regard.translate.translator import Translator, load

LOCAL = "local"  # Ray's name for a cluster that is started on this machine
TRIES = 3  # of one chunk, each with a worker that is new
RESTARTS = 20  # of one worker in all: one that is killed before it can do anything has no chunk that would count
AHEAD = 2  # chunks a worker has: the one it works on, and the next, so that it never waits for this end
SOON = 30.0  # seconds after which workers that are not ready are worth a word
PATIENCE = 0.05  # seconds that input may take to come before results are waited for instead


class Worker:
    """Translates chunks: one actor of the cluster, with its own cores or GPU."""

    def __init__(self, runs: Sequence[Path], options: Options, threads: int) -> None:
        self.runs = runs
        self.options = options
        self.threads = threads

    # Not in the constructor: what goes wrong in there comes back wrapped in words of Ray's, a task's error as it was.
    @cached_property
    def loaded(self) -> tuple[Translator, Plan]:
        """The run, and the options as its vocabularies spell them."""
        torch.set_num_threads(self.threads)
        translator = load(*self.runs)
        return translator, translator.plan(self.options)

    def load(self) -> None:
        """Makes ready; whatever is wrong with the run or the options shows here."""
        assert self.loaded

    def chunk(self, texts: Sequence[str]) -> list[Translation]:
        """A translation of each text."""
        translator, plan = self.loaded
        return translator.chunk(texts, plan)


class Share(NamedTuple):
    """How many workers, and what each of them has."""

    workers: int
    cpus: int
    gpus: int


def share(nodes: Sequence[Mapping[str, float]], wanted: int | None) -> Share:
    """Divides the cores of a cluster's nodes among its workers; each has a GPU to itself where there are any.

    Without a wish there is a worker for each GPU, or for each core: many small workers translate faster than a few that
    spread one batch over many cores.
    """
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes))

    def room(cpus: int) -> int:
        """Workers of so many cores that find a place."""
        needs = {name: need for name, need in (("CPU", cpus), ("GPU", gpus)) if need}
        return sum(min(int(node.get(name, 0) // need) for name, need in needs.items()) for node in nodes)

    fewest = 0 if gpus else 1  # a machine may have more GPUs than cores; a worker waits for its GPU most of the time
    most, workers = room(fewest), wanted or room(fewest)
    if not 1 <= workers <= most:
        unit = "GPU" if gpus else "core"
        raise UserError(
            f"there is room for {most} workers on this Ray cluster, one a {unit}, not for {workers}; ask for fewer by "
            f"--workers"
        )
    return Share(workers, max(cpus for cpus in range(fewest, cores(nodes) + 1) if room(cpus) >= workers), gpus)


def cores(nodes: Sequence[Mapping[str, float]]) -> int:
    """Those of all nodes."""
    return int(sum(node.get("CPU", 0) for node in nodes))


def ray_module() -> Any:
    """Ray, which is an extra."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray, which is not installed: pip install 'regard[cluster]'") from error
    return ray


@contextmanager
def connected() -> Iterator[Any]:
    """Ray, connected to the cluster of RAY_ADDRESS, or to one that lives on this machine as long as this is needed."""
    ray = ray_module()
    if ray.is_initialized():  # by the program that this is part of, which will end it as well
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", LOCAL)
    quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    try:
        if address == LOCAL:
            keep_to_oneself()
            ray.init(LOCAL, include_dashboard=False, **quiet)
        else:
            knock(address)
            ray.init(address, **quiet)
    except (RuntimeError, ValueError, OSError) as error:
        where = "Ray does not start on this machine" if address == LOCAL else f"no Ray cluster at RAY_ADDRESS={address}"
        raise UserError(f"{where}: {str(error).strip().splitlines()[0]}") from error
    try:
        end_quietly()
        yield ray
    finally:
        ray.shutdown()


def end_quietly() -> None:
    """After SIGTERM the workers are put away; Ray's own handler would print where each thread was."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def knock(address: str) -> None:
    """Sees that somebody listens at `host:port`; Ray itself would go on trying for a quarter of an hour."""
    host, colon, port = address.split("://")[-1].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def keep_to_oneself() -> None:
    """What a cluster for one command needs: it tells nobody that it exists, and listens to nobody without its token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray leaves one in the home folder


class Crew:
    """The workers, ready, and the one input that they share."""

    def __init__(self, ray: Any, workers: Sequence[Any]) -> None:
        self.ray = ray
        self.workers = workers

    def begin(self) -> None:
        """Nothing is under way; what an input that was left in the middle had under way is nobody's."""
        self.pool = self.ray.util.ActorPool([worker for _ in range(AHEAD) for worker in self.workers])
        self.places: deque[tuple[int, int]] = deque()  # of the chunks under way: first line, last line
        self.lines = 0  # handed out so far

    def translated(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Translation]]:
        """The translations of each chunk, in order, while more chunks come.

        Where input makes it wait, what is under way is given out first: whoever writes a line and waits for the answer
        before writing the next gets it.
        """
        self.begin()
        with Reader(chunks) as reader:
            while True:
                if self.pool.has_next() and not (self.pool.has_free() and reader.has_more()):
                    yield self.result()
                elif (chunk := reader.next()) is not None:
                    self.submit(chunk)
                else:
                    break

    def submit(self, chunk: Sequence[str]) -> None:
        """Gives a chunk to a worker that has room."""
        self.places.append((self.lines + 1, self.lines + len(chunk)))
        self.lines += len(chunk)
        self.pool.submit(lambda worker, texts: worker.chunk.remote(texts), chunk)

    def result(self) -> list[Translation]:
        """The translations of the oldest chunk that is under way."""
        first, last = self.places.popleft()
        with understood(self.ray, f"at lines {first:,} to {last:,} of the input"):
            made: list[Translation] = self.pool.get_next()
            return made


class Reader:
    """Reads ahead by one chunk in a thread of its own, so that nobody need wait for slow input."""

    def __init__(self, chunks: Iterable[Sequence[str]]) -> None:
        self.chunks = chunks
        self.waiting: queue.Queue[Sequence[str] | Exception | None] = queue.Queue(1)
        self.peeked: list[Sequence[str] | Exception | None] = []
        self.stopped = False

    def __enter__(self) -> Reader:
        threading.Thread(target=self.read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True
        while not self.waiting.empty():  # or the thread would wait for ever for room
            self.waiting.get()

    def read(self) -> None:
        """All chunks, and what ended them: None, or what went wrong."""
        try:
            for chunk in self.chunks:
                self.waiting.put(chunk)
                if self.stopped:
                    return
            self.waiting.put(None)
        except Exception as error:
            self.waiting.put(error)

    def has_more(self) -> bool:
        """Whether a chunk is there, or comes at once; the end of the input is none, and neither is a mistake in it."""
        try:
            if not self.peeked:
                self.peeked.append(self.waiting.get(timeout=PATIENCE))
        except queue.Empty:
            return False
        return self.peeked[0] is not None and not isinstance(self.peeked[0], Exception)

    def next(self) -> Sequence[str] | None:
        """The next chunk, whenever it comes; None at the end."""
        found = self.peeked[0] if self.peeked else self.waiting.get()
        if isinstance(found, Exception):
            raise found
        self.peeked = [] if found is not None else [None]
        return found


@contextmanager
def crew(
    runs: Sequence[Path], options: Options, workers: int | None = None, kind: type[Worker] = Worker
) -> Iterator[Crew]:
    """Workers on the cluster with the runs loaded, each for its share of the cores and GPUs; gone at the end."""
    with connected() as ray:
        count, cpus, gpus = share([node["Resources"] for node in ray.nodes() if node["Alive"]], workers)
        actor = ray.remote(kind).options(
            num_cpus=cpus,
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
            max_restarts=RESTARTS,
            max_task_retries=TRIES - 1,
        )
        folders = [run.resolve() for run in runs]
        hired = [actor.remote(folders, options, max(1, cpus)) for _ in range(count)]
        try:
            with understood(ray, "while it loaded the model"):
                wait_for(ray, [worker.load.remote() for worker in hired])
            yield Crew(ray, hired)
        finally:
            for worker in hired:
                ray.kill(worker)


def wait_for(ray: Any, workers: Sequence[Any]) -> None:
    """Waits until all have loaded, with a word to whoever wonders why that takes so long."""
    _, late = ray.wait(workers, num_returns=len(workers), timeout=SOON)
    if late:
        say(f"waiting for {len(late)} of {len(workers)} workers: the cluster is busy, or the model takes long to load")
    ray.get(workers)


@contextmanager
def understood(ray: Any, when: str) -> Iterator[None]:
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
