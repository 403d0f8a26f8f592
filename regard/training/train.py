"""Entry points `train` and `run_lr_range_test`; the config of a new, fine-tuned or resumed run.

The learning rate range test (Smith 2017) trains with rising rates and suggests the one where the loss falls fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from regard.console import log_message, make_progress_bar
from regard.data.readers.dispatch import PipeCopies, detect_task, open_pipe_copies
from regard.data.readers.text import is_pipe
from regard.errors import UserError
from regard.evaluate.translation_metrics import check_tokenizer
from regard.fast import accelerate
from regard.models import build
from regard.models.registry import build_on_meta
from regard.paths import read_package_yaml
from regard.recipes.recipe import AUTO_SIZES, RunConfig, get_task_name, read_recipe
from regard.runs import Run
from regard.runs.run import IMPORTED, lock_run
from regard.tasks import get_task
from regard.tasks.base import PreparedRun
from regard.training.distributed import (
    SINGLE_PROCESS,
    DistributedContext,
    choose_device,
    choose_resumed_threads,
    choose_threads,
    init_distributed,
    is_distributed,
    limit_threads,
    preserve_generators,
    seed_generators,
    was_restarted,
)
from regard.training.trainer import Trainer

RecipeSource = str | Path | Mapping[str, Any] | None  # a recipe: its name, its file, or itself
Paths = str | Path | Sequence[str | Path]

_CHANGEABLE_ON_RESUME: list[str] = read_package_yaml("regard.training", "changeable_on_resume.yaml")


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
        # 1. Configuration: recipe, overrides and files.
        overrides = {**overrides, **_make_data_overrides(data, dev, overrides.get("data.mix"), stdin_copies)}
        if was_restarted() and run.list_steps() and not resume:
            _check_same_command(run, overrides)
            resume, overrides = True, {}
        build_config = build_resumed_config if resume else build_new_config
        config = build_config(run, recipe, overrides)
        check_config(config)
        settings = config.training
        # 2. Device and process group. No device is an error before anything is written.
        device = choose_device(settings.device)
        config = _choose_auto_table(config, device)
        with init_distributed(settings.device) as distributed:
            # 3. Data and vocabularies; sizes for the corpus and the device.
            prepared = get_task(config.recipe).prepare(run, config, resume)
            _log_sizes(config, prepared.config)
            # 4. CPU threads, which a run keeps: sums depend on them in the last bit.
            threads = choose_resumed_threads(settings.threads) if resume else settings.threads
            if threads is None and not resume and device.type == "cpu":
                threads = choose_threads() if distributed.world_size == 1 else torch.get_num_threads()
                prepared = prepared._replace(config=prepared.config.override({"training.threads": threads}))
            # 5. Model, optimizer and training loop.
            with lock_run(run.folder) if distributed.is_rank0 else nullcontext(), limit_threads(threads):
                _fit_run(prepared, distributed, resume, stdin_copies)
    return run


def _fit_run(prepared: PreparedRun, distributed: DistributedContext, resume: bool, stdin_copies: PipeCopies) -> None:
    """Train the model.

    Everything that refers to the process group is freed on return, before the group is destroyed.
    """
    run = prepared.run
    if not resume:
        _check_no_run_exists(run)  # again under the lock: another process may have started one
    trainer = _build_trainer(prepared, distributed)
    if resume:
        trainer.resume()
    if distributed.is_rank0:
        recipe = make_paths_absolute(prepared.config).recipe
        if resume:
            run.write_config(recipe)
        else:
            run.create(recipe, prepared.save_vocabularies)
        stdin_copies.keep_copies()
        weights = build_on_meta(recipe, *prepared.vocabulary_sizes).parameters()
        log_message(
            f"{recipe.get('recipe')}: {sum(weight.numel() for weight in weights):,} parameters, "
            f"{prepared.description}, on {trainer.device.type}"
        )
    distributed.barrier()
    trainer.fit()


def _build_trainer(prepared: PreparedRun, distributed: DistributedContext) -> Trainer:
    """Build the trainer with a model initialised from the seed, or from the run in `training.init_from`."""
    config, settings, run = prepared.config, prepared.config.training, prepared.run
    device = choose_device(settings.device)
    with preserve_generators(device):
        seed_generators(settings.seed, device)
        model = accelerate(build(config.recipe, *prepared.vocabulary_sizes))
    if prepared.dataset.read_all_texts is not None and not (settings.init_from or run.list_steps()):
        from regard.data.word_vectors import init_embeddings_from_texts_

        init_embeddings_from_texts_(model, prepared.dataset.read_all_texts(), settings.seed)
    if config.recipe["text"].get("vectors"):
        from regard.data.word_vectors import use_word_vectors_

        is_new = not (settings.init_from or run.list_steps())
        use_word_vectors_(model, prepared.tokenizer, config.recipe["text"], is_new)
    if settings.init_from and not run.list_steps():
        model.load_state_dict(Run(Path(settings.init_from)).load_model(prepared.vocabulary_sizes).state_dict())
    validate, on_best = prepared.validate, prepared.on_best
    return Trainer(model, prepared.dataset, validate, settings, run, device, config.data, distributed, on_best)


def run_lr_range_test(
    recipe: RecipeSource, data: Paths | None, *, dev: Paths | None = None, **overrides: Any
) -> list[LearningRatePoint]:
    """Run a learning rate range test on a model and data; return rates and losses. Nothing is saved."""
    with TemporaryDirectory() as folder, open_pipe_copies(Path(folder) / "data") as copies:
        run = Run(Path(folder) / "run")
        config = build_new_config(run, recipe, {**overrides, **_make_data_overrides(data, dev, None, copies)})
        check_config(config)
        config = _choose_auto_table(config, choose_device(config.training.device))
        prepared = get_task(config.recipe).prepare(run, config, False)
        with limit_threads(config.training.threads):
            return sweep_learning_rates(_build_trainer(prepared, SINGLE_PROCESS))


def _make_data_overrides(
    data: Paths | None, dev: Paths | None, mix: Paths | None, stdin_copies: PipeCopies
) -> dict[str, list[str]]:
    """Return the overrides that name the corpus files, as far as they are given."""
    overrides = {}
    for key, names in (("data.train", data), ("data.dev", dev), ("data.mix", mix)):
        if names is not None:
            paths = [Path(path) for path in ([names] if isinstance(names, str | Path) else names)]
            for path in paths:
                if is_pipe(path) and is_distributed():
                    raise UserError(
                        f"{path} is a pipe, which only one process can read; save its content to a file first"
                    )
            overrides[key] = [str(path) for path in stdin_copies.copy_pipes(paths)]
    return overrides


def make_config(recipe: Mapping[str, Any]) -> RunConfig:
    """Return the config of a recipe."""
    return get_task(recipe).make_config(recipe)


def check_config(config: RunConfig) -> None:
    """Parse every section and build the model on the meta device, so that mistakes show before any work is done."""
    _ = config.text, config.data
    check_tokenizer(config.evaluation.tokenize)
    if config.training.best in ("bleu", "chrf") and "evaluation" not in config.recipe:
        raise UserError(f"training.best={config.training.best} is for models that write text; use score or loss")
    build_on_meta(config.recipe, 8, 8)


def _choose_auto_table(config: RunConfig, device: torch.device) -> RunConfig:
    """Return the config with the table that the values for `auto` are taken from."""
    return replace(config, auto_table="cpu") if device.type == "cpu" and config.auto_table == "gpu" else config


def _log_sizes(config: RunConfig, resolved: RunConfig) -> None:
    """Log the values for a CPU that replaced `auto`, or those for fine-tuning."""
    if config.auto_table == "gpu":
        return
    is_finetuning = config.auto_table == "finetuning"
    sizes = []
    for section in ("model", "text", "training"):
        for key, value in config.recipe[section].items():
            chosen = resolved.recipe[section][key]
            is_listed = is_finetuning and section == "training" and key in _FINETUNING and chosen is not None
            if is_listed or value == "auto" != chosen:
                sizes.append(f"{section}.{key}={chosen}")
    if sizes:
        has_own_table = get_task_name(config.recipe) in AUTO_SIZES
        purpose = "values for fine-tuning" if is_finetuning else f"sizes for {'the data' if has_own_table else 'a CPU'}"
        log_message(f"{purpose}, which you can override: {' '.join(sizes)}")


_TIME_LIMIT: dict[str, Any] = {  # overrides of --minutes
    "training.steps": None,
    "training.epochs": None,
    "training.schedule": "linear",
    "training.validate_every": None,
}


def build_new_config(run: Run, recipe: RecipeSource, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the config of a new run; raise UserError if the folder already holds one."""
    _check_no_run_exists(run)
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{run.folder} is a file; choose another --out")
    if overrides.get("training.minutes") is not None:
        overrides = {**_TIME_LIMIT, **overrides}
    parent = overrides.get("training.init_from")
    if recipe is None and parent:
        config = _make_config_of_parent(Run(Path(parent)), overrides.get("training.device", "auto"))
    else:
        recipe = choose_default_recipe(overrides) if recipe is None else recipe
        config = make_config(recipe if isinstance(recipe, Mapping) else read_recipe(recipe))
    parent = parent or config.recipe["training"]["init_from"]
    return _build_finetuning_config(config, Run(Path(parent)), overrides) if parent else config.override(overrides)


