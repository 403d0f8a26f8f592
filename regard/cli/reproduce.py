"""`regard reproduce`: rerun experiments of the papers and check their claims."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from regard.cli.options import InferenceDevice, choose_device_of_option, describe_options
from regard.cli.train import print_resume_command_on_interrupt
from regard.errors import UserError, format_suggestion


@describe_options
def reproduce(
    names: list[str] | None = None,
    show_list: bool = False,
    everything: bool = False,
    scale: str = "small",
    seeds: int = 1,
    jobs: int = 1,
    out: Path = Path("runs/reproduce"),
    device: InferenceDevice = "auto",
    trained: bool = False,
    dry_run: bool = False,
) -> None:
    """Rerun experiments of the papers or your own, and report for each claim whether it holds.

    Finished models are not trained again; interrupted training is resumed.

    Example: regard reproduce ladder lengths --scale small
    """
    from regard.reproduce import runner
    from regard.reproduce.experiment import SCALES
    from regard.reproduce.experiments import EXPERIMENTS, read_experiment
    from regard.reproduce.workspace import Workspace

    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}{format_suggestion(scale, SCALES)}")
    own = {name: read_experiment(Path(name), scale) for name in names or () if name.endswith((".yaml", ".yml"))}
    experiments = EXPERIMENTS | own
    for name in names or ():
        if name not in experiments:
            raise UserError(f"unknown experiment {name!r}{format_suggestion(name, EXPERIMENTS)}")
    if names and everything:
        raise UserError("--all runs every experiment: leave out either the names or --all")
    chosen = [experiments[name] for name in dict.fromkeys(names or (EXPERIMENTS if everything or show_list else ()))]
    if show_list:
        typer.echo("\n\n".join(map(runner.describe_experiment, chosen)))
        return
    if not chosen:
        raise UserError("name experiments, or use --all; --list shows all of them")
    workspace = Workspace(out, scale, choose_device_of_option(device))
    if dry_run:
        typer.echo(runner.format_dry_run(chosen, workspace, seeds))
        return
    requested = "--all" if everything else shlex.join(dict.fromkeys(names or ()))
    options = f"--scale {scale} --seeds {seeds} --jobs {jobs} --out {shlex.quote(str(out))} --device {device}"
    options += " --trained" * trained
    with print_resume_command_on_interrupt(f"regard reproduce {requested} {options}"):
        if jobs > 1 and not trained:
            runner.train_and_measure_parallel(chosen, workspace, seeds, jobs)
        for experiment in chosen:
            table = runner.run_experiment(experiment, workspace, seeds, may_train=not trained)
            typer.echo(runner.format_claim_results(table))
            typer.echo(f"  table and page: {workspace.results_folder / experiment.name}")
