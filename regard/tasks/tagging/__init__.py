"""Sequence tagging: a label for each word of a sentence (part-of-speech tags, named entities, chunks)."""

from regard.synthetic.tagging import write_tagging_corpus
from regard.tasks.base import Task
from regard.tasks.tagging.conll import TagDataSettings, TagTextSettings
from regard.tasks.tagging.predictor import TaggingPredictor, load
from regard.tasks.tagging.task import TaggingValidator, load_tagging_dev_set, prepare_tagging

__all__ = ["TASK", "TaggingPredictor", "TaggingValidator", "write_tagging_corpus"]

TASK = Task(TagDataSettings, TagTextSettings, prepare_tagging, load, load_tagging_dev_set, write_tagging_corpus)
