"""Training: trainer, learning rate schedules, checkpoints, metrics, distributed training."""

from regard.recipes.recipe import TrainingSettings
from regard.training.train import train
from regard.training.trainer import Trainer

__all__ = ["Trainer", "TrainingSettings", "train"]
