"""Training: the loop, its schedule, what it measures and keeps."""

from regard.training.device import choose_device
from regard.training.finder import suggested
from regard.training.job import Paths, find_rate, train
from regard.training.loop import Trainer
from regard.training.settings import TrainingSettings
from regard.training.signals import Interrupted

__all__ = ["Interrupted", "Paths", "Trainer", "TrainingSettings", "choose_device", "find_rate", "suggested", "train"]
