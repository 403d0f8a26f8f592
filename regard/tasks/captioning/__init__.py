"""A sentence about an image."""

from regard.tasks.captioning.captioner import Captioner, load
from regard.tasks.captioning.embedded import write as embedded
from regard.tasks.captioning.picture import Picture
from regard.tasks.captioning.prediction import Caption
from regard.tasks.captioning.preparation import dev, prepared
from regard.tasks.captioning.settings import CaptionSettings
from regard.tasks.task import Task
from regard.text import VocabularySettings

__all__ = ["TASK", "Caption", "Captioner", "Picture", "embedded"]

TASK = Task(CaptionSettings, VocabularySettings, prepared, load, dev, embedded)
