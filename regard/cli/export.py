"""`regard export`."""

from __future__ import annotations

import shutil
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.translate import Translator
    from regard.translate.shortlist import Shortlist


def export(
    run: Annotated[Path, typer.Argument(help="A run that translates.")],
    to: Annotated[
        str,
        typer.Option(
            help="`onnx`: two graphs, of any model; `ctranslate2`: a Transformer; `shortlist`: what the model has seen "
            "the source's words become, for `regard translate --shortlist`."
        ),
    ] = "onnx",
    precision: Annotated[
        str, typer.Option(help="`fp32`, or `int8`: weights in bytes, smaller and faster, nearly the same.")
    ] = "fp32",
    shortlist: Annotated[
        bool,
        typer.Option(
            "--shortlist",
            help="`ctranslate2`: with a shortlist in it, which is faster.",
        ),
    ] = False,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Pairs for the shortlist, one file or two; else those that the run was trained on."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for it; else a place in the run, where `translate` finds it.")
    ] = None,
) -> None:
    """Write a run's model in a form that other programs run, and that `regard translate` is faster with.

    Example: regard export runs/mine --to onnx --precision int8
    """
    from regard.console import log_message
    from regard.runs import Run
    from regard.translate import load
    from regard.translate.backends import base

    alone = to == base.SHORTLIST
    if to not in (base.ONNX, base.CTRANSLATE2, base.SHORTLIST):
        raise UserError(f"--to is {base.ONNX}, {base.CTRANSLATE2} or {base.SHORTLIST}, not {to!r}")
    base.check_engine_options(base.TORCH if alone else to, precision)
    if alone and precision == base.INT8:
        raise UserError(f"--precision is for --to {base.ONNX} and {base.CTRANSLATE2}: a {base.SHORTLIST} is in none")
    if shortlist and to != base.CTRANSLATE2:
        raise UserError(f"--shortlist is for --to {base.CTRANSLATE2}, not {to}")
    if data and not (shortlist or alone):
        raise UserError("--data is what a shortlist is learnt from: --shortlist is missing")
    if out is not None and out.exists():
        raise UserError(f"{out} is there already; --out is a new folder")
    translator = load(run, device="cpu")
    opened = base.LoadedRun(Run(run), translator.models[0], translator.tokenizers)
    if to == base.ONNX:
        base.export_onnx(opened, precision, out)
    elif alone:
        base.export_shortlist(opened, _learn_shortlist_of_run(translator, run, data), out)
    else:
        base.export_ctranslate2(
            opened, precision, out, _learn_shortlist_of_run(translator, run, data) if shortlist else None
        )
    if out is not None:
        shutil.copytree(run / "tokenizer", out / "tokenizer")
        log_message(f"{out} has the {'shortlist' if alone else 'model'} and the vocabularies")
    else:
        how = "--shortlist" if alone else f"--engine {to} --precision {precision}"
        log_message(f"`regard translate {run} {how}` goes by it")


def _learn_shortlist_of_run(translator: Translator, run: Path, data: list[Path] | None) -> Shortlist:
    """A shortlist of the data, or of what the run was trained on."""
    from regard.console import log_message
    from regard.data.readers.dispatch import iterate_pairs
    from regard.data.settings import group_paths
    from regard.runs import Run
    from regard.translate.shortlist import MAX_TRAINING_PAIRS, learn_shortlist

    known = Run(run).read_config()["data"]
    paths = data or [Path(path) for path in known.get("train") or ()]
    if not paths:
        raise UserError(f"{run} does not say what it was trained on: name pairs for the shortlist with --data")
    groups = group_paths(paths)
    log_message(f"a shortlist is learnt from {' and '.join(map(str, paths))} (at most {MAX_TRAINING_PAIRS:,} pairs)")
    each = (iterate_pairs(group, known.get("source"), known.get("target")) for group in groups)
    return learn_shortlist(
        translator, chain.from_iterable(islice(some, MAX_TRAINING_PAIRS // len(groups)) for some in each)
    )
