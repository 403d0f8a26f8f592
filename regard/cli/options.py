"""Command-line options that several commands share, and the runs and sentence pairs that arguments name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from typer import Argument, Option

from regard.config import parse_settings
from regard.console import apply_verbosity
from regard.data.languages import LanguageError, are_different_languages
from regard.data.readers import dispatch
from regard.data.readers.text import Pair, iterate_lines
from regard.errors import UserError
from regard.paths import read_package_yaml
from regard.recipes.recipe import EvaluationSettings
from regard.runs import Run

if TYPE_CHECKING:
    import torch

    from regard.translate import Options, Translation

OPTIONS: dict[str, dict[str, dict[str, Any]]] = read_package_yaml("regard.cli", "options.yaml")
ENVIRONMENT_PREFIXES = {"serve": "REGARD_SERVE_"}  # commands with an environment variable for each option


def describe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make arguments and options of a command's parameters, with help texts and limits of `options.yaml`.

    A parameter that is a dataclass is replaced by an option for each of its fields, `Annotated[Class, "a", "b"]` by
    options for these fields only. A collection is a repeatable option, and given to the dataclass as a list.

    In `options.yaml`, `short` is a short option, and `former` an old name that is still accepted but not shown. Every
    command gets the options under `output`.
    """
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[Parameter] = []
    former: dict[str, str] = {}  # parameters of old names, and those that they stand for
    for parameter in signature(command, eval_str=True).parameters.values():
        is_annotated = get_origin(parameter.annotation) is Annotated
        cls, *names = get_args(parameter.annotation) if is_annotated else [parameter.annotation]
        if not is_dataclass(cls):
            _append_described(parameters, former, parameter, command.__name__)
            continue
        hints = get_type_hints(cls)
        chosen = [field for field in fields(cls) if not names or field.name in names]
        groups[parameter.name] = cls, [field.name for field in chosen]
        for name, default in ((field.name, field.default) for field in chosen):
            option = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            _append_described(parameters, former, option, command.__name__)
    for name in OPTIONS["output"]:
        option = Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=bool)
        _append_described(parameters, former, option, "output")

    @wraps(command)
    def replace_values(*arguments: Any, **values: Any) -> None:
        for old_name, name in former.items():
            if (value := values.pop(old_name, None)) is not None:
                values[name] = value
        for name, (cls, options) in groups.items():
            given = {option: values.pop(option, None) for option in options}
            values[name] = cls(**{option: value for option, value in given.items() if value is not None})
        command(*arguments, **values)

    run_command = apply_verbosity(replace_values if groups or former else command)
    run_command.__dict__["__signature__"] = Signature(sorted(parameters, key=lambda parameter: parameter.kind))
    return run_command


def _append_described(parameters: list[Parameter], former: dict[str, str], parameter: Parameter, command: str) -> None:
    """Append the parameter with Typer's description of an option or an argument, and a hidden one of its old names."""
    name, value_type, default = parameter.name, parameter.annotation, parameter.default
    settings = {**(OPTIONS.get(command, {}).get(name) or OPTIONS["common"][name])}
    is_argument, short, old_flags = (settings.pop(key, None) for key in ("argument", "short", "former"))
    flags = settings.pop("flags", [] if is_argument else [f"--{name.replace('_', '-')}"])  # and no `--no-…`
    flags = [*flags, short] if short else flags
    info = (Argument if is_argument else Option)(*flags, rich_help_panel=settings.pop("panel", None), **settings)
    if command in ENVIRONMENT_PREFIXES:
        option_name = flags[0].partition("/")[0].lstrip("-").replace("-", "_") if flags else name
        variables = [ENVIRONMENT_PREFIXES[command] + option_name.upper(), info.envvar]
        info.envvar, info.show_envvar = list(filter(None, variables)), False
    if default is MISSING or isinstance(default, tuple):  # a collection
        default, value_type = None, list[str] | None
    parameters.append(parameter.replace(default=default, annotation=Annotated[value_type, info]))
    if old_flags:
        hidden = Option(*old_flags, hidden=True, help=f"Old name of {flags[0]}.")
        old_name = f"former_{name}"
        former[old_name] = name
        parameters.append(
            Parameter(old_name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[value_type | None, hidden])
        )


@dataclass(frozen=True, kw_only=True)
class SearchArguments:
    """Options of `regard.translate.Options` as a command line spells them."""

    length_penalty: str = "0.6"
    coverage_penalty: float = 0.0
    max_length: int | None = None
    min_length: int = 1
    no_repeat: int | None = None
    prefix: str = ""
    force: Sequence[str] = ()
    forbid: Sequence[str] = ()
    glossary: Path | None = None
    replace_unknown: bool = False
    dictionary: Path | None = None
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 1

    def parse(self, **other_options: Any) -> Options:
        """Return the options for the translator, together with others; read the glossary and the dictionary."""
        from regard.translate import Options

        length_penalty: float | str = self.length_penalty
        if length_penalty != "average":
            try:
                length_penalty = float(length_penalty)
            except ValueError:
                raise UserError(f"--length-penalty must be a number or 'average', not {length_penalty!r}") from None
        parsed = {
            "length_penalty": length_penalty,
            "glossary": read_two_column_file(self.glossary),
            "dictionary": read_two_column_file(self.dictionary),
            "replace_unknown": self.replace_unknown or self.dictionary is not None,
        }
        return Options(**vars(self) | parsed | other_options)


