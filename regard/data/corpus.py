"""Pairs of sentences from one file that holds both sides, or from two text files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.data.files import COMPRESSED, STANDARD_INPUT, lines_of, name_of, reading
from regard.data.formats import jsonl, parquet, po, text, tmx, xliff
from regard.data.pair import Pair
from regard.data.recognition import first_bytes, form, packing
from regard.data.sides import Wish
from regard.errors import UserError

__all__ = ["Pair", "holds_pairs", "languages", "nothing_in", "pairs", "read", "recognised", "suffix"]

READERS: dict[str, Callable[[Path, Wish], Iterator[Pair]]] = {
    ".tsv": text.tsv,
    ".jsonl": jsonl.read,
    ".parquet": parquet.read,
    ".tmx": tmx.read,
    ".xliff": xliff.read,
    ".xlf": xliff.read,
    ".po": po.read,
}
LANGUAGES: dict[str, Callable[[Path, Wish], tuple[str, str] | None]] = {
    ".jsonl": jsonl.languages,
    ".parquet": parquet.languages,
    ".tmx": tmx.languages,
    ".xliff": xliff.languages,
    ".xlf": xliff.languages,
}


def holds_pairs(path: Path) -> bool:
    """Whether a file, by its name, holds both sides; standard input (`-`) does."""
    return path == STANDARD_INPUT or suffix(path) in READERS


def suffix(path: Path) -> str:
    """The format's ending: that of `corpus.tsv.gz` is `.tsv`."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return inner.suffix.lower()


def read(
    given: Sequence[str | Path], source: str | None = None, target: str | None = None, *, names: bool = True
) -> Iterator[Pair]:
    """The pairs of DATA: one file that holds pairs, or two text files, source first.

    A single pipe, and standard input (`-`), are known by their first bytes. `source` and `target` are codes that choose
    among the languages of a file that names them. Of a file that names none they are the names, or, without `names`,
    refused.
    """
    paths = [Path(path) for path in given]
    asked = Wish(source, target, by_name(paths[0]) if paths else None, names)
    if len(paths) == 1 and suffix(paths[0]) in READERS:
        return READERS[suffix(paths[0])](paths[0], asked)
    if len(paths) == 1 and (paths[0] == STANDARD_INPUT or paths[0].is_fifo()):
        return unnamed(paths[0], asked)
    if len(paths) == 2 and not any(map(holds_pairs, paths)):
        return text.two_files(paths[0], paths[1], asked)
    named = " ".join(map(str, paths)) or "nothing"
    raise UserError(
        f"data is one file that holds pairs ({', '.join(READERS)}, also {', '.join(COMPRESSED)}; - for standard input) "
        f"or two text files, not {named}"
    )


def unnamed(pipe: Path, wish: Wish) -> Iterator[Pair]:
    """The pairs that come through a pipe, whose first bytes say in which form; what has columns is read as it comes."""
    with reading(pipe) as file:
        if form(first_bytes(file)) == ".tsv":
            yield from text.columns(lines_of(file, pipe), pipe, wish)
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "pairs"
            with copy.open("wb") as beside:
                shutil.copyfileobj(file, beside)
            named = copy.rename(f"{copy}{recognised(copy)}")
            try:
                yield from READERS[suffix(named)](named, wish)
            except UserError as error:
                raise UserError(str(error).replace(str(named), name_of(pipe))) from error


def recognised(path: Path) -> str:
    """The ending that a file without one should have: `.tmx.gz`."""
    with path.open("rb") as raw, reading(path) as file:
        return form(first_bytes(file)) + packing(first_bytes(raw))


def pairs(
    paths: Sequence[str | Path], source: str | None = None, target: str | None = None, *, names: bool = True
) -> list[Pair]:
    """All pairs of DATA, at least one; the parameters are those of `read`."""
    read_pairs = list(read(paths, source, target, names=names))
    if not any(pair.source.strip() and pair.target.strip() for pair in read_pairs):
        raise nothing_in(paths)
    return read_pairs


def nothing_in(paths: Iterable[str | Path]) -> UserError:
    """What is said where files hold no pairs."""
    return UserError(f"{' and '.join(name_of(Path(path)) for path in paths)}: no pairs in there, nothing to work with")


def languages(paths: Sequence[Path], source: str | None = None, target: str | None = None) -> tuple[str, str]:
    """What the files say of themselves, or else their names; `source` and `target` where neither does.

    `train.en train.de` -> en, de; `de-en.tsv` -> de, en; `memory.tmx` -> those that are read from it.
    """
    if len(paths) == 2:
        endings = [suffix(path).removeprefix(".") for path in paths]
        return (endings[0], endings[1]) if all(endings) and endings[0] != endings[1] else ("source", "target")
    if len(paths) == 1 and paths[0].is_file() and suffix(paths[0]) in LANGUAGES:
        told = LANGUAGES[suffix(paths[0])](paths[0], Wish(source, target, by_name(paths[0])))
        if told is not None:
            return told
    return (by_name(paths[0]) if paths else None) or ("source", "target")


def by_name(path: Path) -> tuple[str, str] | None:
    """`de-en.tsv` and `corpus_de-en.tmx.gz` -> de, en."""
    halves = path.name.split(".")[0].rsplit("_", 1)[-1].split("-")
    if len(halves) == 2 and all(half.isalpha() and 2 <= len(half) <= 3 for half in halves):
        return halves[0], halves[1]
    return None
