"""Calls in processes of their own, so many at a time."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import TYPE_CHECKING

from regard.errors import UserError
from regard.training.signals import Interrupted, install

if TYPE_CHECKING:  # not everywhere is there a server of forks
    from multiprocessing.context import ForkServerContext, SpawnContext


def side_by_side(tasks: Mapping[str, Callable[[], None]], jobs: int, ended: Callable[[str], None]) -> None:
    """Calls each in a process of its own, so many at a time; tells whose has ended.

    Where one fails, or all are asked to stop, what has begun comes to its end, and nothing else begins.
    """
    context, waiting = starting(), iter(tasks.items())
    running: list[Begun] = []
    with asked_to_stop(), waited_for(running):
        while True:
            for name, task in islice(waiting, jobs - len(running)):
                running.append(Begun(context, name))
                running[-1].begin(task)
            if not running:
                return
            heard = wait([one.ours for one in running])
            for one in [one for one in running if one.ours in heard]:
                running.remove(one)
                one.end()
                ended(one.name)


class Begun:
    """One process, which is told what to do only once it is known to be running.

    Whoever is asked to stop before that leaves a process that hears nothing, and ends.
    """

    def __init__(self, context: ForkServerContext | SpawnContext, name: str) -> None:
        self.name = name
        self.ours, self.theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=work, args=(self.theirs,))

    def begin(self, task: Callable[[], None]) -> None:
        """Starts it, and says what it is to do."""
        self.process.start()
        self.theirs.close()
        self.ours.send(task)

    def end(self) -> None:
        """When it has nothing more to do. Whatever went wrong there goes wrong here."""
        try:
            wrong = self.ours.recv()
        except EOFError:
            wrong = None
        self.join()
        if wrong is not None:
            raise wrong
        if self.process.exitcode:
            raise UserError(f"{self.name}: its process ended with the status {self.process.exitcode}")

    def join(self) -> None:
        """Waits until it has ended, if it began at all; nobody listens to it any more."""
        self.ours.close()
        if self.process.pid is not None:
            self.process.join()


def work(told: Connection) -> None:
    """What such a process does: the one thing that it is told. It answers with what went wrong, or None."""
    try:
        task = told.recv()
    except EOFError:  # nothing is to begin any more
        return
    wrong: BaseException | None = None
    try:
        task()
    except BaseException as error:
        error.add_note(traceback.format_exc())
        wrong = error
    with suppress(BrokenPipeError):  # nobody listens any more: something else went wrong, or all were to stop
        told.send(wrong)


def starting() -> ForkServerContext | SpawnContext:
    """Where they come from: one that has only imported everything, so that none has to.

    A fork of this one would have the locks of threads, and not the threads. Where nothing can be forked, each imports.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["regard.reproduce.lab"])
    return context


@contextmanager
def asked_to_stop() -> Iterator[None]:
    """Ctrl-C comes to all processes by itself; SIGTERM is passed on. The others save what they have."""

    def passed_on(number: int, frame: FrameType | None) -> None:
        for other in multiprocessing.active_children():
            other.terminate()
        raise Interrupted(None, number)

    before = install({signal.SIGTERM: passed_on})
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(None, signal.SIGINT) from stop
    except Interrupted as stop:
        raise Interrupted(None, stop.signal_number) from stop
    finally:
        install(before)


@contextmanager
def waited_for(running: Iterable[Begun]) -> Iterator[None]:
    """However this ends, what has begun ends first."""
    try:
        yield
    finally:
        for one in running:
            one.join()