_DEFAULT_RECIPES = {"classify": "default-classification", "tag": "default-tagging", "translate": "default"}


def choose_default_recipe(overrides: Mapping[str, Any]) -> str:
    """Return the default recipe of the task that the training data are for; only translation has languages."""
    paths = list(map(Path, overrides.get("data.train") or ()))
    is_translation = not paths or "data.source" in overrides or "data.target" in overrides
    task = "translate" if is_translation else detect_task(paths)
    if task != "translate":
        content = {"classify": "labelled texts", "tag": "words with labels"}[task]
        log_message(f"{paths[0]}: {content}; the recipe is {_DEFAULT_RECIPES[task]} (choose another with --recipe)")
    return _DEFAULT_RECIPES[task]


def _check_no_run_exists(run: Run) -> None:
    """Raise UserError if the folder already holds a run with checkpoints."""
    if run.list_steps():
        raise UserError(
            f"{run.folder} already holds a run; add --resume (resume=True) to resume it, or choose another --out"
        )


def _check_same_command(run: Run, overrides: Mapping[str, Any]) -> None:
    """Raise UserError if torchrun restarts a command with other options than those that the run began with."""
    config = run.read_config()
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        requested = _make_absolute(value) if key in ("data.train", "data.dev", "data.mix") else value
        if config.get(section, {}).get(name) != requested:
            raise UserError(
                f"{run.folder} already holds a run, which was started with another {key}; choose another --out"
            )


