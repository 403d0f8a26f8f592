"""Where tags go in a translation: around what their words became by the alignment, or around the whole sentence."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.evaluate import Link
from regard.text.addresses import ADDRESS
from regard.translate.tags import AHEAD, ANY_TAG, SENTENCE_END, SEPARATING, Inline, Marked, Node, begins

TOKEN = re.compile(r"\S+")  # what links refer to
# Marks that stand apart, as in French (`« non » !`, `50 %`), are a part of the word that they belong to.
OPENING_MARK = re.compile(r"[^\w\s]*[«‹]")
CLOSING_MARK = re.compile(r"[!?:;%»›][^\w\s]*")
MIN_LINKED = 1 / 3  # of the source's words, in an alignment that can place tags

Side = Literal["start", "end"]


def restore(marked: Marked, translated: Sequence[str], links: Sequence[Sequence[Link]]) -> str:
    """Join the translations of the segments, each with its tags, and what was between the segments."""
    out = marked.breaks[0]
    for piece, text, some, after in zip(marked.pieces, translated, links, marked.breaks[1:], strict=True):
        out += write_tags(place_tags(piece, text, some), text, 0, len(text), marked.entities) + after
    return out


def place_tags(piece: Inline, text: str, links: Sequence[Link]) -> list[Node]:
    """Return the tags of a segment with positions in its translation."""
    single = find_single_marks(piece)
    source, target = Words(piece.plain, single), Words(text, {right for left, right in links if left in single})
    placer = TagPlacer(source, target, links)
    if len(placer.linked) < MIN_LINKED * len(source.spans) and has_unaligned_pair(piece.tags, source, placer.to):
        return placer.place_around_sentence(piece.tags, 0, 0, len(text))
    return placer.place_by_links(piece.tags, 0, len(text))


def count_unaligned(piece: Inline, links: Sequence[Link]) -> int:
    """Count the tags that no link places; addresses do not count."""
    source = Words(piece.plain, find_single_marks(piece))
    linked = {source.numbers[left] for left, _ in links}
    count = 0
    for node in iterate_tags(piece.tags):
        words = find_placing_words(node, source)
        is_address = ADDRESS.fullmatch(ANY_TAG.sub("", node.opening)) is not None
        count += bool(words) and linked.isdisjoint(words) and not is_address
    return count


def iterate_tags(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the tags and all that are inside them, in no particular order."""
    left = list(nodes)
    while left:
        node = left.pop()
        left += node.inside
        yield node


def find_single_marks(piece: Inline) -> set[int]:
    """Find the detached marks that a pair goes around without their word, by their number among the source's tokens."""
    tokens = list(TOKEN.finditer(piece.plain))
    marks = [bool(CLOSING_MARK.fullmatch(token[0]) or OPENING_MARK.fullmatch(token[0])) for token in tokens]
    starts, ends = [token.start() for token in tokens], [token.end() for token in tokens]
    single: set[int] = set()
    for node in iterate_tags(piece.tags):
        inside = range(bisect_right(ends, node.start), bisect_left(starts, node.end))
        if all(marks[token] for token in inside):  # stops at the first word
            single.update(inside)
    return single


def has_unaligned_pair(nodes: Sequence[Node], source: Words, linked: Collection[int]) -> bool:
    """Return True if there is a pair around words none of which has a link."""
    return any(
        (words := source.find_touched(node.start, node.end)) and not any(word in linked for word in words)
        for node in iterate_tags(nodes)
        if not node.alone
    )


def find_placing_words(node: Node, source: Words) -> range:
    """Find the source words whose links place a tag: those inside it, or those beside it.

    Around all words, and before the first or behind the last one, a tag needs no link.
    """
    if node.end > node.start:
        words = source.find_touched(node.start, node.end)
        return words if len(words) < len(source.spans) else range(0)
    before = bisect_left(source.starts, node.start) - 1
    if before < 0 or node.start >= source.spans[-1][1]:
        return range(0)
    return range(before, before + 1 if node.start < source.spans[before][1] else before + 2)


def has_letters(text: str) -> bool:
    """Return True if there is a letter or a digit in a text."""
    return any(map(str.isalnum, text))


