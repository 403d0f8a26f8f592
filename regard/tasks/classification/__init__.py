"""A label for a text."""

from regard.tasks.classification.classifier import Classifier, load
from regard.tasks.classification.embedded import write as embedded
from regard.tasks.classification.prediction import Classification
from regard.tasks.classification.preparation import dev, prepared
from regard.tasks.classification.settings import ClassificationSettings
from regard.tasks.task import Task
from regard.text import VocabularySettings

__all__ = ["TASK", "Classification", "Classifier", "embedded"]

TASK = Task(ClassificationSettings, VocabularySettings, prepared, load, dev, embedded)
