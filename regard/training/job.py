"""From files and a recipe to a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.config import parse
from regard.console import say
from regard.data.piped import Copies, copying, is_pipe
from regard.data.settings import ReadingSettings
from regard.errors import UserError
from regard.fast import quicken
from regard.models import build, outline
from regard.recipes import override
from regard.runs import Run
from regard.runs.lock import held
from regard.tasks import Job, task_of
from regard.training.configuration import Named, began_with, beginning, check, going_on, located, refuse_another
from regard.training.device import choose_device, preserve_generators, seed_generators
from regard.training.finder import Tried, find
from regard.training.loop import Trainer
from regard.training.processes import ALONE, Processes, joined, several, was_restarted
from regard.training.settings import TrainingSettings
from regard.training.threads import choose_threads, limit_threads, threads_of_resumed_run

Paths = str | Path | Sequence[str | Path]


def train(
    recipe: Named,
    data: Paths | None,
    out: str | Path,
    *,
    dev: Paths | None = None,
    resume: bool = False,
    **overrides: Any,
) -> Run:
    """Trains a recipe (a name, a file or a mapping) on text and gives back the run.

    `data` and `dev` are each one file that holds pairs or two text files, source first; `data` may be several such
    corpora. Without `dev` some of `data` is held out. Overrides are dotted keys:
    `train("default", "de-en.tsv", "runs/a", **{"model.size": 256})`. With `resume` the run in `out` goes on: its own
    config counts, and a recipe of another name is refused. With the override `training.init_from` it starts from
    another run's vocabularies and weights, and from its recipe where `recipe` is None.
    """
    run = Run(Path(out))
    with copying(run.folder / "data") as copies:
        changes = {**overrides, **files("data.train", data, copies), **files("data.dev", dev, copies)}
        if was_restarted() and run.steps() and not resume:
            began_with(run, changes)
            resume, changes = True, {}
        config = going_on(run, recipe, changes) if resume else beginning(run, recipe, changes)
        settings = check(config)
        device = choose_device(settings.device)  # or say that there is none, before anything is written
        with joined(settings.device) as processes:
            job = task_of(config).prepared(run, config, resume)
            threads = threads_of_resumed_run(settings.threads) if resume else settings.threads
            if threads is None and not resume and device.type == "cpu":
                threads = choose_threads() if processes.count == 1 else torch.get_num_threads()
                job = job._replace(config=override(job.config, {"training.threads": threads}))
            with held(run.folder) if processes.first else nullcontext(), limit_threads(threads):
                fit(job, processes, resume, copies)
    return run


def fit(job: Job, processes: Processes, resume: bool, copies: Copies) -> None:
    """Trains; what it made for that is gone when it returns, before the processes part."""
    if not resume:
        refuse_another(job.run)  # one may have begun meanwhile
    at_work = trainer(job, processes)
    if resume:
        at_work.resume()
    if processes.first:
        write(job, resume)
        copies.keep()
        say(description(job))
    processes.wait()
    at_work.fit()


def find_rate(recipe: Named, data: Paths | None, *, dev: Paths | None = None, **overrides: Any) -> list[Tried]:
    """Learning rates that were tried on a model and data, with the loss of each. Nothing is kept."""
    with TemporaryDirectory() as folder, copying(Path(folder) / "data") as copies:
        run = Run(Path(folder) / "run")
        changes = {**overrides, **files("data.train", data, copies), **files("data.dev", dev, copies)}
        config = beginning(run, recipe, changes)
        threads = check(config).threads
        job = task_of(config).prepared(run, config, False)
        with limit_threads(threads):
            return find(trainer(job, ALONE))


def trainer(job: Job, processes: Processes) -> Trainer:
    """The trainer of a model that begins as the seed, or another run, has it."""
    settings = parse(TrainingSettings, job.config["training"], "training")
    device = choose_device(settings.device)
    with preserve_generators(device):
        seed_generators(settings.seed, device)
        model = quicken(build(job.config, *job.sizes))
    if settings.init_from and not job.run.steps():
        model.load_state_dict(Run(Path(settings.init_from)).model(job.sizes).state_dict())
    data: ReadingSettings = parse(task_of(job.config).data, job.config["data"], "data")
    return Trainer(model, job.source, job.validate, settings, job.run, device, data, processes, job.on_best)


def write(job: Job, resume: bool) -> None:
    """Puts down what the run is made of."""
    if resume:
        job.run.write_config(located(job.config))
    else:
        job.run.create(located(job.config), job.save)


def description(job: Job) -> str:
    """What is about to be trained on what."""
    parameters = sum(parameter.numel() for parameter in outline(job.config, *job.sizes).parameters())
    device = choose_device(job.config["training"]["device"]).type
    return f"{job.config.get('recipe')}: {parameters:,} parameters, {job.about}, on {device}"


def files(key: str, data: Paths | None, copies: Copies) -> dict[str, list[str]]:
    """The override that names the files, if any are given."""
    if data is None:
        return {}
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    for path in paths:
        if is_pipe(path) and several():
            raise UserError(f"{path} is a pipe, which one process alone can read; keep its content in a file first")
    return {key: [str(path) for path in copies.settled(paths)]}
