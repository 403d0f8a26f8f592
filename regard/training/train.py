"""Entry points `train` and `run_lr_range_test`; the config of a new, fine-tuned or resumed run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.console import log_message
from regard.data.stdin_copies import PipeCopies, is_pipe, open_pipe_copies
from regard.errors import UserError
from regard.fast import quicken
from regard.models import build, build_on_meta
from regard.recipes import Recipe, RunConfig, TrainingSettings, override, read_recipe
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
    """Return the config of a new run; raise UserError if the folder already holds one."""
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
    """Add missing keys with their defaults, for configs of older versions."""
    task = get_task(config)
    sections: dict[str, Any] = {"text": task.text_settings, "data": task.data_settings, "training": TrainingSettings}
    return {
        **config,
        **{name: {**_get_section_defaults(cls), **config.get(name, {})} for name, cls in sections.items()},
    }


def _get_section_defaults(section: Any) -> dict[str, Any]:
    """Return a section's default values as YAML types."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(section()).items()
    }


def check_no_run_exists(run: Run) -> None:
    """Raise UserError if the folder already holds a run with checkpoints."""
    if run.list_steps():
        raise UserError(
            f"{run.folder} already holds a run; add --resume (resume=True) to resume it, or choose another --out"
        )


def check_same_command(run: Run, overrides: Mapping[str, Any]) -> None:
    """Raise UserError if torchrun restarts a command with other options than those that the run began with."""
    config = run.read_config()
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        requested = _make_absolute(value) if key in ("data.train", "data.dev") else value
        if config.get(section, {}).get(name) != requested:
            raise UserError(
                f"{run.folder} already holds a run, which was started with another {key}; choose another --out"
            )


def _make_recipe_of_run(config: Recipe) -> Recipe:
    """Return a run's config as a recipe, without its data."""
    reset_keys = ["train", "dev", "weights", "tags", "alignments", "longest", "sentences"]
    if config["data"].get("longest") is None:  # an older run stored the length of its data in max_length
        reset_keys.append("max_length")
    defaults = get_task(config).data_settings()
    data = {f"data.{name}": getattr(defaults, name) for name in config["data"] if name in reset_keys}
    return override(_fill_missing_keys(config), {**data, "training.threads": None})


def _build_finetuning_config(config: Recipe, parent: Run, overrides: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the parent run's model and vocabularies, which its weights require."""
    parent_config = parent.read_config()
    kinds = [recipe.get("model", {}).get("kind") for recipe in (config, parent_config)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{parent.folder} has model.kind {kinds[1]}, but the recipe {config.get('recipe')!r} has "
            f"{kinds[0]}; leave the recipe out, or choose one with {kinds[1]}"
        )
    kept = {name: config["text"][name] for name in ("dropout",) if name in config.get("text", {})}
    merged = override({**config, "model": parent_config["model"], "text": {**parent_config["text"], **kept}}, overrides)
    fits = _compute_weight_shapes(merged) == _compute_weight_shapes(parent_config)
    for section in ("text", "model"):
        for name, value in parent_config[section].items():
            if merged[section][name] != value and not (name == "dropout" if section == "text" else fits):
                raise UserError(
                    f"{section}.{name} is {value} in {parent.folder}, from which this run starts, and cannot be "
                    f"{merged[section][name]}: the weights would not fit"
                )
    return merged


def _compute_weight_shapes(config: Recipe) -> dict[str, torch.Size]:
    """Return the shapes of a model's weights by name, for small dummy vocabularies."""
    return {name: tensor.shape for name, tensor in build_on_meta(config, 8, 8).state_dict().items()}


def build_resumed_config(run: Run, recipe: RecipeSource, overrides: Mapping[str, Any]) -> Recipe:
    """Return the config of a resumed run; only limits and logging may change, so that it stays the same run."""
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
            f"{run.folder} is a run of the recipe {config.get('recipe')!r}; you cannot resume it as {str(recipe)!r}"
        )
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if key not in allowed and (name not in config.get(section, {}) or config[section][name] != value):
            raise UserError(f"{key} cannot change when you resume a run; these can: {', '.join(allowed)}")
    if not run.list_steps():
        raise UserError(f"{run.folder} has no checkpoint yet; start it again without --resume")
    steps = config["training"]["steps"]
    if overrides.get("training.steps", steps) != steps and config["training"]["schedule"] == "cosine":
        raise UserError(
            "training.steps cannot change when you resume a run with the cosine schedule: its learning rate depends "
            "on them"
        )
    return override(config, overrides)


def check_config(recipe: Recipe) -> RunConfig:
    """Return the config of a recipe; parse it and build the model on the meta device, so that mistakes show early."""
    config = get_task(recipe).make_config(recipe)
    _ = config.text, config.data, config.training  # parses them
    build_on_meta(recipe, 8, 8)
    return config


def make_paths_absolute(config: RunConfig) -> RunConfig:
    """Return the config with absolute paths, so that the run can be resumed from any folder."""
    changes: dict[str, Any] = {}
    for key in ("data.train", "data.dev", "data.alignments", "training.init_from"):
        section, name = key.split(".")
        if path := config.recipe[section].get(name):
            changes[key] = str(Path(path).absolute()) if isinstance(path, str) else _make_absolute(path)
    return config.override(changes)


