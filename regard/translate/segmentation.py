"""Text in pieces that a model can take, and nothing lost between them.

Lines are translated one by one. One that is longer than anything the model has learnt from, or that has more sentences,
is cut at the ends of these; a sentence that is still too long between clauses, then between words, and at last inside a
word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from regard.search import Floats
from regard.translate.word_alignment import Alignment

LINE_BREAK = re.compile(r"(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
CLAUSE_BREAK = re.compile(r"(?<=[,;:–—])\s+|(?<=[、，；：])")
WORD_BREAK = re.compile(r"\s+")


class Segment(NamedTuple):
    """What is translated at once, and the white space around it, which is kept."""

    before: str
    text: str
    after: str


def split_into_segments(
    text: str, fits: Callable[[str], bool], split_sentences: Callable[[str], list[str]], max_sentences: float
) -> list[Segment]:
    """The pieces of a text, one after the other; joined they are the text.

    `split` gives the sentences of a line, of which one piece has at most so many.
    """
    return [
        segment
        for line in LINE_BREAK.split(text)
        if line
        for segment in _split_line(line, fits, split_sentences, max_sentences)
    ]


def _split_line(
    line: str, fits: Callable[[str], bool], split_sentences: Callable[[str], list[str]], max_sentences: float
) -> list[Segment]:
    """A line as it is, or its sentences where these are too many or it is too long, each in pieces that fit."""
    whole = split_outer_whitespace(line)
    if not whole.text:
        return [whole]
    sentences = split_sentences(whole.text)
    if len(sentences) <= max_sentences and fits(whole.text):
        return [whole]
    pieces = [piece for sentence in sentences for piece in _split_to_fit(sentence, fits, (CLAUSE_BREAK, WORD_BREAK))]
    made = [split_outer_whitespace(piece) for piece in pieces]
    made[0] = made[0]._replace(before=whole.before + made[0].before)
    return [*made[:-1], made[-1]._replace(after=made[-1].after + whole.after)]


def split_outer_whitespace(text: str) -> Segment:
    """A text and the white space at its ends."""
    core = text.strip()
    if not core:
        return Segment(text, "", "")
    before = len(text) - len(text.lstrip())
    return Segment(text[:before], core, text[before + len(core) :])


def _split_after_matches(text: str, separator: re.Pattern[str]) -> list[str]:
    """A text, cut at each match's end."""
    places = [match.end() for match in separator.finditer(text)]
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True) if start < end]


def _split_to_fit(text: str, fits: Callable[[str], bool], separators: tuple[re.Pattern[str], ...]) -> list[str]:
    """Pieces that fit, as long as may be, cut at the coarsest level at which they do."""
    if fits(text):
        return [text]
    if not separators:
        middle = len(text) // 2
        return [*_split_to_fit(text[:middle], fits, ()), *_split_to_fit(text[middle:], fits, ())] if middle else [text]
    pieces: list[str] = []
    for part in _split_after_matches(text, separators[0]):
        if pieces and fits(pieces[-1] + part):
            pieces[-1] += part
        else:
            pieces.extend(_split_to_fit(part, fits, separators[1:]))
    return pieces


@dataclass(frozen=True)
class Translation:
    """A text, its translation, and where the model looked."""

    source: str
    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)  # as the model wrote them, with EOS
    source_tokens: list[str] = field(default_factory=list)  # as the model read them, with EOS
    attention: Floats | None = None  # tokens × source tokens
    alignment: Alignment | None = None  # of words
    ended: bool = True  # False: cut off at its length limit
    alternatives: list[Translation] = field(default_factory=list)  # the rest of the n best
    unaligned_tags: int = 0  # tags that no alignment places
    untranslated: int = 0  # sentences kept in the source language because their translation is empty


def describe_unaligned_tags(count: int, total: int) -> str:
    """Build the warning for translations that have `unaligned_tags`."""
    return (
        f"{count:,} of {total:,} translations have tags that the model's attention does not align with words; these "
        "tags may be around the whole sentence, at an end of it, beside another word, or empty"
    )


