"""`regard data back-translate` and `regard data distill`: pairs of which a model wrote one side."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from regard.cli import engine, options
from regard.cli.part import Part
from regard.cli.pipe import STANDARD_INPUT, chunks, ending_with_the_pipe, standard_input
from regard.cli.runs import read_pairs, resolve_languages, split_runs
from regard.cli.translate import AT_ONCE, counted, penalty
from regard.errors import UserError, shown

if TYPE_CHECKING:
    from regard.data.corpus import Pair
    from regard.translate import Options, Translation

T = TypeVar("T")
SPACES = str.maketrans("\t\n\r", "   ")  # a tab in a text would be the end of its column
BLANK, CUT, EMPTY = "blank lines", "translations that did not come to an end", "translations without a word"
LANGUAGES = ("source", "target")  # of a job; those that an earlier version began do not name them
TOLD_EVERY = 20  # lots, where there is no terminal for a bar

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
    engine_name: engine.Name = engine.AUTO,
    precision: engine.Precision = None,
    workers: engine.Workers = None,
) -> None:
    """Make pairs of text in one language: a model of the other direction writes the sources (Sennrich et al. 2016).

    Each line becomes `its translation, tab, the line`: the source is synthetic, the target is real.

    Example: regard data back-translate runs/de-en news.de.gz --out back.tsv --sample
    """
    from regard.data.files import lines
    from regard.translate import Options

    folders, files = split_runs(paths)
    if len(files) > 1:
        raise UserError(f"one file of text at a time, not {len(files)}: {' '.join(map(str, files))}")
    file = files[0] if files else STANDARD_INPUT
    wishes = Options(
        beam=beam,
        alignments=False,
        length_penalty=penalty(length_penalty),
        max_length=max_length,
        no_repeat=no_repeat,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )

    def pairs(line: str, made: Translation, tally: Counter[str]) -> Iterator[str]:
        if not line.strip():
            tally[BLANK] += 1
            return
        for written in usable(made, tally)[:1]:
            yield tsv(written, line)

    made_of = {"command": "back-translate", "text": str(file)}
    job = Job(folders, wishes, made_of, out, resume, engine.Engine(engine_name, precision, workers))
    job.run(standard_input() if file == STANDARD_INPUT else lines(file), str, 1, pairs)


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
    engine_name: engine.Name = engine.AUTO,
    precision: engine.Precision = None,
    workers: engine.Workers = None,
) -> None:
    """Let a teacher write the targets that a smaller student learns from (Kim & Rush 2016).

    Each pair becomes `the source, tab, the teacher's translation`.

    Example: regard data distill runs/big train.en train.de --out distilled.tsv
    """
    from regard.evaluate import nearest as closest
    from regard.translate import Options

    folders, files = split_runs(paths)
    wishes = Options(
        beam=beam,
        n_best=beam if nearest else 1,
        alignments=False,
        length_penalty=penalty(length_penalty),
        max_length=max_length,
        no_repeat=no_repeat,
    )

    def pairs(pair: Pair, made: Translation, tally: Counter[str]) -> Iterator[str]:
        if not pair.source.strip():
            tally[BLANK] += 1
            return
        if texts := usable(made, tally):
            yield tsv(pair.source, texts[closest(texts, pair.target) if nearest else 0])
        if keep_original and pair.target.strip():
            yield tsv(*pair)

    made_of = {"command": "distill", "data": list(map(str, files)), "keep_original": keep_original, "nearest": nearest}
    made_of |= dict(zip(LANGUAGES, resolve_languages(folders, source, target), strict=True))
    job = Job(folders, wishes, made_of, out, resume, engine.Engine(engine_name, precision, workers))
    job.run(read_pairs(folders, files, source, target), lambda pair: pair.source, 0, pairs)


def usable(made: Translation, tally: Counter[str]) -> list[str]:
    """The translations of a text that are worth learning from, the best first; a text that has none is counted."""
    texts = [one.text for one in (made, *made.alternatives) if one.ended and one.text.strip()]
    if not texts:
        tally[EMPTY if made.ended else CUT] += 1
    return texts


def tsv(source: str, target: str) -> str:
    """A pair on one line."""
    return f"{source.translate(SPACES)}\t{target.translate(SPACES)}"


class Job:
    """Everything there is to know of one such command but what it makes of a translation."""

    def __init__(
        self,
        folders: Sequence[Path],
        wishes: Options,
        made_of: dict[str, Any],
        out: Path | None,
        resume: bool,
        translating: engine.Engine,
    ) -> None:
        translating.check()
        if out is None and resume:
            raise UserError("--resume needs --out: which file is to go on?")
        if out is not None and out.suffix != ".tsv":
            raise UserError(f"--out is a .tsv file, which `regard train` can read, not {out}")
        self.folders = folders
        self.wishes = wishes
        self.made_of = made_of
        self.out = out
        self.resume = resume
        self.translating = translating

    def run(
        self,
        items: Iterator[T],
        source: Callable[[T], str],
        column: int,
        pairs: Callable[[T, Translation, Counter[str]], Iterator[str]],
    ) -> None:
        """Translates the source of each item, and writes the pairs that are made of it, the source in `column`."""
        from regard.console import say

        with self.opened() as part:
            tally = part.tally if part else Counter[str]()
            self.skip(map(source, items), column, part)
            try:
                with (
                    ending_with_the_pipe(),
                    self.translating.at_work(self.folders, self.wishes) as translated,
                ):
                    for some, made in together(items, source, translated):
                        grown = tally.copy()  # counts when it is written
                        rows = [row for item, one in zip(some, made, strict=True) for row in pairs(item, one, grown)]
                        grown.update(lines=len(some), pairs=len(rows))
                        write(rows, grown, part)
                        tally = grown
                        tell(tally)
            except KeyboardInterrupt:
                go_on = "; go on by the same command with --resume" if part and tally["lines"] else ""
                say(f"stopped after line {tally['lines']:,}{go_on}")
                raise typer.Exit(130) from None
            if part:
                part.finish()
        say(outcome(tally))
        if not tally["pairs"]:
            raise UserError("no pair came of it; is the model trained, and the text what it translates from?")

    def opened(self) -> Part | nullcontext[None]:
        """The file to write, new or where it was left; None for standard output."""
        if self.out is None:
            return nullcontext(None)
        part = Part(self.out, self.made_of | {"models": self.models(), "options": asdict(self.wishes)})
        return part.resume(optional=LANGUAGES) if self.resume else part.begin()

    def models(self) -> list[str]:
        """Which checkpoints translate: what goes on does so with the same ones."""
        from regard.runs import Run

        runs = [Run(folder.resolve()) for folder in self.folders]
        return [str(run.checkpoint_folder(run.best())) for run in runs]

    def skip(self, sources: Iterator[str], column: int, part: Part | None) -> None:
        """Pass over the sources that are done, and check that the pairs written so far have them in `column`."""
        if part is None:
            return
        passed, lines, rows = 0, part.tally["lines"], part.read_rows()
        row = next(rows, None)
        for source in islice(sources, lines):
            passed += 1
            while row is not None and row.split("\t")[column : column + 1] == [source.translate(SPACES)]:
                row = next(rows, None)
        if passed < lines:
            raise UserError(f"{self.out} has got to line {lines:,}, but the input has only {passed:,} lines")
        if row is not None:
            raise UserError(
                f"{self.out} was begun with other text than is read now, or in the other direction: {shown(row)} is "
                f"made of none of its first {lines:,} lines; remove {part.path} and {part.note} to begin anew"
            )


def together(
    items: Iterator[T], source: Callable[[T], str], translated: engine.Translate
) -> Iterator[tuple[list[T], list[Translation]]]:
    """Lots of items with their translations; an engine may have read some lots more than it has given back."""
    under_way: deque[list[T]] = deque()

    def texts() -> Iterator[list[str]]:
        for some in chunks(items, AT_ONCE):
            under_way.append(some)
            yield [source(item) for item in some]

    for made in counted(translated(texts())):
        yield under_way.popleft(), made


def write(rows: list[str], tally: Counter[str], part: Part | None) -> None:
    """Some more pairs."""
    if part:
        part.write(rows, tally)
        return
    sys.stdout.write("".join(row + "\n" for row in rows))
    sys.stdout.flush()


def tell(tally: Counter[str]) -> None:
    """A line now and then for whoever reads a log."""
    from regard.console import is_terminal, say

    if not is_terminal() and tally["lines"] % (TOLD_EVERY * AT_ONCE) == 0:
        say(f"line {tally['lines']:,}, {tally['pairs']:,} pairs")


def outcome(tally: Counter[str]) -> str:
    """What came of it all."""
    left_out = ", ".join(f"{tally[reason]:,} {reason}" for reason in (BLANK, CUT, EMPTY) if tally[reason])
    return f"{tally['pairs']:,} pairs of {tally['lines']:,} lines" + (f"; left out: {left_out}" if left_out else "")
