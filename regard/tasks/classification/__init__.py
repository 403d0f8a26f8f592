"""Text classification: a label for a text, with self-attention or hierarchical attention."""

from regard.synthetic.classification import write_classification_corpus
from regard.tasks.base import Task
from regard.tasks.classification.labelled_texts import ClassificationSettings
from regard.tasks.classification.prediction import ClassificationPrediction
from regard.tasks.classification.task import (
    ClassificationPredictor,
    load,
    load_classification_dev_set,
    prepare_classification,
)
from regard.tokenizers import VocabularySettings

__all__ = ["TASK", "ClassificationPrediction", "ClassificationPredictor", "write_classification_corpus"]

TASK = Task(
    ClassificationSettings,
    VocabularySettings,
    prepare_classification,
    load,
    load_classification_dev_set,
    write_classification_corpus,
)
