"""Tiny configurations, runs and trainers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.dataset import ParallelDataset, RaggedArray
from regard.models import Seq2Seq, build
from regard.recipes.recipe import read_recipe
from regard.runs import Run, checkpoint
from regard.tasks.base import Validation
from regard.training import Trainer, TrainingSettings, train
from regard.training.distributed import SINGLE_PROCESS, ModelWithLoss
from regard.training.optimizer import GradientAccumulator

TINY: dict[str, Any] = {  # overrides with which any translation recipe trains in a second
    "model.size": 24,
    "model.layers": 1,
    "text.kind": "word",
    "text.vocabulary": 600,
    "training.steps": 24,
    "training.batch_tokens": 300,
    "training.optimizer": "adam",
    "training.learning_rate": 0.01,
    "training.warmup": 4,
    "training.schedule": "inverse-sqrt",
    "training.epochs": None,
    "training.validate_every": 12,
    "training.checkpoint_every": 12,
    "training.validate_pairs": 10,
    "training.log_every": 4,
    "training.tensorboard": False,
}


def corpus_files(corpus: Path, split: str) -> list[Path]:
    """Return the English and the German file of a split."""
    return [corpus / f"{split}.en", corpus / f"{split}.de"]


def train_tiny(recipe: str, corpus: Path, out: Path, **overrides: Any) -> Run:
    """Train a recipe on the corpus with the `TINY` configuration; `overrides` are dotted keys."""
    data, dev = corpus_files(corpus, "train"), corpus_files(corpus, "dev")
    return train(recipe, data, out, dev=dev, **{**TINY, **overrides})


def copy_run(run: Run, folder: Path) -> Run:
    """Copy a run, for tests that change its files."""
    shutil.copytree(run.folder, folder)
    return Run(folder)


def format_overrides(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides as arguments of the command: `key=value` in YAML."""
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]


def newest_weights(run: Run) -> dict[str, Tensor]:
    """Return the weights of a run's newest checkpoint."""
    return checkpoint.read_tensors(run.checkpoint_folder(run.find_newest_step()), checkpoint.MODEL_FILE)


def are_state_dicts_equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Compare two state dicts bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class ScriptedValidator:
    """A validator whose BLEU scores are given in advance."""

    def __init__(self, bleus: list[float]) -> None:
        self.bleus = iter(bleus)

    def __call__(self, model: Seq2Seq, device: torch.device) -> Validation:
        bleu = next(self.bleus)
        return Validation(10 - bleu, {"bleu": bleu}, "bleu")


def make_examples(count: int = 24) -> ParallelDataset:
    """Return a copy task of short random sentences."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, 12, (2 + number % 5,), generator=generator).tolist() for number in range(count)]
    return ParallelDataset(RaggedArray.from_rows(rows), RaggedArray.from_rows(rows))


def make_trainer(folder: Path, bleus: list[float] | None = None, **settings: Any) -> Trainer:
    """Return a trainer of a tiny Luong model on `make_examples`, validated by the given BLEU scores."""
    torch.manual_seed(0)
    model = build(_luong_recipe(), 12, 12, size=8, layers=1, dropout=settings.pop("dropout", 0.0))
    defaults = {
        "steps": 8,
        "batch_tokens": 40,
        "validate_every": 2,
        "warmup": 1,
        "tensorboard": False,
        "optimizer": "adam",
    }
    chosen = TrainingSettings(**{**defaults, **settings})
    validator = ScriptedValidator(bleus or [1.0] * 99)
    return Trainer(model, make_examples(), validator, chosen, Run(folder), torch.device("cpu"))


@cache
def _luong_recipe() -> dict[str, Any]:
    return read_recipe("luong2015-global")


def gradients_of(trainer: Trainer) -> GradientAccumulator:
    """Return gradient accumulation for a trainer's model in one process."""
    return GradientAccumulator(ModelWithLoss(trainer.model), trainer.settings, trainer.device, SINGLE_PROCESS)


def make_loss_nan(trainer: Trainer, steps: set[int]) -> None:
    """Make the loss of these updates NaN."""
    summed = trainer.model.loss_sum

    def poisoned(*batch: Any) -> Tensor:
        return summed(*batch) * (math.nan if trainer.train_state.step + 1 in steps else 1.0)

    trainer.model.loss_sum = poisoned
