"""The kinds of work that a model can be trained for."""

from collections.abc import Mapping
from typing import Any

from regard.errors import UserError, nearest
from regard.tasks import captioning, classification, reading, regression, tagging, translation
from regard.tasks.task import Asked, Corpus, Job, OnBest, Prediction, Predictor, Sample, Task, Validate, Validation

__all__ = [
    "TASKS",
    "Asked",
    "Corpus",
    "Job",
    "OnBest",
    "Prediction",
    "Predictor",
    "Sample",
    "Task",
    "Validate",
    "Validation",
    "task_of",
]

TASKS: dict[str, Task] = {
    "caption": captioning.TASK,
    "classify": classification.TASK,
    "read": reading.TASK,
    "regress": regression.TASK,
    "tag": tagging.TASK,
    "translate": translation.TASK,
}


def task_of(recipe: Mapping[str, Any]) -> Task:
    """The task that a recipe, or a run's config, names; the first release knew of translation alone."""
    name = recipe.get("task", "translate")
    if name not in TASKS:
        raise UserError(f"there is no task {name!r}{nearest(str(name), TASKS)}")
    return TASKS[name]
