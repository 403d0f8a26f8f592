"""`regard data clean`: filter a parallel corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.inspect import Data, Source, Target
from regard.cli.stdio import restore_default_sigpipe

AUTO, ANY = "auto", "any"
RULES_PANEL, FILES_PANEL = "Rules", "Files"

Out = Annotated[
    list[Path],
    typer.Option(
        help="A .tsv or .jsonl file, also .gz, .xz, .zst; - for standard output; give it twice for two text files.",
        rich_help_panel=FILES_PANEL,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        help="Disable a rule: empty, broken, short, long, ratio, copied, letters, script, duplicate; may be repeated.",
        metavar="RULE",
        rich_help_panel=RULES_PANEL,
    ),
]
ScriptOption = typer.Option(
    help="Script: latin, cyrillic, arabic, cjk …; auto: the most frequent; any: no check.", rich_help_panel=RULES_PANEL
)


def clean(
    data: Data,
    out: Out,
    source: Source = None,
    target: Target = None,
    min_words: Annotated[int, typer.Option(min=1, help="Minimum words of each side.", rich_help_panel=RULES_PANEL)] = 1,
    max_words: Annotated[
        int, typer.Option(min=1, help="Maximum words of each side.", rich_help_panel=RULES_PANEL)
    ] = 200,
    max_ratio: Annotated[
        float,
        typer.Option(min=1, help="Maximum length ratio of the sides, plus 3 words.", rich_help_panel=RULES_PANEL),
    ] = 3.0,
    min_letters: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Minimum fraction of letters among a side's characters.", rich_help_panel=RULES_PANEL
        ),
    ] = 0.5,
    source_script: Annotated[str, ScriptOption] = AUTO,
    target_script: Annotated[str, ScriptOption] = AUTO,
    unique_source: Annotated[
        bool, typer.Option("--unique-source", help="Keep one translation of each source.", rich_help_panel=RULES_PANEL)
    ] = False,
    without: Without = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite existing files.", rich_help_panel=FILES_PANEL)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Remove pairs that harm training, and report how many for which reason.

    Example: regard data clean memory.tmx --out clean.tsv.gz --max-words 100
    """
    from regard.cli.stdio import show_item_progress
    from regard.corpus import filters
    from regard.corpus.filters import FilterPipeline, peek_pairs
    from regard.corpus.writers import STANDARD_OUTPUT, open_pair_writer
    from regard.data.readers import dispatch

    restore_default_sigpipe()
    first, pairs = peek_pairs(dispatch.iterate_pairs(data, source, target, allow_unnamed=False))
    if not first:
        raise dispatch.make_empty_corpus_error(data)
    scripts = _choose_scripts((source_script, target_script), filters.find_main_scripts(first))
    limits = filters.make_default_filters(
        scripts,
        min_words=min_words,
        max_words=max_words,
        max_ratio=max_ratio,
        min_letters=min_letters,
        unique_source=unique_source,
    )
    pipeline = FilterPipeline(filters.exclude_filters(limits, without or []))
    with open_pair_writer(out, force) as write:
        for pair in show_item_progress(pairs, "cleaning"):
            if pipeline.accepts(pair):
                write(pair)
    report = {**pipeline.to_dict(), "scripts": dict(zip(("source", "target"), scripts, strict=True))}
    if as_json:
        typer.echo(json.dumps(report), err=out == [STANDARD_OUTPUT])
    else:
        typer.echo(_format_clean_report(report), err=True)


def _choose_scripts(
    requested: tuple[str, str], detected: tuple[str | None, str | None]
) -> tuple[str | None, str | None]:
    """Return the script of each side; None: any script."""
    from regard.data.unicode_scripts import check_script_name

    source, target = (
        script if name == AUTO else None if name == ANY else check_script_name(name)
        for name, script in zip(requested, detected, strict=True)
    )
    return source, target


def _format_clean_report(report: dict[str, Any]) -> str:
    """Format the counts as a table."""
    rows = [("read", report["read"]), *report["dropped"].items(), ("kept", report["kept"])]
    width = max(len(f"{count:,}") for _, count in rows)
    lines = [f"{name:<12}{count:>{width},}  {_format_fraction(count, report['read'])}" for name, count in rows]
    scripts = ", ".join(f"{side} {name or 'any'}" for side, name in report["scripts"].items())
    return "\n".join([*lines, f"scripts     {scripts}"])


def _format_fraction(count: int, total: int) -> str:
    """Format a count as a percentage of all pairs."""
    return f"{100 * count / total:5.1f} %" if total else ""
