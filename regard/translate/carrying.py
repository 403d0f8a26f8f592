"""What is not for the model: taken out of a text before it is translated, and put back by the alignment.

In markup these are tags, placeholders and addresses; in plain text addresses alone.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from regard.text.addresses import ADDRESS
from regard.translate import tag_placement, tags
from regard.translate.alignment import Alignment, links
from regard.translate.segments import LINES, Segment, trimmed
from regard.translate.translation import Translation, joined


class Carried(Protocol):
    """A text, and what of it the model gets."""

    @property
    def plain(self) -> list[str]:
        """What is to be translated."""
        ...

    @property
    def places(self) -> bool:
        """Whether the alignment must say where something belongs."""
        ...

    def finished(self, made: Sequence[Translation]) -> Translation:
        """The translation, of those of what was to be translated."""
        ...


class Whole(NamedTuple):
    """A text that is for the model as it is."""

    text: str

    @property
    def plain(self) -> list[str]:
        """The text."""
        return [self.text]

    @property
    def places(self) -> bool:
        """Nothing."""
        return False

    def finished(self, made: Sequence[Translation]) -> Translation:
        """Its translation."""
        return made[0]


class Addressed(NamedTuple):
    """Plain text with addresses: lines that hold words, and between them what is left as it is."""

    text: str
    segments: list[Segment]
    pieces: list[tags.Inline]  # of each segment

    @property
    def plain(self) -> list[str]:
        """The lines without their addresses."""
        return [piece.plain for piece in self.pieces]

    @property
    def places(self) -> bool:
        """Addresses, beside words."""
        return any(piece.tags for piece in self.pieces)

    def finished(self, made: Sequence[Translation]) -> Translation:
        """The translation with the addresses where their neighbours went, which its alignment has too."""
        if not made:
            return Translation(self.text, self.text)
        each = zip(self.segments, self.pieces, made, strict=True)
        lines = [put_back(segment.text, piece, one) if piece.tags else one for segment, piece, one in each]
        return joined(self.text, self.segments, lines)


class Tagged(NamedTuple):
    """Markup."""

    text: str
    marked: tags.Marked

    @property
    def plain(self) -> list[str]:
        """What is between block tags."""
        return [piece.plain for piece in self.marked.pieces]

    @property
    def places(self) -> bool:
        """Tags, where there are any."""
        return any(piece.tags for piece in self.marked.pieces)

    def finished(self, made: Sequence[Translation]) -> Translation:
        """The translation, and its alternatives, with the tags; its alignment is of the words without them."""
        pieces = self.marked.pieces
        unaligned = sum(
            tag_placement.count_unaligned(piece, pairs(one))
            for piece, one in zip(pieces, made, strict=True)
            if one.tokens  # else there was nothing to translate
        )
        plain = [Segment("", piece.plain, "\n") for piece in pieces]
        whole = joined("".join(segment.text + "\n" for segment in plain), plain, made)
        others = [
            dataclasses.replace(other, source=self.text, text=self.ranked(made, rank))
            for rank, other in enumerate(whole.alternatives, 1)
        ]
        text = self.ranked(made, 0)
        return dataclasses.replace(whole, source=self.text, text=text, alternatives=others, unaligned_tags=unaligned)

    def ranked(self, made: Sequence[Translation], rank: int) -> str:
        """The text of a rank among the best; where a piece has fewer, its last."""
        each = [[one, *one.alternatives] for one in made]
        chosen = [some[min(rank, len(some) - 1)] for some in each]
        return tag_placement.restore(self.marked, [one.text for one in chosen], list(map(pairs, chosen)))


def of_markup(text: str) -> Carried:
    """A text with tags."""
    return Tagged(text, tags.parse(text))


def of_text(text: str) -> Carried:
    """A text without."""
    if not ADDRESS.search(text):
        return Whole(text)
    segments, pieces, before = [], [], ""
    for line in LINES.split(text):
        segment = trimmed(line)
        piece = tags.inline(segment.text, markup=False, mark=ADDRESS)
        if tags.worded(piece):
            segments.append(segment._replace(before=before + segment.before))
            pieces.append(piece)
            before = ""
        else:
            before += line
    if segments:
        segments[-1] = segments[-1]._replace(after=segments[-1].after + before)
    return Addressed(text, segments, pieces)


def pairs(made: Translation) -> list[tuple[int, int]]:
    """The links of a translation, where it has any."""
    return made.alignment.pairs if made.alignment else []


def put_back(line: str, piece: tags.Inline, made: Translation) -> Translation:
    """A translation, and its alternatives, of a line with addresses."""
    nodes = tag_placement.place_tags(piece, made.text, pairs(made))
    text = tag_placement.write_tags(nodes, made.text, 0, len(made.text), None)
    alignment = None
    if made.alignment is not None:
        read = Words(line, piece.plain, [node.opening for node in piece.tags])
        written = Words(text, made.text, [node.opening for node in nodes])
        alignment = aligned(made.alignment, read, written)
    others = [put_back(line, piece, other) for other in made.alternatives]
    return dataclasses.replace(made, source=line, text=text, alignment=alignment, alternatives=others)


class Words:
    """The words of a text with addresses: which word each is in the text without them, or which address it holds."""

    def __init__(self, text: str, plain: str, addresses: Iterable[str]) -> None:
        self.words = text.split()
        self.places: list[int] = []  # of words without an address
        self.numbers: list[int] = []  # what those are without addresses
        self.addresses: dict[int, str] = {}
        letters = iter([number for number, word in enumerate(plain.split()) for _ in word])
        left = deque(addresses)
        for place, word in enumerate(self.words):
            own, at = -1, 0
            while at < len(word):
                if left and word.startswith(left[0], at):
                    self.addresses[place] = left.popleft()
                    at += len(self.addresses[place])
                else:
                    own = next(letters)
                    at += 1
            if place not in self.addresses:
                self.places.append(place)
                self.numbers.append(own)


def aligned(alignment: Alignment, source: Words, target: Words) -> Alignment:
    """The alignment with the addresses in it, each looking at itself."""
    soft = np.zeros((len(target.words), len(source.words)), dtype=np.float32)
    soft[np.ix_(target.places, source.places)] = alignment.soft[np.ix_(target.numbers, source.numbers)]
    for row, address in target.addresses.items():
        own = [column for column, other in source.addresses.items() if other == address]
        soft[row, own] = 1 / max(len(own), 1)
    return Alignment(source.words, target.words, soft, links(soft))
