"""Workspace of experiments: corpora, runs, and cached measurements with their hardware."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import yaml

from regard.console import log_message
from regard.paths import write_atomically
from regard.reproduce.corpora import CORPUS_BUILDERS, CorpusFiles, prepare_corpus
from regard.reproduce.experiment import ExperimentRow, MetricValues, TrainingSpec, compute_digest
from regard.runs import Run
from regard.runs.run import summarize_run
from regard.training import train


def _describe_hardware(device: torch.device | None) -> dict[str, Any]:
    """Return processor, GPU (unless `device` is another) and software versions of this machine."""
    uses_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if uses_gpu else None,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


MEASUREMENT_VERSION = "0.1.0"  # of regard; a newer one repeats the measurements that are cached
# Measured results are cached under these names of earlier versions; their checkpoints may be gone.
MEASUREMENT_IDS = {
    "measure_translation": ("regard.reproduce.measures", "translation"),
    "measure_translation_and_speed": ("regard.reproduce.speed", "timed"),
    "measure_architecture": ("regard.reproduce.experiments.architectures", "measure"),
    "measure_cell": ("regard.reproduce.experiments.cells", "measure"),
    "measure_direction": ("regard.reproduce.experiments.directions", "measure"),
}
Measure: TypeAlias = "Callable[[Workspace, ExperimentRow], MetricValues]"


class Workspace:
    """A folder with `corpora`, `runs`, and the results of each scale.

    Models are trained and measured on `device`; by default as their recipes say, and on a GPU if there is one.
    """

    def __init__(self, out: Path, scale: str, device: torch.device | None = None) -> None:
        self.out = out
        self.scale = scale
        self.device = device
        self.device_override: dict[str, Any] = {} if device is None else {"training.device": device.type}

    @property
    def results_folder(self) -> Path:
        """Folder of tables and pages of this scale."""
        return self.out / self.scale

    def get_corpus(self, name: str) -> CorpusFiles:
        """Return the files of a corpus, written if they do not exist."""
        return prepare_corpus(name, self.out / "corpora")

    def run_folder(self, training: TrainingSpec) -> Path:
        """Return the folder of a training's run."""
        return self.out / "runs" / training.name

    def train_or_resume(self, training: TrainingSpec) -> Path:
        """Train a model, or resume its training, unless it is finished; return the folder of its run."""
        folder = self.run_folder(training)
        if self.is_trained(training):
            return folder
        if Run(folder).exists and Run(folder).list_steps():
            log_message(f"resuming {folder} from step {Run(folder).find_newest_step()}")
            train(training.recipe, None, folder, resume=True, **self.device_override)
        else:
            corpus = self.get_corpus(training.corpus)
            train(training.recipe, corpus.train, folder, dev=corpus.dev, **{**training.changes, **self.device_override})
        return folder

    def is_trained(self, training: TrainingSpec) -> bool:
        """Return True if a run exists and is finished."""
        return self.run_folder(training).is_dir() and summarize_run(self.run_folder(training)).finished

    def measure_row(self, measure: Measure, row: ExperimentRow) -> MetricValues:
        """Measure a row, or read its cached values, which are kept in the folder of its first run.

        Cached values need no checkpoints, which may have been deleted.
        """
        if not row.trainings:
            return measure(self, row)
        path = self.measurement_path(measure, row)
        if not self.is_measured(measure, row):
            for training in row.trainings:
                self.train_or_resume(training)
            values = measure(self, row)
            path.parent.mkdir(exist_ok=True)
            document = {
                "of": _describe_measurement(measure, row),
                "values": values,
                "hardware": _describe_hardware(self.device),
            }
            write_atomically(path, json.dumps(document, ensure_ascii=False))
        cached: MetricValues = json.loads(path.read_text(encoding="utf-8"))["values"]
        return cached

    def is_measured(self, measure: Measure, row: ExperimentRow) -> bool:
        """Return True if the values of a row with trainings are cached."""
        return bool(row.trainings) and self.measurement_path(measure, row).is_file()

    def measurement_path(self, measure: Measure, row: ExperimentRow) -> Path:
        """Return the path of the cached values."""
        digest = compute_digest([*_describe_measurement(measure, row), *self.device_override.values()])
        return self.run_folder(row.trainings[0]) / "measures" / f"{digest}.json"

    def read_hardware(self, measure: Measure, row: ExperimentRow) -> dict[str, Any]:
        """Return the hardware that a row was measured on; this machine if nothing is cached."""
        cached = row.trainings and json.loads(self.measurement_path(measure, row).read_text(encoding="utf-8"))
        return dict(cached.get("hardware", {})) if cached else _describe_hardware(self.device)

    def format_train_command(self, training: TrainingSpec) -> str:
        """Return the shell command of a training."""
        corpus = CORPUS_BUILDERS[training.corpus].find_files(self.out / "corpora" / training.corpus)
        dev = [] if corpus.dev is None else ["--dev", *corpus.dev]
        overrides = {**training.changes, **self.device_override}
        changes = [f"{key}={_format_override_value(value)}" for key, value in overrides.items()]
        arguments = ["--recipe", training.recipe, "--out", self.run_folder(training)]
        return shlex.join(map(str, ["regard", "train", *corpus.train, *dev, *arguments, *changes]))


def _describe_measurement(measure: Measure, row: ExperimentRow) -> list[Any]:
    """Return everything that determines the cached values of a row."""
    names = [training.name for training in row.trainings]
    module, name = MEASUREMENT_IDS.get(measure.__qualname__, (measure.__module__, measure.__qualname__))
    return [MEASUREMENT_VERSION, module, name, names, dict(row.options)]


def _format_override_value(value: Any) -> str:
    """Format a value as on the command line."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
