"""From text files and a recipe to a trained run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from regard.config import parse
from regard.console import say
from regard.data.corpus import Pair, pairs
from regard.data.links import Link
from regard.data.piped import Copies, copying, is_pipe
from regard.data.preparation import Prepared, prepare, vocabularies
from regard.data.settings import DataSettings, corpora
from regard.data.survey import Survey, survey
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.models import Seq2Seq, build
from regard.recipes import Recipe, override, sized
from regard.runs import Run
from regard.runs.lock import held
from regard.text import TextSettings, Tokenizers
from regard.training.configuration import Named, began_with, beginning, check, going_on, located, refuse_another, spoken
from regard.training.device import choose_device
from regard.training.finder import Tried, find
from regard.training.loop import Trainer
from regard.training.processes import ALONE, Processes, joined, several, was_restarted
from regard.training.settings import TrainingSettings
from regard.training.validation import Validator

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
        choose_device(settings.device)  # or say that there is none, before anything is written
        with joined(settings.device) as processes:
            job = prepared(run, config, resume)
            with held(run.folder) if processes.first else nullcontext():
                fit(job, processes, resume, copies)
    return run


def fit(job: Job, processes: Processes, resume: bool, copies: Copies) -> None:
    """Trains; what it made for that is gone when it returns, before the processes part."""
    if not resume:
        refuse_another(job.run)  # one may have begun meanwhile
    trainer = job.trainer(processes)
    if resume:
        trainer.resume()
    if processes.first:
        job.write(resume)
        copies.keep()
        say(job.description())
    processes.wait()
    trainer.fit()


def find_rate(recipe: Named, data: Paths | None, *, dev: Paths | None = None, **overrides: Any) -> list[Tried]:
    """Learning rates that were tried on a model and data, with the loss of each. Nothing is kept."""
    with TemporaryDirectory() as folder, copying(Path(folder) / "data") as copies:
        run = Run(Path(folder) / "run")
        changes = {**overrides, **files("data.train", data, copies), **files("data.dev", dev, copies)}
        config = beginning(run, recipe, changes)
        check(config)
        return find(prepared(run, config, resume=False).trainer(ALONE))


class Job(NamedTuple):
    """All that a trainer needs."""

    run: Run
    config: Recipe
    tokenizers: Tokenizers
    prepared: Prepared
    dev: list[Pair]

    def trainer(self, processes: Processes) -> Trainer:
        """The trainer of a model that begins as the seed, or another run, has it."""
        settings = parse(TrainingSettings, self.config["training"], "training")
        torch.manual_seed(settings.seed)
        model = build(self.config, self.tokenizers.source.size, self.tokenizers.target.size)
        if settings.init_from and not self.run.steps():
            start(model, Run(Path(settings.init_from)), self.tokenizers)
        validator = Validator(self.dev, self.tokenizers, settings.batch_tokens, settings.validate_pairs)
        data = parse(DataSettings, self.config["data"], "data")
        device = choose_device(settings.device)
        return Trainer(model, self.prepared.examples, validator, settings, self.run, device, data, processes)

    def write(self, resume: bool) -> None:
        """Puts down what the run is made of."""
        if resume:
            self.run.write_config(located(self.config))
        else:
            self.run.create(located(self.config), self.tokenizers)

    def description(self) -> str:
        """What is about to be trained on what."""
        left = ((self.prepared.empty, "empty"), (self.prepared.too_long, "too long"))
        left_out = [f"{count} {reason}" for count, reason in left if count]
        source, target = self.tokenizers.source.size, self.tokenizers.target.size
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in build(self.config, source, target).parameters())
        return (
            f"{self.config.get('recipe')}: {parameters:,} parameters, {len(self.prepared.examples):,} pairs"
            f"{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, {len(self.dev):,} dev pairs, "
            f"vocabularies {source:,} and {target:,}, on {choose_device(self.config['training']['device']).type}"
        )


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Data and vocabularies, encoded; and the config with nothing left open."""
    config = config if resume else spoken(config)
    data = parse(DataSettings, config["data"], "data")
    found = survey(data, config["training"]["seed"])
    config = config if resume else sized(config, sum(found.counts))
    settings = parse(TextSettings, config["text"], "text")
    links = guides(config, data, found)
    if links is not None and settings.dropout:
        raise UserError("loss.guided needs tokens that stay what they are, and text.dropout changes them: choose one")
    start = config["training"]["init_from"]
    if resume or start:
        tokenizers = (run if resume else Run(Path(start))).tokenizers()
    else:
        tokenizers = vocabularies(data, settings, found)
    ready = prepare(data, settings, tokenizers, found, links)
    if not resume:
        found_instead = {"data.max_length": ready.longest, "data.sentences": data.sentences or ready.sentences}
        config = override(config, found_instead)
    return Job(run, config, tokenizers, ready, found.dev)


def start(model: Seq2Seq, parent: Run, tokenizers: Tokenizers) -> None:
    """Gives a model the weights of another run."""
    model.load_state_dict(parent.model(tokenizers).state_dict())


def files(key: str, data: Paths | None, copies: Copies) -> dict[str, list[str]]:
    """The override that names the files, if any are given."""
    if data is None:
        return {}
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    for path in paths:
        if is_pipe(path) and several():
            raise UserError(f"{path} is a pipe, which one process alone can read; keep its content in a file first")
    return {key: [str(path) for path in copies.settled(paths)]}


def guides(config: Mapping[str, Any], data: DataSettings, found: Survey) -> list[frozenset[Link]] | None:
    """The links of the training pairs that guide the attention, if it is guided."""
    weight = config["loss"]["guided"]
    if not weight:
        return None
    if data.alignments is None:
        raise UserError(f"loss.guided={weight} needs data.alignments: a file with the links of each training pair")
    every = [pair for corpus in corpora(data) for pair in pairs(corpus.paths, data.source, data.target)]
    gold = read_gold(Path(data.alignments), every)
    return [links.possible for pair, links in zip(every, gold, strict=True) if pair.source not in found.held]
