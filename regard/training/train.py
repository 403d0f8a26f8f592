"""The config of a run: of a recipe, of another run, or of the run itself where that goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.config import parse_settings
from regard.console import log_message
from regard.data.settings import BaseDataSettings
from regard.data.stdin_copies import PipeCopies, is_pipe, open_pipe_copies
from regard.errors import UserError
from regard.fast import quicken
from regard.models import build, build_on_meta
from regard.recipes import Recipe, override, read_recipe, resolve_auto_sizes
from regard.runs import Run
from regard.runs.lock import lock_run
from regard.tasks import PreparedRun, get_task
from regard.training.cpu_threads import choose_resumed_threads, choose_threads, limit_threads
from regard.training.distributed import (
    SINGLE_PROCESS,
    DistributedContext,
    init_distributed,
    is_distributed,
    was_restarted,
)
from regard.training.lr_finder import LearningRatePoint, sweep_learning_rates
from regard.training.precision import choose_device, preserve_generators, seed_generators
from regard.training.settings import TrainingSettings
from regard.training.trainer import Trainer

RecipeSource = str | Path | Mapping[str, Any] | None  # a recipe: its name, its file, or itself

_KEYS_CHANGEABLE_ON_RESUME = (
    "steps",
    "epochs",
    "patience",
    "validate_every",
    "checkpoint_every",
    "keep",
    "keep_best",
    "average",
    "bad_updates",
    "log_every",
    "tensorboard",
    "device",
    "threads",
)


def build_new_config(run: Run, recipe: RecipeSource, overrides: Mapping[str, Any]) -> Recipe:
    """The config of a new run; one that exists is never overwritten."""
    check_no_run_exists(run)
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{run.folder} is a file; choose another --out")
    start = overrides.get("training.init_from")
    if recipe is None and start:
        config = _make_recipe_of_run(Run(Path(start)).read_config())
    else:
        config = dict(recipe) if isinstance(recipe, Mapping) else read_recipe(recipe or "default")
    config = _fill_missing_keys(config)
    start = start or config["training"]["init_from"]
    return _build_finetuning_config(config, Run(Path(start)), overrides) if start else override(config, overrides)


def _fill_missing_keys(config: Mapping[str, Any]) -> Recipe:
    """The config with keys that it does not say, as those of older versions: they are what they are for everybody."""
    task = get_task(config)
    sections: dict[str, Any] = {"text": task.text_settings, "data": task.data_settings, "training": TrainingSettings}
    return {
        **config,
        **{name: {**_get_section_defaults(cls), **config.get(name, {})} for name, cls in sections.items()},
    }


def _get_section_defaults(section: Any) -> dict[str, Any]:
    """What the keys of a section are where nobody says them, as YAML has it."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(section()).items()
    }


def check_no_run_exists(run: Run) -> None:
    """A run that is there is not begun again."""
    if run.list_steps():
        raise UserError(
            f"{run.folder} already holds a run; go on with it by --resume (resume=True), or choose another --out"
        )


def check_same_command(run: Run, overrides: Mapping[str, Any]) -> None:
    """Refuses a restart that is not of the command which began the run: a run is never taken for another."""
    config = run.read_config()
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        requested = [str(Path(path).absolute()) for path in value] if key in ("data.train", "data.dev") else value
        if config.get(section, {}).get(name) != requested:
            raise UserError(f"{run.folder} already holds a run, which began with another {key}; choose another --out")


def _make_recipe_of_run(config: Recipe) -> Recipe:
    """A run's config as a recipe: without the data that it was trained on."""
    gone = ["train", "dev", "weights", "tags", "alignments", "longest", "sentences"]
    if config["data"].get("longest") is None:  # an older run has in its place what was found
        gone.append("max_length")
    usual = get_task(config).data_settings()
    data = {f"data.{name}": getattr(usual, name) for name in config["data"] if name in gone}
    return override(_fill_missing_keys(config), {**data, "training.threads": None})


