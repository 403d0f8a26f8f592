"""`regard data clean`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.inspect import Data, Source, Target
from regard.cli.pipe import end_with_the_pipe

AUTO, ANY = "auto", "any"
RULES, FILES = "Rules", "Files"

Out = Annotated[
    list[Path],
    typer.Option(
        help="A .tsv or .jsonl file, also .gz, .xz, .zst; - for standard output; given twice, two text files.",
        rich_help_panel=FILES,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        help="Leave out a rule: empty, broken, short, long, ratio, copied, letters, script, duplicate; again for more.",
        metavar="RULE",
        rich_help_panel=RULES,
    ),
]
ScriptOption = typer.Option(help="latin, cyrillic, arabic, cjk …; auto: its usual one.", rich_help_panel=RULES)


def clean(
    data: Data,
    out: Out,
    source: Source = None,
    target: Target = None,
    min_words: Annotated[int, typer.Option(min=1, help="Words of a side at least.", rich_help_panel=RULES)] = 1,
    max_words: Annotated[int, typer.Option(min=1, help="Words of a side at most.", rich_help_panel=RULES)] = 200,
    max_ratio: Annotated[
        float, typer.Option(min=1, help="How many times as long one side may be, and 3 words.", rich_help_panel=RULES)
    ] = 3.0,
    min_letters: Annotated[
        float, typer.Option(min=0, max=1, help="Share of letters among a side's characters.", rich_help_panel=RULES)
    ] = 0.5,
    source_script: Annotated[str, ScriptOption] = AUTO,
    target_script: Annotated[str, ScriptOption] = AUTO,
    unique_source: Annotated[
        bool, typer.Option("--unique-source", help="Keep one translation of each source.", rich_help_panel=RULES)
    ] = False,
    without: Without = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.", rich_help_panel=FILES)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Leave out pairs that do a model no good, and say how many for which reason.

    Example: regard data clean memory.tmx --out clean.tsv.gz --max-words 100
    """
    from regard.cli.progress import counted
    from regard.data import corpus, rules
    from regard.data.cleaning import Sieve, ahead
    from regard.data.writing import STANDARD_OUTPUT, writing

    end_with_the_pipe()
    first, pairs = ahead(corpus.read(data, source, target, names=False))
    if not first:
        raise corpus.nothing_in(data)
    scripts = own_scripts((source_script, target_script), rules.usual_scripts(first))
    limits = rules.standard(
        scripts,
        min_words=min_words,
        max_words=max_words,
        max_ratio=max_ratio,
        min_letters=min_letters,
        unique_source=unique_source,
    )
    sieve = Sieve(rules.without(limits, without or []))
    with writing(out, force) as write:
        for pair in counted(pairs, "cleaning"):
            if sieve.keeps(pair):
                write(pair)
    report = {**sieve.report(), "scripts": dict(zip(("source", "target"), scripts, strict=True))}
    if as_json:
        typer.echo(json.dumps(report), err=out == [STANDARD_OUTPUT])
    else:
        typer.echo(told(report), err=True)


def own_scripts(asked: tuple[str, str], usual: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
    """The script of each side; None where any will do."""
    from regard.data.scripts import known

    source, target = (
        found if name == AUTO else None if name == ANY else known(name)
        for name, found in zip(asked, usual, strict=True)
    )
    return source, target


def told(report: dict[str, Any]) -> str:
    """The counts as a table."""
    rows = [("read", report["read"]), *report["dropped"].items(), ("kept", report["kept"])]
    width = max(len(f"{count:,}") for _, count in rows)
    lines = [f"{name:<12}{count:>{width},}  {share(count, report['read'])}" for name, count in rows]
    scripts = ", ".join(f"{side} {name or 'any'}" for side, name in report["scripts"].items())
    return "\n".join([*lines, f"scripts     {scripts}"])


def share(count: int, whole: int) -> str:
    """A share of all pairs."""
    return f"{100 * count / whole:5.1f} %" if whole else ""
