"""Training: the loop, its schedule, what it measures and keeps."""

from regard.training.device import choose_device
from regard.training.job import Paths, train
from regard.training.loop import Interrupted, Trainer
from regard.training.settings import TrainingSettings

__all__ = ["Interrupted", "Paths", "Trainer", "TrainingSettings", "choose_device", "train"]
