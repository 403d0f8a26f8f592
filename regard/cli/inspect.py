"""`regard data inspect`: statistics and samples of a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.stdio import restore_default_sigpipe

if TYPE_CHECKING:
    from regard.data.readers.text import Pair

BAR_WIDTH = 24

Data = Annotated[
    list[Path],
    typer.Argument(
        help="One file that holds pairs (.tsv, .jsonl, .parquet, .tmx, .xliff, .po), - for a pipe, or two text files."
    ),
]
Source = Annotated[str | None, typer.Option(help="Language of the source, if a file holds several.", metavar="CODE")]
Target = Annotated[str | None, typer.Option(help="Language of the target.", metavar="CODE")]


def inspect(
    data: Data,
    source: Source = None,
    target: Target = None,
    samples: Annotated[int, typer.Option(min=0, help="Number of random pairs to show.")] = 5,
    seed: Annotated[int, typer.Option(help="Random seed of the samples.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show statistics of a corpus: pairs, duplicates, lengths, scripts, samples, and what `clean` would remove.

    Example: regard data inspect memory.tmx
    """
    from regard.cli.stdio import show_item_progress
    from regard.corpus.filters import find_main_scripts, make_default_filters
    from regard.corpus.statistics import CorpusStatistics

    restore_default_sigpipe()
    first, pairs = peek_corpus(data, source, target)
    statistics = CorpusStatistics(make_default_filters(find_main_scripts(first)), samples, seed)
    for pair in show_item_progress(pairs, "inspecting"):
        statistics.add_pair(pair)
    report = statistics.to_dict()
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else _format_inspection(report))


def peek_corpus(data: list[Path], source: str | None, target: str | None) -> tuple[list[Pair], Iterator[Pair]]:
    """Return the first pairs of a corpus, and an iterator over all of them; raise a UserError if there are none."""
    from regard.corpus.filters import peek_pairs
    from regard.data.readers import dispatch

    first, pairs = peek_pairs(dispatch.iterate_pairs(data, source, target, allow_unnamed=False))
    if not first:
        raise dispatch.make_empty_corpus_error(data)
    return first, pairs


def _format_inspection(report: dict[str, Any]) -> str:
    """Format the report as text."""
    rows = [
        ("pairs", f"{report['pairs']:,}"),
        ("duplicates", f"{report['duplicates']:,} pairs, {report['duplicate_sources']:,} repeated sources"),
    ]
    for side in ("source", "target"):
        rows += [("", ""), *_format_side(side, report[side])]
    if ratio := report["ratio"]:
        labels = {"mean": "mean", "median": "median", "p5": "5 %", "p95": "95 %"}
        words = ", ".join(f"{label} {ratio[name]:.2f}" for name, label in labels.items())
        rows += [("", ""), ("ratio", f"{words} (target words per source word)")]
    rows += [("", ""), ("clean", _format_cleaning(report["clean"]))]
    for sample in report["samples"]:
        rows += [("", ""), (f"{sample['number']:,}", sample["source"]), ("", sample["target"])]
    return "\n".join(f"{name:<12}{text}".rstrip() for name, text in rows)


def _format_side(name: str, side: dict[str, Any]) -> list[tuple[str, str]]:
    """Format the statistics of one side, with a histogram of lengths."""
    rows = [
        (name, f"{side['characters']:,} characters, {side['distinct_characters']:,} distinct; {side['empty']:,} empty")
    ]
    if side["scripts"]:
        fractions = (f"{script} {_format_percent(fraction)}" for script, fraction in side["scripts"].items())
        rows.append(("scripts", ", ".join(fractions)))
    if words := side["words"]:
        figures = f"mean {words['mean']:.1f}, median {words['median']}, 95 % {words['p95']}, longest {words['max']:,}"
        rows.append(("words", figures))
    most = max(side["histogram"].values(), default=0)
    for label, count in side["histogram"].items():
        rows.append((f"{label:>9}", f"{'█' * round(BAR_WIDTH * count / most):<{BAR_WIDTH}} {count:,}"))
    return rows


def _format_cleaning(counts: dict[str, Any]) -> str:
    """Format the number of pairs that `clean` would keep and remove, by rule."""
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in counts["dropped"].items() if count)
    return f"would keep {counts['kept']:,}" + (f" and remove: {dropped}" if dropped else ", everything")


def _format_percent(fraction: float) -> str:
    """Format a fraction as a percentage; a small one that is not 0 is "< 0.1 %"."""
    return f"{100 * fraction:.1f} %" if fraction >= 0.001 else "< 0.1 %"
