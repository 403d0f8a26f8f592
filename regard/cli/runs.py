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
from regard.strict_json import dumps

if TYPE_CHECKING:
    from regard.runs.summary import RunSummary

MISSING = "–"
TABLE_WIDTH = 10_000  # columns: a row is a line, whatever the terminal makes of it

TableRow = dict[str, str]


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
    from regard.console import log_message
    from regard.runs.summary import find_runs, summarize_run

    order = SORT_KEYS.get(sort)
    if order is None:
        raise UserError(f"--sort is one of {', '.join(SORT_KEYS)}, not {sort!r}")
    places = folders or [Path("runs")]
    paths = dict.fromkeys(path for folder in places for path in find_runs(folder))
    listed = sorted((summarize_run(path) for path in paths), key=lambda one: (order(one), str(one.folder)))
    differing = _find_config_differences(listed) if differences else None
    if as_json:
        document: dict[str, Any] = {"runs": [make_run_dict(one) for one in listed]}
        typer.echo(dumps(document | ({} if differing is None else {"differences": differing}), default=str))
        return
    if not listed:
        log_message(f"no runs in {' '.join(map(str, places))}; `regard train` writes them")
        return
    _print_table([make_run_row(one, listed) for one in listed])
    if differing is not None:
        typer.echo()
        names = [str(one.folder) for one in listed if one.config is not None]
        rows = {
            key: {name: _format_config_value(of[name]) if name in of else MISSING for name in names}
            for key, of in differing.items()
        }
        _print_table([{"key": key, **of} for key, of in rows.items()])
        if not differing:
            typer.echo("their configs do not differ")


def _get_best_metric(summary: RunSummary, metric: str) -> float | None:
    """A figure of the best validation."""
    return getattr(summary.best, metric) if summary.best else None


def _sort_descending(value: float | None) -> float:
    """Sorts high figures first, missing ones last."""
    return float("inf") if value is None else -value


def _sort_ascending(value: float | None) -> float:
    """Sorts low figures first, missing ones last."""
    return float("inf") if value is None else value


SORT_KEYS: dict[str, Callable[[RunSummary], Any]] = {
    "score": lambda one: (
        _sort_descending(_get_best_metric(one, "score")),
        _sort_ascending(_get_best_metric(one, "loss")),
    ),
    "loss": lambda one: _sort_ascending(_get_best_metric(one, "loss")),
    "name": lambda one: "",
    "time": lambda one: _sort_descending(one.written),
}

SCORE_FORMATS = {"r2": ".4f"}  # scores that are not of a hundred


def make_run_row(summary: RunSummary, summaries: Sequence[RunSummary]) -> TableRow:
    """A run on one line."""
    losses, perplexities = ([_get_best_metric(each, name) for each in summaries] for name in ("loss", "perplexity"))
    measure = summary.best.measure if summary.best else MISSING
    scores = [each.best.score for each in summaries if each.best and each.best.measure == measure]
    return {
        "run": str(summary.folder),
        "recipe": summary.recipe or MISSING,
        "parameters": _format_number(summary.parameters, ","),
        "steps": _format_number(summary.steps or None, ","),
        "epochs": _format_number(summary.epochs, ".1f"),
        "score": _mark_if_best(_get_best_metric(summary, "score"), SCORE_FORMATS.get(measure, ".1f"), scores, max),
        "of": measure,
        "loss": _mark_if_best(_get_best_metric(summary, "loss"), ".3f", losses, min),
        "perplexity": _mark_if_best(_get_best_metric(summary, "perplexity"), ".2f", perplexities, min),
        "at step": _format_number(summary.best.step if summary.best else None, ","),
        "tokens/s": _format_number(summary.tokens_per_second, ",.0f"),
        "trained": MISSING if summary.seconds is None else _format_duration(summary.seconds),
        "written": time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.written)) if summary.written else MISSING,
        "": summary.damage or ("finished" if summary.finished else "unfinished"),
    }


def _format_number(value: float | None, number_format: str) -> str:
    """A figure, or that there is none."""
    return MISSING if value is None else format(value, number_format)


def _mark_if_best(
    value: float | None, number_format: str, all_values: Sequence[float | None], best: Callable[..., float]
) -> str:
    """A figure, with a mark where it is the best of several."""
    known = [other for other in all_values if other is not None]
    return _format_number(value, number_format) + (" *" if len(known) > 1 and value == best(known) else "")


def _format_duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _find_config_differences(summaries: Sequence[RunSummary]) -> dict[str, dict[str, Any]]:
    """The keys whose values are not the same in all configs, with the value of each run that has the key."""
    configs = {str(one.folder): dict(_flatten_config(one.config)) for one in summaries if one.config is not None}
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    values = {key: {name: config[key] for name, config in configs.items() if key in config} for key in keys}
    return {
        key: of
        for key, of in values.items()
        if len(of) < len(configs) or len({_format_config_value(value) for value in of.values()}) > 1
    }


def _flatten_config(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`{"model": {"size": 3}}` -> `model.size`, 3."""
    found = []
    for key, value in config.items():
        found += _flatten_config(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _format_config_value(value: Any) -> str:
    """A value of a config as one would write it on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def make_run_dict(summary: RunSummary) -> dict[str, Any]:
    """A run as JSON."""
    return asdict(summary) | {"folder": str(summary.folder)}


def _print_table(rows: Sequence[TableRow]) -> None:
    """A table, each row on one line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in rows[0]:
        figures = all(each[name][:1].isdigit() or each[name] == MISSING for each in rows)
        table.add_column(Text(name), justify="right" if figures else "left", no_wrap=True)
    for each in rows:
        table.add_row(*map(Text, each.values()))
    Console(file=sys.stdout, width=TABLE_WIDTH, highlight=False).print(table)
