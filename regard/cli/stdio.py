"""Read standard input in chunks, and handle broken pipes as a Unix filter does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from regard.console import make_progress_bar
from regard.data.readers.text import STANDARD_INPUT, decode_line, iterate_available_chunks, iterate_lines
from regard.errors import UserError

T = TypeVar("T")
BOM = b"\xef\xbb\xbf"


def restore_default_sigpipe() -> None:
    """Exit silently by SIGPIPE when the reader of the output closes it (`| head`)."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """Exit by SIGPIPE after a broken pipe, once contexts inside are closed (a Ray cluster is shut down)."""
    try:
        yield
    except BrokenPipeError:
        if not hasattr(signal, "SIGPIPE"):  # on Windows
            sys.exit(1)
        restore_default_sigpipe()
        signal.raise_signal(signal.SIGPIPE)


@contextmanager
def open_output(out: Path | None, overwrite: bool) -> Iterator[Callable[[str | bytes], None]]:
    """Yield a function that writes to standard output, or to a file that gets its name when it is complete."""
    if out is None:
        yield _write_to_stdout
        return
    if out.exists() and not overwrite:
        raise UserError(f"{out} already exists; choose another --out, or overwrite it with --overwrite")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.part")
    try:
        with unfinished.open("wb") as file:
            yield partial(_write_to_file, file)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_to_file(file: IO[bytes], content: str | bytes) -> None:
    file.write(content.encode() if isinstance(content, str) else content)


def _write_to_stdout(content: str | bytes) -> None:
    stream: Any = sys.stdout if isinstance(content, str) else sys.stdout.buffer
    stream.write(content)
    stream.flush()


def read_line_chunks(files: list[Path], max_lines: int) -> Iterator[list[str]]:
    """Yield the lines of a file, at most `max_lines` at a time; those of standard input as they arrive.

    So a file of any size needs little memory, and a program that writes a line and waits gets its translation.
    """
    if len(files) > 1:
        raise UserError(f"name one file, not {len(files)}: {' '.join(map(str, files))}")
    if files and files[0] != STANDARD_INPUT:
        return iterate_chunks(iterate_lines(files[0]), max_lines)
    return iterate_available_chunks(iterate_stdin_lines(), max_lines, 2 * max_lines)


def iterate_stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input, decoded."""
    for number, line in enumerate(_iterate_raw_lines(sys.stdin.fileno()), 1):
        yield decode_line(line.removeprefix(BOM) if number == 1 else line, Path("standard input"), number)


def _iterate_raw_lines(file: int) -> Iterator[bytes]:
    """Yield lines as they arrive, without Python's buffer: a thread blocked in it would keep the program alive."""
    rest = bytearray()
    with open(file, "rb", buffering=0, closefd=False) as raw:  # in UTF-8 also from the console of Windows
        while block := raw.read(1 << 16):
            rest += block
            if b"\n" in block:
                *lines, rest = rest.split(b"\n")
                yield from map(bytes, lines)
    if rest:
        yield bytes(rest)


def iterate_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of at most `size` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def show_item_progress(items: Iterable[T], description: str) -> Iterator[T]:
    """Yield the items with a progress bar that counts them, for streams of unknown length."""
    with make_progress_bar() as progress:
        yield from progress.track(items, task_id=progress.add_task(description, total=None, note=""))