def _build_finetuning_config(config: Recipe, parent: Run, overrides: Mapping[str, Any]) -> Recipe:
    """The recipe with the model and the vocabularies of the run that it starts from: weights fit nothing else."""
    parent_config = parent.read_config()
    kinds = [one.get("model", {}).get("kind") for one in (config, parent_config)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{parent.folder} is a model of the kind {kinds[1]}, and the recipe {config.get('recipe')!r} is for the "
            f"kind {kinds[0]}: leave the recipe out, or name one for {kinds[1]}"
        )
    kept = {name: config["text"][name] for name in ("dropout",) if name in config.get("text", {})}
    merged = override({**config, "model": parent_config["model"], "text": {**parent_config["text"], **kept}}, overrides)
    fits = _compute_weight_shapes(merged) == _compute_weight_shapes(parent_config)
    for section in ("text", "model"):
        for name, value in parent_config[section].items():
            if merged[section][name] != value and not (name == "dropout" if section == "text" else fits):
                raise UserError(
                    f"{section}.{name} is {value} in {parent.folder}, from which this run starts, and cannot be "
                    f"{merged[section][name]}: its weights fit nothing else"
                )
    return merged


def _compute_weight_shapes(config: Recipe) -> dict[str, torch.Size]:
    """The weights of a model, by name, whatever its vocabularies."""
    return {name: tensor.shape for name, tensor in build_on_meta(resolve_auto_sizes(config), 8, 8).state_dict().items()}


def build_resumed_config(run: Run, recipe: RecipeSource, overrides: Mapping[str, Any]) -> Recipe:
    """The config of a run that goes on: how long it goes on may change, not what makes it the same run."""
    allowed = [
        "data.train",
        "data.dev",
        "data.workers",
        "data.timeout",
        *(f"training.{name}" for name in _KEYS_CHANGEABLE_ON_RESUME),
    ]
    config = _fill_missing_keys(run.read_config())
    if isinstance(recipe, str | Path) and read_recipe(recipe)["recipe"] != config.get("recipe"):
        raise UserError(
            f"{run.folder} is a run of the recipe {config.get('recipe')!r}, it cannot go on as {str(recipe)!r}"
        )
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if key not in allowed and (name not in config.get(section, {}) or config[section][name] != value):
            raise UserError(
                f"{key} cannot change when a run goes on, it would be another run; {', '.join(allowed)} can"
            )
    if not run.list_steps():
        raise UserError(f"{run.folder} has no checkpoint yet; start it again without --resume")
    steps = config["training"]["steps"]
    if overrides.get("training.steps", steps) != steps and config["training"]["schedule"] == "cosine":
        raise UserError(
            "training.steps cannot change when a run with the cosine schedule goes on: the rate depends on it"
        )
    return override(config, overrides)


def check_config(config: Mapping[str, Any]) -> TrainingSettings:
    """Parses every section and builds the model without its numbers: a mistake shows before any work is done."""
    whole = resolve_auto_sizes(config)
    parse_settings(get_task(whole).text_settings, whole.get("text", {}), "text")
    parse_settings(get_task(whole).data_settings, whole.get("data", {}), "data")
    build_on_meta(whole, 8, 8)
    return parse_settings(TrainingSettings, whole.get("training", {}), "training")


def make_paths_absolute(config: Mapping[str, Any]) -> Recipe:
    """The config with its files named in full, so that the run can go on from anywhere."""
    named = {f"data.{name}": config["data"][name] for name in ("train", "dev") if config["data"][name]}
    changes: dict[str, Any] = {key: [str(Path(path).absolute()) for path in paths] for key, paths in named.items()}
    for key in ("data.alignments", "training.init_from"):
        section, name = key.split(".")
        if config[section].get(name):
            changes[key] = str(Path(config[section][name]).absolute())
    return override(config, changes)


Paths = str | Path | Sequence[str | Path]


