"""`regard runs`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs.summary import Summary

NOTHING = "–"
WIDE = 10_000  # columns: a row is a line, whatever the terminal makes of it

Row = dict[str, str]


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or runs; `runs` if none.")] = None,
    sort: Annotated[
        str, typer.Option(help="`score`, `loss`, `name`, or `time`: those that were written last come first.")
    ] = "score",
    differences: Annotated[
        bool, typer.Option("--differences", help="Which keys of their configs differ, and how.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List runs side by side: what they are, how far they have come, how good they are; * marks the best figures.

    Example: regard runs runs --sort loss --differences
    """
    from regard.console import say
    from regard.runs.summary import found, summary

    order = ORDERS.get(sort)
    if order is None:
        raise UserError(f"--sort is one of {', '.join(ORDERS)}, not {sort!r}")
    places = folders or [Path("runs")]
    paths = dict.fromkeys(path for folder in places for path in found(folder))
    listed = sorted((summary(path) for path in paths), key=lambda one: (order(one), str(one.folder)))
    differing = difference(listed) if differences else None
    if as_json:
        document: dict[str, Any] = {"runs": [described(one) for one in listed]}
        typer.echo(
            json.dumps(
                document | ({} if differing is None else {"differences": differing}), ensure_ascii=False, default=str
            )
        )
        return
    if not listed:
        say(f"no runs in {' '.join(map(str, places))}; `regard train` writes them")
        return
    show([row(one, listed) for one in listed])
    if differing is not None:
        typer.echo()
        names = [str(one.folder) for one in listed if one.config is not None]
        rows = {
            key: {name: plain(of[name]) if name in of else NOTHING for name in names} for key, of in differing.items()
        }
        show([{"key": key, **of} for key, of in rows.items()])
        if not differing:
            typer.echo("their configs do not differ")


def figure(one: Summary, name: str) -> float | None:
    """A figure of the best validation."""
    return getattr(one.best, name) if one.best else None


def downwards(value: float | None) -> float:
    """Sorts high figures first, missing ones last."""
    return float("inf") if value is None else -value


def upwards(value: float | None) -> float:
    """Sorts low figures first, missing ones last."""
    return float("inf") if value is None else value


ORDERS: dict[str, Callable[[Summary], Any]] = {
    "score": lambda one: (downwards(figure(one, "score")), upwards(figure(one, "loss"))),
    "loss": lambda one: upwards(figure(one, "loss")),
    "name": lambda one: "",
    "time": lambda one: downwards(one.written),
}

FORMS = {"r2": ".4f"}  # scores that are not of a hundred


def row(one: Summary, listed: Sequence[Summary]) -> Row:
    """A run on one line."""
    losses, perplexities = ([figure(each, name) for each in listed] for name in ("loss", "perplexity"))
    measure = one.best.measure if one.best else NOTHING
    scores = [each.best.score for each in listed if each.best and each.best.measure == measure]
    return {
        "run": str(one.folder),
        "recipe": one.recipe or NOTHING,
        "parameters": shown(one.parameters, ","),
        "steps": shown(one.steps or None, ","),
        "epochs": shown(one.epochs, ".1f"),
        "score": marked(figure(one, "score"), FORMS.get(measure, ".1f"), scores, max),
        "of": measure,
        "loss": marked(figure(one, "loss"), ".3f", losses, min),
        "perplexity": marked(figure(one, "perplexity"), ".2f", perplexities, min),
        "at step": shown(one.best.step if one.best else None, ","),
        "tokens/s": shown(one.tokens_per_second, ",.0f"),
        "trained": NOTHING if one.seconds is None else duration(one.seconds),
        "written": time.strftime("%Y-%m-%d %H:%M", time.localtime(one.written)) if one.written else NOTHING,
        "": one.damage or ("finished" if one.finished else "unfinished"),
    }


def shown(value: float | None, form: str) -> str:
    """A figure, or that there is none."""
    return NOTHING if value is None else format(value, form)


def marked(value: float | None, form: str, all_values: Sequence[float | None], best: Callable[..., float]) -> str:
    """A figure, with a mark where it is the best of several."""
    known = [other for other in all_values if other is not None]
    return shown(value, form) + (" *" if len(known) > 1 and value == best(known) else "")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def difference(listed: Sequence[Summary]) -> dict[str, dict[str, Any]]:
    """The keys whose values are not the same in all configs, with the value of each run that has the key."""
    configs = {str(one.folder): dict(flat(one.config)) for one in listed if one.config is not None}
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    values = {key: {name: config[key] for name, config in configs.items() if key in config} for key in keys}
    return {
        key: of
        for key, of in values.items()
        if len(of) < len(configs) or len({plain(value) for value in of.values()}) > 1
    }


def flat(config: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """`{"model": {"size": 3}}` -> `model.size`, 3."""
    found = []
    for key, value in config.items():
        found += flat(value, f"{above}{key}.") if isinstance(value, dict) else [(f"{above}{key}", value)]
    return found


def plain(value: Any) -> str:
    """A value of a config as one would write it on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def described(one: Summary) -> dict[str, Any]:
    """A run as JSON."""
    return asdict(one) | {"folder": str(one.folder)}


def show(rows: Sequence[Row]) -> None:
    """A table, each row on one line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in rows[0]:
        figures = all(each[name][:1].isdigit() or each[name] == NOTHING for each in rows)
        table.add_column(Text(name), justify="right" if figures else "left", no_wrap=True)
    for each in rows:
        table.add_row(*map(Text, each.values()))
    Console(file=sys.stdout, width=WIDE, highlight=False).print(table)
