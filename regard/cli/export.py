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
    from regard.console import say
    from regard.runs import Run
    from regard.translate import engines, load

    alone = to == engines.SHORTLIST
    if to not in (engines.ONNX, engines.CTRANSLATE2, engines.SHORTLIST):
        raise UserError(f"--to is {engines.ONNX}, {engines.CTRANSLATE2} or {engines.SHORTLIST}, not {to!r}")
    engines.check(engines.TORCH if alone else to, precision)
    if alone and precision == engines.INT8:
        raise UserError(
            f"--precision is for --to {engines.ONNX} and {engines.CTRANSLATE2}: a {engines.SHORTLIST} is in none"
        )
    if shortlist and to != engines.CTRANSLATE2:
        raise UserError(f"--shortlist is for --to {engines.CTRANSLATE2}, not {to}")
    if data and not (shortlist or alone):
        raise UserError("--data is what a shortlist is learnt from: --shortlist is missing")
    if out is not None and out.exists():
        raise UserError(f"{out} is there already; --out is a new folder")
    translator = load(run, device="cpu")
    opened = engines.Opened(Run(run), translator.models[0], translator.tokenizers)
    if to == engines.ONNX:
        engines.exported(opened, precision, out)
    elif alone:
        engines.noted(opened, listed(translator, run, data), out)
    else:
        engines.rewritten(opened, precision, out, listed(translator, run, data) if shortlist else None)
    if out is not None:
        shutil.copytree(run / "tokenizer", out / "tokenizer")
        say(f"{out} has the {'shortlist' if alone else 'model'} and the vocabularies")
    else:
        how = "--shortlist" if alone else f"--engine {to} --precision {precision}"
        say(f"`regard translate {run} {how}` goes by it")


def listed(translator: Translator, run: Path, data: list[Path] | None) -> Shortlist:
    """A shortlist of the data, or of what the run was trained on."""
    from regard.console import say
    from regard.data.corpus import read
    from regard.data.settings import grouped
    from regard.runs import Run
    from regard.translate.shortlist import PAIRS, learned

    known = Run(run).config()["data"]
    paths = data or [Path(path) for path in known.get("train") or ()]
    if not paths:
        raise UserError(f"{run} does not say what it was trained on: name pairs for the shortlist with --data")
    groups = grouped(paths)
    say(f"a shortlist is learnt from {' and '.join(map(str, paths))} (at most {PAIRS:,} pairs)")
    each = (read(group, known.get("source"), known.get("target")) for group in groups)
    return learned(translator, chain.from_iterable(islice(some, PAIRS // len(groups)) for some in each))
