"""From files and a recipe to series that can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.config import parse
from regard.data.pair import Pair
from regard.errors import UserError
from regard.recipes import Recipe
from regard.runs import Run
from regard.tasks.holding import parted
from regard.tasks.regression.examples import Examples
from regard.tasks.regression.files import Series, columns, series
from regard.tasks.regression.follower import saved
from regard.tasks.regression.prediction import written
from regard.tasks.regression.scale import Scales
from regard.tasks.regression.settings import NumberSettings
from regard.tasks.regression.validation import Validator
from regard.tasks.task import Asked, Job


class Split(NamedTuple):
    """Series to train on, to validate on, and how many were too long."""

    train: list[Series]
    dev: list[Series]
    too_long: int


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Series and their scales."""
    training = config["training"]
    data = parse(NumberSettings, config["data"], "data")
    found = split(data, training["seed"])
    start = training["init_from"]
    scales = saved(run if resume else Run(Path(start))) if resume or start else Scales.learn(found.train)
    for one in (*found.train[:1], *found.dev[:1]):
        if (data.inputs, columns(one)) != scales.sizes:
            wanted = f"{scales.sizes[0]} numbers to read and {scales.sizes[1]} to find"
            raise UserError(f"a step has {wanted} in the training data, not {data.inputs} and {columns(one)}")
    return Job(
        run,
        config,
        Examples(found.train, scales),
        Validator(found.dev, scales, int(training["batch_tokens"]), int(training["validate_pairs"])),
        scales.sizes,
        scales.save,
        about(found, scales),
    )


def split(data: NumberSettings, seed: int) -> Split:
    """What is trained on, and the dev set: as it is named, or series that their hashes choose."""
    if not data.train:
        raise UserError("nothing to train on: name files with the numbers of a step on each line")
    every = named(data.train, data)
    if data.dev:
        train, dev = every, named(data.dev, data)
    else:
        train, dev = parted(every, as_pair, seed, data.dev_series, "there is one series")
    short = [one for one in train if len(one.inputs) <= data.max_length]
    if not short:
        raise UserError(f"no series has at most {data.max_length} steps (data.max_length), nothing to train on")
    return Split(short, dev, len(train) - len(short))


def named(names: Sequence[str], data: NumberSettings) -> list[Series]:
    """The series of some files."""
    return series([Path(name) for name in names], data.inputs)


def as_pair(one: Series) -> Pair:
    """Both sides as text, for what is held out by its content."""
    return Pair(str(one.inputs.tolist()), "" if one.targets is None else str(one.targets.tolist()))


def dev(run: Run) -> list[Asked]:
    """The series that a run was validated on."""
    config = run.config()
    found = split(parse(NumberSettings, config["data"], "data"), config["training"]["seed"]).dev
    return [Asked(one.inputs, written(one.targets), one.targets) for one in found if one.targets is not None]


def about(found: Split, scales: Scales) -> str:
    """What there is to train on."""
    left_out = f" (left out: {found.too_long} too long)" if found.too_long else ""
    inputs, targets = scales.sizes
    return (
        f"{len(found.train):,} series{left_out}, {len(found.dev):,} dev series, "
        f"{inputs} numbers to read and {targets} to find in a step"
    )
