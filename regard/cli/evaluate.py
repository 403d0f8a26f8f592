"""`regard evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.runs import split_runs
from regard.errors import UserError


def evaluate(
    paths: Annotated[list[Path], typer.Argument(help="One run, or several as an ensemble, then the data to score on.")],
    hypothesis: Annotated[Path | None, typer.Option(help="Score this file of translations instead of a run.")] = None,
    gold: Annotated[Path | None, typer.Option(help="Gold word alignments (Pharaoh), for AER.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses that are kept open; 1 is greedy.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a run, or a file of translations, on a test set: BLEU, chrF, and AER where gold alignments are given.

    Example: regard evaluate runs/mine test.en test.de --gold test.align
    """
    figures = of_file(hypothesis, paths, gold) if hypothesis else of_runs(paths, gold, beam)
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False))
        return
    typer.echo(f"pairs  {figures['pairs']:,}")
    for name in ("bleu", "chrf"):
        typer.echo(f"{name:<6} {figures[name]:.2f}  {figures[name + '_signature']}")
    if figures["aer"] is not None:
        typer.echo(f"aer    {figures['aer']:.4f}")


def of_runs(paths: list[Path], gold: Path | None, beam: int) -> dict[str, Any]:
    """What a model scores."""
    from regard.data.corpus import pairs
    from regard.evaluate import read_gold
    from regard.translate import assess, load

    folders, files = split_runs(paths)
    if not files:
        raise UserError("nothing to score on: name, after the run, one file that holds pairs or two text files")
    corpus = pairs(files)
    links = read_gold(gold, corpus) if gold else None
    found = assess(load(*folders), corpus, links, beam)
    return {
        "pairs": len(corpus),
        "bleu": found.bleu.value,
        "bleu_signature": found.bleu.signature,
        "chrf": found.chrf.value,
        "chrf_signature": found.chrf.signature,
        "aer": found.aer,
    }


def of_file(hypothesis: Path, paths: list[Path], gold: Path | None) -> dict[str, Any]:
    """What a file of translations scores."""
    from regard.data.corpus import pairs
    from regard.data.files import lines
    from regard.evaluate import bleu, chrf

    if gold:
        raise UserError("--gold needs a run: a file of translations has no alignments")
    corpus = pairs(paths)
    written = list(lines(hypothesis))
    if len(written) != len(corpus):
        raise UserError(f"{hypothesis} has {len(written)} lines for {len(corpus)} pairs; there is one a pair")
    references = [pair.target for pair in corpus]
    scores = {"bleu": bleu(written, references), "chrf": chrf(written, references)}
    values = {name: score.value for name, score in scores.items()}
    signatures = {f"{name}_signature": score.signature for name, score in scores.items()}
    return {"pairs": len(corpus), **values, **signatures, "aer": None}
