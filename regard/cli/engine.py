"""Where and by what translating is done: in this process, by one engine or another, or by workers on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.translate import Options, Translation

PANEL = "Speed"
AUTO, RAY = "auto", "ray"

Name = Annotated[
    str,
    typer.Option(
        "--engine",
        help="`torch`; `onnx`: onnxruntime on the CPU; `ctranslate2`: likewise, for Transformers; `auto`: what `regard "
        "export` made, else torch, and with `--precision int8` torch first, where it can; `ray`: workers on a Ray "
        "cluster, for millions of lines.",
        rich_help_panel=PANEL,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="`fp32`, or `int8`, which is faster and nearly the same; torch has it for Transformers.",
        rich_help_panel=PANEL,
    ),
]
Shortlist = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="torch, onnx, on a CPU: weigh only what `regard export --to shortlist` has seen the source's words "
        "become, which is faster and nearly the same.",
        rich_help_panel=PANEL,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="ray: how many of them; else one a GPU, or one a core.", rich_help_panel=PANEL),
]
Translate = Callable[[Iterable[Sequence[str]]], Iterator[list["Translation"]]]


class Engine(NamedTuple):
    """What was asked for."""

    name: str
    precision: str | None
    workers: int | None
    shortlist: bool = False

    def check(self) -> None:
        """Refuses what no engine has."""
        from regard.translate import engines

        if self.name not in (*engines.ENGINES, RAY):
            raise UserError(f"--engine is one of {', '.join(engines.ENGINES)} and {RAY}, not {self.name!r}")
        if self.workers is not None and self.name != RAY:
            raise UserError(f"--workers is for --engine {RAY}; this process is the only worker of --engine {self.name}")
        if self.precision is not None and self.name == RAY:
            raise UserError(f"--precision is not for --engine {RAY}, whose workers go by {engines.TORCH}")
        if self.shortlist and self.name == RAY:
            raise UserError(f"--shortlist is not for --engine {RAY}")
        engines.check(AUTO if self.name == RAY else self.name, self.precision, self.shortlist)

    @contextmanager
    def at_work(self, folders: Sequence[Path], wishes: Options) -> Iterator[Translate]:
        """What turns lots of lines into lots of translations, in their order."""
        from regard.translate import load

        self.check()
        if self.name == RAY:
            from regard.runs import Run
            from regard.translate.cluster import crew

            for folder in folders:  # what workers print is not shown
                Run(folder).warn_if_unvalidated()
            with crew(folders, wishes, self.workers) as hired:
                yield hired.translated
            return
        translator = load(*folders, engine=self.name, precision=self.precision, shortlist=self.shortlist)
        plan = translator.plan(wishes)
        yield lambda lots: (translator.chunk(texts, plan) for texts in lots)
