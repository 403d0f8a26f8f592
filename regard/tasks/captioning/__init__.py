"""Image captioning: a sentence for an image or for a grid of image features."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.recipes import RunConfig
from regard.runs import Run
from regard.synthetic.captioning import write_captioning_corpus
from regard.synthetic.corpus import SyntheticCorpus
from regard.tasks.base import DevExample, PreparedRun, Task
from regard.tasks.captioning.dataset import CaptionSettings
from regard.tasks.captioning.images import ImageFile
from regard.tasks.captioning.predictor import CaptioningPredictor, CaptionPrediction, load
from regard.tasks.captioning.task import load_captioning_dev_set, prepare_captioning
from regard.tokenizers import VocabularySettings

__all__ = ["CaptionPrediction", "CaptioningPredictor", "CaptioningTask", "ImageFile", "write_captioning_corpus"]


class CaptioningTask(Task):
    """Describe images."""

    verb = "captions"
    demo_recipe = "xu2015-soft-caption"
    data_settings = CaptionSettings
    text_settings = VocabularySettings

    def prepare(self, run: Run, config: RunConfig, resume: bool) -> PreparedRun:
        """Prepare the data and the vocabularies of a run that begins or resumes."""
        return prepare_captioning(run, config, resume)

    def load(self, *runs: str | Path, device: str | torch.device | None = None) -> CaptioningPredictor:
        """Load the best checkpoint of a run; by default on a GPU if there is one."""
        return load(*runs, device=None if device is None else str(device))

    def load_dev_set(self, config: RunConfig) -> list[DevExample]:
        """Return the dev set of a run, given its config."""
        return load_captioning_dev_set(config)

    def write_synthetic_corpus(self, folder: Path) -> SyntheticCorpus:
        """Write the data of the task's demo into a folder."""
        return write_captioning_corpus(folder)
