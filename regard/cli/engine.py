"""Where translating is done: in this process, or by workers on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.translate import Options, Translation

PANEL = "Corpora of millions of lines"
LOCAL, RAY = "local", "ray"

Name = Annotated[
    str, typer.Option("--engine", help="`ray`: workers on a Ray cluster instead of `local`.", rich_help_panel=PANEL)
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="How many of them; else one a GPU, or one a core.", rich_help_panel=PANEL),
]
Translate = Callable[[Iterable[Sequence[str]]], Iterator[list["Translation"]]]


def check_engine(name: str, workers: int | None) -> None:
    """Refuses what no engine has."""
    if name not in (LOCAL, RAY):
        raise UserError(f"--engine is {LOCAL} or {RAY}, not {name!r}")
    if workers is not None and name != RAY:
        raise UserError(f"--workers is for --engine {RAY}; this process is the only worker that --engine {LOCAL} has")


@contextmanager
def engine(name: str, workers: int | None, folders: Sequence[Path], wishes: Options) -> Iterator[Translate]:
    """What turns lots of lines into lots of translations, in their order; either engine writes the same."""
    from regard.translate import load

    check_engine(name, workers)
    if name == RAY:
        from regard.translate.cluster import crew

        with crew(folders, wishes, workers) as hired:
            yield hired.translated
        return
    translator = load(*folders)
    plan = translator.plan(wishes)
    yield lambda lots: (translator.chunk(texts, plan) for texts in lots)
