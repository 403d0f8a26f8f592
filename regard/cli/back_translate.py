"""`regard data back-translate`: training pairs from monolingual text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli import options
from regard.cli.options import split_runs
from regard.cli.stdio import STANDARD_INPUT, iterate_stdin_lines
from regard.cli.translate import find_document, parse_length_penalty
from regard.cli.translated_pairs import Out, Resume, SyntheticPairsJob
from regard.errors import UserError


def back_translate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A run that translates into the source language, or several; then text in the target language, or `-`."
        ),
    ],
    out: Out = None,
    resume: Resume = False,
    beam: options.Beam = 5,
    length_penalty: options.LengthPenalty = "0.6",
    max_length: options.MaxLength = None,
    no_repeat: options.NoRepeat = None,
    sample: options.Sample = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 1,
    engine_name: options.EngineName = options.AUTO,
    precision: options.Precision = None,
    workers: options.Workers = None,
) -> None:
    """Create training pairs from monolingual text: a model of the opposite direction writes the sources.

    Back-translation (Sennrich et al. 2016): each line becomes `its translation, tab, the line`. The source is
    synthetic, the target is real.

    Example: regard data back-translate runs/de-en news.de.gz --out back.tsv --sample
    """
    from regard.data.readers.text import Pair, iterate_lines
    from regard.translate import Options

    folders, files = split_runs(paths)
    if len(files) > 1:
        raise UserError(f"name one text file, not {len(files)}: {' '.join(map(str, files))}")
    if find_document(files):
        raise UserError(f"{files[0]} is a document; back-translation reads a file with one sentence per line")
    file = files[0] if files else STANDARD_INPUT
    translation_options = Options(
        beam=beam,
        alignments=False,
        length_penalty=parse_length_penalty(length_penalty),
        max_length=max_length,
        no_repeat=no_repeat,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )

    lines = iterate_stdin_lines() if file == STANDARD_INPUT else iterate_lines(file)
    job = SyntheticPairsJob(
        folders=folders,
        translation_options=translation_options,
        engine_options=options.EngineOptions(engine_name, precision, workers),
        provenance={"command": "back-translate", "text": str(file)},
        out=out,
        resume=resume,
    )
    job.run((Pair(line, "") for line in lines), 1, lambda pair, texts: [(text, pair.source) for text in texts[:1]])
