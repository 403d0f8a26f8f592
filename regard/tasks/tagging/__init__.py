"""A label for each word of a sentence."""

from regard.tasks.tagging.embedded import write as embedded
from regard.tasks.tagging.preparation import dev, prepared
from regard.tasks.tagging.settings import TagDataSettings, TagTextSettings
from regard.tasks.tagging.tagger import Tagger, load
from regard.tasks.tagging.validation import Validator
from regard.tasks.task import Task

__all__ = ["TASK", "Tagger", "Validator", "embedded"]

TASK = Task(TagDataSettings, TagTextSettings, prepared, load, dev, embedded)
