"""`regard data distill`: training pairs for a smaller model, translated by a teacher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.options import read_pairs, resolve_languages, split_runs
from regard.cli.translate import parse_length_penalty
from regard.cli.translated_pairs import LANGUAGE_KEYS, Out, Resume, SyntheticPairsJob

if TYPE_CHECKING:
    from regard.data.readers.text import Pair


def distill(
    paths: Annotated[list[Path], typer.Argument(help="The teacher: a run, or several; then the training data.")],
    out: Out = None,
    keep_original: Annotated[
        bool, typer.Option("--keep-original", help="Also write the original pair, after the teacher's.")
    ] = False,
    nearest: Annotated[
        bool,
        typer.Option(
            "--nearest",
            help="Take the translation of the n-best list that is closest to the reference (sentence BLEU).",
        ),
    ] = False,
    resume: Resume = False,
    source: options.Source = None,
    target: options.Target = None,
    beam: options.Beam = 5,
    length_penalty: options.LengthPenalty = "0.6",
    max_length: options.MaxLength = None,
    no_repeat: options.NoRepeat = None,
    engine_name: options.EngineName = options.AUTO,
    precision: options.Precision = None,
    workers: options.Workers = None,
) -> None:
    """Create training pairs for a smaller student: a teacher translates the sources (Kim & Rush 2016).

    Each pair becomes `the source, tab, the teacher's translation`.

    Example: regard data distill runs/big train.en train.de --out distilled.tsv
    """
    from regard.evaluate import find_nearest_translation
    from regard.translate import Options

    folders, files = split_runs(paths)
    translation_options = Options(
        beam=beam,
        n_best=beam if nearest else 1,
        alignments=False,
        length_penalty=parse_length_penalty(length_penalty),
        max_length=max_length,
        no_repeat=no_repeat,
    )

    def make_pairs(pair: Pair, texts: list[str]) -> Iterator[tuple[str, str]]:
        if texts:
            yield pair.source, texts[find_nearest_translation(texts, pair.target) if nearest else 0]
        if keep_original and pair.target.strip():
            yield pair

    languages = dict(zip(LANGUAGE_KEYS, resolve_languages(folders, source, target), strict=True))
    inputs = {"data": list(map(str, files)), "keep_original": keep_original, "nearest": nearest}
    job = SyntheticPairsJob(
        folders=folders,
        translation_options=translation_options,
        engine_options=options.EngineOptions(engine_name, precision, workers),
        provenance={"command": "distill", **inputs, **languages},
        out=out,
        resume=resume,
    )
    job.run(read_pairs(folders, files, source, target), 0, make_pairs)
