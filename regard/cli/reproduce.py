"""`regard reproduce`: rerun experiments of the papers and check their claims."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from regard.cli.train import print_resume_command_on_interrupt
from regard.errors import UserError, format_suggestion


def reproduce(
    names: Annotated[list[str] | None, Argument(help="Names of experiments; --list shows them.")] = None,
    show_list: Annotated[
        bool, Option("--list", help="List the experiments with their claims, sources and costs.")
    ] = False,
    everything: Annotated[bool, Option("--all", help="Run all experiments.")] = False,
    scale: Annotated[
        str, Option(help="Data: small is synthetic, minutes on a CPU; full is real, in REGARD_DATA, hours on a GPU.")
    ] = "small",
    seeds: Annotated[
        int, Option(min=1, help="Number of random seeds per model; several show the variance between runs.")
    ] = 1,
    jobs: Annotated[int, Option(min=1, help="Number of models to train and measure in parallel.")] = 1,
    out: Annotated[Path, Option(help="Folder for runs, tables and HTML pages.")] = Path("runs/reproduce"),
    trained: Annotated[
        bool,
        Option("--trained", help="Train nothing; write tables and pages from the models that are trained already."),
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the training commands and exit.")] = False,
) -> None:
    """Rerun experiments of the papers, and report for each claim whether it holds.

    Finished models are not trained again; interrupted training is resumed.

    Example: regard reproduce ladder lengths --scale small
    """
    from regard.reproduce import runner
    from regard.reproduce.experiment import SCALES
    from regard.reproduce.experiments import EXPERIMENTS
    from regard.reproduce.workspace import Workspace

    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}{format_suggestion(scale, SCALES)}")
    for name in names or ():
        if name not in EXPERIMENTS:
            raise UserError(f"unknown experiment {name!r}{format_suggestion(name, EXPERIMENTS)}")
    if names and everything:
        raise UserError("--all runs every experiment: leave out either the names or --all")
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys(names or (EXPERIMENTS if everything or show_list else ()))]
    if show_list:
        typer.echo("\n\n".join(map(runner.describe_experiment, chosen)))
        return
    if not chosen:
        raise UserError("name experiments, or use --all; --list shows all of them")
    workspace = Workspace(out, scale)
    if dry_run:
        typer.echo(runner.format_dry_run(chosen, workspace, seeds))
        return
    requested = "--all" if everything else " ".join(experiment.name for experiment in chosen)
    options = f"--scale {scale} --seeds {seeds} --jobs {jobs} --out {shlex.quote(str(out))}{' --trained' * trained}"
    with print_resume_command_on_interrupt(f"regard reproduce {requested} {options}"):
        if jobs > 1 and not trained:
            runner.train_and_measure_parallel(chosen, workspace, seeds, jobs)
        for experiment in chosen:
            table = runner.run_experiment(experiment, workspace, seeds, may_train=not trained)
            typer.echo(runner.format_claim_results(table))
            typer.echo(f"  table and page: {workspace.results_folder / experiment.name}")
