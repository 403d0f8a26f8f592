"""The results of an experiment as a table for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.reproduce.experiment import Claim, Experiment, Row, Values, Whose
from regard.reproduce.lab import Lab
from regard.reproduce.verdict import DEVIATIONS, SEEDS, Figures, Finding
from regard.runs.summary import summary
from regard.strict_json import dumps
from regard.version import VERSION

NOTHING = "–"
WHOSE: dict[Whose, str] = {"paper": "the paper's", "ours": "ours", "definition": "by definition"}
LEGEND = (
    "± beside a claim is what chance may make of the difference once in twenty times; it is assumed where a model was "
    "trained once. ± beside a figure is the deviation between seeds; curves are of the first."
)


class Column(NamedTuple):
    """A measure's name, and how its numbers are written."""

    title: str
    form: str = ".3g"


COLUMNS = {
    "bleu": Column("BLEU", ".1f"),
    "replaced": Column("BLEU, unk replaced", ".1f"),
    "perplexity": Column("perplexity", ".2f"),
    "aer": Column("AER", ".3f"),
    "accuracy": Column("accuracy, %", ".1f"),
    "recall": Column("copied, %", ".1f"),
    "rmse": Column("RMSE", ".3f"),
    "r2": Column("R²", ".3f"),
    "entropy": Column("entropy, nats", ".2f"),
    "faint": Column("weights < 0.01", ".0%"),
    "kept": Column("long against short", ".0%"),
    "training_speed": Column("trained tokens/s", ",.0f"),
    "decoding_speed": Column("written words/s", ",.0f"),
    "parameters": Column("parameters", ",.0f"),
    "error": Column("error of the sum"),
    "gradient_kept": Column("gradient kept"),
    "loss": Column("loss"),
    "growth_operations": Column("operations, times"),
    "growth_bytes": Column("bytes, times"),
    "growth_seconds": Column("seconds, times"),
}


@dataclass(frozen=True)
class Result:
    """A row, as it was trained one time or several, and what was measured of it."""

    times: Sequence[Row]
    values: Values

    @property
    def row(self) -> Row:
        """The row as the experiment has it."""
        return self.times[0]


class Spent(NamedTuple):
    """Seconds that it took this time, by the clock and of this process; what was there already took none."""

    clock: float
    process: float


@dataclass(frozen=True)
class Outcome:
    """What became of an experiment."""

    experiment: Experiment
    results: Sequence[Result]
    findings: Sequence[tuple[Claim, Finding]]
    spent: Spent

    @property
    def seeds(self) -> int:
        """How many times models were trained."""
        return max((int(result.values.get(SEEDS, 1)) for result in self.results), default=1)

    def command(self, scale: str) -> str:
        """What does it all again."""
        seeds = f" --seeds {self.seeds}" if self.seeds > 1 else ""
        return f"regard reproduce {self.experiment.name} --scale {scale}{seeds}"


def concluded(experiment: Experiment, results: Sequence[Result], scale: str, spent: Spent) -> Outcome:
    """The results with a verdict on each claim."""
    figures = Figures({result.row.name: result.values for result in results}, scale)
    return Outcome(experiment, results, [(claim, claim.rule(figures)) for claim in experiment.claims], spent)


def markdown(outcome: Outcome) -> str:
    """Claims first, then the figures."""
    experiment = outcome.experiment
    claims = table(
        ["claim", "whose", "verdict", "figures"],
        [[claim.text, WHOSE[claim.whose], f"**{found.verdict}**", found.figures] for claim, found in outcome.findings],
    )
    figures = table(*grid(outcome))
    return f"# {experiment.title}\n\n{experiment.source}\n\n{experiment.about}\n\n{claims}\n{LEGEND}\n\n{figures}"


def grid(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table; what a paper has stands beside what was measured here."""
    columns = outcome.experiment.columns
    told = [name for name in columns if any(name in result.row.published for result in outcome.results)]
    head = ["", *(titled(name) for name in columns), *(f"{titled(name)}, paper" for name in told)]
    rows = [
        [
            result.row.name,
            *(measured(name, result.values) for name in columns),
            *(number(name, result.row.published.get(name)) for name in told),
        ]
        for result in outcome.results
    ]
    return head, rows


def titled(measure: str) -> str:
    """What a measure is called."""
    return COLUMNS.get(measure, Column(measure)).title


def number(measure: str, value: Any) -> str:
    """A number as its measure is written."""
    return NOTHING if value is None else format(value, COLUMNS.get(measure, Column(measure)).form)


def measured(measure: str, values: Values) -> str:
    """A number, with its deviation between seeds where there are several."""
    off = values.get(DEVIATIONS, {}).get(measure)
    return number(measure, values.get(measure)) + ("" if off is None else f" ± {number(measure, off)}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def document(outcome: Outcome, lab: Lab) -> dict[str, Any]:
    """All of it, with what it takes to do it again."""
    experiment = outcome.experiment
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "scale": lab.scale,
        "claims": [
            {"claim": claim.text, "whose": claim.whose, "verdict": str(found.verdict), "figures": found.figures}
            for claim, found in outcome.findings
        ],
        "rows": [described(result, experiment, lab) for result in outcome.results],
        "signature": next((one.values["signature"] for one in outcome.results if "signature" in one.values), None),
        "seeds": outcome.seeds,
        "seconds": {name: round(seconds, 1) for name, seconds in outcome.spent._asdict().items()},
        "regard": VERSION,
    }


def described(result: Result, experiment: Experiment, lab: Lab) -> dict[str, Any]:
    """One row, with the machine that it was measured on."""
    row = result.row
    runs = [
        {
            "run": str(lab.folder(training)),
            "seed": training.seed,
            "seconds": summary(lab.folder(training)).seconds,
            "changes": dict(training.changes),
            "command": lab.command(training),
        }
        for one in result.times
        for training in one.trainings
    ]
    return {
        "name": row.name,
        "runs": runs,
        "options": dict(row.options),
        "measured": dict(result.values),
        "published": dict(row.published),
        "hardware": lab.machine(experiment.measure, row),
    }


def write(outcome: Outcome, lab: Lab, folder: Path) -> Mapping[str, Any]:
    """`table.md` and `table.json` in a folder; gives back what the second holds."""
    folder.mkdir(parents=True, exist_ok=True)
    told = document(outcome, lab)
    (folder / "table.md").write_text(markdown(outcome), encoding="utf-8")
    (folder / "table.json").write_text(dumps(told, indent=1) + "\n", encoding="utf-8")
    return told
