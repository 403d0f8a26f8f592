"""Split texts into segments that fit a model, align the words of their translations, and join these.

Lines are translated one by one. A line that is longer than any training example, or has more sentences, is split into
sentences; a sentence that is still too long between clauses, then between words, and at last inside a word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import regex
import torch

from regard.data.languages import find_asian_language
from regard.data.readers.text import Link
from regard.models.hypothesis import Floats
from regard.search.constraints import Phrase
from regard.tokenizers.segmentation import find_word_spans, needs_space, split_words
from regard.tokenizers.tokenizer import WORDS, Span, TokenizedWords

LINE_BREAK = re.compile(r"(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
CLAUSE_BREAK = re.compile(r"(?<=[,;:–—،؛])\s+|(?<=[、，；：])")
WORD_BREAK = re.compile(r"\s+")
# The reversed end of a Chinese or Japanese text, with punctuation of any script.
_CJK_END = re.compile(r"\W*?[\u2e80-\u3130\u3190-\u9fff\uf900-\ufaff\uff01-\uff9f\U0001b000-\U0003ffff]")


class Segment(NamedTuple):
    """A unit of translation, and the white space around it, which is kept."""

    before: str
    text: str
    after: str


class EncodedSegment(NamedTuple):
    """A segment with its token ids and constraints, ready for the model."""

    segment: Segment
    ids: list[int]
    word_ids: list[int]  # the word that each id is part of
    prefix_ids: list[int]
    forced_phrases: list[Phrase]


def split_into_segments(
    text: str, fits: Callable[[str], bool], split_sentences: Callable[[str], list[str]], max_sentences: float
) -> list[Segment]:
    """Split a text into segments; joined, they are the text.

    `split_sentences` returns the sentences of a line; a segment has at most `max_sentences` of them. A line that has
    more, or does not fit, is split into sentences, each in parts that fit.
    """
    segments = []
    for line in filter(None, LINE_BREAK.split(text)):
        whole = split_outer_whitespace(line)
        sentences = split_sentences(whole.text) if whole.text else []
        if not whole.text or (len(sentences) <= max_sentences and fits(whole.text)):
            segments.append(whole)
            continue
        separators = CLAUSE_BREAK, WORD_BREAK, None
        parts = [part for sentence in sentences for part in _split_to_fit(sentence, fits, separators)]
        of_line = [split_outer_whitespace(part) for part in parts]
        of_line[0] = of_line[0]._replace(before=whole.before + of_line[0].before)
        of_line[-1] = of_line[-1]._replace(after=of_line[-1].after + whole.after)
        segments += of_line
    return segments


def split_outer_whitespace(text: str) -> Segment:
    """Separate a text from the white space at its ends."""
    core = text.strip()
    return Segment(*text.partition(core)) if core else Segment(text, "", "")


def _split_after_matches(text: str, separator: re.Pattern[str] | None) -> list[str]:
    """Split a text after each match of the separator; None: after each word of scripts without spaces."""
    spans = find_word_spans(text) if separator is None else [match.span() for match in separator.finditer(text)]
    ends = [end for _, end in spans]
    return [text[start:stop] for start, stop in zip([0, *ends], [*ends, len(text)], strict=True) if start < stop]


def _split_to_fit(text: str, fits: Callable[[str], bool], separators: tuple[re.Pattern[str] | None, ...]) -> list[str]:
    """Split a text into parts that fit, as long as possible, at the coarsest separators that suffice."""
    if fits(text):
        return [text]
    if not separators:
        middle = len(text) // 2
        return [*_split_to_fit(text[:middle], fits, ()), *_split_to_fit(text[middle:], fits, ())] if middle else [text]
    parts: list[str] = []
    for part in _split_after_matches(text, separators[0]):
        if parts and fits(parts[-1] + part):
            parts[-1] += part
        else:
            parts.extend(_split_to_fit(part, fits, separators[1:]))
    return parts


@dataclass(frozen=True)
class Translation:
    """A text, its translation, and the attention and alignment of the model."""

    source: str
    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)  # of the target, with EOS
    source_tokens: list[str] = field(default_factory=list)  # with EOS
    attention: Floats | None = None  # tokens × source tokens
    alignment: Alignment | None = None  # of words
    ended: bool = True  # False: cut off at its length limit
    alternatives: list[Translation] = field(default_factory=list)  # the rest of the n best
    unaligned_tags: int = 0  # tags whose words have no alignment link
    untranslated: int = 0  # sentences kept in the source language because their translation is empty

    def get_rank(self, rank: int) -> Translation:
        """Return the translation of an n-best rank, 0 for the best; the last one if there are fewer."""
        return [self, *self.alternatives][min(rank, len(self.alternatives))]


def describe_problems(translations: int, unaligned: int, untranslated: int) -> list[str]:
    """Build the warnings for how many of the translations have `unaligned_tags`, and `untranslated` sentences."""
    problems = {
        "have tags that the model's attention does not align with words; these tags may be around the whole sentence, "
        "at an end of it, beside another word, or empty": unaligned,
        "keep sentences of the source, because the model returned nothing for them": untranslated,
    }
    return [f"{count:,} of {translations:,} translations {problem}" for problem, count in problems.items() if count]


def keep_untranslated(segments: Sequence[Segment], translations: Sequence[Translation]) -> list[Translation]:
    """Replace empty translations by their source, unless all segments of a text have empty ones."""
    if not any(one.text.strip() for one in translations):
        return list(translations)
    return [
        _copy_source(segment.text, one) if segment.text.strip() and not one.text.strip() else one
        for segment, one in zip(segments, translations, strict=True)
    ]


def _copy_source(source: str, translation: Translation) -> Translation:
    words, spans, units = split_words(source), find_word_spans(source), WORDS
    if translation.alignment is not None:
        words, spans, units = (getattr(translation.alignment, name) for name in ("source", "source_spans", "units"))
    identity = np.eye(len(words), dtype=np.float32)
    links = [(number, number) for number in range(len(words))]
    alignment = Alignment(words, words, identity, links, spans, spans, units)
    return replace(translation, text=source, alignment=alignment, untranslated=1)


def join_segments(source: str, segments: Sequence[Segment], translations: Sequence[Translation]) -> Translation:
    """Join the translations of a text's segments, with the white space around them.

    Scores are summed. Alternatives are joined by rank: the first of each segment, then the second of each, and so on.
    """
    if len(segments) == 1 and not segments[0].before and not segments[0].after:
        return translations[0]
    translations = keep_untranslated(segments, translations)
    whole = _join_one_rank(source, segments, translations)
    for rank in range(1, 1 + max((len(translation.alternatives) for translation in translations), default=0)):
        of_rank = [translation.get_rank(rank) for translation in translations]
        whole.alternatives.append(_join_one_rank(source, segments, of_rank))
    return whole


def _join_one_rank(source: str, segments: Sequence[Segment], translations: Sequence[Translation]) -> Translation:
    """Join one translation of each segment."""
    targets = _adapt_white_space(segments, [translation.text for translation in translations])
    text = "".join(chain.from_iterable(targets))
    alignment = _join_alignments(source, text, list(zip(segments, targets, translations, strict=True)))
    attentions = [one.attention for one in translations if one.attention is not None and alignment]
    return Translation(
        source,
        text,
        sum(translation.score for translation in translations),
        [token for translation in translations for token in translation.tokens],
        [token for translation in translations for token in translation.source_tokens],
        torch.block_diag(*map(torch.from_numpy, attentions)).numpy() if attentions else None,  # type: ignore[no-untyped-call]
        alignment,
        all(translation.ended for translation in translations),
        untranslated=sum(translation.untranslated for translation in translations),
    )


def _adapt_white_space(segments: Sequence[Segment], texts: Sequence[str]) -> list[Segment]:
    """Return the translations with the white space around them."""
    targets = [Segment(segment.before, text, segment.after) for segment, text in zip(segments, texts, strict=True)]
    for index, (left, right) in enumerate(pairwise(segments)):
        if texts[index] and texts[index + 1]:
            targets[index] = targets[index]._replace(after=adapt_gap(left, right, texts[index]))
            targets[index + 1] = targets[index + 1]._replace(before="")
    return targets


def adapt_gap(left: Segment, right: Segment, translation: str) -> str:
    """Return the white space between two segments as it suits the translation of the first.

    Chinese and Japanese sentences have no space after them: it is dropped after such a translation, and added after
    another one of a source without it. A Thai sentence has one.
    """
    gap = left.after + right.before
    if gap.strip(" \u3000"):
        return gap
    if _CJK_END.match(translation[::-1]) and find_asian_language(translation) in ("ja", "zh"):
        return ""
    return gap or " " * (not needs_space(left.text, right.text))


def _join_alignments(
    source: str, target: str, parts: Sequence[tuple[Segment, Segment, Translation]]
) -> Alignment | None:
    """Join the word alignments of all segments; None if a segment with words has none."""
    if any(translation.alignment is None for _, _, translation in parts if translation.tokens):
        return None
    moved: list[Alignment] = []  # with the spans of the whole texts
    source_offset = target_offset = 0
    for segment, joined, translation in parts:
        source_offset += len(segment.before)
        target_offset += len(joined.before)
        if translation.alignment is not None:
            spans = _shift_spans(translation.alignment.source_spans or find_word_spans(segment.text), source_offset)
            others = _shift_spans(translation.alignment.target_spans or find_word_spans(joined.text), target_offset)
            moved.append(translation.alignment._replace(source_spans=spans, target_spans=others))
        source_offset += len(segment.text + segment.after)
        target_offset += len(joined.text + joined.after)
    if moved and moved[0].units != WORDS:
        return _concatenate_alignments(moved)
    source_spans, target_spans = find_word_spans(source), find_word_spans(target)
    source_ends, target_ends = ([end for _, end in spans] for spans in (source_spans, target_spans))
    soft = np.zeros((len(target_ends), len(source_ends)), dtype=np.float32)
    pairs: set[Link] = set()
    for alignment in moved:
        # The words that contain those of the segment, which may begin inside a word.
        columns = [bisect_right(source_ends, start) for start, _ in alignment.source_spans]
        rows = [bisect_right(target_ends, start) for start, _ in alignment.target_spans]
        np.add.at(soft, np.ix_(rows, columns), alignment.soft)
        pairs.update((columns[word], rows[target_word]) for word, target_word in alignment.pairs)
    words = [source[start:end] for start, end in source_spans], [target[start:end] for start, end in target_spans]
    return Alignment(*words, soft, sorted(pairs), source_spans, target_spans)


def _shift_spans(spans: Sequence[Span], offset: int) -> list[Span]:
    return [(start + offset, end + offset) for start, end in spans]


def _concatenate_alignments(alignments: Sequence[Alignment]) -> Alignment:
    """Join alignments of subwords or characters, which are in one segment each."""
    soft = torch.block_diag(*(torch.from_numpy(one.soft) for one in alignments)).numpy()  # type: ignore[no-untyped-call]
    links, first_source, first_target = list[Link](), 0, 0
    for one in alignments:
        links += [(first_source + source, first_target + target) for source, target in one.pairs]
        first_source, first_target = first_source + len(one.source), first_target + len(one.target)
    source, target = (
        [word for one in alignments for word in one.source],
        [word for one in alignments for word in one.target],
    )
    source_spans = [span for one in alignments for span in one.source_spans]
    target_spans = [span for one in alignments for span in one.target_spans]
    return Alignment(source, target, soft, sorted(links), source_spans, target_spans, alignments[0].units)


class Alignment(NamedTuple):
    """Soft and hard alignment of target words with source words, or of subwords or characters."""

    source: list[str]
    target: list[str]
    soft: Floats  # target words × source words; the rest of a row, up to 1, is attention to the source's EOS
    pairs: list[Link]  # (source word, target word): see `align_words`
    source_spans: Sequence[Span] = ()  # the characters of each word in the texts
    target_spans: Sequence[Span] = ()
    units: str = WORDS  # or subwords or characters

    def links_by_target(self) -> dict[int, int]:
        """Return the source word of each target word that has a link, the strongest of several."""
        weakest_first = sorted(self.pairs, key=lambda link: self.soft[link[1], link[0]])
        return {target_word: source_word for source_word, target_word in weakest_first}

    def replace_target_words(self, target: Sequence[str], text: str) -> Alignment:
        """Return a copy with other target words, which make up `text`; several words for one repeat its row."""
        ends, position = list[int](), 0
        for word in target:
            position = text.index(word, position) + len(word)
            ends.append(position)
        spans = find_word_spans(text)
        rows = [bisect_right(ends, start) for start, _ in spans]
        links_by_target = self.links_by_target()
        links = sorted((links_by_target[row], new) for new, row in enumerate(rows) if row in links_by_target)
        return self._replace(target=split_words(text), soft=self.soft[rows], pairs=links, target_spans=spans)


def shift_to_next_step(attention: Floats) -> Floats:
    """Replace each token's attention by that of the next step, which has read the token; the last keeps its own."""
    return np.concatenate((attention[1:], attention[-1:]))


