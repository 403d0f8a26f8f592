"""`regard data inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.pipe import end_with_the_pipe

BAR = 24

Data = Annotated[
    list[Path],
    typer.Argument(
        help="One file that holds pairs (.tsv, .jsonl, .parquet, .tmx, .xliff, .po), - for a pipe, or two text files."
    ),
]
Source = Annotated[str | None, typer.Option(help="Language of the source, where a file holds several.", metavar="CODE")]
Target = Annotated[str | None, typer.Option(help="Language of the target.", metavar="CODE")]


def inspect(
    data: Data,
    source: Source = None,
    target: Target = None,
    samples: Annotated[int, typer.Option(min=0, help="So many pairs, drawn from all of them.")] = 5,
    seed: Annotated[int, typer.Option(help="Another seed, other samples.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is in a corpus: pairs, duplicates, lengths, scripts, samples, and what `clean` would leave out.

    Example: regard data inspect memory.tmx
    """
    from regard.cli.progress import counted
    from regard.data import corpus
    from regard.data.cleaning import ahead
    from regard.data.inspection import Inspection
    from regard.data.rules import standard, usual_scripts

    end_with_the_pipe()
    first, pairs = ahead(corpus.read(data, source, target, names=False))
    if not first:
        raise corpus.nothing_in(data)
    inspection = Inspection(standard(usual_scripts(first)), samples, seed)
    for pair in counted(pairs, "looking"):
        inspection.add(pair)
    report = inspection.report()
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else told(report))


def told(report: dict[str, Any]) -> str:
    """The report for people."""
    rows = [
        ("pairs", f"{report['pairs']:,}"),
        ("duplicates", f"{report['duplicates']:,} pairs, {report['duplicate_sources']:,} sources came before"),
    ]
    for side in ("source", "target"):
        rows += [("", ""), *side_told(side, report[side])]
    ratio = report["ratio"]
    if ratio:
        shown = {"mean": "mean", "median": "median", "p5": "5 %", "p95": "95 %"}
        words = ", ".join(f"{label} {ratio[name]:.2f}" for name, label in shown.items())
        rows += [("", ""), ("ratio", f"{words} (words of the target for one of the source)")]
    rows += [("", ""), ("clean", cleaning_told(report["clean"]))]
    for sample in report["samples"]:
        rows += [("", ""), (f"{sample['number']:,}", sample["source"]), ("", sample["target"])]
    return "\n".join(f"{name:<12}{text}".rstrip() for name, text in rows)


def side_told(name: str, side: dict[str, Any]) -> list[tuple[str, str]]:
    """One side: figures, then bars."""
    rows = [
        (name, f"{side['characters']:,} characters, {side['distinct_characters']:,} distinct; {side['empty']:,} empty")
    ]
    if side["scripts"]:
        rows.append(("scripts", ", ".join(f"{script} {percent(share)}" for script, share in side["scripts"].items())))
    if words := side["words"]:
        figures = f"mean {words['mean']:.1f}, median {words['median']}, 95 % {words['p95']}, longest {words['max']:,}"
        rows.append(("words", figures))
    most = max(side["histogram"].values(), default=0)
    for label, count in side["histogram"].items():
        rows.append((f"{label:>9}", f"{'█' * round(BAR * count / most):<{BAR}} {count:,}"))
    return rows


def cleaning_told(counts: dict[str, Any]) -> str:
    """What the rules would leave out."""
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in counts["dropped"].items() if count)
    return f"would keep {counts['kept']:,}" + (f" and leave out: {dropped}" if dropped else ", everything")


def percent(share: float) -> str:
    """A share; one that is there is never 0 %."""
    return f"{100 * share:.1f} %" if share >= 0.001 else "< 0.1 %"
