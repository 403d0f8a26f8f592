"""Protected spans: tags, placeholders and URLs that are removed before translation and restored by alignment.

In markup these are tags, placeholders and URLs; in plain text URLs and e-mail addresses only.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from regard.tokenizers.markup import URL_OR_PLACEHOLDER
from regard.tokenizers.segmentation import find_word_spans, split_words
from regard.translate import markup, tag_projection
from regard.translate.translation import (
    LINE_BREAK,
    Alignment,
    EncodedSegment,
    Segment,
    Translation,
    join_segments,
    keep_untranslated,
    split_outer_whitespace,
)


@dataclass(frozen=True)
class ProtectedText:
    """A text, and its blocks without protected spans, which the model translates; by default without any spans."""

    text: str
    blocks: Sequence[markup.InlineMarkup]

    @property
    def translatable_texts(self) -> list[str]:
        """The blocks without their tags and URLs."""
        return [block.plain_text for block in self.blocks]

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """Build the translation of the whole text from those of its translatable texts."""
        return translations[0]


@dataclass(frozen=True)
class TextWithUrls(ProtectedText):
    """Plain text with URLs: the lines that contain words are translated, the rest is copied."""

    segments: list[Segment]  # the lines

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """Restore the URLs beside their neighbouring words, in the text and in its alignment."""
        if not translations:
            return Translation(self.text, self.text)
        parts = zip(self.segments, self.blocks, translations, strict=True)
        lines = [
            _restore_urls(segment.text, inline, translation) if inline.tags else translation
            for segment, inline, translation in parts
        ]
        return join_segments(self.text, self.segments, lines)


@dataclass(frozen=True)
class MarkupText(ProtectedText):
    """Text with tags, placeholders and URLs; its blocks are what block tags separate."""

    parsed: markup.ParsedMarkup

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """Restore the tags in the translation and its alternatives; the alignment is that of the words without tags."""
        unaligned = sum(
            tag_projection.count_unaligned_tags(block, _get_links(translation))
            for block, translation in zip(self.blocks, translations, strict=True)
            if translation.tokens  # else there was nothing to translate
        )
        plain = [Segment("", block.plain_text, "\n") for block in self.blocks]
        translations = keep_untranslated(plain, translations)
        whole = join_segments("".join(segment.text + "\n" for segment in plain), plain, translations)
        others = [
            dataclasses.replace(other, source=self.text, text=self.restore_rank(translations, rank))
            for rank, other in enumerate(whole.alternatives, 1)
        ]
        text = self.restore_rank(translations, 0)
        alignment = whole.alignment and whole.alignment._replace(source_spans=(), target_spans=())
        return dataclasses.replace(
            whole, source=self.text, text=text, alignment=alignment, alternatives=others, unaligned_tags=unaligned
        )

    def restore_rank(self, translations: Sequence[Translation], rank: int) -> str:
        """Restore the text of one n-best rank; a block with fewer alternatives uses its last one."""
        chosen = [translation.get_rank(rank) for translation in translations]
        texts = [translation.text for translation in chosen]
        return tag_projection.restore_markup(self.parsed, texts, list(map(_get_links, chosen)))


def protect_markup(text: str) -> ProtectedText:
    """Protect tags, placeholders and URLs of a text."""
    parsed = markup.parse_markup(text)
    return MarkupText(text, parsed.blocks, parsed)


def protect_urls(text: str) -> ProtectedText:
    """Protect the URLs and e-mail addresses of plain text."""
    if not URL_OR_PLACEHOLDER.search(text):
        return protect_nothing(text)
    segments, blocks, before = [], [], ""
    for line in LINE_BREAK.split(text):
        segment = split_outer_whitespace(line)
        inline = markup.parse_inline_markup(segment.text, is_markup=False, protected_span=URL_OR_PLACEHOLDER)
        if markup.has_translatable_text(inline):
            segments.append(segment._replace(before=before + segment.before))
            blocks.append(inline)
            before = ""
        else:
            before += line
    if segments:
        segments[-1] = segments[-1]._replace(after=segments[-1].after + before)
    return TextWithUrls(text, blocks, segments)


def protect_nothing(text: str) -> ProtectedText:
    """Translate a text as it is."""
    return ProtectedText(text, [markup.InlineMarkup(text, [])])


def _get_links(translation: Translation) -> list[tuple[int, int]]:
    """Return the alignment links of a translation; empty without an alignment."""
    return translation.alignment.pairs if translation.alignment else []


def _restore_urls(line: str, inline: markup.InlineMarkup, translation: Translation) -> Translation:
    """Restore the URLs of a line in its translation and the alternatives."""
    nodes = tag_projection.place_tags(inline, translation.text, _get_links(translation))
    text = tag_projection.write_tags(nodes, translation.text, 0, len(translation.text), {})
    alignment = None
    if translation.alignment is not None:
        source_map = _UrlWordMap(line, inline.plain_text, [node.opening for node in inline.tags])
        target_map = _UrlWordMap(text, translation.text, [node.opening for node in nodes])
        alignment = _add_urls_to_alignment(translation.alignment, source_map, target_map)
    others = [_restore_urls(line, inline, other) for other in translation.alternatives]
    return dataclasses.replace(translation, source=line, text=text, alignment=alignment, alternatives=others)


class _UrlWordMap:
    """Map the words of a text with URLs to those of the text without them, or to the URL that they contain."""

    def __init__(self, text: str, plain: str, urls: Iterable[str]) -> None:
        self.words, self.spans = split_words(text), find_word_spans(text)
        self.positions: list[int] = []  # words without a URL
        self.plain_positions: list[int] = []  # the index of each of these in the text without URLs
        self.urls: dict[int, str] = {}
        url_starts, url_ends = list[int](), [0]
        is_letter = [not character.isspace() for character in text]  # neither white space nor a URL
        for url in urls:
            url_starts.append(text.index(url, url_ends[-1]))
            url_ends.append(url_starts[-1] + len(url))
            is_letter[url_starts[-1] : url_ends[-1]] = [False] * len(url)
        letters_before = list(accumulate(is_letter, initial=0))
        plain_letters_before = list(accumulate((not character.isspace() for character in plain), initial=0))
        plain_ends = [plain_letters_before[end] for _, end in find_word_spans(plain)]
        for position, (start, end) in enumerate(self.spans):
            last_url = bisect_left(url_starts, end)  # counted from 1
            if url_ends[last_url] > start:
                self.urls[position] = text[url_starts[last_url - 1] : url_ends[last_url]]
            else:
                self.positions.append(position)
                self.plain_positions.append(bisect_right(plain_ends, letters_before[start]))


def _add_urls_to_alignment(alignment: Alignment, source: _UrlWordMap, target: _UrlWordMap) -> Alignment:
    """Add the URLs to an alignment, each linked to itself."""
    soft = np.zeros((len(target.words), len(source.words)), dtype=np.float32)
    plain_soft = alignment.soft[np.ix_(target.plain_positions, source.plain_positions)]
    soft[np.ix_(target.positions, source.positions)] = plain_soft
    columns_of_words = dict(zip(reversed(source.plain_positions), reversed(source.positions), strict=True))
    links_by_target = alignment.links_by_target()
    links = [
        (columns_of_words[links_by_target[word]], row)
        for row, word in zip(target.positions, target.plain_positions, strict=True)
        if links_by_target.get(word) in columns_of_words
    ]
    for row, url in target.urls.items():
        columns = [column for column, other in source.urls.items() if other == url]
        soft[row, columns] = 1 / max(len(columns), 1)
        links += [(column, row) for column in columns[:1]]
    return Alignment(source.words, target.words, soft, sorted(links), source.spans, target.spans)


class PreparedTexts(NamedTuple):
    """Texts without protected spans (tags, URLs), split into encoded segments."""

    protected_texts: Sequence[ProtectedText]
    plain_texts: Sequence[str]
    segments_of_texts: list[list[Segment]]  # of each plain text
    encoded_segments: list[EncodedSegment]  # of all of them

    def restore_texts(self, translations: Iterable[Translation]) -> list[Translation]:
        """Join the translations of the segments to those of the texts, with tags and URLs restored."""
        remaining = iter(translations)
        plain_translations = (
            join_segments(text, segments, list(islice(remaining, len(segments))))
            if segments
            else Translation(text, text)
            for text, segments in zip(self.plain_texts, self.segments_of_texts, strict=True)
        )
        return [
            protected.restore(list(islice(plain_translations, len(protected.blocks))))
            for protected in self.protected_texts
        ]

    @property
    def needs_alignment(self) -> bool:
        """True if tags or URLs must be placed by word alignment."""
        return any(block.tags for protected in self.protected_texts for block in protected.blocks)
