"""Cloze reading comprehension: choose the word of a document that fills the blank in a query."""

from regard.synthetic.cloze import write_cloze_corpus
from regard.tasks.base import Task
from regard.tasks.cloze.predictor import ClozePrediction, ClozePredictor, ClozeSample, ClozeValidator, load
from regard.tasks.cloze.questions import ClozeSettings, ClozeTextSettings, Question
from regard.tasks.cloze.task import load_cloze_dev_set, prepare_cloze

__all__ = [
    "TASK",
    "ClozePrediction",
    "ClozePredictor",
    "ClozeSample",
    "ClozeValidator",
    "Question",
    "write_cloze_corpus",
]

TASK = Task(ClozeSettings, ClozeTextSettings, prepare_cloze, load, load_cloze_dev_set, write_cloze_corpus)
