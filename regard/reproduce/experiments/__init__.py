"""The experiments: one YAML file each, with the rows of the table, the published values and the claims.

`index.yaml` lists the files in the order of the overview.

A row's models are its `trainings`, or one of its own `recipe`; each is trained on all `corpora`, with the keys of
`presets.yaml` that fit the recipe to a corpus, and with the `changes` of row and training. `corpora` and `trainings` of
the experiment are those of rows without their own. A mapping of the scales, `{small: 64, full: 512}`, stands for its
value at a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from regard.errors import UserError
from regard.paths import read_package_yaml
from regard.recipes.recipe import parse_yaml, read_yaml_text
from regard.reproduce.corpora import CORPUS_BUILDERS
from regard.reproduce.experiment import SCALES, Chart, Claim, Experiment, ExperimentRow, fit_recipe


def load_experiment(name: str) -> Experiment:
    """Read the experiment in `experiments/NAME.yaml`."""
    return _build_experiment(read_package_yaml(__name__, f"{name}.yaml"))


def read_experiment(path: Path, scale: str) -> Experiment:
    """Read an experiment from a file of the user; raise UserError if it cannot be run at a scale."""
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    declaration = parse_yaml(read_yaml_text(path), str(path))
    try:
        experiment = _build_experiment(declaration)
        rows = experiment.rows(scale)
    except KeyError as error:
        raise UserError(f"{path} is not an experiment: it has no {error}") from error
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not an experiment: {error}") from error
    if experiment.name in EXPERIMENTS:
        raise UserError(f"{path}: the name {experiment.name!r} is that of an experiment of regard; choose another one")
    for corpus in (training.corpus for row in rows for training in row.trainings):
        if corpus not in CORPUS_BUILDERS:
            raise UserError(f"{path}: unknown corpus {corpus!r}; there are {', '.join(CORPUS_BUILDERS)}")
    known = {row.name for row in rows}
    for row in (row for claim in experiment.claims for row in claim.rows):
        if row not in known:
            raise UserError(f"{path}: a claim is about {row!r}, which is no row; there are {', '.join(sorted(known))}")
    return experiment


def _build_experiment(declaration: dict[str, Any]) -> Experiment:
    """Return the experiment that a YAML file declares."""
    corpora, trainings = declaration.pop("corpora", []), declaration.pop("trainings", [{}])
    defaults = {"corpora": corpora, "trainings": trainings, "changes": {}}
    declaration |= {
        "rows": partial(_build_rows, declaration["rows"], defaults),
        "measure": resolve_name(declaration["measure"]),
        "claims": [Claim(**claim) for claim in declaration["claims"]],
        "charts": [Chart(**chart) for chart in declaration.get("charts", [])],
    }
    return Experiment(**declaration)


def _build_rows(rows: Mapping[str, Any], defaults: Mapping[str, Any], scale: str) -> list[ExperimentRow]:
    """Return the rows of an experiment at a scale, with the trainings of each."""
    built = []
    for name, row in _select_scale(rows, scale).items():
        model = {**_select_scale(defaults, scale), **row}
        trainings = []
        for training in model["trainings"]:
            one = {**model, **training, "changes": {**model["changes"], **training.get("changes", {})}}
            trainings += [fit_recipe(one["recipe"], corpus, one["changes"]) for corpus in one["corpora"]]
        built.append(ExperimentRow(name, trainings, row.get("options", {}), row.get("published", {})))
    return built


def _select_scale(value: Any, scale: str) -> Any:
    """Replace each mapping of the scales in a declaration by its value at a scale."""
    if isinstance(value, list):
        return [_select_scale(item, scale) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == set(SCALES):
        return _select_scale(value[scale], scale)
    return {key: _select_scale(item, scale) for key, item in value.items()}


_INDEX: list[str] = read_package_yaml(__name__, "index.yaml")
EXPERIMENTS = {experiment.name: experiment for experiment in map(load_experiment, _INDEX)}
