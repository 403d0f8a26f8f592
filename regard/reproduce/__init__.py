"""Reproduce comparisons of the papers, and decide for each claim whether it holds."""

from regard.reproduce.experiment import SCALES, Claim, Experiment, ExperimentRow, TrainingSpec
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.parallel import train_and_measure_parallel
from regard.reproduce.runner import describe_experiment, format_dry_run, format_outcome, run_experiment
from regard.reproduce.workspace import Workspace

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Claim",
    "Experiment",
    "ExperimentRow",
    "TrainingSpec",
    "Workspace",
    "describe_experiment",
    "format_dry_run",
    "format_outcome",
    "run_experiment",
    "train_and_measure_parallel",
]