_FINETUNING: dict[str, Any] = {  # keys of `training` that differ from those of the parent run, without a recipe
    "learning_rate": None,  # that of the parent times `_FINETUNING_RATE`
    "schedule": "linear",
    "warmup": 100,  # at most a tenth of training
    "steps": None,
    "epochs": "auto",
    "minutes": None,
    "validate_every": None,
    "patience": 4,
}
_FINETUNING_RATE = 0.3
_MAX_CPU_BATCH = 2000  # tokens: logits of a vocabulary of 60,000 take 0.5 GB


def _make_config_of_parent(parent: Run, device: str) -> RunConfig:
    """Return a run's config as that of a new run, without its data, and with training settings for fine-tuning."""
    recipe = parent.read_config()
    reset_keys = ["train", "dev", "weights", "tags", "mix", "alignments", "longest", "sentences"]
    if recipe["data"].get("longest") is None:  # an older run stored the length of its data in max_length
        reset_keys.append("max_length")
    data = {name: value for name, value in recipe["data"].items() if name not in reset_keys}
    training = {**recipe["training"], **_FINETUNING, "threads": None}
    training["learning_rate"] = recipe["training"]["learning_rate"]
    if not recipe["training"].get("init_from") and recipe.get("recipe") != IMPORTED:
        training["learning_rate"] *= _FINETUNING_RATE  # the others have a learning rate of fine-tuning already
    if choose_device(device).type == "cpu":
        training["batch_tokens"] = min(training["batch_tokens"], _MAX_CPU_BATCH)
    return replace(make_config({**recipe, "data": data, "training": training}), auto_table="finetuning")


_OWN_TEXT_KEYS = ("dropout", "tune_vectors")  # of `text`, which may differ from those of the parent run


