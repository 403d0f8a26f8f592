"""Text classification: a label for a text, with self-attention or hierarchical attention."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.recipes import RunConfig
from regard.runs import Run
from regard.synthetic.classification import write_classification_corpus
from regard.synthetic.corpus import SyntheticCorpus
from regard.tasks.base import DevExample, PreparedRun, Task
from regard.tasks.classification.labelled_texts import ClassificationSettings
from regard.tasks.classification.prediction import ClassificationPrediction
from regard.tasks.classification.task import (
    ClassificationPredictor,
    load,
    load_classification_dev_set,
    prepare_classification,
)
from regard.tokenizers import VocabularySettings

__all__ = ["ClassificationPrediction", "ClassificationPredictor", "ClassificationTask", "write_classification_corpus"]


class ClassificationTask(Task):
    """Label texts."""

    verb = "classifies"
    demo_recipe = "yang2016"
    data_settings = ClassificationSettings
    text_settings = VocabularySettings

    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Prepare the data and the vocabularies of a run that begins or resumes."""
        return prepare_classification(run, config, resume)

    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> ClassificationPredictor:
        """Load the best checkpoint of a run; by default on a GPU if there is one."""
        return load(*runs, device=None if device is None else str(device))

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev set of a run, given its config."""
        return load_classification_dev_set(config)

    def write_synthetic_corpus(self, folder: Path) -> SyntheticCorpus:
        """Write the data of the task's demo into a folder."""
        return write_classification_corpus(folder)
