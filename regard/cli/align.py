"""`regard align`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.options import load_pairs, split_runs
from regard.cli.stdio import restore_default_sigpipe
from regard.errors import UserError
from regard.strict_json import dumps

if TYPE_CHECKING:
    from regard.data.readers.dispatch import Pair
    from regard.evaluate import GoldAlignment

PAIRS_PER_CHUNK = 512


def align(
    paths: Annotated[list[Path], typer.Argument(help="A run, or several as an ensemble, then the pairs to align.")],
    symmetrize: Annotated[
        Path | None, typer.Option(help="A run of the other direction: both as one by grow-diag-final-and.")
    ] = None,
    gold: options.Gold = None,
    gold_first: options.GoldFirst = None,
    source: options.Source = None,
    target: options.Target = None,
    choose_head: Annotated[
        bool,
        typer.Option(
            "--choose-head",
            help="Find the layer and head that align best, by --gold or by how many words choose each other, and keep "
            "to them.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a pair: words, links, soft weights, score.")
    ] = False,
) -> None:
    """Align the words of given pairs by making the model write each target; one line of links a pair (Pharaoh).

    Example: regard align runs/mine test.en test.de --symmetrize runs/back > test.align
    """
    from regard.console import log_message
    from regard.evaluate import compute_gold_alignment_score, format_pharaoh, grow_diag_final_and, read_gold_alignments
    from regard.translate import load

    restore_default_sigpipe()
    folders, files = split_runs(paths)
    if not files:
        raise UserError("nothing to align: name, after the run, one file that holds pairs or two text files")
    corpus = load_pairs(folders, files, source, target)
    answers = read_gold_alignments(gold, corpus, gold_first) if gold else None
    if choose_head:
        if len(folders) > 1 or as_json or symmetrize:
            raise UserError("--choose-head is for one run, and goes with neither --json nor --symmetrize")
        _save_best_alignment_head(folders[0], corpus, answers)
        return
    if symmetrize:
        _check_directions(folders[0], symmetrize)
    translator, back = load(*folders), load(symmetrize) if symmetrize else None
    found = []
    rest = iter(corpus)
    while some := list(islice(rest, PAIRS_PER_CHUNK)):
        judged = translator.score_pairs(some)
        mirrored = back.align([(pair.target, pair.source) for pair in some]) if back else [None] * len(some)
        for pair, one, other in zip(some, judged, mirrored, strict=True):
            alignment = translator.align_scored_pair(pair, one)
            if alignment is None or (back is not None and other is None):
                raise UserError(f"{folders[0] if alignment is None else symmetrize} has no attention to align with")
            links = set(alignment.pairs)
            if other is not None:
                links = grow_diag_final_and(links, {(right, left) for left, right in other.pairs})
            if answers is not None:
                found.append(links)
            document = {
                "source": alignment.source,
                "target": alignment.target,
                "pairs": sorted(links),
                "soft": [[round(weight, 4) for weight in row] for row in alignment.soft.tolist()],
                "score": round(one.hypothesis.log_prob, 6),
            }
            sys.stdout.write((dumps(document) if as_json else format_pharaoh(links)) + "\n")
        sys.stdout.flush()
    if answers is not None:
        score = compute_gold_alignment_score(found, answers)
        log_message(f"aer {score.aer:.4f}, precision {score.precision:.4f}, recall {score.recall:.4f}")


def _check_directions(forward: Path, backward: Path) -> None:
    """Refuses a second run that does not translate the other way."""
    from regard.runs import Run

    ways = [
        [Run(folder).read_config()["data"].get(side) for side in ("source", "target")] for folder in (forward, backward)
    ]
    if all(map(all, ways)) and ways[0] != ways[1][::-1]:
        raise UserError(
            f"--symmetrize takes a run of the other direction: {forward} is {' to '.join(ways[0])}, {backward} "
            f"{' to '.join(ways[1])}"
        )


def _save_best_alignment_head(folder: Path, corpus: Sequence[Pair], gold: Sequence[GoldAlignment] | None) -> None:
    """Tries every layer and head, and writes the best into the run's config."""
    from regard.runs import Run
    from regard.translate import load, rank_alignment_heads

    tried, run = rank_alignment_heads(load(folder), corpus, gold), Run(folder)
    for viewpoint, mutual, error in tried:
        head = "mean of heads" if viewpoint.head is None else f"head {viewpoint.head + 1}"
        step = ", the step after" if viewpoint.shifted else ""
        rate = "" if error is None else f"aer {error:.4f}, "
        typer.echo(f"layer {viewpoint.layer + 1}, {head}{step}: {rate}linked both ways {mutual:.1%}")
    best, config = tried[0].alignment_head, run.read_config()
    chosen = {
        "align_layer": best.layer + 1,
        "align_head": None if best.head is None else best.head + 1,
        "align_after": best.shifted,
    }
    run.write_config({**config, "model": {**config["model"], **chosen}})
    typer.echo(f"{folder} aligns by the first of these from now on")
