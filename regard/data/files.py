"""Lines of text files, plain or compressed, and of standard input."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from regard.data.recognition import first_bytes, packing
from regard.errors import UserError

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how such a file begins
STANDARD_INPUT = Path("-")


def plain(file: IO[bytes]) -> IO[bytes]:
    """The bytes as they are."""
    return file


def gzipped(file: IO[bytes]) -> IO[bytes]:
    """The bytes of a .gz file."""
    return cast(IO[bytes], gzip.open(file))


def xz(file: IO[bytes]) -> IO[bytes]:
    """The bytes of an .xz file."""
    return lzma.open(file)


def zstandard(file: IO[bytes]) -> IO[bytes]:
    """The bytes of a .zst file, of several frames as well."""
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
    return cast(IO[bytes], io.BufferedReader(stream, 1 << 17))


COMPRESSED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {".gz": gzipped, ".xz": xz, ".zst": zstandard}


def opened(path: Path) -> IO[bytes]:
    """The file's bytes; `-` is standard input."""
    if path == STANDARD_INPUT:
        return os.fdopen(0, "rb", closefd=False)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is wanted")
    if not path.exists():  # a pipe has a name, too
        raise UserError(f"there is no file {path}")
    return path.open("rb")


def unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    """The bytes decompressed, where the name ends in .gz, .xz or .zst; without an ending the first of them decide."""
    return COMPRESSED.get(path.suffix.lower() or packing(first_bytes(file)), plain)(file)


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, for as long as it is read; a damaged archive is the user's to hear of."""
    try:
        with opened(path) as file, unpacked(file, path) as content:
            yield content
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise damaged(path, error) from error
    except OSError as error:
        if error.errno is not None:  # the disk's trouble; a decompressor's has no number
            raise
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """What is said of an archive that cannot be unpacked."""
    return UserError(f"{name_of(path)} is damaged, it cannot be decompressed: {in_a_line(error)}")


def in_a_line(said: object) -> str:
    """What a library or a file says, fit to stand in a sentence of ours."""
    return " ".join(str(said).split())


def name_of(path: Path) -> str:
    """What messages call a file."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ends. Only a line feed ends a line, so both sides of a pair agree."""
    with reading(path) as file:
        yield from lines_of(file, path)


def lines_of(file: IO[bytes], path: Path) -> Iterator[str]:
    """The same of a file that is open."""
    for number, line in enumerate(file, 1):
        yield decoded(line.removeprefix(BOM) if number == 1 else line, path, number)


def decoded(line: bytes, path: Path, number: int) -> str:
    """One line of text."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        how = ": iconv -f utf-16 -t utf-8" if line.startswith(UTF_16) else ""
        raise UserError(
            f"{name_of(path)}:{number}: not UTF-8 (byte {error.start + 1} of the line); convert the file first{how}"
        ) from error
