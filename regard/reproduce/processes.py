"""Calls in processes of their own, so many at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
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
    waiting, running = iter(tasks.items()), list[Begun]()
    with asked_to_stop(running), waited_for(running):
        context = starting()
        while True:
            for name, task in islice(waiting, jobs - len(running)):
                running.append(Begun(context, name))
                running[-1].begin(task)
            if not running:
                return
            heard = wait([place for one in running for place in (one.ours, one.process.sentinel)])
            for one in [one for one in running if one.ours in heard or one.process.sentinel in heard]:
                one.end()
                running.remove(one)
                ended(one.name)


class Begun:
    """One process, which is told what to do only once it is known to be running.

    Whoever is asked to stop before that leaves a process that hears nothing, and ends.
    """

    def __init__(self, context: ForkServerContext | SpawnContext, name: str) -> None:
        self.name = name
        self.ours, self.theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=work, args=(self.theirs,))
        self.asked = False  # to stop

    def begin(self, task: Callable[[], None]) -> None:
        """Starts it, and says what it is to do."""
        self.process.start()
        self.theirs.close()
        with suppress(BrokenPipeError):  # it has ended already, which `end` will say
            self.ours.send(task)

    def end(self) -> None:
        """When it has answered, or ended. Whatever went wrong there goes wrong here."""
        wrong: BaseException | None = None
        with suppress(EOFError, OSError):  # it has ended without an answer
            wrong = self.ours.recv() if self.ours.poll() else None
        self.join()
        if wrong is not None:
            raise wrong
        if self.process.exitcode:
            raise UserError(f"{self.name}: its process ended with the status {self.process.exitcode}")

    def stop(self, number: int) -> None:
        """Pass a signal on: as SIGTERM the first time, so that training saves; Ctrl-C again stops it at once."""
        if self.process.pid is not None and self.process.is_alive():
            again = self.asked and number == signal.SIGINT
            os.kill(self.process.pid, signal.SIGINT if again else signal.SIGTERM)
            self.asked = True

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
        wrong = error
    try:
        told.send(None if wrong is None else portable(wrong))
    except BrokenPipeError:  # something else went wrong, or all were to stop: nobody listens any more
        if wrong is not None:
            traceback.print_exception(wrong)


def portable(error: BaseException) -> BaseException:
    """An error with its traceback, as it comes whole out of another process: as its words alone, if need be."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # whatever its class does
        words = RuntimeError(f"{type(error).__name__}: {error}")
        words.add_note(error.__notes__[-1])
        return words
    return error


def starting() -> ForkServerContext | SpawnContext:
    """Where they come from: one that has only imported everything, so that none has to.

    A fork of this one would have the locks of threads, and not the threads. Where nothing can be forked, each imports.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["regard.group", "regard.reproduce.lab"])
    return context


@contextmanager
def asked_to_stop(running: Sequence[Begun]) -> Iterator[None]:
    """Pass each signal on to the running processes: training saves a checkpoint, and stops at once on Ctrl-C again."""

    def passed_on(number: int, frame: FrameType | None) -> None:
        for one in running:
            one.stop(number)
        raise Interrupted(None, number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = install(dict.fromkeys(numbers, passed_on))
    try:
        yield
    finally:
        install(before)


@contextmanager
def waited_for(running: Sequence[Begun]) -> Iterator[None]:
    """However this ends, what has begun ends first."""
    try:
        yield
    finally:
        for one in running:
            one.join()
