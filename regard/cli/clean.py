"""`regard data clean`: filter a parallel corpus."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.inspect import Data, Source, Target, peek_corpus
from regard.cli.stdio import restore_default_sigpipe

AUTO, ANY = "auto", "any"
_rule_option = partial(typer.Option, rich_help_panel="Rules")
_file_option = partial(typer.Option, rich_help_panel="Files")
_SCRIPT_OPTION = _rule_option(help="Script: latin, cyrillic, arabic, cjk …; auto: the most frequent; any: no check.")
_OUT_HELP = "A .tsv or .jsonl file, also .gz, .xz, .zst; - for standard output; give it twice for two text files."
_RULES_HELP = "Disable a rule: empty, broken, short, long, ratio, copied, letters, script, duplicate; may be repeated."


def clean(
    data: Data,
    out: Annotated[list[Path], _file_option(help=_OUT_HELP)],
    source: Source = None,
    target: Target = None,
    min_words: Annotated[int, _rule_option(min=1, help="Minimum words of each side.")] = 1,
    max_words: Annotated[int, _rule_option(min=1, help="Maximum words of each side.")] = 200,
    max_ratio: Annotated[float, _rule_option(min=1, help="Maximum length ratio of the sides, plus 3 words.")] = 3.0,
    min_letters: Annotated[
        float, _rule_option(min=0, max=1, help="Minimum fraction of letters among a side's characters.")
    ] = 0.5,
    source_script: Annotated[str, _SCRIPT_OPTION] = AUTO,
    target_script: Annotated[str, _SCRIPT_OPTION] = AUTO,
    unique_source: Annotated[
        bool, _rule_option("--unique-source", help="Keep one translation of each source.")
    ] = False,
    without: Annotated[list[str] | None, _rule_option(help=_RULES_HELP, metavar="RULE")] = None,
    force: Annotated[bool, _file_option("--force", help="Overwrite existing files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Remove pairs that harm training, and report how many for which reason.

    Example: regard data clean memory.tmx --out clean.tsv.gz --max-words 100
    """
    from regard.cli.stdio import show_item_progress
    from regard.corpus import filters
    from regard.corpus.writers import STANDARD_OUTPUT, open_pair_writer

    restore_default_sigpipe()
    first, pairs = peek_corpus(data, source, target)
    detected = filters.find_main_scripts(first)
    scripts = _choose_script(source_script, detected[0]), _choose_script(target_script, detected[1])
    limits: dict[str, Any] = {
        "min_words": min_words,
        "max_words": max_words,
        "max_ratio": max_ratio,
        "min_letters": min_letters,
    }
    rules = filters.make_default_filters(scripts, **limits, unique_source=unique_source)
    pipeline = filters.FilterPipeline(filters.exclude_filters(rules, without or []))
    with open_pair_writer(out, force) as write:
        for pair in show_item_progress(pairs, "cleaning"):
            if pipeline.accepts(pair):
                write(pair)
    report = {**pipeline.to_dict(), "scripts": dict(zip(("source", "target"), scripts, strict=True))}
    if as_json:
        typer.echo(json.dumps(report), err=out == [STANDARD_OUTPUT])
    else:
        typer.echo(_format_clean_report(report), err=True)


def _choose_script(name: str, detected: str | None) -> str | None:
    """Return the script that one side must have; None: any script."""
    from regard.data.languages import check_script_name

    return detected if name == AUTO else None if name == ANY else check_script_name(name)


def _format_clean_report(report: dict[str, Any]) -> str:
    """Format the counts as a table."""
    rows = [("read", report["read"]), *report["dropped"].items(), ("kept", report["kept"])]
    width = max(len(f"{count:,}") for _, count in rows)
    total = report["read"]
    lines = [f"{name:<12}{count:>{width},}  {100 * count / total:5.1f} %" for name, count in rows]
    scripts = ", ".join(f"{side} {name or 'any'}" for side, name in report["scripts"].items())
    return "\n".join([*lines, f"scripts     {scripts}"])
