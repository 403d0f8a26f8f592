"""Image captioning: a sentence for an image or for a grid of image features."""

from regard.synthetic.captioning import write_captioning_corpus
from regard.tasks.base import Task
from regard.tasks.captioning.backbone import CaptionSettings
from regard.tasks.captioning.images import ImageFile
from regard.tasks.captioning.predictor import CaptioningPredictor, CaptionPrediction, load
from regard.tasks.captioning.task import load_captioning_dev_set, prepare_captioning
from regard.tokenizers import VocabularySettings

__all__ = ["TASK", "CaptionPrediction", "CaptioningPredictor", "ImageFile", "write_captioning_corpus"]

TASK = Task(
    CaptionSettings, VocabularySettings, prepare_captioning, load, load_captioning_dev_set, write_captioning_corpus
)