_SENTENCE_PUNCTUATION = regex.compile(r"[▁␣‿]*\p{Terminal_Punctuation}+‿*")  # with the marks of tokenizers


def align_words(
    attention: Floats, source: TokenizedWords, target: TokenizedWords, has_attention_sink: bool = False
) -> Alignment:
    """Compute the word alignment from attention (target tokens × source tokens, EOS last on both sides).

    A source word has the sum of its tokens' weights, a target word the mean of its tokens' rows. Of the tokens of a
    target word only those with letters or digits count, if there are any: a full stop at the end of a word attends
    elsewhere. With `has_attention_sink`, target words with letters or digits are not linked to full stops, commas and
    the like: these get the attention that heads do not need.
    """
    shape = len(target.words), len(source.words)
    if not all(shape):
        soft, rest = np.zeros(shape, dtype=np.float32), (source.spans, target.spans, source.units)
        return Alignment(source.words, target.words, soft, [], *rest)
    columns = source.make_weights(attention.shape[1])
    rows = np.ascontiguousarray(target.make_weights(attention.shape[0]).T)
    has_letters = np.ones(attention.shape[0], dtype=np.float32)
    has_letters[: len(target.subwords)] = [any(map(str.isalnum, subword)) for subword in target.subwords]
    core = rows * has_letters
    rows = np.where(core.sum(1, keepdims=True) > 0, core, rows)
    sums = rows.sum(1, keepdims=True)
    rows /= np.where(sums > 0, sums, np.float32(1))
    soft = (rows @ attention @ columns).astype(np.float32)
    weights = soft
    if has_attention_sink:
        is_sink = np.zeros(attention.shape[1], dtype=bool)
        is_sink[: len(source.subwords)] = [_SENTENCE_PUNCTUATION.fullmatch(one) is not None for one in source.subwords]
        is_word = (rows @ has_letters)[:, None] > 0
        weights = np.where(is_word, rows @ (attention * ~is_sink) @ columns, soft)
    links = find_argmax_links(weights)
    return Alignment(source.words, target.words, soft, links, source.spans, target.spans, source.units)


def find_argmax_links(soft: Floats) -> list[Link]:
    """Link each target word to the source word that it attends to most, as in Luong 2015 (section 5.4)."""
    if not soft.size:
        return []
    strongest = soft.argmax(1)
    return sorted((int(source), target) for target, source in enumerate(strongest) if soft[target, source] > 0)
