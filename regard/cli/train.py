"""`regard train`, `regard demo` and `regard recipes`: train a model, and list and print the recipes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import typer
from typer.core import TyperCommand

from regard.cli.options import describe_options
from regard.console import is_rank0, log_message
from regard.data.readers.dispatch import is_bilingual_file
from regard.errors import UserError, format_suggestion
from regard.recipes.recipe import (
    DEFAULT_TASK,
    SECTIONS,
    describe_recipe,
    get_task_name,
    list_recipes,
    parse_override,
    read_recipe,
    read_recipe_text,
)

_DATA_OPTIONS = ("--dev", "--mix")  # which take one file of pairs or two text files
OVERRIDE_PATTERN = re.compile(r"[A-Za-z_.]+ ?=.*", re.DOTALL)


class TrainCommand(TyperCommand):
    """Command whose `--dev` and `--mix` take one file of pairs or two text files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat `--dev` and `--mix` before their second file, as click's parser requires, and suggest recipe keys."""
        known_options = {name for parameter in self.params for name in parameter.opts}
        for argument in args:
            option, _, value = argument.partition("=")
            if option.startswith("--") and option not in known_options and (key := _suggest_recipe_key(option)):
                raise UserError(f"unknown option {option}; recipe keys are given without dashes: {key}={value or '…'}")
        return super().parse_args(ctx, expand_dev_arguments(args))


def _suggest_recipe_key(option: str) -> str | None:
    """Return the recipe key that an unknown option may mean: `training.steps` for `--steps`."""
    defaults, name = read_recipe("default"), option.removeprefix("--").replace("-", "_")
    return next((f"{section}.{name}" for section in SECTIONS if name in defaults.get(section, {})), None)


def expand_dev_arguments(args: list[str]) -> list[str]:
    """Expand `--dev a.en a.de` to `--dev a.en --dev a.de`, as `--mix`; a file of pairs, or a folder, is complete."""
    expanded: list[str] = []
    for previous, argument, following in zip(["", *args], args, [*args[1:], "--"], strict=False):
        expanded.append(argument)
        if previous in _DATA_OPTIONS and not following.startswith("-") and not is_override(following):
            is_complete = is_bilingual_file(Path(argument)) or Path(argument).is_dir()
            expanded += [] if is_complete else [previous]
    return expanded


def is_override(argument: str) -> bool:
    """Return True for an override such as `model.size=256`, unless a file has that name."""
    return OVERRIDE_PATTERN.fullmatch(argument) is not None and not Path(argument).exists()


@describe_options
def train(
    data: list[str] | None = None,
    dev: list[Path] | None = None,
    recipe: str | None = None,
    out: Path | None = None,
    source: str | None = None,
    target: str | None = None,
    resume: bool = False,
    minutes: float | None = None,
    device: Literal["auto", "cuda", "mps", "cpu"] | None = None,
    seed: int | None = None,
    init_from: Path | None = None,
    mix: list[Path] | None = None,
    find_rate: bool = False,
) -> None:
    """Train a model on your own text.

    Example: regard train de-en.tsv --recipe bahdanau2015 --out runs/mine model.size=256 training.steps=20000
    """
    from regard.report.html import write_report
    from regard.tasks import get_task
    from regard.training.train import train as run_training

    arguments = data or []
    overrides = dict(parse_override(argument) for argument in arguments if is_override(argument))
    if init_from is not None:
        overrides["training.init_from"] = str(init_from)
    if mix:
        overrides["data.mix"] = [str(path) for path in mix]
    if minutes is not None:
        overrides["training.minutes"] = minutes
    overrides |= make_training_overrides(device, seed)
    overrides |= {f"data.{side}": code for side, code in (("source", source), ("target", target)) if code}
    files = [argument for argument in arguments if not is_override(argument)]
    if find_rate:
        if resume or out is not None:
            raise UserError("--find-rate keeps no model: leave out --resume and --out")
        _suggest_learning_rate(recipe, files, dev, overrides)
        return
    if out is None:
        if resume:
            raise UserError("--resume needs --out, the run to resume")
        if not files:
            raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
        first = Path(files[0])
        first = first.resolve() if first.is_dir() else first  # `.` has no name; nor has a pipe that is resolved
        out = Path("runs") / f"{first.name.split('.')[0]}-{Path(recipe or 'default').stem}"
    with print_resume_command_on_interrupt(f"regard train --resume --out {out}"):
        run = run_training(recipe, files or None, out, dev=dev or None, resume=resume, **overrides)
        if is_rank0():
            write_report(run)
    report = run.folder / "report.html"
    best = "the average of the newest checkpoints" if run.average_folder.is_dir() else f"step {run.find_best_step()}"
    log_message(f"best checkpoint: {best}; training curves and samples: {report}")
    config = run.read_config()
    log_message(f"{get_task_name(config)} with: regard {get_task(config).command} {run.folder} FILE")


