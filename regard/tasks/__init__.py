"""Tasks a model can be trained for: translation, tagging, classification, cloze reading, captioning, regression."""

from regard.tasks.base import TASKS, get_task
from regard.tasks.captioning.task import CaptioningTask
from regard.tasks.classification import ClassificationTask
from regard.tasks.cloze import ClozeTask
from regard.tasks.regression import RegressionTask
from regard.tasks.tagging import TaggingTask
from regard.tasks.translation import TranslationTask

TASKS |= {
    "caption": CaptioningTask(),
    "classify": ClassificationTask(),
    "read": ClozeTask(),
    "regress": RegressionTask(),
    "tag": TaggingTask(),
    "translate": TranslationTask(),
}

__all__ = ["TASKS", "get_task"]
