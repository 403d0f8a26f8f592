"""`regard translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import document, engine, options
from regard.cli.pipe import ending_with_the_pipe, lots
from regard.cli.runs import resolve_languages, split_runs
from regard.errors import UserError
from regard.strict_json import dumps

if TYPE_CHECKING:
    from regard.search import LengthPenalty
    from regard.translate import Translation

AT_ONCE = 512  # lines that are sorted by length together


def translate(
    runs: Annotated[
        list[Path], typer.Argument(help="One run, or several as an ensemble; then a file, or standard input.")
    ],
    beam: options.Beam = 5,
    n_best: options.NBest = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: text, tokens, score, alignment.")
    ] = False,
    alignments: Annotated[str | None, typer.Option(help="`pharaoh`: add word links, as in `text ||| 0-0 1-2`.")] = None,
    tags: options.Tags = False,
    domain: options.Domain = None,
    length_penalty: options.LengthPenalty = "0.6",
    coverage_penalty: options.CoveragePenalty = 0.0,
    max_length: options.MaxLength = None,
    min_length: options.MinLength = 1,
    no_repeat: options.NoRepeat = None,
    prefix: options.Prefix = "",
    force: options.Force = None,
    forbid: options.Forbid = None,
    glossary: options.Glossary = None,
    replace_unknown: options.ReplaceUnknown = False,
    dictionary: options.Dictionary = None,
    sample: options.Sample = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 1,
    engine_name: engine.Name = engine.AUTO,
    precision: engine.Precision = None,
    shortlist: engine.Shortlist = False,
    workers: engine.Workers = None,
) -> None:
    """Translate a file, or standard input, line by line; a document (.html, .md, .xliff, .po, .docx …) as a whole.

    Example: echo "a sentence" | regard translate runs/mine --json
    """
    from regard.console import say
    from regard.translate import Options

    if alignments not in (None, "pharaoh"):
        raise UserError(f"--alignments is 'pharaoh', not {alignments!r}")
    if alignments and as_json:
        raise UserError("--json has the links already; leave --alignments out")
    if alignments and tags:
        raise UserError(
            "--alignments counts words, and --tags puts tags among them; --json has the words that it counts"
        )
    folders, files = split_runs(runs)
    whole = document.document(files)
    if whole and (as_json or alignments or n_best > 1):
        raise UserError(f"{whole} is translated as a document, for which there is no --json, --alignments or --n-best")
    form = "json" if as_json else "pharaoh" if alignments else "text"
    wishes = Options(
        beam=beam,
        n_best=n_best,
        alignments=form != "text",
        tags=tags or whole is not None,
        domain=domain,
        length_penalty=penalty(length_penalty),
        coverage_penalty=coverage_penalty,
        max_length=max_length,
        min_length=min_length,
        no_repeat=no_repeat,
        prefix=prefix,
        force=force or (),
        forbid=forbid or (),
        glossary=table(glossary),
        replace_unknown=replace_unknown or dictionary is not None,
        dictionary=table(dictionary),
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    at_work = engine.Engine(engine_name, precision, workers, shortlist).at_work
    if whole:
        with ending_with_the_pipe(), at_work(folders, wishes) as translated:
            document.write(whole, translated, resolve_languages(folders[:1], None, None))
        return
    given, lines = lots(files, AT_ONCE), Lines(n_best, form)
    with ending_with_the_pipe(), at_work(folders, wishes) as translated:
        for made in counted(translated(given)):
            lines.write(made)
    if lines.cut:
        say(f"{lines.cut} of {lines.number:,} translations did not come to an end within their length limit")
    for warning in lines.warnings():
        say(f"warning: {warning}")


def penalty(written: str) -> LengthPenalty:
    """A length penalty as it is written."""
    if written == "average":
        return "average"
    try:
        return float(written)
    except ValueError:
        raise UserError(f"--length-penalty is a number or 'average', not {written!r}") from None


def table(path: Path | None) -> dict[str, str]:
    """Entries of a file with two columns."""
    from regard.data.files import lines

    if path is None:
        return {}
    entries = {}
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            left, tab, right = line.partition("\t")
            if not tab or not left.strip() or not right.strip():
                raise UserError(f"{path}:{number}: an entry is a term, a tab and its translation, not {line!r}")
            entries[left.strip()] = right.strip()
    return entries


def counted(lots: Iterator[list[Translation]]) -> Iterator[list[Translation]]:
    """The same lots, with a count of their lines where a person watches and the translations go elsewhere."""
    from regard.console import bar

    if sys.stdout.isatty():
        yield from lots
        return
    with bar() as progress:
        task = progress.add_task("lines", total=None, note="")
        for some in lots:
            yield some
            progress.advance(task, len(some))


class Lines:
    """Translations as they go out, one after the other."""

    def __init__(self, n_best: int, form: str) -> None:
        self.n_best = n_best
        self.form = form
        self.number = 0  # written so far
        self.cut = 0  # of these, not brought to an end
        self.empty = self.sources = 0  # empty translations, of so many sources with text
        self.unaligned = 0  # with tags that no alignment places

    def write(self, translations: Sequence[Translation]) -> None:
        """Some more, at once."""
        for made in translations:
            sys.stdout.write("".join(line + "\n" for line in self.lines(made)))
            self.number += 1
            self.cut += not made.ended
            has_text = bool(made.source.strip())
            self.sources += has_text
            self.empty += has_text and not made.text.strip()
            self.unaligned += made.unaligned_tags > 0
        sys.stdout.flush()

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each kind of translation that a user must know of."""
        from regard.translate import describe_unaligned_tags

        if self.empty:
            which = f"all {self.sources:,}" if self.empty == self.sources else f"{self.empty:,} of {self.sources:,}"
            yield f"{which} translations are empty"
        if self.unaligned:
            yield describe_unaligned_tags(self.unaligned, self.number)

    def lines(self, made: Translation) -> list[str]:
        """The lines for one source; several translations carry its number and their score, as Moses writes them."""
        if self.form == "json":
            shown = described(made)
            if self.n_best > 1:
                shown["alternatives"] = [described(other) for other in made.alternatives]
            return [dumps(shown)]
        return [self.row(translation) for translation in (made, *made.alternatives)]

    def row(self, translation: Translation) -> str:
        """One translation on one line."""
        text = translation.text.replace("\n", " ").replace("\r", " ")  # a line in is a line out
        parts = [str(self.number), text, f"{translation.score:.4f}"] if self.n_best > 1 else [text]
        return " ||| ".join([*parts, links(translation)] if self.form == "pharaoh" else parts)


def links(translation: Translation) -> str:
    """The word links in Pharaoh's form; nothing where a model has no attention."""
    from regard.evaluate import pharaoh

    return pharaoh(translation.alignment.pairs) if translation.alignment else ""


def described(translation: Translation) -> dict[str, Any]:
    """A translation as JSON."""
    alignment = translation.alignment
    return {
        "source": translation.source,
        "text": translation.text,
        "score": round(translation.score, 6),
        "ended": translation.ended,
        "tokens": translation.tokens,
        "alignment": alignment
        and {
            "source": alignment.source,
            "target": alignment.target,
            "pairs": alignment.pairs,
            "soft": [[round(weight, 4) for weight in row] for row in alignment.soft.tolist()],
        },
    }
