"""Command-line options that several commands share, the engine options, and the reading of runs and pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.data.readers.text import Pair
    from regard.translate import Options, Translation


_search_option, _words_option, _sampling_option, _speed_option = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Search", "Words", "Sampling", "Speed")
)

Beam = Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")]
NBest = Annotated[int, typer.Option("--n-best", min=1, help="Translations per line, the best first.")]
Source = Annotated[
    str | None, typer.Option(help="Language code of the source in DATA; default: that of the run.", metavar="CODE")
]
Target = Annotated[str | None, typer.Option(help="Language code of the target in DATA.", metavar="CODE")]
Gold = Annotated[
    Path | None, typer.Option(help="Gold word alignments (Pharaoh or NAACL format), for AER, precision and recall.")
]
GoldFirst = Annotated[
    int | None, typer.Option(min=0, max=1, help="Index of the first word in --gold; default: 0, in NAACL format 1.")
]
Domain = Annotated[str | None, typer.Option(help="Domain tag of the text, for a model trained with data.tags.")]
Tags = Annotated[bool, typer.Option("--tags", help="Keep inline tags and placeholders, placed by word alignment.")]

LengthPenalty = Annotated[
    str, _search_option(help="Length penalty: 0 prefers short translations, 1 longer ones; or `average`.")
]
CoveragePenalty = Annotated[float, _search_option(help="Coverage penalty for source words without attention.")]
MaxLength = Annotated[int | None, _search_option(min=1, help="Maximum tokens of a translation.")]
MinLength = Annotated[int, _search_option(min=1, help="Minimum tokens of a translation.")]
NoRepeat = Annotated[int | None, _search_option(min=1, help="Forbid repeated n-grams of this length.")]

Prefix = Annotated[str, _words_option(help="Target prefix: the beginning of each translation.")]
Force = Annotated[
    list[str] | None, _words_option(help="Word or phrase that each translation must contain; repeatable.")
]
Forbid = Annotated[list[str] | None, _words_option(help="Word or phrase that no translation may contain; repeatable.")]
Glossary = Annotated[Path | None, _words_option(help="Glossary file: term, tab, required translation, one per line.")]
ReplaceUnknown = Annotated[bool, _words_option("--replace-unknown", help="Replace <unk> by the aligned source word.")]
Dictionary = Annotated[
    Path | None, _words_option(help="For --replace-unknown: source word, tab, target word, one per line.")
]

Sample = Annotated[bool, _sampling_option("--sample", help="Sample translations instead of beam search.")]
Temperature = Annotated[float, _sampling_option(help="Sampling temperature; below 1 favours likely tokens.")]
TopK = Annotated[int | None, _sampling_option(min=1, help="Sample from the k most probable tokens.")]
TopP = Annotated[
    float, _sampling_option(help="Nucleus sampling: sample from the most probable tokens with this total probability.")
]
Seed = Annotated[int, _sampling_option(help="Random seed for --sample.")]

AUTO, RAY = "auto", "ray"

EngineName = Annotated[
    str,
    _speed_option(
        "--engine",
        help="Decoding backend. `torch`; `onnx`: ONNX Runtime on the CPU; `ctranslate2`: on the CPU, for Transformers; "
        "`auto`: what `regard export` wrote, else torch (with `--precision int8` torch first, if possible); `ray`: "
        "workers on a Ray cluster, for millions of lines.",
    ),
]
Precision = Annotated[
    str | None,
    _speed_option(
        help="`fp32`, or `int8`: faster, with nearly the same translations; with torch for Transformers only."
    ),
]
Shortlist = Annotated[
    bool,
    _speed_option(
        "--shortlist",
        help="Restrict the output vocabulary to the shortlist of `regard export --to shortlist`: faster, with nearly "
        "the same translations; for torch and onnx on a CPU.",
    ),
]
Workers = Annotated[
    int | None, _speed_option(min=1, help="Workers of --engine ray; default: one per GPU, or one per core.")
]
TranslateChunks = Callable[[Iterable[Sequence[str]]], Iterator[list["Translation"]]]


class EngineOptions(NamedTuple):
    """Options that choose the decoding backend."""

    name: str
    precision: str | None
    workers: int | None
    shortlist: bool = False

    def check(self) -> None:
        """Raise UserError for engine options that do not exist or cannot be combined."""
        from regard.translate import backends
        from regard.translate.backends.base import check_engine_options

        if self.name not in (*backends.ENGINES, RAY):
            raise UserError(f"--engine must be one of {', '.join(backends.ENGINES)} and {RAY}, not {self.name!r}")
        if self.workers is not None and self.name != RAY:
            raise UserError(f"--workers is for --engine {RAY}; --engine {self.name} has no workers")
        if self.precision is not None and self.name == RAY:
            raise UserError(f"--precision is not for --engine {RAY}, whose workers use {backends.TORCH}")
        if self.shortlist and self.name == RAY:
            raise UserError(f"--shortlist is not for --engine {RAY}")
        check_engine_options(AUTO if self.name == RAY else self.name, self.precision, self.shortlist)

    @contextmanager
    def open_translator(self, folders: Sequence[Path], translation_options: Options) -> Iterator[TranslateChunks]:
        """Yield a function that maps chunks of lines to chunks of translations, in order."""
        from regard.translate import load

        self.check()
        if self.name == RAY:
            from regard.runs import Run
            from regard.translate.backends.ray import open_worker_pool

            for folder in folders:  # the output of workers is not shown
                Run(folder).warn_if_unvalidated()
            with open_worker_pool(folders, translation_options, self.workers) as pool:
                yield pool.translate_chunks
            return
        translator = load(*folders, engine=self.name, precision=self.precision, shortlist=self.shortlist)
        compiled = translator.compile_options(translation_options)
        yield lambda chunks: (translator.translate_chunk(texts, compiled) for texts in chunks)


def split_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the runs, which are folders with a config.yaml, and the data: files, or folders of texts to classify."""
    runs = [path for path in paths if (path / "config.yaml").is_file()]
    files = [path for path in paths if path not in runs]
    if not runs and paths[0].is_dir():
        raise UserError(f"{paths[0]} is a folder, but not a run: it has no config.yaml")
    if not runs:
        raise UserError(f"{paths[0]} is not a run: a run is a folder that `regard train` writes")
    for path in files:
        if not path.exists() and path != Path("-"):
            raise UserError(f"{path} does not exist: name a run or a file")
    return runs, files


