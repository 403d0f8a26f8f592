"""Corpus reading: sentence pairs from one file in any supported format, or from two text files.

A pipe can be read only once, but training reads its data several times and when it resumes: `PipeCopies` copies it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

from regard.console import log_message
from regard.data.languages import LanguageRequest
from regard.data.readers import parquet, po, tmx_xliff
from regard.data.readers.text import (
    DECOMPRESSORS,
    STANDARD_INPUT,
    Pair,
    decode_lines,
    detect_compression,
    detect_format,
    format_path,
    is_pipe,
    iterate_lines,
    open_decompressed,
    parse_tsv_lines,
    peek_bytes,
    read_jsonl,
    read_tsv,
    read_two_text_files,
)
from regard.errors import UserError
from regard.paths import compute_sha256

_READERS: dict[str, Callable[[Path, LanguageRequest], Iterator[Pair]]] = {
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".parquet": parquet.read_parquet,
    ".tmx": tmx_xliff.read_tmx,
    ".xliff": tmx_xliff.read_xliff,
    ".xlf": tmx_xliff.read_xliff,
    ".po": po.read_po,
}
_ROW_FORMATS = (".jsonl", ".tsv")


def is_bilingual_file(path: Path) -> bool:
    """Return True if a file holds both sides, judged by its name; standard input (`-`) does."""
    return path == STANDARD_INPUT or find_format_suffix(path) in _READERS


def find_format_suffix(path: Path) -> str:
    """Return the suffix of the format: that of `corpus.tsv.gz` is `.tsv`."""
    inner = path.with_suffix("") if path.suffix.lower() in DECOMPRESSORS else path
    return inner.suffix.lower()


def make_language_request(
    files: Sequence[str | Path], source: str | None = None, target: str | None = None, *, allow_unnamed: bool = True
) -> LanguageRequest:
    """Return a request for languages of DATA, which tells after reading what was chosen and skipped."""
    from_name = parse_languages_from_name(Path(files[0])) if files else None
    return LanguageRequest(source, target, from_name, allow_unnamed)


def iterate_pairs(
    files: Sequence[str | Path],
    source: str | None = None,
    target: str | None = None,
    *,
    allow_unnamed: bool = True,
    request: LanguageRequest | None = None,
) -> Iterator[Pair]:
    """Yield the pairs of DATA: one file of sentence pairs, or two text files, source first.

    The format of a single pipe and of standard input (`-`) is detected by the first bytes. `source` and `target` are
    codes that select languages of a file that names them. For a file that names none they are taken as its languages,
    or refused if `allow_unnamed` is false. `request` replaces these three arguments.
    """
    paths = [Path(path) for path in files]
    request = request or make_language_request(paths, source, target, allow_unnamed=allow_unnamed)
    if len(paths) == 1 and find_format_suffix(paths[0]) in _READERS:
        return _READERS[find_format_suffix(paths[0])](paths[0], request)
    if len(paths) == 1 and is_pipe(paths[0]):
        return _iterate_pipe_pairs(paths[0], request)
    if len(paths) == 2 and not any(map(is_bilingual_file, paths)):
        return read_two_text_files(paths[0], paths[1], request)
    names = " ".join(map(str, paths)) or "nothing"
    raise UserError(
        f"data is one file that holds pairs ({', '.join(_READERS)}, also {', '.join(DECOMPRESSORS)}; - for standard "
        f"input) or two text files, not {names}"
    )


def _iterate_pipe_pairs(pipe: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs of a pipe, whose first bytes tell the format; TSV is streamed, others are copied to disk."""
    with open_decompressed(pipe) as file:
        if detect_format(peek_bytes(file)) == ".tsv":
            yield from parse_tsv_lines(decode_lines(file, pipe), pipe, request)
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "pairs"
            with copy.open("wb") as output:
                shutil.copyfileobj(file, output)
            copy_with_suffix = copy.rename(f"{copy}{detect_suffix(copy)}")
            try:
                yield from _READERS[find_format_suffix(copy_with_suffix)](copy_with_suffix, request)
            except UserError as error:
                raise UserError(str(error).replace(str(copy_with_suffix), format_path(pipe))) from error


