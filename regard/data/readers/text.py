"""Text files: decompression, format detection by the first bytes, UTF-8 lines.

Also sentence pairs as TSV, as JSON lines, and in two text files.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import queue
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from regard.data.languages import LanguageRequest, choose_columns
from regard.errors import UserError, short_repr, to_single_line
from regard.tokenizers.tokenizer import check_unicode

T = TypeVar("T")
_WHITESPACE = re.compile(r"[ \t\r\n]+")


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def collapse_whitespace(text: str) -> str:
    """Return text that may have line breaks and indentation, as in XML, as one line with single spaces.

    Special spaces (no-break, thin, ideographic) stay.

    >>> collapse_whitespace("  two\\n\\t  lines ")
    'two lines'
    """
    if "\n" in text or "  " in text or "\t" in text or "\r" in text:  # most texts are one line already
        text = _WHITESPACE.sub(" ", text)
    return text.strip(" ")


Link = tuple[int, int]  # indices of a source word and a target word, from 0


def format_pharaoh(links: Iterable[Link], possible: Iterable[Link] = ()) -> str:
    """Return links in the Pharaoh format, `0-0 1-2`, sorted; `possible` ones are written `1?2`."""
    marked = sorted([*((link, "-") for link in links), *((link, "?") for link in possible)])
    return " ".join(f"{source}{mark}{target}" for (source, target), mark in marked)


_COMPRESSION_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_XML_START = re.compile(rb"\s*<(\?xml|!DOCTYPE|!--|tmx|xliff)[\s>]")
_PO_START = re.compile(rb'\s*(#|msgid\s+"|msgctxt\s+")')
_PEEK_BYTES = 1 << 13


def peek_bytes(file: IO[bytes]) -> bytes:
    """Return the next bytes of a file without consuming them."""
    head: bytes = file.peek(_PEEK_BYTES)  # type: ignore[attr-defined]  # all streams here are buffered
    return head


def detect_compression(head: bytes) -> str:
    """Return `.gz`, `.xz` or `.zst` by the first bytes, or "" if they are not compressed."""
    return next((suffix for magic, suffix in _COMPRESSION_MAGIC.items() if head.startswith(magic)), "")


def detect_format(head: bytes) -> str:
    """Return the suffix of the format by the first bytes; `.tsv` if nothing else fits."""
    plain = head.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xfe\xff")  # so that UTF-16 is recognized as well
    if head.startswith(b"PAR1"):
        return ".parquet"
    if _XML_START.match(plain):
        return ".xliff" if b"<xliff" in plain else ".tmx"
    if b"\t" in plain.partition(b"\n")[0]:
        return ".tsv"
    return ".jsonl" if plain.lstrip().startswith(b"{") else ".po" if _PO_START.match(plain) else ".tsv"


_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
STANDARD_INPUT = Path("-")


def _open_zstd(file: IO[bytes]) -> IO[bytes]:
    """Open a .zst file, which may have several frames."""
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
    return cast(IO[bytes], io.BufferedReader(stream, 1 << 17))


DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zstd}


def is_pipe(path: Path) -> bool:
    """Return True if a path can be read only once."""
    return path == STANDARD_INPUT or path.is_fifo()


def _open_binary(path: Path) -> IO[bytes]:
    """Open a file; `-` is standard input."""
    if path == STANDARD_INPUT:
        return os.fdopen(0, "rb", closefd=False)
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a file")
    if not path.exists():  # not is_file: a named pipe is fine
        raise UserError(f"there is no file {path}")
    return path.open("rb")


def _decompress(file: IO[bytes], path: Path) -> IO[bytes]:
    """Decompress by the suffix .gz, .xz or .zst; without a suffix the first bytes decide."""
    opener = DECOMPRESSORS.get(path.suffix.lower() or detect_compression(peek_bytes(file)))
    content: IO[bytes] = opener(file) if opener else file
    return content


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading its decompressed content; raise a UserError if the compressed data is damaged."""
    try:
        with _open_binary(path) as file, _decompress(file, path) as content:
            yield content
    except (zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the file system; decompressors set no errno
            raise
        raise UserError(
            f"{format_path(path)} is damaged, it cannot be decompressed: {to_single_line(error)}"
        ) from error


def number_lines(lines: Iterable[str], name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each line with its position for messages: `name:3`, or `line 3` if the lines are not of a file."""
    for line_number, line in enumerate(lines, 1):
        yield f"{name}:{line_number}" if name else f"line {line_number}", line


def format_path(path: Path) -> str:
    """Return the name of a file in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def iterate_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without line ends.

    Only a line feed ends a line, so that two parallel files have the same number of lines.
    """
    with open_decompressed(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: IO[bytes], path: Path) -> Iterator[str]:
    """Yield the lines of an open UTF-8 file without line ends."""
    for line_number, line in enumerate(file, 1):
        yield decode_line(line.removeprefix(_UTF8_BOM) if line_number == 1 else line, path, line_number)


def iterate_available_chunks(items: Iterable[T], max_items: int, max_ahead: int) -> Iterator[list[T]]:
    """Wait for one item, and yield it with those that are available already, at most `max_items`.

    A thread reads up to `max_ahead` items ahead, so that results are yielded while input is slow: a program that writes
    a line and waits for its translation before it writes the next one gets it.
    """
    available: queue.Queue[tuple[T] | Exception | None] = queue.Queue(max_ahead)
    stopped = threading.Event()

    def read_items() -> None:
        try:
            for item in items:
                available.put((item,))
                if stopped.is_set():
                    return
            available.put(None)
        except Exception as error:
            available.put(error)

    threading.Thread(target=read_items, daemon=True).start()
    try:
        while True:
            received = [available.get()]
            while isinstance(received[-1], tuple) and len(received) < max_items and not available.empty():
                received.append(available.get())
            if chunk := [item[0] for item in received if isinstance(item, tuple)]:
                yield chunk
            if received[-1] is None:
                return
            if isinstance(received[-1], Exception):
                raise received[-1]
    finally:
        stopped.set()
        while not available.empty():  # else the thread would wait for ever to put its item
            available.get()


def decode_line(line: bytes, path: Path, line_number: int) -> str:
    """Decode one line; raise a UserError with its position if it is not UTF-8."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        hint = ": iconv -f utf-16 -t utf-8" if line.startswith(_UTF16_BOMS) else ""
        raise UserError(
            f"{format_path(path)}:{line_number}: not UTF-8 (byte {error.start + 1} of the line); "
            f"convert the file first{hint}"
        ) from error


def read_two_text_files(source: Path, target: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs of two files line by line; raise a UserError with both counts if they differ."""
    sources, targets = iterate_lines(source), iterate_lines(target)
    for index, (source_line, target_line) in enumerate(zip_longest(sources, targets)):
        if source_line is None or target_line is None:
            # Counted here because a pipe cannot be read again.
            num_remaining = 1 + sum(1 for _ in (targets if source_line is None else sources))
            counts = (index, index + num_remaining) if source_line is None else (index + num_remaining, index)
            raise UserError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}; both sides of a corpus need the same "
                f"number"
            )
        if index == 0:
            request.check_unnamed_file(f"a corpus of two text files ({source}, {target})")
        yield Pair(source_line, target_line)


_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*+"')


def read_tsv(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield source and target of the first two columns; further columns are ignored."""
    return parse_tsv_lines(iterate_lines(path), path, request)


def parse_tsv_lines(lines: Iterable[str], path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs of lines of TSV; a blank line is an empty pair, as in two files."""
    for index, (where, cells) in enumerate(iterate_tsv_rows(lines, format_path(path))):
        if index == 0:  # the file exists and is not empty
            request.check_unnamed_file(format_path(path))
        if not cells:
            yield Pair("", "")
        elif len(cells) == 1:
            raise UserError(f"{where}: no tab; a line of a .tsv file is source, tab, target")
        else:
            yield Pair(unquote_cell(cells[0]), unquote_cell(cells[1]))


def iterate_tsv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each line, none if it is blank, with its position as file:line; `name` is that of the file."""
    for line_number, line in enumerate(lines, 1):
        yield f"{name}:{line_number}", line.split("\t") if line.strip() else []


def unquote_cell(cell: str) -> str:
    """Return a cell without the quotes that spreadsheets add: inner quotes doubled, and quotes around the whole cell.

    Quotes around a cell without quotes inside belong to the text: a spreadsheet would not have added them.

    >>> unquote_cell('"The ""old"" dog"'), unquote_cell('"The dog"')
    ('The "old" dog', '"The dog"')
    """
    inside = cell[1:-1]
    return inside.replace('""', '"') if '""' in inside and _QUOTED_CELL.fullmatch(cell) else cell


_EXPECTED_OBJECTS = '{"source": "…", "target": "…"}, {"en": "…", "de": "…"} or {"translation": {"en": "…", "de": "…"}}'
_NOT_A_PAIR = f"not a pair; a line of a .jsonl file is {_EXPECTED_OBJECTS}"


def read_jsonl(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs: objects with "source" and "target", or with two language codes, also inside a "translation"."""
    chosen: tuple[str, str] | None = None
    for where, row in iterate_json_lines(number_lines(iterate_lines(path), format_path(path)), _NOT_A_PAIR):
        texts = row["translation"] if isinstance(row.get("translation"), dict) else row
        chosen = chosen or _choose_keys(texts, request, where)
        sides = [_read_side(texts, key, where) for key in chosen]
        yield Pair(*sides)


def iterate_json_lines(numbered: Iterable[tuple[str, str]], expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the object of each line that is not blank, with the position that `number_lines` gave it.

    An error for a line that holds another value says what is `expected`.
    """
    for where, line in numbered:
        if line.strip():
            row = parse_json_line(line, where)
            if not isinstance(row, dict):
                raise UserError(f"{where}: {expected}, not {short_repr(row)}")
            yield where, row


def detect_json_lines(lines: Iterable[str], name: str = "") -> tuple[bool, Iterator[tuple[str, str]]]:
    """Return whether lines begin with a brace, and the lines from the first that is not blank, with their positions."""
    numbered_lines = number_lines(lines, name)
    first = [next((pair for pair in numbered_lines if pair[1].strip()), ("", ""))]
    return first[0][1].lstrip().startswith("{"), chain(first, numbered_lines)


def parse_json_line(line: str, where: str) -> Any:
    """Return the value of a line of JSON; raise a UserError if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from error


def _choose_keys(texts: Mapping[str, Any], request: LanguageRequest, where: str) -> tuple[str, str]:
    """Choose the two keys by the first object; they hold for the whole file."""
    chosen = choose_columns([key for key, value in texts.items() if isinstance(value, str)], request, where)
    if chosen is None and not {"source", "target"} & texts.keys():
        raise UserError(f"{where}: {_NOT_A_PAIR}")
    return chosen or ("source", "target")  # one of them is missing, which is an error when it is read


def _read_side(texts: Mapping[str, Any], key: str, where: str) -> str:
    text = texts.get(key)
    if not isinstance(text, str):
        raise UserError(
            f'{where}: not a pair, there is no text under "{key}"; a line of a .jsonl file is {_EXPECTED_OBJECTS}'
        )
    check_unicode(text, where)
    return text
