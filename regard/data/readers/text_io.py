"""What a pipe without a name holds, by its first bytes."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from regard.errors import UserError

_COMPRESSION_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_XML_START = re.compile(rb"\s*<(\?xml|!DOCTYPE|!--|tmx|xliff)[\s>]")
_PO_START = re.compile(rb'\s*(#|msgid\s+"|msgctxt\s+")')
_PEEK_BYTES = 1 << 13


def peek_bytes(file: IO[bytes]) -> bytes:
    """What comes next in a file, which is still to be read."""
    found: bytes = file.peek(_PEEK_BYTES)  # type: ignore[attr-defined]  # every stream that is read here can
    return found


def detect_compression(head: bytes) -> str:
    """`.gz`, `.xz` or `.zst`; nothing where it is not compressed."""
    return next((ending for magic, ending in _COMPRESSION_MAGIC.items() if head.startswith(magic)), "")


def detect_format(head: bytes) -> str:
    """The format's ending; tab-separated pairs are what looks like nothing else."""
    plain = head.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xfe\xff")  # UTF-16 looks like this
    if head.startswith(b"PAR1"):
        return ".parquet"
    if _XML_START.match(plain):
        return ".xliff" if b"<xliff" in plain else ".tmx"
    if b"\t" in plain.partition(b"\n")[0]:
        return ".tsv"
    return ".jsonl" if plain.lstrip().startswith(b"{") else ".po" if _PO_START.match(plain) else ".tsv"


_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")  # how such a file begins
STANDARD_INPUT = Path("-")


def _open_uncompressed(file: IO[bytes]) -> IO[bytes]:
    """The bytes as they are."""
    return file


def _open_gzip(file: IO[bytes]) -> IO[bytes]:
    """The bytes of a .gz file."""
    return cast(IO[bytes], gzip.open(file))


def _open_xz(file: IO[bytes]) -> IO[bytes]:
    """The bytes of an .xz file."""
    return lzma.open(file)


def _open_zstd(file: IO[bytes]) -> IO[bytes]:
    """The bytes of a .zst file, of several frames as well."""
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
    return cast(IO[bytes], io.BufferedReader(stream, 1 << 17))


DECOMPRESSORS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {".gz": _open_gzip, ".xz": _open_xz, ".zst": _open_zstd}


def _open_binary(path: Path) -> IO[bytes]:
    """The file's bytes; `-` is standard input."""
    if path == STANDARD_INPUT:
        return os.fdopen(0, "rb", closefd=False)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is wanted")
    if not path.exists():  # a pipe has a name, too
        raise UserError(f"there is no file {path}")
    return path.open("rb")


def _decompress(file: IO[bytes], path: Path) -> IO[bytes]:
    """The bytes decompressed, where the name ends in .gz, .xz or .zst; without an ending the first of them decide."""
    return DECOMPRESSORS.get(path.suffix.lower() or detect_compression(peek_bytes(file)), _open_uncompressed)(file)


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, for as long as it is read; a damaged archive is the user's to hear of."""
    try:
        with _open_binary(path) as file, _decompress(file, path) as content:
            yield content
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise _make_damaged_error(path, error) from error
    except OSError as error:
        if error.errno is not None:  # the disk's trouble; a decompressor's has no number
            raise
        raise _make_damaged_error(path, error) from error


def _make_damaged_error(path: Path, error: Exception) -> UserError:
    """What is said of an archive that cannot be unpacked."""
    return UserError(f"{format_path(path)} is damaged, it cannot be decompressed: {to_single_line(error)}")


def to_single_line(message: object) -> str:
    """What a library or a file says, fit to stand in a sentence of ours."""
    return " ".join(str(message).split())


def format_path(path: Path) -> str:
    """What messages call a file."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def iterate_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ends. Only a line feed ends a line, so both sides of a pair agree."""
    with open_decompressed(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: IO[bytes], path: Path) -> Iterator[str]:
    """The same of a file that is open."""
    for number, line in enumerate(file, 1):
        yield decode_line(line.removeprefix(_UTF8_BOM) if number == 1 else line, path, number)


def decode_line(line: bytes, path: Path, line_number: int) -> str:
    """One line of text."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        how = ": iconv -f utf-16 -t utf-8" if line.startswith(_UTF16_BOMS) else ""
        raise UserError(
            f"{format_path(path)}:{line_number}: not UTF-8 (byte {error.start + 1} of the line); convert the file first{how}"
        ) from error
