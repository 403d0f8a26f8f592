"""`regard data back-translate` and `regard data distill`: training pairs that a model translates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from regard.cli.options import (
    Beam,
    EngineOptions,
    SearchArguments,
    Source,
    Target,
    expand_options,
    read_pairs,
    resolve_languages,
    split_runs,
)
from regard.cli.stdio import STANDARD_INPUT, iterate_stdin_lines
from regard.cli.translate import find_document
from regard.cli.translated_pairs import LANGUAGE_KEYS, Out, Resume, TranslatedPairsJob
from regard.data.readers.text import Pair, iterate_lines
from regard.errors import UserError

SEARCH_OPTIONS = ("length_penalty", "max_length", "no_repeat")
SAMPLING_OPTIONS = ("sample", "temperature", "top_k", "top_p", "seed")
ENGINE_OPTIONS = ("engine", "precision", "workers")


@expand_options
def back_translate(
    paths: Annotated[
        list[Path],
        Argument(
            help="A run that translates into the source language, or several; then text in the target language, or `-`."
        ),
    ],
    out: Out = None,
    resume: Resume = False,
    beam: Beam = 5,
    *,
    search: Annotated[SearchArguments, *SEARCH_OPTIONS, *SAMPLING_OPTIONS],
    engine_options: Annotated[EngineOptions, *ENGINE_OPTIONS],
) -> None:
    """Create training pairs from monolingual text: a model of the opposite direction writes the sources.

    Back-translation (Sennrich et al. 2016): each line becomes `its translation, tab, the line`. The source is
    synthetic, the target is real.

    Example: regard data back-translate runs/de-en news.de.gz --out back.tsv --sample
    """
    folders, files = split_runs(paths)
    if len(files) > 1:
        raise UserError(f"name one text file, not {len(files)}: {' '.join(map(str, files))}")
    if find_document(files):
        raise UserError(f"{files[0]} is a document; back-translation reads a file with one sentence per line")
    file = files[0] if files else STANDARD_INPUT
    lines = iterate_stdin_lines() if file == STANDARD_INPUT else iterate_lines(file)
    job = TranslatedPairsJob(
        folders=folders,
        translation_options=search.parse(beam=beam, alignments=False),
        engine_options=engine_options,
        provenance={"command": "back-translate", "text": str(file)},
        out=out,
        resume=resume,
    )
    job.run((Pair(line, "") for line in lines), 1, lambda pair, texts: [(text, pair.source) for text in texts[:1]])


@expand_options
def distill(
    paths: Annotated[list[Path], Argument(help="The teacher: a run, or several; then the training data.")],
    out: Out = None,
    keep_original: Annotated[
        bool, Option("--keep-original", help="Also write the original pair, after the teacher's.")
    ] = False,
    nearest: Annotated[
        bool,
        Option(
            "--nearest",
            help="Take the translation of the n-best list that is closest to the reference (sentence BLEU).",
        ),
    ] = False,
    resume: Resume = False,
    source: Source = None,
    target: Target = None,
    beam: Beam = 5,
    *,
    search: Annotated[SearchArguments, *SEARCH_OPTIONS],
    engine_options: Annotated[EngineOptions, *ENGINE_OPTIONS],
) -> None:
    """Create training pairs for a smaller student: a teacher translates the sources (Kim & Rush 2016).

    Each pair becomes `the source, tab, the teacher's translation`.

    Example: regard data distill runs/big train.en train.de --out distilled.tsv
    """
    from regard.evaluate import find_nearest_translation

    folders, files = split_runs(paths)

    def make_pairs(pair: Pair, texts: list[str]) -> Iterator[tuple[str, str]]:
        if texts:
            yield pair.source, texts[find_nearest_translation(texts, pair.target) if nearest else 0]
        if keep_original and pair.target.strip():
            yield pair

    languages = dict(zip(LANGUAGE_KEYS, resolve_languages(folders, source, target), strict=True))
    inputs = {"data": list(map(str, files)), "keep_original": keep_original, "nearest": nearest}
    job = TranslatedPairsJob(
        folders=folders,
        translation_options=search.parse(beam=beam, n_best=beam if nearest else 1, alignments=False),
        engine_options=engine_options,
        provenance={"command": "distill", **inputs, **languages},
        out=out,
        resume=resume,
    )
    job.run(read_pairs(folders, files, source, target), 0, make_pairs)
