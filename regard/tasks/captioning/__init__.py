"""Image captioning: a sentence for an image or for a grid of image features."""

from regard.synthetic.captioning import write_captioning_corpus
from regard.tasks.captioning.images import ImageFile
from regard.tasks.captioning.predictor import CaptioningPredictor, CaptionPrediction
from regard.tasks.captioning.task import CaptioningTask

__all__ = ["CaptionPrediction", "CaptioningPredictor", "CaptioningTask", "ImageFile", "write_captioning_corpus"]
