"""Pairs of sentences from one file that holds both sides, or from two text files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.data.language_pair import LanguageRequest
from regard.data.readers import jsonl, parquet, po, text, tmx, xliff
from regard.data.readers.text_io import (
    DECOMPRESSORS,
    STANDARD_INPUT,
    decode_lines,
    detect_compression,
    detect_format,
    format_path,
    open_decompressed,
    peek_bytes,
)
from regard.data.sentence_pair import Pair
from regard.errors import UserError

__all__ = [
    "Pair",
    "detect_suffix",
    "find_corpus_languages",
    "find_format_suffix",
    "is_bilingual_file",
    "iterate_pairs",
    "make_empty_corpus_error",
    "read_all_pairs",
]

_READERS: dict[str, Callable[[Path, LanguageRequest], Iterator[Pair]]] = {
    ".tsv": text.read_tsv,
    ".jsonl": jsonl.read_jsonl,
    ".parquet": parquet.read_parquet,
    ".tmx": tmx.read_tmx,
    ".xliff": xliff.read_xliff,
    ".xlf": xliff.read_xliff,
    ".po": po.read_po,
}
_LANGUAGE_FINDERS: dict[str, Callable[[Path, LanguageRequest], tuple[str, str] | None]] = {
    ".jsonl": jsonl.find_jsonl_languages,
    ".parquet": parquet.find_parquet_languages,
    ".tmx": tmx.find_tmx_languages,
    ".xliff": xliff.find_xliff_languages,
    ".xlf": xliff.find_xliff_languages,
}


def is_bilingual_file(path: Path) -> bool:
    """Whether a file, by its name, holds both sides; standard input (`-`) does."""
    return path == STANDARD_INPUT or find_format_suffix(path) in _READERS


def find_format_suffix(path: Path) -> str:
    """The format's ending: that of `corpus.tsv.gz` is `.tsv`."""
    inner = path.with_suffix("") if path.suffix.lower() in DECOMPRESSORS else path
    return inner.suffix.lower()


def iterate_pairs(
    files: Sequence[str | Path], source: str | None = None, target: str | None = None, *, allow_unnamed: bool = True
) -> Iterator[Pair]:
    """The pairs of DATA: one file that holds pairs, or two text files, source first.

    A single pipe, and standard input (`-`), are known by their first bytes. `source` and `target` are codes that choose
    among the languages of a file that names them. Of a file that names none they are the names, or, without `names`,
    refused.
    """
    paths = [Path(path) for path in files]
    asked = LanguageRequest(source, target, parse_languages_from_name(paths[0]) if paths else None, allow_unnamed)
    if len(paths) == 1 and find_format_suffix(paths[0]) in _READERS:
        return _READERS[find_format_suffix(paths[0])](paths[0], asked)
    if len(paths) == 1 and (paths[0] == STANDARD_INPUT or paths[0].is_fifo()):
        return _iterate_pipe_pairs(paths[0], asked)
    if len(paths) == 2 and not any(map(is_bilingual_file, paths)):
        return text.read_two_text_files(paths[0], paths[1], asked)
    named = " ".join(map(str, paths)) or "nothing"
    raise UserError(
        f"data is one file that holds pairs ({', '.join(_READERS)}, also {', '.join(DECOMPRESSORS)}; - for standard input) "
        f"or two text files, not {named}"
    )


def _iterate_pipe_pairs(pipe: Path, request: LanguageRequest) -> Iterator[Pair]:
    """The pairs that come through a pipe, whose first bytes say in which form; what has columns is read as it comes."""
    with open_decompressed(pipe) as file:
        if detect_format(peek_bytes(file)) == ".tsv":
            yield from text.parse_tsv_lines(decode_lines(file, pipe), pipe, request)
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "pairs"
            with copy.open("wb") as beside:
                shutil.copyfileobj(file, beside)
            named = copy.rename(f"{copy}{detect_suffix(copy)}")
            try:
                yield from _READERS[find_format_suffix(named)](named, request)
            except UserError as error:
                raise UserError(str(error).replace(str(named), format_path(pipe))) from error


def detect_suffix(path: Path) -> str:
    """The ending that a file without one should have: `.tmx.gz`."""
    with path.open("rb") as raw, open_decompressed(path) as file:
        return detect_format(peek_bytes(file)) + detect_compression(peek_bytes(raw))


def read_all_pairs(
    paths: Sequence[str | Path], source: str | None = None, target: str | None = None, *, allow_unnamed: bool = True
) -> list[Pair]:
    """All pairs of DATA, at least one; the parameters are those of `read`."""
    read_pairs = list(iterate_pairs(paths, source, target, allow_unnamed=allow_unnamed))
    if not any(pair.source.strip() and pair.target.strip() for pair in read_pairs):
        raise make_empty_corpus_error(paths)
    return read_pairs


def make_empty_corpus_error(paths: Iterable[str | Path]) -> UserError:
    """What is said where files hold no pairs."""
    return UserError(
        f"{' and '.join(format_path(Path(path)) for path in paths)}: no pairs in there, nothing to work with"
    )


def find_corpus_languages(
    paths: Sequence[Path], source: str | None = None, target: str | None = None
) -> tuple[str, str]:
    """What the files say of themselves, or else their names; `source` and `target` where neither does.

    `train.en train.de` -> en, de; `de-en.tsv` -> de, en; `memory.tmx` -> those that are read from it.
    """
    if len(paths) == 2:
        endings = [find_format_suffix(path).removeprefix(".") for path in paths]
        return (endings[0], endings[1]) if all(endings) and endings[0] != endings[1] else ("source", "target")
    if len(paths) == 1 and paths[0].is_file() and find_format_suffix(paths[0]) in _LANGUAGE_FINDERS:
        told = _LANGUAGE_FINDERS[find_format_suffix(paths[0])](
            paths[0], LanguageRequest(source, target, parse_languages_from_name(paths[0]))
        )
        if told is not None:
            return told
    return (parse_languages_from_name(paths[0]) if paths else None) or ("source", "target")


def parse_languages_from_name(path: Path) -> tuple[str, str] | None:
    """`de-en.tsv` and `corpus_de-en.tmx.gz` -> de, en."""
    halves = path.name.split(".")[0].rsplit("_", 1)[-1].split("-")
    if len(halves) == 2 and all(half.isalpha() and 2 <= len(half) <= 3 for half in halves):
        return halves[0], halves[1]
    return None