def make_training_overrides(device: str | None, seed: int | None) -> dict[str, Any]:
    """Return the recipe overrides of `--device` and `--seed`."""
    values = {"training.device": device, "training.seed": seed}
    return {key: value for key, value in values.items() if value is not None}


@contextmanager
def print_resume_command_on_interrupt(command: str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM print how to resume, and exit with 128 plus the signal number."""
    from regard.training.distributed import Interrupted

    try:
        yield
    except Interrupted as stop:
        log_message(f"{stop}; resume with: {command}")
        raise typer.Exit(128 + stop.signal_number) from stop


def _suggest_learning_rate(
    recipe: str | None, files: list[str], dev: list[Path] | None, overrides: dict[str, Any]
) -> None:
    """Print the losses of a learning rate range test, and the suggested learning rate."""
    from regard.training.train import run_lr_range_test, suggest_learning_rate

    results = run_lr_range_test(recipe, files or None, dev=dev or None, **overrides)
    lowest, highest = min(result.loss for result in results), max(result.loss for result in results)
    for result in results[:: max(1, len(results) // 24)]:
        width = round(40 * (result.loss - lowest) / max(1e-9, highest - lowest))
        typer.echo(f"{result.rate:9.1e}  {result.loss:8.3f}  {'█' * width}")
    typer.echo(f"the loss falls fastest at about training.learning_rate={suggest_learning_rate(results):.1g}")


@describe_options
def demo(
    recipe: str | None = None,
    task: str | None = None,
    pair: Literal["en-de", "en-ja"] = "en-de",
    out: Path | None = None,
    device: Literal["auto", "cuda", "mps", "cpu"] | None = None,
    seed: int | None = None,
) -> None:
    """Train a small model on synthetic data in minutes, and show its predictions and attention.

    Example: regard demo --recipe bahdanau2015 --out runs/bahdanau
    """
    from regard.demo import run_demo
    from regard.synthetic.translation import DEFAULT_PAIR
    from regard.tasks import TASKS

    if task is not None and task not in TASKS:
        raise UserError(f"unknown task {task!r}{format_suggestion(task, TASKS)}")
    recipe_task = get_task_name(read_recipe(recipe)) if recipe else None
    if recipe_task and task and recipe_task != task:
        raise UserError(f"the recipe {recipe} is for the task {recipe_task}, not {task}")
    task = recipe_task or task or DEFAULT_TASK
    recipe = recipe or TASKS[task].demo_recipe
    pair_option = "" if pair == DEFAULT_PAIR else f" --pair {pair}"
    name = f"-{pair}" if pair_option else "" if task == DEFAULT_TASK else f"-{task}"
    out = out or Path("runs") / f"demo{name}"
    given = {"device": device, "seed": seed}
    options = pair_option + "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    with print_resume_command_on_interrupt(f"regard demo --recipe {recipe}{options} --out {out}"):
        typer.echo(run_demo(recipe, out, pair, **make_training_overrides(device, seed)).text)


@describe_options
def recipes(name: str | None = None) -> None:
    """List the recipes, or print one.

    Example: regard recipes luong2015-global > mine.yaml
    """
    if name is not None:
        typer.echo(read_recipe_text(name), nl=False)
        return
    width = max(map(len, list_recipes()))
    for recipe in list_recipes():
        typer.echo(f"{recipe:<{width}}  {describe_recipe(recipe)}")
