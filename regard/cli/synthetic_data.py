"""A long file that can be begun today and finished tomorrow."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from regard.cli import options
from regard.cli.options import read_pairs, resolve_languages, split_runs
from regard.cli.stdio import STANDARD_INPUT, exit_on_broken_pipe, iterate_chunks, iterate_stdin_lines
from regard.cli.translate import LINES_PER_CHUNK, find_document, parse_length_penalty, show_line_progress
from regard.errors import UserError, short_repr
from regard.runs.lock import lock_file

if TYPE_CHECKING:
    from regard.data.readers.dispatch import Pair
    from regard.translate import Options, Translation


class ResumableFile:
    """A file that is written beside its place, and renamed when it is whole.

    A note beside it says after each lot how much of it counts, and what it was made of: bytes behind that are those of
    a lot that was cut short.
    """

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        self.out = out
        self.partial_path = out.with_name(f".{out.name}.part")
        self.state_path = out.with_name(f".{out.name}.json")
        self.job = json.loads(json.dumps(job, default=str))
        self.counts: Counter[str] = Counter()
        self.file: IO[bytes]

    def __enter__(self) -> ResumableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if not self.counts["lines"]:  # nothing was made yet that anybody would want to go on with
            self.partial_path.unlink(missing_ok=True)
            self.state_path.unlink(missing_ok=True)

    def start_new(self) -> ResumableFile:
        """A new file, where there is none and none is under way."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.exists():
            raise UserError(f"{self.out} is there already; name another --out, or move it away")
        if self.state_path.exists() and (lines := self._read_state()["tally"].get("lines", 0)):
            raise UserError(
                f"{self.out} was begun before and has got to line {lines:,}: go on with --resume, or remove "
                f"{self.partial_path} and {self.state_path} to begin anew"
            )
        self.file = self.partial_path.open("ab")
        lock_file(self.file, f"another process is writing {self.out}; wait for it, or name another --out")
        self.file.truncate(0)
        self.write([], self.counts)
        return self

    def resume(self, optional_keys: Collection[str] = ()) -> ResumableFile:
        """The file where it was left; by those only who do the same with the same.

        `optional` keys of the job count only if the note has them: earlier versions did not write them.
        """
        if not self.state_path.exists():
            raise UserError(f"nothing to go on with: {self.out} was not begun, or it is finished; leave --resume out")
        noted = self._read_state()
        unknown = set(optional_keys) - set(noted["job"])
        other = _describe_differences(noted["job"], {key: self.job[key] for key in self.job if key not in unknown})
        if other:
            raise UserError(f"{self.out} can go on only as it was begun: {'; '.join(other)}")
        if not self.partial_path.exists() or self.partial_path.stat().st_size < noted["bytes"]:
            raise UserError(f"{self.partial_path} is shorter than {self.state_path} says; remove both to begin anew")
        self.file = self.partial_path.open("r+b")
        lock_file(self.file, f"another process is writing {self.out}; it needs no help")
        self.file.truncate(noted["bytes"])
        self.file.seek(noted["bytes"])
        self.counts = Counter(noted["tally"])
        return self

    def iterate_rows(self) -> Iterator[str]:
        """Yield the lines that were written before."""
        with self.partial_path.open("rb") as file:
            for line in file:
                yield line.decode(errors="replace").removesuffix("\n")

    def _read_state(self) -> dict[str, Any]:
        """What the note says."""
        try:
            noted = json.loads(self.state_path.read_bytes())
            return {"job": dict(noted["job"]), "bytes": int(noted["bytes"]), "tally": dict(noted["tally"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.state_path} cannot be read; remove it and {self.partial_path} to begin anew"
            ) from error

    def write(self, lines: Iterable[str], counts: Counter[str]) -> None:
        """One more lot, on the disk before the note says so, and what has been counted with it."""
        self.file.write("".join(line + "\n" for line in lines).encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        beside = self.state_path.with_name(f"{self.state_path.name}.part")
        document = {"job": self.job, "bytes": self.file.tell(), "tally": counts}
        beside.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        beside.replace(self.state_path)
        self.counts = counts

    def finish(self) -> None:
        """All is written: the file takes its name."""
        self.partial_path.replace(self.out)
        self.state_path.unlink()


def _describe_differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What is not the same, key by key, also inside of mappings."""
    found = []
    for key in {**after, **before}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _describe_differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key} was {old!r}, not {new!r}")
    return found


T = TypeVar("T")
TSV_WHITESPACE = str.maketrans("\t\n\r", "   ")  # a tab in a text would be the end of its column
BLANK_LINES, TRUNCATED_TRANSLATIONS, EMPTY_TRANSLATIONS = (
    "blank lines",
    "translations that did not come to an end",
    "translations without a word",
)
LANGUAGE_KEYS = ("source", "target")  # of a job; those that an earlier version began do not name them
CHUNKS_PER_LOG_LINE = 20  # lots, where there is no terminal for a bar

Out = Annotated[
    Path | None, typer.Option(help="The .tsv to write, beside and renamed when whole; else standard output.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where the same command was stopped.")]


def back_translate(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A run into the source language, or several; then text in the target language, or `-`."),
    ],
    out: Out = None,
    resume: Resume = False,
    beam: options.Beam = 5,
    length_penalty: options.LengthPenalty = "0.6",
    max_length: options.MaxLength = None,
    no_repeat: options.NoRepeat = None,
    sample: options.Sample = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 1,
    engine_name: options.EngineName = options.AUTO,
    precision: options.Precision = None,
    workers: options.Workers = None,
) -> None:
    """Make pairs of text in one language: a model of the other direction writes the sources (Sennrich et al. 2016).

    Each line becomes `its translation, tab, the line`: the source is synthetic, the target is real.

    Example: regard data back-translate runs/de-en news.de.gz --out back.tsv --sample
    """
    from regard.data.readers.text_io import iterate_lines
    from regard.translate import Options

    folders, files = split_runs(paths)
    if len(files) > 1:
        raise UserError(f"one file of text at a time, not {len(files)}: {' '.join(map(str, files))}")
    if find_document(files):
        raise UserError(f"{files[0]} is a document; back-translation reads a file with one sentence a line")
    file = files[0] if files else STANDARD_INPUT
    wishes = Options(
        beam=beam,
        alignments=False,
        length_penalty=parse_length_penalty(length_penalty),
        max_length=max_length,
        no_repeat=no_repeat,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )

    def make_rows(line: str, made: Translation, tally: Counter[str]) -> Iterator[str]:
        if not line.strip():
            tally[BLANK_LINES] += 1
            return
        for written in _find_usable_texts(made, tally)[:1]:
            yield _format_tsv_row(written, line)

    made_of = {"command": "back-translate", "text": str(file)}
    job = SyntheticDataJob(
        folders, wishes, made_of, out, resume, options.EngineOptions(engine_name, precision, workers)
    )
    job.run(iterate_stdin_lines() if file == STANDARD_INPUT else iterate_lines(file), str, 1, make_rows)


def distill(
    paths: Annotated[list[Path], typer.Argument(help="The teacher: a run, or several; then the training data.")],
    out: Out = None,
    keep_original: Annotated[
        bool, typer.Option("--keep-original", help="Write the pair itself, too, behind the teacher's.")
    ] = False,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="Of the beam, the translation nearest to the reference (sentence BLEU).")
    ] = False,
    resume: Resume = False,
    source: options.Source = None,
    target: options.Target = None,
    beam: options.Beam = 5,
    length_penalty: options.LengthPenalty = "0.6",
    max_length: options.MaxLength = None,
    no_repeat: options.NoRepeat = None,
    engine_name: options.EngineName = options.AUTO,
    precision: options.Precision = None,
    workers: options.Workers = None,
) -> None:
    """Let a teacher write the targets that a smaller student learns from (Kim & Rush 2016).

    Each pair becomes `the source, tab, the teacher's translation`.

    Example: regard data distill runs/big train.en train.de --out distilled.tsv
    """
    from regard.evaluate import find_nearest_translation as closest
    from regard.translate import Options

    folders, files = split_runs(paths)
    wishes = Options(
        beam=beam,
        n_best=beam if nearest else 1,
        alignments=False,
        length_penalty=parse_length_penalty(length_penalty),
        max_length=max_length,
        no_repeat=no_repeat,
    )

    def make_rows(pair: Pair, made: Translation, tally: Counter[str]) -> Iterator[str]:
        if not pair.source.strip():
            tally[BLANK_LINES] += 1
            return
        if texts := _find_usable_texts(made, tally):
            yield _format_tsv_row(pair.source, texts[closest(texts, pair.target) if nearest else 0])
        if keep_original and pair.target.strip():
            yield _format_tsv_row(*pair)

    made_of = {"command": "distill", "data": list(map(str, files)), "keep_original": keep_original, "nearest": nearest}
    made_of |= dict(zip(LANGUAGE_KEYS, resolve_languages(folders, source, target), strict=True))
    job = SyntheticDataJob(
        folders, wishes, made_of, out, resume, options.EngineOptions(engine_name, precision, workers)
    )
    job.run(read_pairs(folders, files, source, target), lambda pair: pair.source, 0, make_rows)


def _find_usable_texts(translation: Translation, counts: Counter[str]) -> list[str]:
    """The translations of a text that are worth learning from, the best first; a text that has none is counted."""
    texts = [one.text for one in (translation, *translation.alternatives) if one.ended and one.text.strip()]
    if not texts:
        counts[EMPTY_TRANSLATIONS if translation.ended else TRUNCATED_TRANSLATIONS] += 1
    return texts


def _format_tsv_row(source: str, target: str) -> str:
    """A pair on one line."""
    return f"{source.translate(TSV_WHITESPACE)}\t{target.translate(TSV_WHITESPACE)}"


class SyntheticDataJob:
    """Everything there is to know of one such command but what it makes of a translation."""

    def __init__(
        self,
        folders: Sequence[Path],
        translation_options: Options,
        provenance: dict[str, Any],
        out: Path | None,
        resume: bool,
        engine_options: options.EngineOptions,
    ) -> None:
        engine_options.check()
        if out is None and resume:
            raise UserError("--resume needs --out: which file is to go on?")
        if out is not None and out.suffix != ".tsv":
            raise UserError(f"--out is a .tsv file, which `regard train` can read, not {out}")
        self.folders = folders
        self.translation_options = translation_options
        self.provenance = provenance
        self.out = out
        self.resume = resume
        self.engine_options = engine_options

    def run(
        self,
        items: Iterator[T],
        get_source: Callable[[T], str],
        source_column: int,
        make_rows: Callable[[T, Translation, Counter[str]], Iterator[str]],
    ) -> None:
        """Translates the source of each item, and writes the pairs that are made of it, the source in `column`."""
        from regard.console import log_message

        with self._open_output() as part:
            tally = part.counts if part else Counter[str]()
            self._skip_finished(map(get_source, items), source_column, part)
            try:
                with (
                    exit_on_broken_pipe(),
                    self.engine_options.open_translator(self.folders, self.translation_options) as translated,
                ):
                    for some, made in _iterate_translated_chunks(items, get_source, translated):
                        grown = tally.copy()  # counts when it is written
                        rows = [
                            row for item, one in zip(some, made, strict=True) for row in make_rows(item, one, grown)
                        ]
                        grown.update(lines=len(some), pairs=len(rows))
                        _write_rows(rows, grown, part)
                        tally = grown
                        _log_progress(tally)
            except KeyboardInterrupt:
                go_on = "; go on by the same command with --resume" if part and tally["lines"] else ""
                log_message(f"stopped after line {tally['lines']:,}{go_on}")
                raise typer.Exit(130) from None
            if part:
                part.finish()
        log_message(_format_summary(tally))
        if not tally["pairs"]:
            raise UserError("no pair came of it; is the model trained, and the text what it translates from?")

    def _open_output(self) -> ResumableFile | nullcontext[None]:
        """The file to write, new or where it was left; None for standard output."""
        if self.out is None:
            return nullcontext(None)
        part = ResumableFile(
            self.out,
            self.provenance | {"models": self._find_checkpoints(), "options": asdict(self.translation_options)},
        )
        return part.resume(optional_keys=LANGUAGE_KEYS) if self.resume else part.start_new()

    def _find_checkpoints(self) -> list[str]:
        """Which checkpoints translate: what goes on does so with the same ones."""
        from regard.runs import Run

        runs = [Run(folder.resolve()) for folder in self.folders]
        return [str(run.checkpoint_folder(run.find_best_step())) for run in runs]

    def _skip_finished(self, sources: Iterator[str], source_column: int, output: ResumableFile | None) -> None:
        """Pass over the sources that are done, and check that the pairs written so far have them in `column`."""
        if output is None:
            return
        passed, lines, rows = 0, output.counts["lines"], output.iterate_rows()
        row = next(rows, None)
        for source in islice(sources, lines):
            passed += 1
            while row is not None and row.split("\t")[source_column : source_column + 1] == [
                source.translate(TSV_WHITESPACE)
            ]:
                row = next(rows, None)
        if passed < lines:
            raise UserError(f"{self.out} has got to line {lines:,}, but the input has only {passed:,} lines")
        if row is not None:
            raise UserError(
                f"{self.out} was begun with other text than is read now, or in the other direction: {short_repr(row)} is "
                f"made of none of its first {lines:,} lines; remove {output.partial_path} and {output.state_path} to begin anew"
            )


def _iterate_translated_chunks(
    items: Iterator[T], get_source: Callable[[T], str], translate_chunks: options.TranslateChunks
) -> Iterator[tuple[list[T], list[Translation]]]:
    """Lots of items with their translations; an engine may have read some lots more than it has given back."""
    under_way: deque[list[T]] = deque()

    def iterate_texts() -> Iterator[list[str]]:
        for some in iterate_chunks(items, LINES_PER_CHUNK):
            under_way.append(some)
            yield [get_source(item) for item in some]

    for made in show_line_progress(translate_chunks(iterate_texts())):
        yield under_way.popleft(), made


def _write_rows(rows: list[str], counts: Counter[str], output: ResumableFile | None) -> None:
    """Some more pairs."""
    if output:
        output.write(rows, counts)
        return
    sys.stdout.write("".join(row + "\n" for row in rows))
    sys.stdout.flush()


def _log_progress(counts: Counter[str]) -> None:
    """A line now and then for whoever reads a log."""
    from regard.console import is_terminal, log_message

    if not is_terminal() and counts["lines"] % (CHUNKS_PER_LOG_LINE * LINES_PER_CHUNK) == 0:
        log_message(f"line {counts['lines']:,}, {counts['pairs']:,} pairs")


def _format_summary(counts: Counter[str]) -> str:
    """What came of it all."""
    left_out = ", ".join(
        f"{counts[reason]:,} {reason}"
        for reason in (BLANK_LINES, TRUNCATED_TRANSLATIONS, EMPTY_TRANSLATIONS)
        if counts[reason]
    )
    return f"{counts['pairs']:,} pairs of {counts['lines']:,} lines" + (f"; left out: {left_out}" if left_out else "")
