"""The results of an experiment on one page, pictures and all. Nothing is fetched from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from regard.plot import bars, curves, save
from regard.report import document
from regard.reproduce.experiment import Bars, Curves
from regard.reproduce.lab import Lab
from regard.reproduce.sheet import LEGEND, WHOSE, Outcome, grid
from regard.reproduce.verdict import DEVIATIONS, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = {Verdict.HOLDS: "✓", Verdict.FAILS: "✗", Verdict.OPEN: "?"}


def page(outcome: Outcome, lab: Lab, pictures: Iterable[tuple[str, Path]]) -> str:
    """The page, as HTML."""
    experiment = outcome.experiment
    claims = "".join(
        f"<tr><td>{MARKS[found.verdict]} {escape(found.verdict)}</td><td>{escape(claim.text)}</td>"
        f"<td>{escape(WHOSE[claim.whose])}</td><td>{escape(found.figures)}</td></tr>"
        for claim, found in outcome.findings
    )
    head, rows = grid(outcome)
    cells = "".join(f"<tr><th scope=row>{escape(row[0])}</th>{''.join(map(cell, row[1:]))}</tr>" for row in rows)
    titles = "".join(f"<th scope=col>{escape(title)}</th>" for title in head)
    commands = "".join(
        f"<p>{escape(result.row.name)}</p><pre>{escape(lab.command(training))}</pre>"
        for result in outcome.results
        for one in result.times
        for training in one.trainings
    )
    body = (
        f"<h1>{escape(experiment.title)}</h1><p class=paper>{escape(experiment.source)}</p>"
        f"<p>{escape(experiment.about)}</p>"
        f"<h2>Claims</h2><div class=scroll><table class=sheet>{claims}</table></div>"
        f"<p>{escape(LEGEND)}</p><h2>Figures, scale {escape(lab.scale)}</h2>"
        f"<div class=scroll><table class=sheet><thead><tr>{titles}</tr></thead><tbody>{cells}</tbody></table></div>"
        f"<div class=charts>{''.join(inline(*picture) for picture in pictures)}</div>"
        f"<h2>To do it again</h2><pre>{escape(outcome.command(lab.scale))}</pre>"
        f"<details><summary>each run by itself</summary><div class=scroll>{commands}</div></details>"
    )
    return document(experiment.title, body)


def cell(text: str) -> str:
    """A figure."""
    return f"<td>{escape(text)}</td>"


def inline(title: str, picture: Path) -> str:
    """A picture as part of the page; its numbers are in the table as well."""
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt="{escape(title)}"></figure>'


def drawn(chart: Bars | Curves, outcome: Outcome) -> Figure | None:
    """A picture of the results, where these have what it shows."""
    having = [result for result in outcome.results if result.values.get(chart.measure) is not None]
    if not having:
        return None
    if isinstance(chart, Curves):
        lines = {result.row.name: result.values[chart.measure] for result in having}
        return curves(lines, chart.title, chart.across, chart.up, chart.logarithmic)
    values = {result.row.name: float(result.values[chart.measure]) for result in having}
    told = {
        result.row.name: result.row.published[chart.measure]
        for result in having
        if chart.measure in result.row.published
    }
    off = {
        result.row.name: result.values[DEVIATIONS][chart.measure]
        for result in having
        if chart.measure in result.values.get(DEVIATIONS, {})
    }
    return bars(values, chart.title, told, off)


def write(outcome: Outcome, lab: Lab, folder: Path) -> Path:
    """`page.html`, and its pictures beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for chart in outcome.experiment.charts:
        figure = drawn(chart, outcome)
        if figure is not None:
            path = folder / f"{chart.measure}.png"
            save(figure, path)
            pictures.append((chart.title, path))
    path = folder / "page.html"
    path.write_text(page(outcome, lab, pictures), encoding="utf-8")
    return path