def _build_finetuning_config(config: RunConfig, parent: Run, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the config with the parent run's model and vocabularies, which its weights require."""
    recipe, parent_recipe = config.recipe, parent.read_config()
    kinds = [one.get("model", {}).get("kind") for one in (recipe, parent_recipe)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{parent.folder} has model.kind {kinds[1]}, but the recipe {recipe.get('recipe')!r} has "
            f"{kinds[0]}; leave the recipe out, or choose one with {kinds[1]}"
        )
    text = parent_recipe["text"] | {name: recipe["text"][name] for name in _OWN_TEXT_KEYS if name in recipe["text"]}
    merged = make_config({**recipe, "model": parent_recipe["model"], "text": text}).override(overrides)
    merged = replace(merged, auto_table=config.auto_table)
    fits = _compute_weight_shapes(merged.recipe) == _compute_weight_shapes(parent_recipe)
    for section in ("text", "model"):
        for name, value in parent_recipe[section].items():
            new_value = merged.recipe[section][name]
            if new_value != value and not (name in _OWN_TEXT_KEYS if section == "text" else fits):
                raise UserError(
                    f"{section}.{name} is {value} in {parent.folder}, from which this run starts, and cannot be "
                    f"{new_value}: the weights would not fit"
                )
    return merged


def _compute_weight_shapes(recipe: Mapping[str, Any]) -> dict[str, torch.Size]:
    """Return the shapes of a model's weights by name, for small dummy vocabularies."""
    return {name: tensor.shape for name, tensor in build_on_meta(recipe, 8, 8).state_dict().items()}


def build_resumed_config(run: Run, recipe: RecipeSource, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the config of a resumed run; only limits and logging may change, so that it stays the same run."""
    config = make_config(run.read_config())
    if config.recipe.get("recipe") == IMPORTED:
        raise UserError(f"{run.folder} is an imported model, not a training to resume: use --init-from {run.folder}")
    if isinstance(recipe, str | Path) and read_recipe(recipe)["recipe"] != config.recipe.get("recipe"):
        raise UserError(
            f"{run.folder} is a run of the recipe {config.recipe.get('recipe')!r}; you cannot resume it as "
            f"{str(recipe)!r}"
        )
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        values = config.recipe.get(section, {})
        if key not in _CHANGEABLE_ON_RESUME and (name not in values or values[name] != value):
            raise UserError(
                f"{key} cannot change when you resume a run; these can: {', '.join(_CHANGEABLE_ON_RESUME)}; for a new "
                f"run with the weights of this one: regard train DATA --init-from {run.folder} --out RUN"
            )
    if not run.list_steps():
        raise UserError(f"{run.folder} has no checkpoint yet; start it again without --resume")
    schedule = config.training.schedule
    for name in {"cosine": ("steps",), "linear": ("steps", "epochs")}.get(schedule, ()):
        limit = config.recipe["training"][name]
        if overrides.get(f"training.{name}", limit) != limit:
            raise UserError(
                f"training.{name} cannot change when you resume a run with the {schedule} schedule: its learning rate "
                "depends on them"
            )
    return config.override(overrides)


def make_paths_absolute(config: RunConfig) -> RunConfig:
    """Return the config with absolute paths, so that the run can be resumed from any folder."""
    changes: dict[str, Any] = {}
    for key in (
        "data.train",
        "data.dev",
        "data.mix",
        "data.alignments",
        "data.unlabelled",
        "text.vectors",
        "training.init_from",
    ):
        section, name = key.split(".")
        if path := config.recipe[section].get(name):
            changes[key] = str(Path(path).absolute()) if isinstance(path, str) else _make_absolute(path)
    return config.override(changes)


def _make_absolute(paths: Iterable[str]) -> list[str]:
    return [str(Path(path).absolute()) for path in paths]


MIN_RATE, MAX_RATE, _NUM_UPDATES = 1e-6, 1.0, 120
_SMOOTHING = 0.9  # decay of the moving average of the losses
_DIVERGENCE_FACTOR = 3.0  # the test ends when the loss exceeds its minimum by this factor


class LearningRatePoint(NamedTuple):
    """Learning rate and the smoothed loss at this rate."""

    rate: float
    loss: float


def sweep_learning_rates(trainer: Trainer, updates: int = _NUM_UPDATES) -> list[LearningRatePoint]:
    """Train for `updates` updates with exponentially rising rates; stop early if the loss diverges."""
    trainer.schedule = lambda step, *_: MIN_RATE * (MAX_RATE / MIN_RATE) ** ((step - 1) / max(1, updates - 1))
    points: list[LearningRatePoint] = []
    mean = 0.0
    with (
        preserve_generators(trainer.device),
        closing(trainer.load_update_batches()) as batch_stream,
        make_progress_bar() as progress,
    ):
        task = progress.add_task("trying rates", total=updates, note="")
        for index, update_batches in zip(range(updates), batch_stream, strict=False):
            step_metrics, _ = trainer.train_step(update_batches)
            loss, rate = step_metrics["loss"], step_metrics["learning_rate"]
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            points.append(LearningRatePoint(rate, mean / (1 - _SMOOTHING ** (index + 1))))
            if not math.isfinite(loss) or points[-1].loss > _DIVERGENCE_FACTOR * min(point.loss for point in points):
                break
            progress.update(task, advance=1, note=f"{rate:.1e}: loss {points[-1].loss:.2f}")
    finite = [point for point in points if math.isfinite(point.loss)]
    if not finite:
        raise UserError(f"the loss is {points[0].loss} from the first update on; check the training data")
    return finite


def suggest_learning_rate(points: list[LearningRatePoint]) -> float:
    """Return the rate at which the loss falls fastest per step on the logarithmic scale."""
    changes = [(after.loss - before.loss, after.rate) for before, after in pairwise(points)]
    if not changes or min(changes)[0] >= 0:
        raise UserError(f"no learning rate from {MIN_RATE} to {MAX_RATE} made the loss fall; check the training data")
    return min(changes)[1]
