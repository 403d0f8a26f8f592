"""`regard translate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.pipe import end_with_the_pipe, lots
from regard.cli.runs import split_runs
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.search import LengthPenalty
    from regard.translate import Translation

AT_ONCE = 512  # lines that are sorted by length together

SEARCH, WORDS, DRAW = "Search", "Words", "Sampling"


def translate(
    runs: Annotated[
        list[Path], typer.Argument(help="One run, or several as an ensemble; then a file, or standard input.")
    ],
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses that are kept open; 1 is greedy.")] = 5,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="Translations a line, the best first.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: text, tokens, score, alignment.")
    ] = False,
    alignments: Annotated[str | None, typer.Option(help="`pharaoh`: add word links, as in `text ||| 0-0 1-2`.")] = None,
    tags: Annotated[bool, typer.Option("--tags", help="Carry inline tags and placeholders over.")] = False,
    length_penalty: Annotated[
        str,
        typer.Option(
            help="A number (0: short ones win, 1: long ones do better), or `average`.", rich_help_panel=SEARCH
        ),
    ] = "0.6",
    coverage_penalty: Annotated[
        float, typer.Option(help="How much a source word counts that nothing looked at.", rich_help_panel=SEARCH)
    ] = 0.0,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a translation at most.", rich_help_panel=SEARCH)
    ] = None,
    min_length: Annotated[
        int, typer.Option(min=1, help="Tokens of a translation at least.", rich_help_panel=SEARCH)
    ] = 1,
    no_repeat: Annotated[
        int | None, typer.Option(min=1, help="So many tokens in a row never come twice.", rich_help_panel=SEARCH)
    ] = None,
    prefix: Annotated[str, typer.Option(help="What each translation begins with.", rich_help_panel=WORDS)] = "",
    force: Annotated[
        list[str] | None,
        typer.Option(help="A word or phrase that each translation holds; may be given again.", rich_help_panel=WORDS),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(help="A word or phrase that none holds; may be given again.", rich_help_panel=WORDS),
    ] = None,
    glossary: Annotated[
        Path | None, typer.Option(help="Terms, tab, how they must be translated, one a line.", rich_help_panel=WORDS)
    ] = None,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Put source words in the place of <unk>.", rich_help_panel=WORDS)
    ] = False,
    dictionary: Annotated[
        Path | None, typer.Option(help="For these: source word, tab, target word, one a line.", rich_help_panel=WORDS)
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw translations instead of searching.", rich_help_panel=DRAW)
    ] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 the likely are likelier.", rich_help_panel=DRAW)] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw among so many likeliest tokens.", rich_help_panel=DRAW)
    ] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw among those with this probability together.", rich_help_panel=DRAW)
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.", rich_help_panel=DRAW)] = 1,
) -> None:
    """Translate a file, or standard input, line by line.

    Example: echo "a sentence" | regard translate runs/mine --json
    """
    from regard.console import say
    from regard.translate import Options, load

    end_with_the_pipe()
    if alignments not in (None, "pharaoh"):
        raise UserError(f"--alignments is 'pharaoh', not {alignments!r}")
    if alignments and as_json:
        raise UserError("--json has the links already; leave --alignments out")
    if alignments and tags:
        raise UserError(
            "--alignments counts words, and --tags puts tags among them; --json has the words that it counts"
        )
    form = "json" if as_json else "pharaoh" if alignments else "text"
    options = Options(
        beam=beam,
        n_best=n_best,
        alignments=form != "text",
        tags=tags,
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
    folders, files = split_runs(runs)
    translator = load(*folders)
    plan = translator.plan(options)
    number, cut = count(), 0
    for texts in counted(lots(files, AT_ONCE)):
        for made in translator.chunk(texts, plan):
            cut += not made.ended
            for line in written(made, next(number), n_best, form):
                sys.stdout.write(line + "\n")
        sys.stdout.flush()
    if cut:
        say(f"{cut} of {next(number):,} translations did not come to an end within their length limit")


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


def counted(lots: Iterator[list[str]]) -> Iterator[list[str]]:
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


def written(made: Translation, number: int, n_best: int, form: str) -> list[str]:
    """The lines for one source; several translations carry its number and their score, as Moses writes them."""
    if form == "json":
        document = described(made)
        if n_best > 1:
            document["alternatives"] = [described(other) for other in made.alternatives]
        return [json.dumps(document, ensure_ascii=False)]
    rows = []
    for translation in (made, *made.alternatives):
        text = translation.text.replace("\n", " ").replace("\r", " ")  # a line in is a line out
        parts = [str(number), text, f"{translation.score:.4f}"] if n_best > 1 else [text]
        if form == "pharaoh":
            parts.append(links(translation))
        rows.append(" ||| ".join(parts))
    return rows


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
