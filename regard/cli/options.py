"""Options that commands share, or that would hide what a command does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.translate import Options, Translation
if TYPE_CHECKING:
    from regard.data.readers.dispatch import Pair


SEARCH_PANEL, WORDS_PANEL, SAMPLING_PANEL = "Search", "Words", "Sampling"

Beam = Annotated[int, typer.Option(min=1, help="Hypotheses that are kept open; 1 is greedy.")]
NBest = Annotated[int, typer.Option("--n-best", min=1, help="Translations a line, the best first.")]
Source = Annotated[
    str | None, typer.Option(help="Language code of the source in DATA; as in the run if left out.", metavar="CODE")
]
Target = Annotated[str | None, typer.Option(help="Language code of the target in DATA.", metavar="CODE")]
Gold = Annotated[
    Path | None, typer.Option(help="Gold word alignments (Pharaoh or NAACL form): AER, precision, recall.")
]
GoldFirst = Annotated[int | None, typer.Option(min=0, max=1, help="Number of its first word; else 0, NAACL: 1.")]
Domain = Annotated[
    str | None, typer.Option(help="The tag of the corpus that the text is like, for a model trained with data.tags.")
]
Tags = Annotated[bool, typer.Option("--tags", help="Carry inline tags and placeholders over.")]

LengthPenalty = Annotated[
    str,
    typer.Option(
        help="A number (0: short ones win, 1: long ones do better), or `average`.", rich_help_panel=SEARCH_PANEL
    ),
]
CoveragePenalty = Annotated[
    float, typer.Option(help="How much a source word counts that nothing looked at.", rich_help_panel=SEARCH_PANEL)
]
MaxLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a translation at most.", rich_help_panel=SEARCH_PANEL)
]
MinLength = Annotated[int, typer.Option(min=1, help="Tokens of a translation at least.", rich_help_panel=SEARCH_PANEL)]
NoRepeat = Annotated[
    int | None, typer.Option(min=1, help="So many tokens in a row never come twice.", rich_help_panel=SEARCH_PANEL)
]

Prefix = Annotated[str, typer.Option(help="What each translation begins with.", rich_help_panel=WORDS_PANEL)]
Force = Annotated[
    list[str] | None,
    typer.Option(help="A word or phrase that each translation holds; may be given again.", rich_help_panel=WORDS_PANEL),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(help="A word or phrase that none holds; may be given again.", rich_help_panel=WORDS_PANEL),
]
Glossary = Annotated[
    Path | None, typer.Option(help="Terms, tab, how they must be translated, one a line.", rich_help_panel=WORDS_PANEL)
]
ReplaceUnknown = Annotated[
    bool, typer.Option("--replace-unknown", help="Put source words in the place of <unk>.", rich_help_panel=WORDS_PANEL)
]
Dictionary = Annotated[
    Path | None, typer.Option(help="For these: source word, tab, target word, one a line.", rich_help_panel=WORDS_PANEL)
]

Sample = Annotated[
    bool, typer.Option("--sample", help="Draw translations instead of searching.", rich_help_panel=SAMPLING_PANEL)
]
Temperature = Annotated[float, typer.Option(help="Below 1 the likely are likelier.", rich_help_panel=SAMPLING_PANEL)]
TopK = Annotated[
    int | None, typer.Option(min=1, help="Draw among so many likeliest tokens.", rich_help_panel=SAMPLING_PANEL)
]
TopP = Annotated[
    float, typer.Option(help="Draw among those with this probability together.", rich_help_panel=SAMPLING_PANEL)
]
Seed = Annotated[int, typer.Option(help="Of what is drawn.", rich_help_panel=SAMPLING_PANEL)]


SPEED_PANEL = "Speed"
AUTO, RAY = "auto", "ray"

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="`torch`; `onnx`: onnxruntime on the CPU; `ctranslate2`: likewise, for Transformers; `auto`: what `regard "
        "export` made, else torch, and with `--precision int8` torch first, where it can; `ray`: workers on a Ray "
        "cluster, for millions of lines.",
        rich_help_panel=SPEED_PANEL,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="`fp32`, or `int8`, which is faster and nearly the same; torch has it for Transformers.",
        rich_help_panel=SPEED_PANEL,
    ),
]
Shortlist = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="torch, onnx, on a CPU: weigh only what `regard export --to shortlist` has seen the source's words "
        "become, which is faster and nearly the same.",
        rich_help_panel=SPEED_PANEL,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="ray: how many of them; else one a GPU, or one a core.", rich_help_panel=SPEED_PANEL),
]
TranslateChunks = Callable[[Iterable[Sequence[str]]], Iterator[list["Translation"]]]


class EngineOptions(NamedTuple):
    """What was asked for."""

    name: str
    precision: str | None
    workers: int | None
    shortlist: bool = False

    def check(self) -> None:
        """Refuses what no engine has."""
        from regard.translate.backends import base

        if self.name not in (*base.ENGINES, RAY):
            raise UserError(f"--engine is one of {', '.join(base.ENGINES)} and {RAY}, not {self.name!r}")
        if self.workers is not None and self.name != RAY:
            raise UserError(f"--workers is for --engine {RAY}; this process is the only worker of --engine {self.name}")
        if self.precision is not None and self.name == RAY:
            raise UserError(f"--precision is not for --engine {RAY}, whose workers go by {base.TORCH}")
        if self.shortlist and self.name == RAY:
            raise UserError(f"--shortlist is not for --engine {RAY}")
        base.check_engine_options(AUTO if self.name == RAY else self.name, self.precision, self.shortlist)

    @contextmanager
    def open_translator(self, folders: Sequence[Path], translation_options: Options) -> Iterator[TranslateChunks]:
        """What turns lots of lines into lots of translations, in their order."""
        from regard.translate import load

        self.check()
        if self.name == RAY:
            from regard.runs import Run
            from regard.translate.backends.ray import open_worker_pool

            for folder in folders:  # what workers print is not shown
                Run(folder).warn_if_unvalidated()
            with open_worker_pool(folders, translation_options, self.workers) as hired:
                yield hired.translate_chunks
            return
        translator = load(*folders, engine=self.name, precision=self.precision, shortlist=self.shortlist)
        plan = translator.compile_options(translation_options)
        yield lambda lots: (translator.translate_chunk(texts, plan) for texts in lots)


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
    from regard.data.language_pair import LanguageError
    from regard.data.readers import dispatch
    from regard.tasks.translation import warn_if_languages_differ

    for folder in filter(Path.is_dir, files):
        raise UserError(f"{folder} is a folder, but not a run: it has no config.yaml. Name the files in it")
    wanted = resolve_languages(runs, source, target)
    try:
        warn_if_languages_differ(files, *wanted)
        yield from dispatch.iterate_pairs(files, *wanted, allow_unnamed=not (source or target))
    except LanguageError as error:
        direction = _find_direction(runs)
        own = f"; {_describe_direction(runs[0], direction)}" if any(direction) else ""
        other_codes = ". If these are the same languages under other codes, give those as --source and --target"
        raise UserError(f"{error}{own}{'' if source and target else other_codes}") from error


def resolve_languages(runs: Sequence[Path], source: str | None, target: str | None) -> tuple[str | None, str | None]:
    """Return the languages to read pairs in: those of `--source` and `--target`, else those of the runs, else None."""
    from regard.data.language_pair import are_different_languages

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
    from regard.data.language_pair import are_different_languages
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
