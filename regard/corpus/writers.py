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

from regard.data.readers.dispatch import find_format_suffix
from regard.data.readers.text_io import DECOMPRESSORS
from regard.data.sentence_pair import Pair
from regard.errors import UserError

STANDARD_OUTPUT = Path("-")
_LINE_ENDS, _COLUMN_ENDS = re.compile(r"[\r\n]+"), re.compile(r"[\t\r\n]+")


class PairWriter(Protocol):
    """Takes pairs one by one."""

    def __call__(self, pair: Pair) -> None:
        """Writes a pair."""


def _format_tsv(pair: Pair) -> str:
    """Source, tab, target."""
    return "\t".join(_COLUMN_ENDS.sub(" ", side) for side in pair)


def _format_jsonl(pair: Pair) -> str:
    """An object."""
    return json.dumps(pair._asdict(), ensure_ascii=False)


_LINE_FORMATS: dict[str, Callable[[Pair], str]] = {".tsv": _format_tsv, ".jsonl": _format_jsonl}


@contextmanager
def open_pair_writer(paths: Sequence[Path], overwrite: bool = False) -> Iterator[PairWriter]:
    """Takes pairs for one file (.tsv, .jsonl, `-`: tab-separated to standard output) or two text files.

    Files are written beside and take their names when everything is there; what fails leaves nothing behind.
    """
    line = _choose_line_format(paths)
    for out in paths:
        if out.is_dir() or (out.is_file() and not overwrite):
            raise UserError(f"{out} is there already; choose another name, or --force to write over it")
    with ExitStack() as stack:
        files = [stack.enter_context(_open_output(out)) for out in paths]

        def write_pair(pair: Pair) -> None:
            for file, text in zip(files, line(pair), strict=True):
                file.write(f"{text}\n")

        yield write_pair


def _choose_line_format(paths: Sequence[Path]) -> Callable[[Pair], list[str]]:
    """How a pair becomes a line of each file."""
    if len(paths) == 1 and (paths[0] == STANDARD_OUTPUT or find_format_suffix(paths[0]) in _LINE_FORMATS):
        line = _LINE_FORMATS.get(find_format_suffix(paths[0]), _format_tsv)
        return lambda pair: [line(pair)]
    if (
        len(paths) == 2
        and not any(out == STANDARD_OUTPUT or find_format_suffix(out) in _LINE_FORMATS for out in paths)
        and len(set(paths)) == 2
    ):
        return lambda pair: [_LINE_ENDS.sub(" ", side) for side in pair]
    given = " ".join(map(str, paths)) or "nothing"
    raise UserError(
        f"--out is one file ({', '.join(_LINE_FORMATS)}, also {', '.join(DECOMPRESSORS)}; - for standard output) or, given twice, "
        f"two text files, not {given}"
    )


@contextmanager
def _open_output(path: Path) -> Iterator[IO[str]]:
    """A text file to write; a pipe or a device is written to as it is."""
    if path == STANDARD_OUTPUT:
        with os.fdopen(1, "w", encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
        return
    special = path.exists() and not path.is_file()
    beside = path if special else path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            beside.open("wb") as raw,
            _open_compressed(raw, path.suffix.lower()) as bytes_in,
            io.TextIOWrapper(bytes_in, encoding="utf-8", newline="\n") as text,
        ):
            yield text
    except BaseException:
        if not special:
            beside.unlink(missing_ok=True)
        raise
    if not special:
        beside.replace(path)


def _open_compressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """The same file, compressed as the ending says; the same pairs give the same bytes."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
    if suffix == ".xz":
        return lzma.open(file, "wb")
    if suffix == ".zst":
        import pyarrow

        stream = pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), "zstd")
        return cast(IO[bytes], io.BufferedWriter(stream, 1 << 17))
    return file