def open_rows(path: Path, refusal: str) -> tuple[str, Iterator[str]]:
    """Return the format of a file of rows, `.tsv` or `.jsonl`, and its lines; the first bytes tell that of a pipe.

    Parse the lines with `iterate_tsv_rows` or `iterate_json_lines`. `refusal` is what the error for another file says
    after its name, such as `not a caption file`.
    """
    if (suffix := find_format_suffix(path)) in _ROW_FORMATS:
        return suffix, iterate_lines(path)
    if is_pipe(path):
        lines = _iterate_format_and_lines(path)
        return next(lines), lines
    if not path.exists():
        raise UserError(f"there is no file {path}")
    formats, compressed = ", ".join(_ROW_FORMATS), ", ".join(DECOMPRESSORS)
    raise UserError(f"{path} is {refusal} ({formats}, also {compressed}; - for standard input)")


def _iterate_format_and_lines(pipe: Path) -> Iterator[str]:
    """Yield the format of a pipe's content, then its lines."""
    with open_decompressed(pipe) as file:
        yield ".jsonl" if detect_format(peek_bytes(file)) == ".jsonl" else ".tsv"
        yield from decode_lines(file, pipe)


def detect_suffix(path: Path) -> str:
    """Return the suffix that suits the content of a file without one, such as `.tmx.gz`."""
    with path.open("rb") as raw, open_decompressed(path) as file:
        return detect_format(peek_bytes(file)) + detect_compression(peek_bytes(raw))


_PROBED_ROWS = 2000
_MIN_LABEL_REPEATS = 5  # mean number of rows of a label: sources of a translation memory are repeated less often
_MAX_LABEL_LENGTH = 40


def detect_task(paths: Sequence[Path]) -> str:
    """Return the task that data are for, judged by the first rows: `classify`, `tag` or `translate`.

    Labelled texts are folders, rows with labels, or a header that says so; words with labels are columns in a text
    file, with blank lines between sentences. Raise UserError if labels seem to be in another column than the first.
    """
    first = paths[0]
    if first.is_dir():
        return "classify"
    if not first.is_file():
        return "translate"
    suffix = find_format_suffix(first)
    if suffix == ".jsonl":
        (row,) = [*islice((line for line in iterate_lines(first) if line.strip()), 1)] or [""]
        return "classify" if '"label"' in row and '"text"' in row else "translate"
    if suffix == ".tsv":
        return _detect_task_of_rows(first)
    is_single_text = suffix not in _READERS and all(find_format_suffix(path) == suffix for path in paths)
    return "tag" if is_single_text and _has_columns(first) else "translate"


def _detect_task_of_rows(path: Path) -> str:
    """Return the task that a .tsv file is for: `classify` if few values in the first column label different texts."""
    rows = [line.split("\t") for line in islice(iterate_lines(path), _PROBED_ROWS)]
    rows = [cells for cells in rows if len(cells) > 1]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    if header[:2] == ["label", "text"]:
        return "classify"
    has_labels = [_are_labels([cells[column] for cells in rows]) for column in (0, 1)]
    if has_labels == [True, False]:
        return "classify"
    if has_labels == [False, True] or "label" in header:
        label = header.index("label") + 1 if "label" in header else 2
        raise UserError(
            f"{path}: column {label} seems to be a label; to train a classifier, add --recipe default-classification "
            f"data.label={label} data.text={1 if label > 1 else 2}{' data.header=true' if 'label' in header else ''}, "
            "for a translation model --recipe default"
        )
    return "translate"


def _are_labels(values: Sequence[str]) -> bool:
    """Return whether a column has few short values."""
    distinct = set(values)
    is_repeated = len(values) >= _MIN_LABEL_REPEATS * len(distinct) and len(distinct) > 1
    return is_repeated and all(len(value) <= _MAX_LABEL_LENGTH for value in distinct)


def _has_columns(path: Path) -> bool:
    """Return whether a text has a word and its label on each line, and blank lines between sentences."""
    lines = list(islice((line for line in iterate_lines(path) if not line.startswith("#")), _PROBED_ROWS))
    counts = {len(line.split("\t") if "\t" in line else line.split()) for line in lines if line.strip()}
    has_blank_lines = any(not line.strip() for line in lines[1:-1])
    return has_blank_lines and len(counts) == 1 and min(counts) > 1


