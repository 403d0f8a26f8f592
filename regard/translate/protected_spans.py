"""What is not for the model: taken out of a text before it is translated, and put back by the alignment.

In markup these are tags, placeholders and addresses; in plain text addresses alone.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from regard.tokenizers.urls import URL_OR_PLACEHOLDER
from regard.translate import markup, tag_projection
from regard.translate.segmentation import (
    LINE_BREAK,
    Segment,
    Translation,
    join_segments,
    keep_untranslated,
    split_outer_whitespace,
)
from regard.translate.word_alignment import Alignment, find_argmax_links


class ProtectedText(Protocol):
    """A text, and what of it the model gets."""

    @property
    def translatable_texts(self) -> list[str]:
        """What is to be translated."""
        ...

    @property
    def needs_alignment(self) -> bool:
        """Whether the alignment must say where something belongs."""
        ...

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """The translation, of those of what was to be translated."""
        ...


class PlainText(NamedTuple):
    """A text that is for the model as it is."""

    text: str

    @property
    def translatable_texts(self) -> list[str]:
        """The text."""
        return [self.text]

    @property
    def needs_alignment(self) -> bool:
        """Nothing."""
        return False

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """Its translation."""
        return translations[0]


class TextWithUrls(NamedTuple):
    """Plain text with addresses: lines that hold words, and between them what is left as it is."""

    text: str
    segments: list[Segment]
    line_markup: list[markup.InlineMarkup]  # of each segment

    @property
    def translatable_texts(self) -> list[str]:
        """The lines without their addresses."""
        return [piece.plain_text for piece in self.line_markup]

    @property
    def needs_alignment(self) -> bool:
        """Addresses, beside words."""
        return any(piece.tags for piece in self.line_markup)

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """The translation with the addresses where their neighbours went, which its alignment has too."""
        if not translations:
            return Translation(self.text, self.text)
        each = zip(self.segments, self.line_markup, translations, strict=True)
        lines = [_restore_urls(segment.text, piece, one) if piece.tags else one for segment, piece, one in each]
        return join_segments(self.text, self.segments, lines)


class MarkupText(NamedTuple):
    """Markup."""

    text: str
    parsed: markup.ParsedMarkup

    @property
    def translatable_texts(self) -> list[str]:
        """What is between block tags."""
        return [piece.plain_text for piece in self.parsed.blocks]

    @property
    def needs_alignment(self) -> bool:
        """Tags, where there are any."""
        return any(piece.tags for piece in self.parsed.blocks)

    def restore(self, translations: Sequence[Translation]) -> Translation:
        """The translation, and its alternatives, with the tags; its alignment is of the words without them."""
        pieces = self.parsed.blocks
        unaligned = sum(
            tag_projection.count_unaligned_tags(piece, _get_links(one))
            for piece, one in zip(pieces, translations, strict=True)
            if one.tokens  # else there was nothing to translate
        )
        plain = [Segment("", piece.plain_text, "\n") for piece in pieces]
        translations = keep_untranslated(plain, translations)
        whole = join_segments("".join(segment.text + "\n" for segment in plain), plain, translations)
        others = [
            dataclasses.replace(other, source=self.text, text=self.restore_rank(translations, rank))
            for rank, other in enumerate(whole.alternatives, 1)
        ]
        text = self.restore_rank(translations, 0)
        return dataclasses.replace(whole, source=self.text, text=text, alternatives=others, unaligned_tags=unaligned)

    def restore_rank(self, translations: Sequence[Translation], rank: int) -> str:
        """The text of a rank among the best; where a piece has fewer, its last."""
        each = [[one, *one.alternatives] for one in translations]
        chosen = [some[min(rank, len(some) - 1)] for some in each]
        return tag_projection.restore_markup(self.parsed, [one.text for one in chosen], list(map(_get_links, chosen)))


def protect_markup(text: str) -> ProtectedText:
    """A text with tags."""
    return MarkupText(text, markup.parse_markup(text))


def protect_urls(text: str) -> ProtectedText:
    """A text without."""
    if not URL_OR_PLACEHOLDER.search(text):
        return PlainText(text)
    segments, pieces, before = [], [], ""
    for line in LINE_BREAK.split(text):
        segment = split_outer_whitespace(line)
        piece = markup.parse_inline_markup(segment.text, is_markup=False, protected_span=URL_OR_PLACEHOLDER)
        if markup.has_translatable_text(piece):
            segments.append(segment._replace(before=before + segment.before))
            pieces.append(piece)
            before = ""
        else:
            before += line
    if segments:
        segments[-1] = segments[-1]._replace(after=segments[-1].after + before)
    return TextWithUrls(text, segments, pieces)


def _get_links(translation: Translation) -> list[tuple[int, int]]:
    """The links of a translation, where it has any."""
    return translation.alignment.pairs if translation.alignment else []


def _restore_urls(line: str, inline: markup.InlineMarkup, translation: Translation) -> Translation:
    """A translation, and its alternatives, of a line with addresses."""
    nodes = tag_projection.place_tags(inline, translation.text, _get_links(translation))
    text = tag_projection.write_tags(nodes, translation.text, 0, len(translation.text), None)
    alignment = None
    if translation.alignment is not None:
        read = _UrlWordMap(line, inline.plain_text, [node.opening for node in inline.tags])
        written = _UrlWordMap(text, translation.text, [node.opening for node in nodes])
        alignment = _add_urls_to_alignment(translation.alignment, read, written)
    others = [_restore_urls(line, inline, other) for other in translation.alternatives]
    return dataclasses.replace(translation, source=line, text=text, alignment=alignment, alternatives=others)


class _UrlWordMap:
    """The words of a text with addresses: which word each is in the text without them, or which address it holds."""

    def __init__(self, text: str, plain: str, urls: Iterable[str]) -> None:
        self.words = text.split()
        self.positions: list[int] = []  # of words without an address
        self.plain_positions: list[int] = []  # what those are without addresses
        self.urls: dict[int, str] = {}
        letters = iter([number for number, word in enumerate(plain.split()) for _ in word])
        left = deque(urls)
        for place, word in enumerate(self.words):
            own, at = -1, 0
            while at < len(word):
                if left and word.startswith(left[0], at):
                    self.urls[place] = left.popleft()
                    at += len(self.urls[place])
                else:
                    own = next(letters)
                    at += 1
            if place not in self.urls:
                self.positions.append(place)
                self.plain_positions.append(own)


def _add_urls_to_alignment(alignment: Alignment, source: _UrlWordMap, target: _UrlWordMap) -> Alignment:
    """The alignment with the addresses in it, each looking at itself."""
    soft = np.zeros((len(target.words), len(source.words)), dtype=np.float32)
    soft[np.ix_(target.positions, source.positions)] = alignment.soft[
        np.ix_(target.plain_positions, source.plain_positions)
    ]
    for row, address in target.urls.items():
        own = [column for column, other in source.urls.items() if other == address]
        soft[row, own] = 1 / max(len(own), 1)
    return Alignment(source.words, target.words, soft, find_argmax_links(soft))
