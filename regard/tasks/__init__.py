"""Tasks a model can be trained for: translation, tagging, classification, cloze reading, captioning, regression."""

from collections.abc import Mapping
from typing import Any

from regard.errors import UserError, format_suggestion
from regard.models.plugins import PLUGIN_VARIABLE, import_plugins
from regard.recipes.recipe import get_task_name
from regard.tasks.base import Task
from regard.tasks.captioning.task import CaptioningTask
from regard.tasks.classification import ClassificationTask
from regard.tasks.cloze import ClozeTask
from regard.tasks.regression import RegressionTask
from regard.tasks.tagging import TaggingTask
from regard.tasks.translation import TranslationTask

TASKS: dict[str, Task] = {
    "caption": CaptioningTask(),
    "classify": ClassificationTask(),
    "read": ClozeTask(),
    "regress": RegressionTask(),
    "tag": TaggingTask(),
    "translate": TranslationTask(),
}


def get_task(recipe: Mapping[str, Any]) -> Task:
    """Return the task that a recipe or a run's config names; a plug-in may add its own to `TASKS`."""
    name = get_task_name(recipe)
    if name not in TASKS:
        import_plugins()
    if name not in TASKS:
        raise UserError(
            f"there is no task {name!r}{format_suggestion(name, TASKS)} "
            f"(for a task of your own, set {PLUGIN_VARIABLE} to the module that adds it)"
        )
    return TASKS[name]
