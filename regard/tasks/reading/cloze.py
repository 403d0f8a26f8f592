"""A question in words, and which words of its document are which candidate.

Candidates are found by how they are written, not by ids: a word that is not in the vocabulary can be the answer, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from regard.errors import shown
from regard.symbols import UNK
from regard.tasks.reading.question import Question
from regard.text import Words
from regard.text.tokenizer import normalize
from regard.text.words import VERSION, find_tokens

BLANK = "blank"  # the tag that stands for the word that was taken out
NOBODY = -1  # the place of a word that is no candidate


class Cloze(NamedTuple):
    """A question in words."""

    lines: list[list[str]]  # of the document, as written
    query: list[str]  # the blank among them
    candidates: list[str]  # each once
    places: list[int]  # for each word of the document the number of its candidate
    answer: int | None  # the number of the right one

    @property
    def document(self) -> list[str]:
        """All words of the document."""
        return [word for line in self.lines for word in line]

    @property
    def answerable(self) -> bool:
        """Whether the answer can be found in the document."""
        return self.answer is not None and self.answer in self.places


def cloze(asked: Question, blank: str, lowercase: bool, version: int = VERSION) -> Cloze:
    """The words of a question, split as by a vocabulary of this version.

    A candidate may have several; where two begin together, it is the longer one.
    """
    lines = [split_words(line, version) for line in asked.document]
    document = [form(word, lowercase) for line in lines for word in line]
    written = candidates(asked, lines)
    numbers = {
        forms: number for number, forms in enumerate({formed(text, lowercase, version): text for text in written})
    }
    first = {forms: text for text in reversed(written) for forms in [formed(text, lowercase, version)]}
    return Cloze(
        lines,
        blanked(asked.query, blank, version),
        [" ".join(first[forms].split()) for forms in numbers],
        found(document, numbers),
        None if asked.answer is None else number(asked, numbers, lowercase, version),
    )


def candidates(asked: Question, lines: Sequence[Sequence[str]]) -> list[str]:
    """What the word may be; punctuation is no word, unless somebody has named it."""
    if asked.candidates is not None:
        return [text for text in asked.candidates if text.strip()]
    return list(dict.fromkeys(word for line in lines for word in line if any(map(str.isalnum, word))))


def number(asked: Question, numbers: Mapping[tuple[str, ...], int], lowercase: bool, version: int) -> int:
    """The number of the answer."""
    assert asked.answer is not None
    found = numbers.get(formed(asked.answer, lowercase, version))
    if found is None:
        among = "words of the document" if asked.candidates is None else "candidates"
        raise asked.wrong(f"the answer {shown(asked.answer)} is not among the {among}")
    return found


def found(document: Sequence[str], numbers: Mapping[tuple[str, ...], int]) -> list[int]:
    """For each word the number of the candidate that it is, or is a part of."""
    lengths = sorted({len(forms) for forms in numbers}, reverse=True)
    places: list[int] = []
    while (at := len(places)) < len(document):
        windows = (tuple(document[at : at + length]) for length in lengths)
        known = next((window for window in windows if window in numbers), None)
        places.extend([NOBODY] if known is None else [numbers[known]] * len(known))
    return places


def blanked(query: str, blank: str, version: int) -> list[str]:
    """The words of a query; a blank is one of its own, whatever it touches."""
    first, *others = (split_words(part, version) for part in query.split(blank))
    return [*first, *(word for words in others for word in (blank, *words))]


def formed(text: str, lowercase: bool, version: int) -> tuple[str, ...]:
    """The words of a candidate in the form that counts."""
    return tuple(form(word, lowercase) for word in split_words(text, version))


def split_words(text: str, version: int) -> list[str]:
    """Return the words and marks of a text, as they are written."""
    return [token.text for token in find_tokens(text, version)]


def form(word: str, lowercase: bool) -> str:
    """A word as it is compared."""
    return normalize(word, lowercase)


def ids(words: Sequence[str], vocabulary: Words, blank: str | None = None) -> list[int]:
    """The ids of words; in a query the blank has its own."""
    known, lowercase = vocabulary.ids, vocabulary.lowercase
    return [vocabulary.tag(BLANK) if word == blank else known.get(form(word, lowercase), UNK) for word in words]


def most_frequent(asked: Cloze) -> int:
    """The candidate that the document has most often, the first among equals: what to beat."""
    counts = Counter(place for place in asked.places if place != NOBODY)
    return max(range(len(asked.candidates)), key=lambda number: (counts[number], -number))
