"""`regard reproduce`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.interrupt import print_resume_command_on_interrupt
from regard.errors import UserError, format_suggestion


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; --list has their names.")] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Say what each claims, its source, and what it costs.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="All experiments, one after the other.")] = False,
    scale: Annotated[
        str, typer.Option(help="small: made-up data, minutes on a CPU; full: real data in REGARD_DATA, hours on a GPU.")
    ] = "small",
    seeds: Annotated[
        int, typer.Option(min=1, help="Train each model so many times; their deviation then says what chance may do.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Train and measure so many models at once, on a GPU or a CPU.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for runs, tables and pages.")] = Path("runs/reproduce"),
    trained: Annotated[
        bool, typer.Option("--trained", help="Train nothing: table and page of the rows whose models are there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be trained, as commands, and end.")
    ] = False,
) -> None:
    """Run the papers' comparisons again, and say claim by claim what holds.

    What is there already is not trained again; what was stopped goes on.

    Example: regard reproduce ladder lengths --scale small
    """
    from regard.reproduce import (
        EXPERIMENTS,
        SCALES,
        Workspace,
        describe_experiment,
        format_dry_run,
        format_outcome,
        run_experiment,
        train_and_measure_parallel,
    )

    if scale not in SCALES:
        raise UserError(f"there is no scale {scale!r}{format_suggestion(scale, SCALES)}")
    for name in names or ():
        if name not in EXPERIMENTS:
            raise UserError(f"there is no experiment {name!r}{format_suggestion(name, EXPERIMENTS)}")
    if names and everything:
        raise UserError("--all is every experiment: leave the names out, or --all")
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys(names or (EXPERIMENTS if everything or show_list else ()))]
    if show_list:
        typer.echo("\n\n".join(map(describe_experiment, chosen)))
        return
    if not chosen:
        raise UserError("nothing to reproduce: name experiments, or --all; --list says what there is")
    lab = Workspace(out, scale)
    if dry_run:
        typer.echo(format_dry_run(chosen, lab, seeds))
        return
    asked = "--all" if everything else " ".join(one.name for one in chosen)
    options = f"--scale {scale} --seeds {seeds} --jobs {jobs} --out {shlex.quote(str(out))}{' --trained' * trained}"
    with print_resume_command_on_interrupt(f"regard reproduce {asked} {options}"):
        if jobs > 1 and not trained:
            train_and_measure_parallel(chosen, lab, seeds, jobs)
        for experiment in chosen:
            typer.echo(format_outcome(run_experiment(experiment, lab, seeds, may_train=not trained)))
            typer.echo(f"  table and page: {lab.results_folder / experiment.name}")