def describe_untranslated(count: int, total: int) -> str:
    """Build the warning for translations that have `untranslated` sentences."""
    return (
        f"{count:,} of {total:,} translations keep sentences of the source, because the model returned nothing for them"
    )


def keep_untranslated(segments: Sequence[Segment], translations: Sequence[Translation]) -> list[Translation]:
    """Replace empty translations by their source, unless all segments of a text have empty ones."""
    if not any(one.text.strip() for one in translations):
        return list(translations)
    return [
        _copy_source(segment.text, one) if segment.text.strip() and not one.text.strip() else one
        for segment, one in zip(segments, translations, strict=True)
    ]


def _copy_source(source: str, translation: Translation) -> Translation:
    words = source.split()
    identity = np.eye(len(words), dtype=np.float32)
    alignment = Alignment(words, words, identity, [(number, number) for number in range(len(words))])
    return replace(translation, text=source, alignment=alignment, untranslated=1)


def join_segments(source: str, segments: Sequence[Segment], translations: Sequence[Translation]) -> Translation:
    """The translation of a text from those of its segments, with the white space that was around them.

    Scores are added up; of several alternatives the first goes with the first, the second with the second.
    """
    if len(segments) == 1 and not segments[0].before and not segments[0].after:
        return translations[0]
    translations = keep_untranslated(segments, translations)
    whole = _join_one_rank(source, segments, translations)
    for rank in range(max((len(one.alternatives) for one in translations), default=0)):
        of_rank = [([one, *one.alternatives])[min(rank + 1, len(one.alternatives))] for one in translations]
        whole.alternatives.append(_join_one_rank(source, segments, of_rank))
    return whole


def _join_one_rank(source: str, segments: Sequence[Segment], translations: Sequence[Translation]) -> Translation:
    """One translation for each segment, as one."""
    pieces = list(zip(segments, translations, strict=True))
    alignment = _join_alignments(source, pieces)
    looks = [one.attention for one in translations if one.attention is not None] if alignment else []
    return Translation(
        source,
        "".join(segment.before + one.text + segment.after for segment, one in pieces),
        sum(one.score for one in translations),
        [token for one in translations for token in one.tokens],
        [token for one in translations for token in one.source_tokens],
        _block_diagonal(looks) if looks else None,
        alignment,
        all(one.ended for one in translations),
        untranslated=sum(one.untranslated for one in translations),
    )


def _block_diagonal(matrices: Sequence[Floats]) -> Floats:
    """Matrices along the diagonal of one."""
    whole = np.zeros((sum(len(part) for part in matrices), sum(part.shape[1] for part in matrices)), dtype=np.float32)
    row = column = 0
    for part in matrices:
        whole[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return whole


class _WordCounter:
    """Counts the words of a text that comes in pieces; a word may be cut in two."""

    def __init__(self) -> None:
        self.count = 0
        self.is_inside_word = False  # whether the last piece ended in the middle of a word

    def add_text(self, text: str) -> int:
        """The number of the word that a piece begins with."""
        if not text:
            return self.count
        first = self.count - (self.is_inside_word and not text[0].isspace())
        self.count = first + len(text.split())
        self.is_inside_word = not text[-1].isspace()
        return first


def _join_alignments(source: str, parts: Sequence[tuple[Segment, Translation]]) -> Alignment | None:
    """The alignment of the words of all pieces; None if one that has words has none."""
    if any(one.alignment is None for _, one in parts if one.tokens):
        return None
    target = "".join(segment.before + one.text + segment.after for segment, one in parts)
    soft = np.zeros((len(target.split()), len(source.split())), dtype=np.float32)
    pairs = []
    read, written = _WordCounter(), _WordCounter()
    for segment, one in parts:
        read.add_text(segment.before)
        written.add_text(segment.before)
        left, right = read.add_text(segment.text), written.add_text(one.text)
        if one.alignment is not None:
            rows, columns = one.alignment.soft.shape
            soft[right : right + rows, left : left + columns] += one.alignment.soft
            pairs += [(left + source_word, right + target_word) for source_word, target_word in one.alignment.pairs]
        read.add_text(segment.after)
        written.add_text(segment.after)
    return Alignment(source.split(), target.split(), soft, sorted(set(pairs)))