def read_all_pairs(
    paths: Sequence[str | Path], source: str | None = None, target: str | None = None, *, allow_unnamed: bool = True
) -> list[Pair]:
    """Return all pairs of DATA, at least one; the parameters are those of `iterate_pairs`."""
    pairs = list(iterate_pairs(paths, source, target, allow_unnamed=allow_unnamed))
    if not any(pair.source.strip() and pair.target.strip() for pair in pairs):
        raise make_empty_corpus_error(paths)
    return pairs


def make_empty_corpus_error(paths: Iterable[str | Path]) -> UserError:
    """Return the error for files without sentence pairs."""
    names = " and ".join(format_path(Path(path)) for path in paths)
    return UserError(f"{names}: no pairs in there, nothing to work with")


def find_corpus_languages(
    paths: Sequence[Path], source: str | None = None, target: str | None = None
) -> tuple[str, str]:
    """Return the languages that the files declare, else those of their names, else `source` and `target`.

    `train.en train.de` -> en, de; `de-en.tsv` -> de, en; `memory.tmx` -> the languages that are read from it.
    """
    if len(paths) == 2:
        suffixes = [find_format_suffix(path).removeprefix(".") for path in paths]
        return (suffixes[0], suffixes[1]) if all(suffixes) and suffixes[0] != suffixes[1] else ("source", "target")
    from_name = parse_languages_from_name(paths[0]) if paths else None
    request = LanguageRequest(source, target, from_name)
    if len(paths) == 1 and paths[0].is_file() and (read := _READERS.get(find_format_suffix(paths[0]))):
        next(read(paths[0], request), None)
    return request.chosen or from_name or ("source", "target")


def parse_languages_from_name(path: Path) -> tuple[str, str] | None:
    """Return the languages of a file name: `de-en.tsv` and `corpus_de-en.tmx.gz` -> de, en."""
    codes = path.name.split(".")[0].rsplit("_", 1)[-1].split("-")
    if len(codes) == 2 and all(code.isalpha() and 2 <= len(code) <= 3 for code in codes):
        return codes[0], codes[1]
    return None


class PipeCopies:
    """Copies of piped data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new_copies: dict[Path, Path] = {}  # copy -> pipe, for copies that did not exist before
        # Folders that did not exist before, the innermost first.
        self.new_folders = [path for path in (folder, *folder.parents) if not path.exists()]

    def copy_pipes(self, paths: Sequence[Path]) -> list[Path]:
        """Return the paths, with each pipe replaced by a copy of its data; a single path holds sentence pairs."""
        return [
            self._copy_pipe(path, path == STANDARD_INPUT or len(paths) == 1) if is_pipe(path) else path
            for path in paths
        ]

    def _copy_pipe(self, pipe: Path, holds_pairs: bool) -> Path:
        """Copy piped data to a file named by its hash, with the suffix of its format if it holds sentence pairs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            nullcontext(sys.stdin.buffer) if pipe == STANDARD_INPUT else pipe.open("rb") as content,
            NamedTemporaryFile(dir=self.folder, delete=False) as file,
        ):
            partial_copy = Path(file.name)
            self.new_copies[partial_copy] = pipe
            shutil.copyfileobj(content, file)
        suffix = detect_suffix(partial_copy) if holds_pairs else ""
        copy = self.folder / f"{compute_sha256(partial_copy)[:24]}{suffix}"
        if not copy.exists():
            self.new_copies[copy] = pipe
        partial_copy.replace(copy)
        del self.new_copies[partial_copy]
        return copy

    def keep_copies(self) -> None:
        """Keep the copies, as part of the run."""
        for copy, pipe in self.new_copies.items():
            log_message(f"data from {pipe} is copied to {copy}, so that training can be resumed")
        self.new_copies, self.new_folders = {}, []

    def remove_copies(self) -> None:
        """Remove the copies that are not kept."""
        for copy in self.new_copies:
            copy.unlink(missing_ok=True)
        for folder in self.new_folders:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


@contextmanager
def open_pipe_copies(folder: Path) -> Iterator[PipeCopies]:
    """Yield copies that are removed at the end unless they are kept; error messages name the pipes instead."""
    copies = PipeCopies(folder)
    try:
        yield copies
    except UserError as error:
        message = str(error)
        for copy, pipe in copies.new_copies.items():
            message = message.replace(str(copy), format_path(pipe))
        raise UserError(message) from error
    finally:
        copies.remove_copies()
