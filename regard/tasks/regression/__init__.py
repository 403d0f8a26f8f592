"""Numbers for each step of a series of numbers."""

from regard.tasks.regression.embedded import write as embedded
from regard.tasks.regression.follower import Follower, load
from regard.tasks.regression.prediction import tracks
from regard.tasks.regression.preparation import dev, prepared
from regard.tasks.regression.settings import NoText, NumberSettings
from regard.tasks.regression.validation import Validator
from regard.tasks.task import Task

__all__ = ["TASK", "Follower", "Validator", "embedded"]

TASK = Task(NumberSettings, NoText, prepared, load, dev, embedded, tracks)
