"""Pairs to disk, or to a pipe."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol, cast

from regard.data.corpus import suffix
from regard.data.files import COMPRESSED
from regard.data.pair import Pair
from regard.errors import UserError

STANDARD_OUTPUT = Path("-")
LINE_ENDS, COLUMN_ENDS = re.compile(r"[\r\n]+"), re.compile(r"[\t\r\n]+")


class Writer(Protocol):
    """Takes pairs one by one."""

    def __call__(self, pair: Pair) -> None:
        """Writes a pair."""


def tsv(pair: Pair) -> str:
    """Source, tab, target."""
    return "\t".join(COLUMN_ENDS.sub(" ", side) for side in pair)


def jsonl(pair: Pair) -> str:
    """An object."""
    return json.dumps(pair._asdict(), ensure_ascii=False)


LINES: dict[str, Callable[[Pair], str]] = {".tsv": tsv, ".jsonl": jsonl}


@contextmanager
def writing(outs: Sequence[Path], overwrite: bool = False) -> Iterator[Writer]:
    """Takes pairs for one file (.tsv, .jsonl, `-`: tab-separated to standard output) or two text files.

    Files are written beside and take their names when everything is there; what fails leaves nothing behind.
    """
    line = form(outs)
    for out in outs:
        if out.is_dir() or (out.is_file() and not overwrite):
            raise UserError(f"{out} is there already; choose another name, or --force to write over it")
    with ExitStack() as stack:
        files = [stack.enter_context(destination(out)) for out in outs]

        def write(pair: Pair) -> None:
            for file, text in zip(files, line(pair), strict=True):
                file.write(f"{text}\n")

        yield write


def form(outs: Sequence[Path]) -> Callable[[Pair], list[str]]:
    """How a pair becomes a line of each file."""
    if len(outs) == 1 and (outs[0] == STANDARD_OUTPUT or suffix(outs[0]) in LINES):
        line = LINES.get(suffix(outs[0]), tsv)
        return lambda pair: [line(pair)]
    if (
        len(outs) == 2
        and not any(out == STANDARD_OUTPUT or suffix(out) in LINES for out in outs)
        and len(set(outs)) == 2
    ):
        return lambda pair: [LINE_ENDS.sub(" ", side) for side in pair]
    given = " ".join(map(str, outs)) or "nothing"
    raise UserError(
        f"--out is one file ({', '.join(LINES)}, also {', '.join(COMPRESSED)}; - for standard output) or, given twice, "
        f"two text files, not {given}"
    )


@contextmanager
def destination(out: Path) -> Iterator[IO[str]]:
    """A text file to write; a pipe or a device is written to as it is."""
    if out == STANDARD_OUTPUT:
        with os.fdopen(1, "w", encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
        return
    special = out.exists() and not out.is_file()
    beside = out if special else out.with_name(f".{out.name}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            beside.open("wb") as raw,
            packed(raw, out.suffix.lower()) as bytes_in,
            io.TextIOWrapper(bytes_in, encoding="utf-8", newline="\n") as text,
        ):
            yield text
    except BaseException:
        if not special:
            beside.unlink(missing_ok=True)
        raise
    if not special:
        beside.replace(out)


def packed(file: IO[bytes], ending: str) -> IO[bytes]:
    """The same file, compressed as the ending says; the same pairs give the same bytes."""
    if ending == ".gz":
        return cast(IO[bytes], gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
    if ending == ".xz":
        return lzma.open(file, "wb")
    if ending == ".zst":
        import pyarrow

        stream = pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), "zstd")
        return cast(IO[bytes], io.BufferedWriter(stream, 1 << 17))
    return file
