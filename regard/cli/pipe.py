"""Standard input and output as a filter has them."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from regard.errors import UserError

STANDARD_INPUT = Path("-")
T = TypeVar("T")
BOM = b"\xef\xbb\xbf"


def end_with_the_pipe() -> None:
    """When nobody reads on (`| head`), end as every filter does: by the signal, without a word."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def ending_with_the_pipe() -> Iterator[None]:
    """The same, after everything inside has been put away: a cluster that was started here does not stay behind."""
    try:
        yield
    except BrokenPipeError:
        end_with_the_pipe()
        signal.raise_signal(signal.SIGPIPE)


def lots(files: list[Path], most: int) -> Iterator[list[str]]:
    """The lines of a file, `most` at a time; those of standard input in the lots in which they come.

    So a file of any size goes through in little memory, and a program that writes a line and waits gets its answer.
    """
    from regard.data.files import lines

    if len(files) > 1:
        raise UserError(f"one file at a time, not {len(files)}: {' '.join(map(str, files))}")
    if files and files[0] != STANDARD_INPUT:
        return chunks(lines(files[0]), most)
    return as_they_come(standard_input(), most)


def standard_input() -> Iterator[str]:
    """Its lines, decoded."""
    from regard.data.files import decoded

    for number, line in enumerate(raw_lines(sys.stdin.fileno()), 1):
        yield decoded(line, Path("standard input"), number)


def raw_lines(file: int) -> Iterator[bytes]:
    """Lines as they come, past Python's buffer: a thread that waits in there would keep the program from ending."""
    begun: list[bytes] = []
    first = True
    while some := os.read(file, 1 << 16):
        some = some.removeprefix(BOM) if first else some
        first = False
        *whole, rest = some.split(b"\n")
        for line in whole:
            yield b"".join((*begun, line))
            begun = []
        begun.append(rest)
    if any(begun):
        yield b"".join(begun)


def chunks(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """Some lines, or whatever there is, at a time."""
    rest = iter(lines)
    while some := list(islice(rest, size)):
        yield some


def as_they_come(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Waits for one item and takes those with it that are there already, up to `most`."""
    waiting: queue.Queue[tuple[T] | Exception | None] = queue.Queue(2 * most)

    def read() -> None:
        try:
            for item in items:
                waiting.put((item,))
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        some: list[T] = []
        found = waiting.get()
        while isinstance(found, tuple):
            some.append(found[0])
            if len(some) == most or waiting.empty():
                break
            found = waiting.get()
        if some:
            yield some
        if found is None:
            return
        if isinstance(found, Exception):
            raise found
