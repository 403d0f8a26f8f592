"""The words that a reader knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard import text
from regard.config import parse
from regard.runs import Run
from regard.tasks.reading.cloze import BLANK
from regard.tasks.reading.question import Question
from regard.tasks.reading.settings import WordSettings
from regard.text import TextSettings, Tokenizers, Words


def learn_vocabulary(asked: Iterable[Question], settings: WordSettings, blank: str) -> Words:
    """The most frequent words of documents and queries, and the blank."""
    lines = (line for one in asked for line in (*one.document, *one.query.split(blank)))
    return Words.learn(lines, settings.vocabulary, settings.lowercase, (BLANK,), spacing=False)


def save_vocabulary(vocabulary: Words, folder: Path) -> None:
    """Writes it as a vocabulary for both sides is written."""
    text.save(Tokenizers(vocabulary, vocabulary), TextSettings(kind="word"), folder)


def load_vocabulary(run: Run) -> Words:
    """That of a run."""
    settings = parse(WordSettings, run.config()["text"], "text")
    found = text.load(TextSettings(kind="word", lowercase=settings.lowercase), run.folder / "tokenizer").source
    assert isinstance(found, Words)
    found.tag(BLANK)  # or an error: a vocabulary without it is another task's
    return found