def read_pairs(runs: Sequence[Path], files: Sequence[Path], source: str | None, target: str | None) -> Iterator[Pair]:
    """Yield the pairs of DATA in the direction in which the runs translate.

    `source` and `target` (`--source` and `--target`) replace the runs' language codes where the files use others.
    Languages that contradict the runs, and files that lack them, are a UserError.
    """
    from regard.data.languages import LanguageError
    from regard.data.readers import dispatch
    from regard.tasks.translation import warn_if_languages_differ

    for folder in filter(Path.is_dir, files):
        raise UserError(f"{folder} is a folder, but not a run: it has no config.yaml. Name the files in it")
    languages = resolve_languages(runs, source, target)
    try:
        warn_if_languages_differ(files, *languages)
        yield from dispatch.iterate_pairs(files, *languages, allow_unnamed=not (source or target))
    except LanguageError as error:
        direction = _find_direction(runs)
        direction_text = f"; {_describe_direction(runs[0], direction)}" if any(direction) else ""
        other_codes = ". If these are the same languages under other codes, give those as --source and --target"
        raise UserError(f"{error}{direction_text}{'' if source and target else other_codes}") from error


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
    from regard.data.readers.dispatch import make_empty_corpus_error

    pairs = list(read_pairs(runs, files, source, target))
    if not any(pair.source.strip() and pair.target.strip() for pair in pairs):
        raise make_empty_corpus_error(files)
    return pairs


def _find_direction(runs: Sequence[Path]) -> tuple[str | None, str | None]:
    """Return the languages of the runs, None where the first does not name them."""
    from regard.data.languages import are_different_languages
    from regard.runs import Run

    directions = [[Run(run).read_config()["data"].get(side) for side in ("source", "target")] for run in runs]
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
