"""Training: trainer, learning rate schedules, checkpoints, metrics, distributed training."""

from regard.recipes.recipe import TrainingSettings
from regard.training.device import choose_device
from regard.training.lr_finder import suggest_learning_rate
from regard.training.train import Paths, run_lr_range_test, train
from regard.training.trainer import Interrupted, Trainer

__all__ = [
    "Interrupted",
    "Paths",
    "Trainer",
    "TrainingSettings",
    "choose_device",
    "run_lr_range_test",
    "suggest_learning_rate",
    "train",
]
