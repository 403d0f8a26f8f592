"""`regard train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regard.cli.interrupt import print_resume_command_on_interrupt
from regard.data.readers.dispatch import is_bilingual_file
from regard.errors import UserError

OVERRIDE_PATTERN = re.compile(r"[A-Za-z_.]+ ?=.*", re.DOTALL)


class TrainCommand(TyperCommand):
    """Takes `--dev` with one file that holds pairs or with two text files behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives each file of `--dev` its own `--dev`, as the parser wants it."""
        known = {name for parameter in self.params for name in parameter.opts}
        for argument in args:
            option, _, value = argument.partition("=")
            if option.startswith("--") and option not in known and (key := _suggest_recipe_key(option)):
                raise UserError(f"there is no option {option}; keys of the recipe stand alone: {key}={value or '…'}")
        return super().parse_args(ctx, expand_dev_arguments(args))


def _suggest_recipe_key(option: str) -> str | None:
    """The key of the recipe that somebody may have meant by an option: `--steps` is training.steps."""
    from regard.recipes import SECTIONS, read_recipe

    usual, name = read_recipe("default"), option.removeprefix("--").replace("-", "_")
    return next((f"{section}.{name}" for section in SECTIONS if name in usual.get(section, {})), None)


def expand_dev_arguments(args: list[str]) -> list[str]:
    """`--dev a.en a.de` -> `--dev a.en --dev a.de`; a file that holds pairs, or a folder, stands alone."""
    out: list[str] = []
    for number, argument in enumerate(args):
        first = number > 0 and args[number - 1] == "--dev" and not _is_complete_corpus(Path(argument))
        out.append(argument)
        if (
            first
            and number + 1 < len(args)
            and not args[number + 1].startswith("-")
            and not is_override(args[number + 1])
        ):
            out.append("--dev")
    return out


def _is_complete_corpus(path: Path) -> bool:
    """Whether a file, or a folder, is a corpus without another."""
    return is_bilingual_file(path) or path.is_dir()


def is_override(argument: str) -> bool:
    """`model.size=256` is one, a file of such a name is not."""
    return OVERRIDE_PATTERN.fullmatch(argument) is not None and not Path(argument).exists()


def train(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="One file that holds pairs (.tsv, .tmx, …) or two text files, source first; or several; key=value … "
            "A recipe of another task has data of its own, such as a folder for each label."
        ),
    ] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Files to validate on, like DATA.", metavar="DATA…")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe's name, or a YAML file; without one, `default`.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/DATA-RECIPE where none is given.")] = None,
    source: Annotated[str | None, typer.Option(help="The language to translate from, of a file with several.")] = None,
    target: Annotated[str | None, typer.Option(help="The language to translate into.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    init_from: Annotated[
        Path | None, typer.Option(help="A run to start from: its vocabularies, its weights, and its recipe.")
    ] = None,
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Try rising learning rates for a while, say which suits, and end.")
    ] = False,
) -> None:
    """Train a model on your own text.

    Example: regard train de-en.tsv --recipe bahdanau2015 --out runs/mine model.size=256 training.steps=20000
    """
    from regard.api import train as run_training
    from regard.console import log_message
    from regard.recipes import parse_override

    given = data or []
    overrides = dict(parse_override(argument) for argument in given if is_override(argument))
    if init_from is not None:
        overrides["training.init_from"] = str(init_from)
    overrides |= {f"data.{side}": code for side, code in (("source", source), ("target", target)) if code}
    files = [argument for argument in given if not is_override(argument)]
    if find_rate:
        if resume or out is not None:
            raise UserError("--find-rate trains nothing that is kept: leave --resume and --out out")
        _suggest_learning_rate(recipe, files, dev, overrides)
        return
    if out is None:
        if resume:
            raise UserError("--resume needs --out: which run is to go on?")
        if not files:
            raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
        first = (
            Path(files[0]).resolve() if Path(files[0]).is_dir() else Path(files[0])
        )  # `.` has a name, a pipe has none
        out = Path("runs") / f"{first.name.split('.')[0]}-{Path(recipe or 'default').stem}"
    with print_resume_command_on_interrupt(f"regard train --resume --out {out}"):
        run = run_training(recipe, files or None, out, dev=dev or None, resume=resume, **overrides)
    report = run.folder / "report.html"
    best = (
        "the mean of the newest checkpoints" if run.average_folder.is_dir() else f"that of step {run.find_best_step()}"
    )
    log_message(f"the best model is {best}; curves and samples: {report}")
    task = run.read_config().get("task", "translate")
    log_message(f"{task} with: regard {'translate' if task == 'translate' else 'predict'} {run.folder} FILE")


def _suggest_learning_rate(
    recipe: str | None, files: list[str], dev: list[Path] | None, overrides: dict[str, Any]
) -> None:
    """Says which learning rate suits, with the losses that say so."""
    from regard.training import run_lr_range_test, suggest_learning_rate

    tried = run_lr_range_test(recipe, files or None, dev=dev or None, **overrides)
    least, most = min(one.loss for one in tried), max(one.loss for one in tried)
    for one in tried[:: max(1, len(tried) // 24)]:
        width = round(40 * (one.loss - least) / max(1e-9, most - least))
        typer.echo(f"{one.rate:9.1e}  {one.loss:8.3f}  {'█' * width}")
    typer.echo(f"the loss falls fastest at about training.learning_rate={suggest_learning_rate(tried):.1g}")
