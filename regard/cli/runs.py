"""`regard runs` and `regard report`: compare runs in a table, and write the HTML report of one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from regard.cli.options import InferenceDevice, choose_device_of_option, describe_options
from regard.console import log_message
from regard.errors import UserError
from regard.paths import format_json
from regard.runs import Run
from regard.runs.run import RunSummary, find_runs, summarize_run

MISSING = "–"
TABLE_WIDTH = 10_000  # columns: rows are never wrapped, however narrow the terminal is

TableRow = dict[str, str]


@describe_options
def runs(
    folders: list[Path] | None = None, sort: str = "score", differences: bool = False, as_json: bool = False
) -> None:
    """List runs in a table: recipe, progress and best validation scores; * marks the best ones.

    Example: regard runs runs --sort loss --differences
    """
    sort_key = SORT_KEYS.get(sort)
    if sort_key is None:
        raise UserError(f"--sort must be one of {', '.join(SORT_KEYS)}, not {sort!r}")
    searched = folders or [Path("runs")]
    paths = dict.fromkeys(path for folder in searched for path in find_runs(folder))
    summaries = sorted(map(summarize_run, paths), key=lambda summary: (sort_key(summary), str(summary.folder)))
    differing = _find_config_differences(summaries) if differences else None
    if as_json:
        document: dict[str, Any] = {"runs": list(map(asdict, summaries))}
        typer.echo(format_json(document | ({} if differing is None else {"differences": differing}), default=str))
        return
    if not summaries:
        log_message(f"no runs in {' '.join(map(str, searched))}; `regard train` writes them")
        return
    _print_table([make_run_row(summary, summaries) for summary in summaries])
    if differing is not None:
        typer.echo()
        names = [str(summary.folder) for summary in summaries if summary.config is not None]
        _print_table(
            [
                {"key": key, **{name: _format_config_value(values.get(name, MISSING)) for name in names}}
                for key, values in differing.items()
            ]
        )
        if not differing:
            typer.echo("the configs do not differ")


def _make_sort_key(value: float | None, sign: int = 1) -> float:
    """Return a key that sorts low values first, with `sign` -1 high ones; missing ones are last."""
    return float("inf") if value is None else sign * value


SORT_KEYS: dict[str, Callable[[RunSummary], Any]] = {
    "score": lambda run: (_make_sort_key(getattr(run.best, "score", None), -1), SORT_KEYS["loss"](run)),
    "loss": lambda run: _make_sort_key(getattr(run.best, "loss", None)),
    "name": lambda run: "",
    "time": lambda run: _make_sort_key(run.written, -1),
}

SCORE_FORMATS = {"r2": ".4f"}  # scores that are not percentages


def make_run_row(summary: RunSummary, summaries: Sequence[RunSummary]) -> TableRow:
    """Return the table row of a run."""

    def mark_if_best(name: str, number_format: str, best: Callable[..., float], others: Sequence[RunSummary]) -> str:
        """Format a value of the best validation, marked with * if it is the best of several runs."""
        value, *values = (getattr(run.best, name, None) for run in (summary, *others))
        known = [other for other in values if other is not None]
        return _format_number(value, number_format) + (" *" if len(known) > 1 and value == best(known) else "")

    measure = summary.best.measure if summary.best else MISSING
    comparable = [run for run in summaries if run.best and run.best.measure == measure]
    return {
        "run": str(summary.folder),
        "recipe": summary.recipe or MISSING,
        "parameters": _format_number(summary.parameters, ","),
        "steps": _format_number(summary.steps or None, ","),
        "epochs": _format_number(summary.epochs, ".1f"),
        "score": mark_if_best("score", SCORE_FORMATS.get(measure, ".1f"), max, comparable),
        "of": measure,
        "loss": mark_if_best("loss", ".3f", min, summaries),
        "perplexity": mark_if_best("perplexity", ".2f", min, summaries),
        "at step": _format_number(summary.best.step if summary.best else None, ","),
        "tokens/s": _format_number(summary.tokens_per_second, ",.0f"),
        "trained": MISSING if summary.seconds is None else _format_duration(summary.seconds),
        "written": time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.written)) if summary.written else MISSING,
        "": summary.damage or ("finished" if summary.finished else "unfinished"),
    }


def _format_number(value: float | None, number_format: str) -> str:
    return MISSING if value is None else format(value, number_format)


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _find_config_differences(summaries: Sequence[RunSummary]) -> dict[str, dict[str, Any]]:
    """Return the config keys whose values differ, with the value of each run that has the key."""
    configs = {str(one.folder): flatten_config(one.config) for one in summaries if one.config is not None}
    differences = {}
    for key in dict.fromkeys(key for config in configs.values() for key in config):
        values = {name: config[key] for name, config in configs.items() if key in config}
        if len(values) < len(configs) or len({_format_config_value(value) for value in values.values()}) > 1:
            differences[key] = values
    return differences


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested keys: `{"model": {"size": 3}}` becomes `{"model.size": 3}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten_config(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _format_config_value(value: Any) -> str:
    """Format a config value as on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _print_table(rows: Sequence[TableRow]) -> None:
    """Print a table, one line per row."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in rows[0]:
        is_numeric = all(row[name][:1].isdigit() or row[name] == MISSING for row in rows)
        table.add_column(Text(name), justify="right" if is_numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row.values()))
    Console(file=sys.stdout, width=TABLE_WIDTH, highlight=False).print(table)


@describe_options
def report(run: Path, device: InferenceDevice = "auto") -> None:
    """Write a run's HTML report: training curves, samples and heat maps of its best checkpoint so far.

    Example: regard report runs/mine
    """
    from regard.report.html import write_report

    typer.echo(write_report(Run(run), choose_device_of_option(device)))
