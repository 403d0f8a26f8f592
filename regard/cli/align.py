"""`regard align`: word alignments of given sentence pairs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from regard.cli.options import (
    InferenceDevice,
    choose_device_of_option,
    describe_options,
    load_pairs,
    read_languages,
    split_runs,
)
from regard.cli.stdio import iterate_chunks, restore_default_sigpipe
from regard.cli.translate import make_alignment_dict
from regard.console import log_message
from regard.data.readers.text import Pair, format_pharaoh
from regard.errors import UserError
from regard.paths import format_json
from regard.runs import Run

if TYPE_CHECKING:
    from regard.evaluate.alignment_error_rate import GoldAlignment
    from regard.translate import Translator

PAIRS_PER_CHUNK = 512


@describe_options
def align(
    paths: list[Path],
    symmetrize: Path | None = None,
    gold: Path | None = None,
    gold_first: int | None = None,
    source: str | None = None,
    target: str | None = None,
    units: Literal["words", "subwords", "characters"] = "words",
    presegmented: bool = False,
    choose_head: bool = False,
    device: InferenceDevice = "auto",
    as_json: bool = False,
) -> None:
    """Align the words of given pairs by forced decoding; print one line of links per pair (Pharaoh format).

    Example: regard align runs/mine test.en test.de --symmetrize runs/back > test.align
    """
    from regard.evaluate.alignment_error_rate import compute_alignment_score, grow_diag_final_and, read_gold_alignments
    from regard.tokenizers.alignment_units import check_units
    from regard.tokenizers.tokenizer import WORDS
    from regard.translate import load

    restore_default_sigpipe()
    load_on_device = partial(load, device=choose_device_of_option(device))
    folders, files = split_runs(paths)
    corpus = load_pairs(folders, files, source, target)
    check_units(units, presegmented)
    if units != WORDS and (gold or choose_head):
        raise UserError(f"--units {units} cannot be combined with --gold or --choose-head, which are about words")
    gold_alignments = read_gold_alignments(gold, corpus, gold_first, presegmented) if gold else None
    if choose_head:
        if len(folders) > 1 or as_json or symmetrize:
            raise UserError("--choose-head is for one run and cannot be combined with --json or --symmetrize")
        _save_best_alignment_head(load_on_device(folders[0]), folders[0], corpus, gold_alignments, presegmented)
        return
    if symmetrize:
        languages, opposite = read_languages(folders[0]), read_languages(symmetrize)
        if all(languages) and all(opposite) and languages[::-1] != opposite:
            raise UserError(
                f"--symmetrize needs a run of the opposite direction: {folders[0]} is "
                f"{languages[0]} to {languages[1]}, {symmetrize} {opposite[0]} to {opposite[1]}"
            )
    translator, backward = load_on_device(*folders), load_on_device(symmetrize) if symmetrize else None
    align_pair = partial(translator.align_scored_pair, units=units, presegmented=presegmented)
    all_links = []
    for chunk in iterate_chunks(corpus, PAIRS_PER_CHUNK):
        scored_pairs = translator.score_pairs(chunk, presegmented)
        alignments = list(map(align_pair, chunk, scored_pairs))
        opposite_alignments = alignments
        if backward:
            opposite_alignments = backward.align([(right, left) for left, right in chunk], units, presegmented)
        for scored, alignment, opposite_alignment in zip(scored_pairs, alignments, opposite_alignments, strict=True):
            if alignment is None or opposite_alignment is None:
                raise UserError(f"{folders[0] if alignment is None else symmetrize} has no attention to align with")
            links = set(alignment.pairs)
            if backward:
                links = grow_diag_final_and(links, {(right, left) for left, right in opposite_alignment.pairs})
            if gold_alignments is not None:
                all_links.append(links)
            score = round(scored.hypothesis.log_prob, 6)
            document = {**make_alignment_dict(alignment), "pairs": sorted(links), "score": score}
            sys.stdout.write((format_json(document) if as_json else format_pharaoh(links)) + "\n")
        sys.stdout.flush()
    if gold_alignments is not None:
        rates = compute_alignment_score(all_links, gold_alignments)
        log_message(f"aer {rates.aer:.4f}, precision {rates.precision:.4f}, recall {rates.recall:.4f}")


def _save_best_alignment_head(
    translator: Translator,
    folder: Path,
    corpus: Sequence[Pair],
    gold: Sequence[GoldAlignment] | None,
    presegmented: bool,
) -> None:
    """Rank every layer and head, and write the best one to the run's config."""
    from regard.translate.inspection import rank_alignment_heads

    ranked, run = rank_alignment_heads(translator, corpus, gold, presegmented), Run(folder)
    for alignment_head, mutual, aer in ranked:
        head = "mean of heads" if alignment_head.head is None else f"head {alignment_head.head + 1}"
        step = ", next step" if alignment_head.shifted else ""
        rate = "" if aer is None else f"aer {aer:.4f}, "
        typer.echo(f"layer {alignment_head.layer + 1}, {head}{step}: {rate}mutual links {mutual:.1%}")
    best, config = ranked[0].alignment_head, run.read_config()
    chosen = {
        "align_layer": best.layer + 1,
        "align_head": None if best.head is None else best.head + 1,
        "align_after": best.shifted,
    }
    run.write_config({**config, "model": {**config["model"], **chosen}})
    typer.echo(f"{folder} aligns by the first of these heads from now on")
