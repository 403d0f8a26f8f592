"""Runs and files on one command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.data.corpus import Pair


def split_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the runs, which are folders with a config.yaml, and the data: files, or folders of texts to classify."""
    runs = [path for path in paths if (path / "config.yaml").is_file()]
    files = [path for path in paths if path not in runs]
    if not runs and paths[0].is_dir():
        raise UserError(f"{paths[0]} is a folder, but not a run: it has no config.yaml")
    if not runs:
        raise UserError(f"there is no run {paths[0]}: a run is a folder that `regard train` wrote")
    for path in files:
        if not path.exists() and path != Path("-"):
            raise UserError(f"there is no run and no file {path}")
    return runs, files


def read_pairs(runs: Sequence[Path], files: Sequence[Path], source: str | None, target: str | None) -> Iterator[Pair]:
    """Yield the pairs of DATA in the direction in which the runs translate.

    `source` and `target` (`--source` and `--target`) replace the runs' language codes where the files use others.
    Languages that contradict the runs, and files that lack them, are a UserError.
    """
    from regard.data import corpus
    from regard.data.sides import LanguageError
    from regard.tasks.translation.preparation import question

    for folder in filter(Path.is_dir, files):
        raise UserError(f"{folder} is a folder, but not a run: it has no config.yaml. Name the files in it")
    wanted = resolve_languages(runs, source, target)
    try:
        question(files, *wanted)
        yield from corpus.read(files, *wanted, names=not (source or target))
    except LanguageError as error:
        direction = _find_direction(runs)
        own = f"; {_describe_direction(runs[0], direction)}" if any(direction) else ""
        other_codes = ". If these are the same languages under other codes, give those as --source and --target"
        raise UserError(f"{error}{own}{'' if source and target else other_codes}") from error


def resolve_languages(runs: Sequence[Path], source: str | None, target: str | None) -> tuple[str | None, str | None]:
    """Return the languages to read pairs in: those of `--source` and `--target`, else those of the runs, else None."""
    from regard.data.languages import are_different_languages

    direction = _find_direction(runs)
    for option, given, known in zip(("--source", "--target"), (source, target), direction, strict=True):
        if are_different_languages(given, known):
            raise UserError(f"{option} {given} does not fit: {_describe_direction(runs[0], direction)}")
    return source or direction[0], target or direction[1]


def load_pairs(runs: Sequence[Path], files: Sequence[Path], source: str | None, target: str | None) -> list[Pair]:
    """Return what `read_pairs` yields; no pair at all is a UserError."""
    from regard.data.corpus import nothing_in

    pairs = list(read_pairs(runs, files, source, target))
    if not any(pair.source.strip() and pair.target.strip() for pair in pairs):
        raise nothing_in(files)
    return pairs


def _find_direction(runs: Sequence[Path]) -> tuple[str | None, str | None]:
    """Return the languages of the runs, None where the first does not name them."""
    from regard.data.languages import are_different_languages
    from regard.runs import Run

    directions = [[Run(run).config()["data"].get(side) for side in ("source", "target")] for run in runs]
    first = directions[0]
    for run, other in zip(runs, directions, strict=True):
        if any(are_different_languages(*sides) for sides in zip(first, other, strict=True)):
            raise UserError(
                f"{runs[0]} translates from {first[0]} into {first[1]}, {run} from {other[0]} into {other[1]}: one "
                f"test set does not fit both"
            )
    return first[0], first[1]


def _describe_direction(run: Path, direction: tuple[str | None, str | None]) -> str:
    return f"{run} translates from {direction[0] or '?'} into {direction[1] or '?'}"
