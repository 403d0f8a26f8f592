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


def restore_default_sigpipe() -> None:
    """When nobody reads on (`| head`), end as every filter does: by the signal, without a word."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """The same, after everything inside has been put away: a cluster that was started here does not stay behind."""
    try:
        yield
    except BrokenPipeError:
        restore_default_sigpipe()
        signal.raise_signal(signal.SIGPIPE)


def read_line_chunks(files: list[Path], max_lines: int) -> Iterator[list[str]]:
    """The lines of a file, `most` at a time; those of standard input in the lots in which they come.

    So a file of any size goes through in little memory, and a program that writes a line and waits gets its answer.
    """
    from regard.data.readers.text_io import iterate_lines

    if len(files) > 1:
        raise UserError(f"one file at a time, not {len(files)}: {' '.join(map(str, files))}")
    if files and files[0] != STANDARD_INPUT:
        return iterate_chunks(iterate_lines(files[0]), max_lines)
    return iterate_available_chunks(iterate_stdin_lines(), max_lines)


def iterate_stdin_lines() -> Iterator[str]:
    """Its lines, decoded."""
    from regard.data.readers.text_io import decode_line

    for number, line in enumerate(_iterate_raw_lines(sys.stdin.fileno()), 1):
        yield decode_line(line, Path("standard input"), number)


def _iterate_raw_lines(file: int) -> Iterator[bytes]:
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


def iterate_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Some lines, or whatever there is, at a time."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def iterate_available_chunks(items: Iterable[T], max_items: int) -> Iterator[list[T]]:
    """Waits for one item and takes those with it that are there already, up to `most`."""
    waiting: queue.Queue[tuple[T] | Exception | None] = queue.Queue(2 * max_items)

    def read_items() -> None:
        try:
            for item in items:
                waiting.put((item,))
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    threading.Thread(target=read_items, daemon=True).start()
    while True:
        some: list[T] = []
        found = waiting.get()
        while isinstance(found, tuple):
            some.append(found[0])
            if len(some) == max_items or waiting.empty():
                break
            found = waiting.get()
        if some:
            yield some
        if found is None:
            return
        if isinstance(found, Exception):
            raise found


Item = TypeVar("Item")
ITEMS_PER_UPDATE = 1000


def show_item_progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    """The same items, with a bar that counts them; for streams whose end nobody knows."""
    from regard.console import make_progress_bar

    with make_progress_bar() as progress:
        task = progress.add_task(description, total=None, note="")
        for number, item in enumerate(items):
            if number % ITEMS_PER_UPDATE == 0:
                progress.update(task, completed=number)
            yield item