def train(
    recipe: RecipeSource,
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
    with open_pipe_copies(run.folder / "data") as stdin_copies:
        merged_overrides = {
            **overrides,
            **_make_data_override("data.train", data, stdin_copies),
            **_make_data_override("data.dev", dev, stdin_copies),
        }
        if was_restarted() and run.list_steps() and not resume:
            check_same_command(run, merged_overrides)
            resume, merged_overrides = True, {}
        config = (
            build_resumed_config(run, recipe, merged_overrides)
            if resume
            else build_new_config(run, recipe, merged_overrides)
        )
        settings = check_config(config)
        device = choose_device(settings.device)  # or say that there is none, before anything is written
        with init_distributed(settings.device) as distributed:
            prepared = get_task(config).prepare(run, config, resume)
            threads = choose_resumed_threads(settings.threads) if resume else settings.threads
            if threads is None and not resume and device.type == "cpu":
                threads = choose_threads() if distributed.world_size == 1 else torch.get_num_threads()
                prepared = prepared._replace(config=override(prepared.config, {"training.threads": threads}))
            with lock_run(run.folder) if distributed.is_rank0 else nullcontext(), limit_threads(threads):
                _fit_run(prepared, distributed, resume, stdin_copies)
    return run


def _fit_run(prepared: PreparedRun, distributed: DistributedContext, resume: bool, stdin_copies: PipeCopies) -> None:
    """Trains; what it made for that is gone when it returns, before the processes part."""
    if not resume:
        check_no_run_exists(prepared.run)  # one may have begun meanwhile
    new_trainer = _build_trainer(prepared, distributed)
    if resume:
        new_trainer.resume()
    if distributed.is_rank0:
        _write_run_files(prepared, resume)
        stdin_copies.keep_copies()
        log_message(_describe_training(prepared))
    distributed.barrier()
    new_trainer.fit()


def run_lr_range_test(
    recipe: RecipeSource, data: Paths | None, *, dev: Paths | None = None, **overrides: Any
) -> list[LearningRatePoint]:
    """Learning rates that were tried on a model and data, with the loss of each. Nothing is kept."""
    with TemporaryDirectory() as folder, open_pipe_copies(Path(folder) / "data") as copies:
        run = Run(Path(folder) / "run")
        changes = {
            **overrides,
            **_make_data_override("data.train", data, copies),
            **_make_data_override("data.dev", dev, copies),
        }
        config = build_new_config(run, recipe, changes)
        threads = check_config(config).threads
        prepared = get_task(config).prepare(run, config, False)
        with limit_threads(threads):
            return sweep_learning_rates(_build_trainer(prepared, SINGLE_PROCESS))


def _build_trainer(prepared: PreparedRun, distributed: DistributedContext) -> Trainer:
    """The trainer of a model that begins as the seed, or another run, has it."""
    settings = parse_settings(TrainingSettings, prepared.config["training"], "training")
    device = choose_device(settings.device)
    with preserve_generators(device):
        seed_generators(settings.seed, device)
        model = quicken(build(prepared.config, *prepared.vocabulary_sizes))
    if settings.init_from and not prepared.run.list_steps():
        model.load_state_dict(Run(Path(settings.init_from)).load_model(prepared.vocabulary_sizes).state_dict())
    data: BaseDataSettings = parse_settings(get_task(prepared.config).data_settings, prepared.config["data"], "data")
    return Trainer(
        model, prepared.dataset, prepared.validate, settings, prepared.run, device, data, distributed, prepared.on_best
    )


def _write_run_files(prepared: PreparedRun, resume: bool) -> None:
    """Puts down what the run is made of."""
    if resume:
        prepared.run.write_config(make_paths_absolute(prepared.config))
    else:
        prepared.run.create(make_paths_absolute(prepared.config), prepared.save_vocabularies)


def _describe_training(prepared: PreparedRun) -> str:
    """What is about to be trained on what."""
    parameters = sum(
        parameter.numel() for parameter in build_on_meta(prepared.config, *prepared.vocabulary_sizes).parameters()
    )
    device = choose_device(prepared.config["training"]["device"]).type
    return f"{prepared.config.get('recipe')}: {parameters:,} parameters, {prepared.description}, on {device}"


def _make_data_override(key: str, data: Paths | None, stdin_copies: PipeCopies) -> dict[str, list[str]]:
    """The override that names the files, if any are given."""
    if data is None:
        return {}
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    for path in paths:
        if is_pipe(path) and is_distributed():
            raise UserError(f"{path} is a pipe, which one process alone can read; keep its content in a file first")
    return {key: [str(path) for path in stdin_copies.copy_pipes(paths)]}
