"""Cloze reading comprehension: choose the word of a document that fills the blank in a query."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.recipes import RunConfig
from regard.runs import Run
from regard.synthetic.cloze import write_cloze_corpus
from regard.synthetic.corpus import SyntheticCorpus
from regard.tasks.base import DevExample, PreparedRun, Task
from regard.tasks.cloze.predictor import ClozePrediction, ClozePredictor, ClozeSample, ClozeValidator, load
from regard.tasks.cloze.questions import ClozeSettings, ClozeTextSettings, Question
from regard.tasks.cloze.task import load_cloze_dev_set, prepare_cloze

__all__ = [
    "ClozePrediction",
    "ClozePredictor",
    "ClozeSample",
    "ClozeTask",
    "ClozeValidator",
    "Question",
    "write_cloze_corpus",
]


class ClozeTask(Task):
    """Fill blanks."""

    verb = "reads"
    demo_recipe = "cui2017"
    data_settings = ClozeSettings
    text_settings = ClozeTextSettings

    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Prepare the data and the vocabularies of a run that begins or resumes."""
        return prepare_cloze(run, config, resume)

    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> ClozePredictor:
        """Load the best checkpoint of a run; by default on a GPU if there is one."""
        return load(*runs, device=None if device is None else str(device))

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev set of a run, given its config."""
        return load_cloze_dev_set(config)

    def write_synthetic_corpus(self, folder: Path) -> SyntheticCorpus:
        """Write the data of the task's demo into a folder."""
        return write_cloze_corpus(folder)