class Words:
    """The words of a text with their positions: a word may have marks of punctuation before and after its core.

    Args:
        text: Plain text.
        single: Numbers of the tokens that are words of their own although they are detached marks.
    """

    def __init__(self, text: str, single: Collection[int] = ()) -> None:
        self.text = text
        self.spans: list[tuple[int, int]] = []
        self.numbers: list[int] = []  # the word of each token
        self.known_marks: dict[int, tuple[int, int]] = {}
        opened = False
        for number, token in enumerate(TOKEN.finditer(text)):
            closes = bool(CLOSING_MARK.fullmatch(token[0]))
            joined = bool(self.spans) and (opened or closes) and number not in single and number - 1 not in single
            start = self.spans.pop()[0] if joined else token.start()
            self.spans.append((start, token.end()))
            self.numbers.append(len(self.spans) - 1)
            opened = not (closes and joined) and bool(OPENING_MARK.fullmatch(token[0]))
        self.starts = [start for start, _ in self.spans]

    def count_marks(self, word: int) -> tuple[int, int]:
        """Count the characters at a word's beginning, and at its end, that are neither letters nor digits."""
        if word not in self.known_marks:  # thousands of tags may be in one long word
            start, end = self.spans[word]
            letters = [position for position in range(start, end) if self.text[position].isalnum()]
            self.known_marks[word] = (letters[0] - start, end - 1 - letters[-1]) if letters else (end - start, 0)
        return self.known_marks[word]

    def find_cores(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Find the words in a stretch of text, without the marks at their ends."""
        for word in self.find_touched(start, end):
            (left, right), (before, after) = self.spans[word], self.count_marks(word)
            left, right = max(left + before, start), min(right - after, end)
            if has_letters(self.text[left:right]):
                yield left, right

    def find_touched(self, start: int, end: int) -> range:
        """Find the words that a stretch of text has a part of."""
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.spans[first][1] <= start:
            first += 1
        return range(first, max(first, bisect_left(self.starts, end)))


@dataclass
class Claim:
    """The words of the translation, from `first` up to `end`, that a tag goes around, and how many it needs."""

    node: Node
    needed: int
    first: int
    end: int
    lendable: int = 0  # words at its beginning that are for the neighbours before it, which find too few free ones
    limit: int = 0  # the latest end that leaves the tags behind it what they need

    @property
    def is_met(self) -> bool:
        """Return True if it has the words that it needs."""
        return self.end - self.first >= self.needed


class TagPlacer:
    """Tags with positions in the source become tags with positions in the target."""

    def __init__(self, source: Words, target: Words, links: Sequence[Link]) -> None:
        self.source = source
        self.target = target
        self.to: dict[int, set[int]] = {}
        for left, right in links:
            self.to.setdefault(source.numbers[left], set()).add(target.numbers[right])
        self.linked = sorted(self.to)
        self.needed: dict[int, int] = {}  # words of the translation, by the id of a tag of the source

    def place_around_sentence(self, nodes: Sequence[Node], source_low: int, low: int, high: int) -> list[Node]:
        """Put tags around a stretch of a translation in their order: the pair with most of the source goes around it.

        Those before that pair stay before the stretch, those after it behind it. No pair gets into another one.
        """
        pairs = [node for node in nodes if not node.alone and node.end > node.start]
        longest = max(pairs, key=lambda node: node.end - node.start, default=None)
        made: list[Node] = []
        passed = False
        for node in nodes:
            passed |= node is longest or (longest is None and node.start > source_low)
            start, end = (low, high) if node is longest else (high, high) if passed else (low, low)
            made.append(Node(node.opening, start, node.closing, end, node.spaced, node.tight))
        self.fill_empty_pairs(nodes, made, low, high)
        for node, placed in zip(nodes, made, strict=True):
            placed.inside = self.place_around_sentence(node.inside, node.start, placed.start, placed.end)
        return made

    def place_by_links(self, nodes: Sequence[Node], low: int, high: int) -> list[Node]:
        """Put neighbours where their words went, within the bounds of their parent, none reaching into another."""
        moved = sorted(
            ((node, self.place_by_own_links(node, low, high)) for node in nodes),
            key=lambda pair: (pair[1].start, pair[1].end),
        )
        made = [placed for _, placed in moved]
        keep_apart(made, low)
        self.fill_empty_pairs([node for node, _ in moved], made, low, high)
        for node, placed in moved:
            placed.inside = self.place_by_links(node.inside, placed.start, placed.end)
        return made

    def place_by_own_links(self, node: Node, low: int, high: int) -> Node:
        """Put one tag where its words went, without those inside it."""
        start, end = (self.find_position(node.start),) * 2 if node.alone else self.find_span(node.start, node.end)
        start = min(max(start, low), high)
        return Node(node.opening, start, node.closing, min(max(end, start), high), node.spaced, node.tight)

    def count_needed(self, node: Node) -> int:
        """Count the words that a tag needs so that it is not empty, nor any pair inside it that had words."""
        if id(node) not in self.needed:
            own = int(has_letters(self.source.text[node.start : node.end]))
            self.needed[id(node)] = max(own, sum(map(self.count_needed, node.inside)))
        return self.needed[id(node)]

    def fill_empty_pairs(self, nodes: Sequence[Node], made: Sequence[Node], low: int, high: int) -> None:
        """Give pairs that lost their words the nearest free one, else one of a neighbour that has more than it needs.

        If no neighbour has, the tags between such a pair and the next spare word move on by a word. `made` are
        neighbours in the order of the translation, and `nodes` those that they were in the source. Where there are
        fewer words than pairs, some stay empty.
        """
        spans: list[tuple[int, int]] = []
        claims: list[Claim] = []
        reached = low
        for node, placed in zip(nodes, made, strict=True):
            needed = self.count_needed(node)
            if self.target.text[placed.start : placed.end].strip():
                spans += self.target.find_cores(reached, placed.start)
                first = len(spans)
                spans += list(self.target.find_cores(placed.start, placed.end)) or [(placed.start, placed.end)]
                claims.append(Claim(placed, max(needed, 1), first, len(spans)))
                reached = placed.end
            elif needed:
                claims.append(Claim(placed, needed, -1, -1))
        if all(claim.is_met for claim in claims):
            return
        spans += self.target.find_cores(reached, high)
        starts = [start for start, _ in spans]
        for claim in claims:
            if claim.first < 0:
                claim.first = claim.end = bisect_left(starts, claim.node.start)
        fit_claims(drop_claims(claims, len(spans)), spans)
        limit = high
        for placed in reversed(made):
            if not self.target.text[placed.start : placed.end].strip():  # without words, it stays before the next one
                placed.start, placed.end = min(placed.start, limit), min(placed.end, limit)
            limit = placed.start
        keep_apart(made, low)

    def find_span(self, start: int, end: int) -> tuple[int, int]:
        """Find what the words of a stretch were translated to; one without links stays beside its neighbour."""
        words = self.source.find_touched(start, end)
        reached = [right for word in words for right in self.to.get(word, ())]
        if not reached:
            return (self.find_position(start),) * 2
        return (
            self.find_position_in_word(words[0], start, min(reached), "start"),
            self.find_position_in_word(words[-1], end, max(reached), "end"),
        )

    def find_position_in_word(self, word: int, position: int, became: int, side: Side) -> int:
        """Find where a position in or beside a source word is in the target word that it became.

        Among marks of punctuation it keeps its distance from the word's edge; inside the letters it is at their edge.
        """
        (start, end), (left, right) = self.source.spans[word], self.target.spans[became]
        if self.source.text[start:end] == self.target.text[left:right]:
            return left + min(max(position - start, 0), end - start)
        before, after = self.source.count_marks(word)
        target_before, target_after = self.target.count_marks(became)
        if side == "start" or (before and position - start <= before < end - start):
            inside = before and position - start < before
            return left + (min(max(position - start, 0), target_before) if inside else target_before)
        inside = after and end - position < after
        return right - (min(max(end - position, 0), target_after) if inside else target_after)

    def find_position(self, position: int) -> int:
        """Find where a position of the source is in the target: before what the next word became, or after the last."""
        before = bisect_left(self.source.starts, position) - 1  # the last word that begins before it
        is_glued = before >= 0 and position <= self.source.spans[before][1]
        following, earlier = bisect_left(self.linked, before + 1), bisect_right(self.linked, before) - 1
        if following < len(self.linked) and (not is_glued or earlier < 0):
            word = self.linked[following]
            return self.target.spans[min(self.to[word])][0]
        if earlier >= 0:
            word = self.linked[earlier]
            position = min(position, self.source.spans[word][1])
            return self.find_position_in_word(word, position, max(self.to[word]), "end")
        return len(self.target.text) if before >= 0 else 0


def keep_apart(nodes: Sequence[Node], low: int) -> None:
    """Move tags behind what the tags before them reach."""
    for node in nodes:
        node.start = max(node.start, low)
        low = node.end = max(node.end, node.start)


def drop_claims(claims: Sequence[Claim], words: int) -> Sequence[Claim]:
    """Leave out so many tags without words, the last ones, that those left find enough words."""
    if sum(claim.needed for claim in claims) <= words:
        return claims
    for claim in claims:
        claim.needed = 1
    empty = [number for number, claim in enumerate(claims) if not claim.is_met]
    dropped = set(empty[len(empty) - max(len(claims) - words, 0) :])
    return [claim for number, claim in enumerate(claims) if number not in dropped]


def fit_claims(claims: Sequence[Claim], spans: Sequence[tuple[int, int]]) -> None:
    """Give each tag as many words as it needs, and change as little as possible."""
    reached = lacking = 0
    for claim in claims:
        if claim.is_met:
            claim.lendable = max(lacking - (claim.first - reached), 0)
            reached, lacking = claim.end, 0
        else:
            lacking += claim.needed
    limit = len(spans)
    for claim in reversed(claims):
        claim.limit = limit
        limit -= claim.needed
        if claim.is_met:
            limit = min(limit, claim.end - claim.needed, claim.first + claim.lendable)
    reached = 0
    for claim in claims:
        first = max(min(claim.first, claim.limit - claim.needed), reached)
        reached = max(min(claim.end, claim.limit), first + claim.needed)
        is_empty = claim.first == claim.end
        if is_empty or first != claim.first:
            claim.node.start = spans[first][0]
        if is_empty or reached != claim.end:
            claim.node.end = spans[reached - 1][1]


def write_tags(nodes: Sequence[Node], text: str, low: int, high: int, entities: Mapping[str, str] | None) -> str:
    """Write a stretch of text with tags in it."""
    out, position, last = "", low, ""
    for node in nodes:
        between = escape(text[position : node.start], entities)
        out += between
        always = SEPARATING.match(node.opening)
        if node.tight[0] and out.endswith(" ") and (always or SENTENCE_END.search(out[-AHEAD:-1])):
            out = out[:-1]
        if node.alone:
            left, right = node.spaced
            following = text[node.start : node.start + AHEAD]
            is_glued_left, is_glued_right = find_glued_sides(out[-1:] if between else last, node.opening, following)
            space_left = " " if (left and out and not out[-1].isspace()) or is_glued_left else ""
            space_right = " " if (right and begins(following[:1])) or is_glued_right else ""
            last = node.opening + space_right
            out += space_left + last
        else:
            out += node.opening + write_tags(node.inside, text, node.start, node.end, entities) + node.closing
            last = node.closing
        position = node.end
        follows = node.tight[1] and position < high and text[position] == " "
        if follows and (always or SENTENCE_END.search(text[max(position - AHEAD, 0) : position])):
            position += 1
    return out + escape(text[position:high], entities)


def find_glued_sides(before: str, mark: str, after: str) -> tuple[bool, bool]:
    """Return (left, right): True where a mark is an address that the text on that side would make another one."""
    if not ADDRESS.fullmatch(mark):
        return False, False
    right = ADDRESS.match(mark + after)
    return ADDRESS.findall(before + mark) != [*ADDRESS.findall(before), mark], right is None or right[0] != mark


def escape(text: str, entities: Mapping[str, str] | None) -> str:
    """Write text as its markup does."""
    return text if entities is None else "".join(entities.get(character, character) for character in text)
