"""`regard export`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from regard.errors import UserError


def export(
    run: Annotated[Path, typer.Argument(help="A run that translates.")],
    to: Annotated[str, typer.Option(help="`onnx`: graphs of the encoder and of a step of the decoder.")] = "onnx",
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
    from regard.translate import engines, load

    if to != engines.ONNX:
        raise UserError(f"--to is {engines.ONNX}, not {to!r}")
    engines.check(to, precision)
    if out is not None and out.exists():
        raise UserError(f"{out} is there already; --out is a new folder")
    translator = load(run, device="cpu", engine=engines.TORCH)
    folder = out or engines.place(run, precision)
    engines.exported(translator.models[0], folder, precision)
    if out is not None:
        shutil.copytree(run / "tokenizer", out / "tokenizer")
        say(f"{out} has the graphs and the vocabularies")
    else:
        say(f"`regard translate {run}` goes by it from now on")
