"""Lines of text files, plain or compressed."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from regard.errors import UserError

BOM = b"\xef\xbb\xbf"


def opened(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed where its name ends in .gz or .xz."""
    if not path.exists() or path.is_dir():  # a pipe has a name, too
        raise UserError(f"there is no file {path}")
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ends. Only a line feed ends a line, so both sides of a pair agree."""
    try:
        with opened(path) as file:
            for number, line in enumerate(file, 1):
                yield decoded(line.removeprefix(BOM) if number == 1 else line, path, number)
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{path} is damaged, it cannot be decompressed: {error}") from error


def decoded(line: bytes, path: Path, number: int) -> str:
    """One line of text."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: not UTF-8 (byte {error.start + 1} of the line); convert the file first"
        ) from error
