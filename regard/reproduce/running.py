"""From an experiment to its table and its page."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.console import say
from regard.errors import UserError
from regard.report import document
from regard.reproduce import page, sheet
from regard.reproduce.experiment import Experiment, Values
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.lab import Lab
from regard.reproduce.sheet import Outcome, Result, Spent, concluded
from regard.reproduce.verdict import DEVIATIONS, SEEDS, Verdict


def conduct(experiment: Experiment, lab: Lab, seeds: int = 1, trains: bool = True) -> Outcome:
    """Trains what is missing, each model with so many seeds, measures it, and writes what came of it.

    Not `trains`: a row whose models are not all there is left out, and what is claimed of it not decided.
    """
    began, worked, rows, results = time.monotonic(), time.process_time(), experiment.rows(lab.scale), []
    for number, row in enumerate(rows, 1):
        times = [row.again(turn) for turn in range(seeds if row.trainings else 1)]
        there = trains or all(lab.knows(experiment.measure, one) or all(map(lab.has, one.trainings)) for one in times)
        say(f"{experiment.name} {number}/{len(rows)}: {row.name}{'' if there else ' is left out: it is not trained'}")
        if there:
            results.append(Result(times, averaged([lab.measured(experiment.measure, one) for one in times])))
    if seeds > 1 and not any(row.trainings for row in rows):
        say(f"{experiment.name} has no runs, so that it was measured once, not with {seeds} seeds")
    if not results:
        raise UserError(f"{experiment.name}: no row is trained yet at the scale {lab.scale}; without --trained it is")
    spent = Spent(time.monotonic() - began, time.process_time() - worked)
    outcome = concluded(experiment, results, lab.scale, spent)
    folder = lab.results / experiment.name
    sheet.write(outcome, lab, folder)
    page.write(outcome, lab, folder)
    overview(lab)
    return outcome


def averaged(times: Sequence[Values]) -> Values:
    """The mean of each number over several times, and its deviation; of what is no number the first."""
    first, *others = times
    if not others:
        return first
    numbers = {
        name: [float(one[name]) for one in times]
        for name in first
        if all(isinstance(one.get(name), int | float) for one in times)
    }
    means = {name: statistics.fmean(values) for name, values in numbers.items()}
    deviations = {name: statistics.stdev(values) for name, values in numbers.items()}
    return {**first, **means, DEVIATIONS: deviations, SEEDS: len(times)}


def overview(lab: Lab) -> Path:
    """`README.md` and `index.html`: every claim of the experiments that were run at this scale, with its verdict."""
    told = [tables for name in EXPERIMENTS if (tables := read(lab.results / name / "table.json"))]
    rows = [(one, claim) for one in told for claim in one["claims"]]
    head = ["experiment", "claim", "verdict", "figures"]
    cells = [
        [f"[{one['experiment']}]({one['experiment']}/table.md)", claim["claim"], claim["verdict"], claim["figures"]]
        for one, claim in rows
    ]
    (lab.results / "README.md").write_text(
        f"# Claims at the scale {lab.scale}\n\n{sheet.table(head, cells)}", encoding="utf-8"
    )
    body = "".join(
        f'<tr><td><a href="{escape(one["experiment"])}/page.html">{escape(one["title"])}</a></td>'
        f"<td>{escape(claim['claim'])}</td><td>{page.MARKS[Verdict(claim['verdict'])]} {escape(claim['verdict'])}</td>"
        f"<td>{escape(claim['figures'])}</td></tr>"
        for one, claim in rows
    )
    titles = "".join(f"<th scope=col>{title}</th>" for title in head)
    path = lab.results / "index.html"
    sheeted = (
        f"<div class=scroll><table class=sheet><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    title = f"The papers' claims, scale {lab.scale}"
    verdicts = Counter(claim["verdict"] for _, claim in rows)
    count = "; ".join(f"{verdicts[verdict]} {verdict}" for verdict in Verdict)
    path.write_text(document(title, f"<h1>{title}</h1><p>{len(rows)} claims: {count}.</p>{sheeted}"), encoding="utf-8")
    return path


def read(path: Path) -> dict[str, Any] | None:
    """The results of an experiment, if there are any."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def summary(outcome: Outcome) -> str:
    """Claim by claim, for people."""
    lines = [f"{outcome.experiment.name}: {outcome.experiment.title}"]
    width = max(len(found.verdict) for _, found in outcome.findings)
    lines += [f"  {found.verdict:<{width}}  {claim.text} ({found.figures})" for claim, found in outcome.findings]
    return "\n".join(lines)


def described(experiment: Experiment) -> str:
    """What an experiment claims, where that comes from, and what it costs."""
    small, full = (
        len({one.name for row in experiment.rows(scale) for one in row.trainings}) for scale in ("small", "full")
    )
    claims = "\n".join(f"  - {claim.text}" for claim in experiment.claims)
    on_a_core = f"small: {trainings(small)}, about {minutes(experiment.minutes)} of one CPU core"
    cost = f"{on_a_core}; full: {trainings(full)}, on a GPU"
    return f"{experiment.name}: {experiment.title}\n{claims}\n  source: {experiment.source}\n  {cost}"


def trainings(count: int) -> str:
    """How many models are trained."""
    return {0: "no run is trained", 1: "1 training"}.get(count, f"{count} trainings")


def minutes(count: float) -> str:
    """A time in words."""
    return f"{count:g} minute{'s' * (count != 1)}" if count >= 1 else f"{count * 60:.0f} seconds"


def plan(experiments: Sequence[Experiment], lab: Lab, seeds: int = 1) -> str:
    """What would be run, row by row, with the command that trains each model; a model that is there says so."""
    lines = [f"# corpora are written to {lab.out / 'corpora'} when a run first needs them"]
    for experiment in experiments:
        lines.append(f"# {experiment.name}: {experiment.title}")
        for row in experiment.rows(lab.scale):
            options = "".join(f", {key}={value}" for key, value in row.options.items())
            lines.append(f"# {row.name}{options}")
            for training in (one for turn in range(seeds) for one in row.again(turn).trainings):
                lines.append(lab.command(training) + (" # is there" if lab.has(training) else ""))
    return "\n".join(lines)