def _make_absolute(paths: Iterable[str]) -> list[str]:
    return [str(Path(path).absolute()) for path in paths]


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
    """Train a recipe (a name, a file or a mapping) on text and return the run.

    Args:
        recipe: recipe; None with `training.init_from`: that of the other run.
        data: one file of pairs or two text files, source first; or several such corpora.
        out: folder of the run.
        dev: dev set, like `data`; without it, a part of `data` is held out.
        resume: resume the run in `out` with its own config; a recipe of another name is an error.
        overrides: dotted keys, as in `train("default", "de-en.tsv", "runs/a", **{"model.size": 256})`. The key
            `training.init_from` starts from the vocabularies and weights of another run.
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
        build_config = build_resumed_config if resume else build_new_config
        config = check_config(build_config(run, recipe, merged_overrides))
        settings = config.training
        device = choose_device(settings.device)  # fails before anything is written if there is no such device
        with init_distributed(settings.device) as distributed:
            prepared = get_task(config.recipe).prepare(run, config, resume)
            threads = choose_resumed_threads(settings.threads) if resume else settings.threads
            if threads is None and not resume and device.type == "cpu":
                threads = choose_threads() if distributed.world_size == 1 else torch.get_num_threads()
                prepared = prepared._replace(config=prepared.config.override({"training.threads": threads}))
            with lock_run(run.folder) if distributed.is_rank0 else nullcontext(), limit_threads(threads):
                _fit_run(prepared, distributed, resume, stdin_copies)
    return run


def _fit_run(prepared: PreparedRun, distributed: DistributedContext, resume: bool, stdin_copies: PipeCopies) -> None:
    """Train the model.

    Everything that refers to the process group is freed on return, before the group is destroyed.
    """
    if not resume:
        check_no_run_exists(prepared.run)  # again under the lock: another process may have started one
    trainer = _build_trainer(prepared, distributed)
    if resume:
        trainer.resume()
    if distributed.is_rank0:
        _write_run_files(prepared, resume)
        stdin_copies.keep_copies()
        log_message(_describe_training(prepared))
    distributed.barrier()
    trainer.fit()


def run_lr_range_test(
    recipe: RecipeSource, data: Paths | None, *, dev: Paths | None = None, **overrides: Any
) -> list[LearningRatePoint]:
    """Run a learning rate range test on a model and data; return rates and losses. Nothing is saved."""
    with TemporaryDirectory() as folder, open_pipe_copies(Path(folder) / "data") as copies:
        run = Run(Path(folder) / "run")
        changes = {
            **overrides,
            **_make_data_override("data.train", data, copies),
            **_make_data_override("data.dev", dev, copies),
        }
        config = check_config(build_new_config(run, recipe, changes))
        prepared = get_task(config.recipe).prepare(run, config, False)
        with limit_threads(config.training.threads):
            return sweep_learning_rates(_build_trainer(prepared, SINGLE_PROCESS))


def _build_trainer(prepared: PreparedRun, distributed: DistributedContext) -> Trainer:
    """Build the trainer with a model initialised from the seed, or from the run in `training.init_from`."""
    config, settings = prepared.config, prepared.config.training
    device = choose_device(settings.device)
    with preserve_generators(device):
        seed_generators(settings.seed, device)
        model = quicken(build(config.recipe, *prepared.vocabulary_sizes))
    if settings.init_from and not prepared.run.list_steps():
        model.load_state_dict(Run(Path(settings.init_from)).load_model(prepared.vocabulary_sizes).state_dict())
    return Trainer(
        model,
        prepared.dataset,
        prepared.validate,
        settings,
        prepared.run,
        device,
        config.data,
        distributed,
        prepared.on_best,
    )


def _write_run_files(prepared: PreparedRun, resume: bool) -> None:
    """Write config and vocabularies of a new run, or the config of a resumed one."""
    recipe = make_paths_absolute(prepared.config).recipe
    if resume:
        prepared.run.write_config(recipe)
    else:
        prepared.run.create(recipe, prepared.save_vocabularies)


def _describe_training(prepared: PreparedRun) -> str:
    """Return the log line at the start of training: recipe, parameters, data, device."""
    recipe = prepared.config.recipe
    parameters = sum(weight.numel() for weight in build_on_meta(recipe, *prepared.vocabulary_sizes).parameters())
    device = choose_device(prepared.config.training.device).type
    return f"{recipe.get('recipe')}: {parameters:,} parameters, {prepared.description}, on {device}"


def _make_data_override(key: str, data: Paths | None, stdin_copies: PipeCopies) -> dict[str, list[str]]:
    """Return the override that names the corpus files, empty if none are given."""
    if data is None:
        return {}
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    for path in paths:
        if is_pipe(path) and is_distributed():
            raise UserError(f"{path} is a pipe, which only one process can read; save its content to a file first")
    return {key: [str(path) for path in stdin_copies.copy_pipes(paths)]}
