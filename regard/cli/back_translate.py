"""`regard data back-translate` and `regard data distill`: write training pairs that a model translates, resumably."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import options
from regard.cli.options import EngineOptions, SearchArguments, TranslateChunks, describe_options, split_runs
from regard.cli.runs import flatten_config
from regard.cli.stdio import exit_on_broken_pipe, iterate_chunks, iterate_stdin_lines
from regard.cli.translate import LINES_PER_CHUNK, find_document, show_line_progress
from regard.console import is_terminal, log_message
from regard.data.readers.text import STANDARD_INPUT, Pair, iterate_lines
from regard.errors import UserError, short_repr
from regard.paths import lock_file, read_json_object, write_atomically
from regard.runs import Run

if TYPE_CHECKING:
    from regard.translate import Options, Translation


class ResumableFile:
    """An output file that is written under a temporary name and renamed when it is complete.

    After each chunk, a state file records the number of valid bytes and the job; bytes after that are of a chunk that
    was interrupted.
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
        if not self.counts["lines"]:  # nothing to resume yet
            self.partial_path.unlink(missing_ok=True)
            self.state_path.unlink(missing_ok=True)

    def start_new(self) -> ResumableFile:
        """Start a new file; raise UserError if it exists or was started before."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.exists():
            raise UserError(f"{self.out} already exists; choose another --out, or move it away")
        if self.state_path.exists() and (lines := self._read_state()["tally"].get("lines", 0)):
            raise UserError(
                f"{self.out} was started before and has reached line {lines:,}: continue with --resume, or remove "
                f"{self.partial_path} and {self.state_path} to start again"
            )
        self._open(0, "wait for it, or choose another --out")
        self.write([], self.counts)
        return self

    def resume(self) -> ResumableFile:
        """Continue an interrupted file; raise UserError if the job has changed."""
        if not self.state_path.exists():
            raise UserError(f"nothing to resume: {self.out} was not started, or it is finished; leave out --resume")
        state = self._read_state()
        unrecorded = set(LANGUAGE_KEYS) - set(state["job"])  # by earlier versions
        before = flatten_config(state["job"])
        now = flatten_config({key: value for key, value in self.job.items() if key not in unrecorded})
        changed = [key for key in {**now, **before} if before.get(key) != now.get(key)]
        if changed:
            differences = "; ".join(f"{key} was {before.get(key)!r}, not {now.get(key)!r}" for key in changed)
            raise UserError(f"{self.out} can be resumed only with the same options and data: {differences}")
        if not self.partial_path.exists() or self.partial_path.stat().st_size < state["bytes"]:
            raise UserError(f"{self.partial_path} is shorter than {self.state_path} says; remove both to start again")
        self._open(state["bytes"], "wait for it")
        self.counts = Counter(state["tally"])
        return self

    def _open(self, size: int, advice: str) -> None:
        """Open the partial file for appending, and keep its first `size` bytes."""
        self.file = self.partial_path.open("a+b")
        lock_file(self.file, f"another process is writing {self.out}; {advice}")
        self.file.truncate(size)
        self.file.seek(size)

    def iterate_rows(self) -> Iterator[str]:
        """Yield the lines that were written before."""
        self.file.seek(0)  # Windows refuses to open a locked file again
        for line in self.file:
            yield line.decode(errors="replace").removesuffix("\n")

    def _read_state(self) -> dict[str, Any]:
        match read_json_object(self.state_path):
            case {"job": dict(), "bytes": int(), "tally": dict()} as state:
                return state
        raise UserError(f"{self.state_path} cannot be read; remove it and {self.partial_path} to start again")

    def write(self, lines: Iterable[str], counts: Counter[str]) -> None:
        """Write a chunk and sync it to disk, then update the state file."""
        self.file.write("".join(line + "\n" for line in lines).encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        state = {"job": self.job, "bytes": self.file.tell(), "tally": counts}
        write_atomically(self.state_path, json.dumps(state, ensure_ascii=False))
        self.counts = counts

    def finish(self) -> None:
        """Close the complete file, as Windows demands, and rename it to its final name."""
        self.file.close()
        self.partial_path.replace(self.out)
        self.state_path.unlink()


TSV_WHITESPACE = str.maketrans("\t\n\r", "   ")  # a tab in a text would end its column
BLANK_LINES = "blank lines"
TRUNCATED_TRANSLATIONS = "translations that did not come to an end"
EMPTY_TRANSLATIONS = "translations without a word"
LANGUAGE_KEYS = ("source", "target")  # of a job
CHUNKS_PER_LOG_LINE = 20  # without a terminal for a progress bar

PairMaker = Callable[["Pair", list[str]], Iterable[tuple[str, str]]]  # pair, translations of its source -> new pairs


def _write_translated_pairs(
    pairs: Iterator[Pair],
    make_pairs: PairMaker,
    *,
    source_column: int,
    folders: Sequence[Path],
    translation_options: Options,
    engine_options: EngineOptions,
    provenance: dict[str, Any],
    out: Path | None,
    resume: bool,
) -> None:
    """Translate the source of each pair and write new pairs, which have that source in `source_column`.

    `provenance` is recorded in the state file: a job is resumed only with the same values.
    """
    engine_options.check()
    if out is None and resume:
        raise UserError("--resume needs --out, the file to resume")
    if out is not None and out.suffix != ".tsv":
        raise UserError(f"--out must be a .tsv file, which `regard train` can read, not {out}")
    with _open_output(out, resume, folders, translation_options, provenance) as output:
        counts = output.counts if output else Counter[str]()
        if output:
            _skip_finished((pair.source for pair in pairs), source_column, output)
        try:
            with (
                exit_on_broken_pipe(),
                engine_options.open_translator(folders, translation_options) as translate_chunks,
            ):
                for chunk, translations in _iterate_translated_chunks(pairs, translate_chunks):
                    new_counts = counts.copy()  # replaces the counts when the rows are written
                    rows = _make_rows(chunk, translations, make_pairs, new_counts)
                    new_counts.update(lines=len(chunk), pairs=len(rows))
                    if output:
                        output.write(rows, new_counts)
                    else:
                        sys.stdout.write("".join(row + "\n" for row in rows))
                        sys.stdout.flush()
                    counts = new_counts
                    # Without a terminal for a progress bar.
                    if not is_terminal() and counts["lines"] % (CHUNKS_PER_LOG_LINE * LINES_PER_CHUNK) == 0:
                        log_message(f"line {counts['lines']:,}, {counts['pairs']:,} pairs")
        except KeyboardInterrupt:
            advice = "; to resume, run the same command with --resume" if output and counts["lines"] else ""
            log_message(f"stopped after line {counts['lines']:,}{advice}")
            raise typer.Exit(130) from None
        if output:
            output.finish()
    reasons = (BLANK_LINES, TRUNCATED_TRANSLATIONS, EMPTY_TRANSLATIONS)
    skipped = ", ".join(f"{counts[reason]:,} {reason}" for reason in reasons if counts[reason])
    ending = f"; skipped: {skipped}" if skipped else ""
    log_message(f"{counts['pairs']:,} pairs of {counts['lines']:,} lines{ending}")
    if not counts["pairs"]:
        raise UserError("no pairs were written; check that the model is trained and the text is in its source language")


def _open_output(
    out: Path | None, resume: bool, folders: Sequence[Path], translation_options: Options, provenance: Mapping[str, Any]
) -> ResumableFile | nullcontext[None]:
    """Open the output file, new or resumed; None for standard output."""
    if out is None:
        return nullcontext(None)
    runs = [Run(folder.resolve()) for folder in folders]
    checkpoints = [str(run.checkpoint_folder(run.find_best_step())) for run in runs]
    output = ResumableFile(out, {**provenance, "models": checkpoints, "options": asdict(translation_options)})
    return output.resume() if resume else output.start_new()


def _skip_finished(sources: Iterator[str], source_column: int, output: ResumableFile) -> None:
    """Skip finished sources, and check that the written pairs have them in `source_column`."""
    num_read, lines, rows = 0, output.counts["lines"], output.iterate_rows()
    row = next(rows, None)
    for source in islice(sources, lines):
        num_read += 1
        column = [source.translate(TSV_WHITESPACE)]
        while row is not None and row.split("\t")[source_column : source_column + 1] == column:
            row = next(rows, None)
    if num_read < lines:
        raise UserError(f"{output.out} has reached line {lines:,}, but the input has only {num_read:,} lines")
    if row is not None:
        raise UserError(
            f"{output.out} was started with other text, or in the other direction: {short_repr(row)} does not come "
            f"from the first {lines:,} lines of the input; remove {output.partial_path} and {output.state_path} to "
            f"start again"
        )


def _iterate_translated_chunks(
    pairs: Iterator[Pair], translate_chunks: TranslateChunks
) -> Iterator[tuple[list[Pair], list[Translation]]]:
    """Yield chunks of pairs with the translations of their sources; an engine may read several chunks ahead."""
    pending: deque[list[Pair]] = deque()

    def iterate_texts() -> Iterator[list[str]]:
        for chunk in iterate_chunks(pairs, LINES_PER_CHUNK):
            pending.append(chunk)
            yield [pair.source for pair in chunk]

    for translations in show_line_progress(translate_chunks(iterate_texts())):
        yield pending.popleft(), translations


def _make_rows(
    chunk: Sequence[Pair], translations: Sequence[Translation], make_pairs: PairMaker, counts: Counter[str]
) -> list[str]:
    """Return the new pairs as lines of TSV; count blank lines, and lines without a complete and non-empty translation.

    `make_pairs` gets the usable translations, the best first.
    """
    rows: list[str] = []
    for pair, translation in zip(chunk, translations, strict=True):
        if not pair.source.strip():
            counts[BLANK_LINES] += 1
            continue
        candidates = (translation, *translation.alternatives)
        texts = [candidate.text for candidate in candidates if candidate.ended and candidate.text.strip()]
        if not texts:
            counts[EMPTY_TRANSLATIONS if translation.ended else TRUNCATED_TRANSLATIONS] += 1
        rows += ["\t".join(side.translate(TSV_WHITESPACE) for side in sides) for sides in make_pairs(pair, texts)]
    return rows


SEARCH_OPTIONS = ("length_penalty", "max_length", "no_repeat")
SAMPLING_OPTIONS = ("sample", "temperature", "top_k", "top_p", "seed")
ENGINE_OPTIONS = ("engine", "precision", "workers", "device")


@describe_options
def back_translate(
    paths: list[Path],
    out: Path | None = None,
    resume: bool = False,
    beam: int = 5,
    *,
    search: Annotated[SearchArguments, *SEARCH_OPTIONS, *SAMPLING_OPTIONS],
    engine_options: Annotated[EngineOptions, *ENGINE_OPTIONS],
) -> None:
    """Create training pairs from monolingual text: a model of the opposite direction writes the sources.

    Back-translation (Sennrich et al. 2016): each line becomes `its translation, tab, the line`. The source is
    synthetic, the target is real.

    Example: regard data back-translate runs/de-en news.de.gz --out back.tsv --sample
    """
    folders, files = split_runs(paths)
    if len(files) > 1:
        raise UserError(f"name one text file, not {len(files)}: {' '.join(map(str, files))}")
    if find_document(files):
        raise UserError(f"{files[0]} is a document; back-translation reads a file with one sentence per line")
    file = files[0] if files else STANDARD_INPUT
    lines = iterate_stdin_lines() if file == STANDARD_INPUT else iterate_lines(file)
    _write_translated_pairs(
        (Pair(line, "") for line in lines),
        lambda pair, texts: [(text, pair.source) for text in texts[:1]],
        source_column=1,
        folders=folders,
        translation_options=search.parse(beam=beam, alignments=False),
        engine_options=engine_options,
        provenance={"command": "back-translate", "text": str(file)},
        out=out,
        resume=resume,
    )


@describe_options
def distill(
    paths: list[Path],
    out: Path | None = None,
    keep_original: bool = False,
    nearest: bool = False,
    resume: bool = False,
    source: str | None = None,
    target: str | None = None,
    beam: int = 5,
    *,
    search: Annotated[SearchArguments, *SEARCH_OPTIONS],
    engine_options: Annotated[EngineOptions, *ENGINE_OPTIONS],
) -> None:
    """Create training pairs for a smaller student: a teacher translates the sources (Kim & Rush 2016).

    Each pair becomes `the source, tab, the teacher's translation`.

    Example: regard data distill runs/big train.en train.de --out distilled.tsv
    """
    from regard.evaluate.translation_metrics import find_nearest_translation

    folders, files = split_runs(paths)

    def make_pairs(pair: Pair, texts: list[str]) -> Iterator[tuple[str, str]]:
        if texts:
            yield pair.source, texts[find_nearest_translation(texts, pair.target, tokenizer) if nearest else 0]
        if keep_original and pair.target.strip():
            yield pair

    languages = dict(zip(LANGUAGE_KEYS, options.resolve_languages(folders, source, target), strict=True))
    tokenizer = options.resolve_tokenizer(folders, None, [], languages["target"]) if nearest else ""
    inputs = {"data": list(map(str, files)), "keep_original": keep_original, "nearest": nearest}
    _write_translated_pairs(
        options.read_pairs(folders, files, source, target),
        make_pairs,
        source_column=0,
        folders=folders,
        translation_options=search.parse(beam=beam, n_best=beam if nearest else 1, alignments=False),
        engine_options=engine_options,
        provenance={"command": "distill", **inputs, **languages},
        out=out,
        resume=resume,
    )
