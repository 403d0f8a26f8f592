"""`regard export`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from regard.errors import UserError


def export(
    run: Annotated[Path, typer.Argument(help="A run that translates.")],
    to: Annotated[str, typer.Option(help="`onnx`: two graphs, of any model; `ctranslate2`: a Transformer.")] = "onnx",
    precision: Annotated[
        str, typer.Option(help="`fp32`, or `int8`: weights in bytes, smaller and faster, nearly the same.")
    ] = "fp32",
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

    if to not in (engines.ONNX, engines.CTRANSLATE2):
        raise UserError(f"--to is {engines.ONNX} or {engines.CTRANSLATE2}, not {to!r}")
    engines.check(to, precision)
    if out is not None and out.exists():
        raise UserError(f"{out} is there already; --out is a new folder")
    translator = load(run, device="cpu")
    opened = engines.Opened(Run(run), translator.models[0], translator.tokenizers)
    write = engines.exported if to == engines.ONNX else engines.rewritten
    write(opened, precision, out)
    if out is not None:
        shutil.copytree(run / "tokenizer", out / "tokenizer")
        say(f"{out} has the model and the vocabularies")
    else:
        say(f"`regard translate {run} --engine {to} --precision {precision}` goes by it")