def read_two_column_file(path: Path | None) -> dict[str, str]:
    """Read a glossary or dictionary: term, tab, translation, one per line."""
    if path is None:
        return {}
    entries = {}
    for number, line in enumerate(iterate_lines(path), 1):
        if line.strip():
            left, tab, right = line.partition("\t")
            if not tab or not left.strip() or not right.strip():
                raise UserError(f"{path}:{number}: a line must be a term, a tab and its translation, not {line!r}")
            entries[left.strip()] = right.strip()
    return entries


AUTO: Final = "auto"
RAY = "ray"
InferenceDevice = Literal["auto", "cuda", "cpu"]


def choose_device_of_option(device: InferenceDevice) -> torch.device | None:
    """Return the device of `--device`, None for `auto`; raise UserError if this machine does not have it."""
    if device == AUTO:
        return None
    from regard.training.distributed import choose_device  # imports what training needs

    return choose_device(device, "--device ")


TranslateChunks = Callable[[Iterable[Sequence[str]]], Iterator[list["Translation"]]]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that choose the decoding backend."""

    engine: str = AUTO
    precision: str | None = None
    shortlist: bool = False
    workers: int | None = None
    device: InferenceDevice = AUTO

    def check(self) -> None:
        """Raise UserError for engine options that do not exist or cannot be combined."""
        from regard.translate import backends

        if self.engine not in (*backends.ENGINES, RAY):
            raise UserError(f"--engine must be one of {', '.join(backends.ENGINES)} and {RAY}, not {self.engine!r}")
        if self.workers is not None and self.engine != RAY:
            raise UserError(f"--jobs is for --engine {RAY}; --engine {self.engine} has no workers")
        if self.device != AUTO and self.engine == RAY:
            raise UserError(f"--device is not for --engine {RAY}, whose workers use the GPUs of the cluster")
        if self.precision is not None and self.engine == RAY:
            raise UserError(f"--precision is not for --engine {RAY}, whose workers use {backends.TORCH}")
        if self.shortlist and self.engine == RAY:
            raise UserError(f"--shortlist is not for --engine {RAY}")
        backends.check_engine_options(AUTO if self.engine == RAY else self.engine, self.precision, self.shortlist)

    @contextmanager
    def open_translator(self, folders: Sequence[Path], translation_options: Options) -> Iterator[TranslateChunks]:
        """Yield a function that maps chunks of lines to chunks of translations, in order."""
        from regard.translate import load

        self.check()
        if self.engine == RAY:
            from regard.translate.backends.ray import open_worker_pool

            for folder in folders:  # the output of workers is not shown
                Run(folder).warn_if_unvalidated()
            with open_worker_pool(folders, translation_options, self.workers) as pool:
                yield pool.translate_chunks
            return
        translator = load(
            *folders,
            device=choose_device_of_option(self.device),
            engine=self.engine,
            precision=self.precision,
            shortlist=self.shortlist,
        )
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
    direction = _find_direction(runs)
    for option, given, known in zip(("--source", "--target"), (source, target), direction, strict=True):
        if are_different_languages(given, known):
            raise UserError(f"{option} {given} does not fit: {_describe_direction(runs[0], direction)}")
    return source or direction[0], target or direction[1]


def resolve_tokenizer(
    runs: Sequence[Path], requested: str | None, references: Sequence[str], target: str | None
) -> str:
    """Return the tokenizer for BLEU: that of `--tokenize`, else that of the runs, else by the target language."""
    from regard.evaluate.translation_metrics import choose_tokenizer

    sections = [Run(run).read_config().get("evaluation", {}) for run in runs]
    recorded = [parse_settings(EvaluationSettings, section, "evaluation").tokenize for section in sections]
    names = [requested] if requested else recorded or ["auto"]
    used = {choose_tokenizer(references, target, name) for name in names}
    if len(used) > 1:
        raise UserError(f"the runs use BLEU with the tokenizers {' and '.join(sorted(used))}: choose one by --tokenize")
    return used.pop()


def load_pairs(runs: Sequence[Path], files: Sequence[Path], source: str | None, target: str | None) -> list[Pair]:
    """Return what `read_pairs` yields; no pair at all is a UserError."""
    if not files:
        raise UserError("no sentence pairs: name, after the run, one file that holds pairs or two text files")
    pairs = list(read_pairs(runs, files, source, target))
    if not any(pair.source.strip() and pair.target.strip() for pair in pairs):
        raise dispatch.make_empty_corpus_error(files)
    return pairs


def read_languages(run: Path) -> tuple[str | None, str | None]:
    """Return the source and the target language of a run, None where its config does not name it."""
    data = Run(run).read_config()["data"]
    return data.get("source"), data.get("target")


def _find_direction(runs: Sequence[Path]) -> tuple[str | None, str | None]:
    """Return the languages of the runs; raise UserError if they differ."""
    first = read_languages(runs[0])
    for run in runs[1:]:
        other = read_languages(run)
        if any(map(are_different_languages, first, other)):
            raise UserError(
                f"{runs[0]} translates from {first[0]} into {first[1]}, {run} from {other[0]} into {other[1]}: one "
                f"test set does not fit both"
            )
    return first


def _describe_direction(run: Path, direction: tuple[str | None, str | None]) -> str:
    return f"{run} translates from {direction[0] or '?'} into {direction[1] or '?'}"
