"""Writers of sentence pairs: TSV, JSON lines, TMX or two text files, optionally compressed, or standard output."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, cast
from xml.sax.saxutils import escape, quoteattr

from regard.data.readers.dispatch import find_format_suffix
from regard.data.readers.text import DECOMPRESSORS, Pair
from regard.errors import UserError
from regard.paths import create_file_atomically
from regard.version import VERSION

STANDARD_OUTPUT = Path("-")
_LINE_ENDS, _COLUMN_ENDS = re.compile(r"[\r\n]+"), re.compile(r"[\t\r\n]+")


PairWriter = Callable[[Pair], None]


_TMX = ".tmx"
# Characters that XML cannot hold.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_FORMATS: dict[str, Callable[[Pair], str]] = {
    ".tsv": lambda pair: "\t".join(_COLUMN_ENDS.sub(" ", side) for side in pair),
    ".jsonl": lambda pair: json.dumps(pair._asdict(), ensure_ascii=False),
}


@contextmanager
def open_pair_writer(
    paths: Sequence[Path], overwrite: bool = False, languages: tuple[str, str] | None = None
) -> Iterator[PairWriter]:
    """Yield a function that writes pairs to one file (.tsv, .jsonl, .tmx, `-`: TSV to stdout) or two text files.

    A TMX needs the `languages` of source and target. Files are written under temporary names and renamed at the end;
    after an error nothing remains.
    """
    is_tmx = len(paths) == 1 and find_format_suffix(paths[0]) == _TMX
    if is_tmx and not languages:
        raise UserError(f"{paths[0]} names its languages: give --source and --target")
    format_lines = _make_tmx_format(*languages) if is_tmx and languages else _choose_line_format(paths)
    for path in paths:
        if path.is_dir() or (path.is_file() and not overwrite):
            raise UserError(f"{path} already exists; choose another name, or overwrite it with --overwrite")
    with ExitStack() as stack:
        files = [stack.enter_context(_open_output(path)) for path in paths]

        def write_pair(pair: Pair) -> None:
            for file, text in zip(files, format_lines(pair), strict=True):
                file.write(f"{text}\n")

        if is_tmx and languages:
            files[0].write(_make_tmx_header(languages[0]))
        yield write_pair
        if is_tmx:
            files[0].write("</body>\n</tmx>\n")


def _make_tmx_header(source: str) -> str:
    """Return the beginning of a TMX file."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
        f'<header creationtool="regard" creationtoolversion="{VERSION}" segtype="sentence" o-tmf="regard" '
        f'adminlang="en" srclang={quoteattr(source)} datatype="plaintext"/>\n<body>\n'
    )


def _make_tmx_format(source: str, target: str) -> Callable[[Pair], list[str]]:
    """Return a function that formats a pair as a translation unit."""

    def format_unit(pair: Pair) -> list[str]:
        variants = (
            f"<tuv xml:lang={quoteattr(code)}><seg>{escape(_NOT_XML.sub('', text))}</seg></tuv>"
            for code, text in zip((source, target), pair, strict=True)
        )
        return [f"<tu>{''.join(variants)}</tu>"]

    return format_unit


def _choose_line_format(paths: Sequence[Path]) -> Callable[[Pair], list[str]]:
    """Return a function that formats a pair as one line for each file."""
    formats = [_LINE_FORMATS.get(".tsv" if path == STANDARD_OUTPUT else find_format_suffix(path)) for path in paths]
    if len(formats) == 1 and (format_line := formats[0]):
        return lambda pair: [format_line(pair)]
    if len(set(paths)) == 2 and formats == [None, None]:
        return lambda pair: [_LINE_ENDS.sub(" ", side) for side in pair]
    names = " ".join(map(str, paths)) or "nothing"
    raise UserError(
        f"--out is one file ({', '.join([*_LINE_FORMATS, _TMX])}, also {', '.join(DECOMPRESSORS)}; - for standard "
        f"output) or, given twice, two text files, not {names}"
    )


@contextmanager
def _open_output(path: Path) -> Iterator[IO[str]]:
    """Open a text file for writing, renamed at the end; a pipe or a device is written to directly."""
    if path == STANDARD_OUTPUT:
        with os.fdopen(1, "w", encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
        return
    is_special = path.exists() and not path.is_file()
    with (
        nullcontext(path) if is_special else create_file_atomically(path) as output,
        output.open("wb") as raw,
        _open_compressed(raw, path.suffix.lower()) as compressed,
        io.TextIOWrapper(compressed, encoding="utf-8", newline="\n") as text,
    ):
        yield text


def _open_compressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """Compress the file as its suffix says; the output is deterministic."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
    if suffix == ".xz":
        return lzma.open(file, "wb")
    if suffix == ".zst":
        import pyarrow

        stream = pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), "zstd")
        return cast(IO[bytes], io.BufferedWriter(stream, 1 << 17))
    return file
