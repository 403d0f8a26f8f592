"""Text in one language to text in another."""

from regard.data.settings import DataSettings
from regard.tasks.task import Task
from regard.tasks.translation.preparation import dev, prepared
from regard.tasks.translation.validation import Sample, Validator
from regard.text import TextSettings
from regard.translate import load

__all__ = ["TASK", "Sample", "Validator"]

TASK = Task(DataSettings, TextSettings, prepared, load, dev)
