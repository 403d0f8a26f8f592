"""A text and a sentence of which a word is blank: which word of the text is it?"""

from regard.tasks.reading.answer import Answer
from regard.tasks.reading.embedded import write as embedded
from regard.tasks.reading.preparation import dev, prepared
from regard.tasks.reading.question import Question
from regard.tasks.reading.reader import Reader, load
from regard.tasks.reading.settings import ClozeSettings, WordSettings
from regard.tasks.reading.validation import Sample, Validator
from regard.tasks.task import Task

__all__ = ["TASK", "Answer", "Question", "Reader", "Sample", "Validator", "embedded"]

TASK = Task(ClozeSettings, WordSettings, prepared, load, dev, embedded)
