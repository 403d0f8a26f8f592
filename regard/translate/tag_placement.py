"""Where tags go in a translation: around what their words became by the alignment, or around the whole sentence."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

from regard.evaluate import Link
from regard.text.addresses import ADDRESS
from regard.translate.tags import AHEAD, ANY_TAG, SENTENCE_END, SEPARATING, Inline, Marked, Node, begins

# Marks that stand apart, as in French (`« non » !`, `50 %`), are a part of the word that they belong to.
WORD = re.compile(r"(?:[^\w\s]++(?<=[«‹])\s++)*\S++(?:\s++[!?:;%»›][^\w\s]*+(?!\S))*+")
COVERED = 1 / 3  # of the source's words, at least, have a link in an alignment that can place tags


def restore(marked: Marked, translated: Sequence[str], links: Sequence[Sequence[Link]]) -> str:
    """The translations of the pieces with the tags where their words went, and what was between them."""
    out = marked.breaks[0]
    for piece, text, some, after in zip(marked.pieces, translated, links, marked.breaks[1:], strict=True):
        out += written(carried(piece, text, some), text, 0, len(text), marked.entities) + after
    return out


def carried(piece: Inline, text: str, links: Sequence[Link]) -> list[Node]:
    """The tags of a piece with places in its translation."""
    carrier = Carrier(Words(piece.plain), Words(text), links)
    if len(carrier.linked) < COVERED * len(carrier.source.spans) and carrier.has_unaligned_pair(piece.tags):
        return carrier.place_around_sentence(piece.tags, 0, 0, len(text))
    return carrier.all(piece.tags, 0, len(text))


def count_unaligned(piece: Inline, links: Sequence[Link]) -> int:
    """Count the tags that no link places; addresses do not count."""
    source = Words(piece.plain)  # stands for the target as well, which does not matter here
    return Carrier(source, source, [(left, left) for left, _ in links]).count_unaligned(piece.tags)


Side = Literal["start", "end"]


class Words:
    """The words of a text with their places: a word may have marks of punctuation before and after its core."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans = [found.span() for found in WORD.finditer(text)]
        self.starts = [start for start, _ in self.spans]
        self.known_marks: dict[int, tuple[int, int]] = {}
        self.numbers: list[int] = []  # which of them each stretch without white space, as links count them, is in
        for number, (start, end) in enumerate(self.spans):
            self.numbers += [number] * len(text[start:end].split())

    def marks(self, word: int) -> tuple[int, int]:
        """How many characters at a word's beginning, and at its end, are neither letters nor digits."""
        if word not in self.known_marks:  # thousands of tags may be in one long word
            start, end = self.spans[word]
            letters = [place for place in range(start, end) if self.text[place].isalnum()]
            self.known_marks[word] = (letters[0] - start, end - 1 - letters[-1]) if letters else (end - start, 0)
        return self.known_marks[word]

    def has_letters(self, start: int, end: int) -> bool:
        """Return True if there is a letter or a digit in a stretch of text."""
        return any(self.text[place].isalnum() for place in range(start, end))

    def find_core(self, start: int, end: int, last: bool = False) -> tuple[int, int] | None:
        """Find the first (or last) word in a stretch of text, without the marks at its ends; None if there is none."""
        found = self.touched(start, end)
        for word in reversed(found) if last else found:
            (left, right), (before, after) = self.spans[word], self.marks(word)
            left, right = max(left + before, start), min(right - after, end)
            if left < right:
                return left, right
        return None

    def touched(self, start: int, end: int) -> range:
        """The words that a stretch of text has a part of."""
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.spans[first][1] <= start:
            first += 1
        return range(first, max(first, bisect_left(self.starts, end)))


class Carrier:
    """Tags with places in the source become tags with places in the target."""

    def __init__(self, source: Words, target: Words, links: Sequence[Link]) -> None:
        self.source = source
        self.target = target
        self.to: dict[int, set[int]] = {}
        for left, right in links:
            self.to.setdefault(source.numbers[left], set()).add(target.numbers[right])
        self.linked = sorted(self.to)

    def has_unaligned_pair(self, nodes: Sequence[Node]) -> bool:
        """Return True if there is a pair around words none of which has a link."""
        for node in nodes:
            words = [] if node.alone else self.source.touched(node.start, node.end)
            if (words and self.to.keys().isdisjoint(words)) or self.has_unaligned_pair(node.inside):
                return True
        return False

    def count_unaligned(self, nodes: Sequence[Node]) -> int:
        """Count the tags that no link places; addresses do not count."""
        count = 0
        for node in nodes:
            words = self.find_words(node)
            is_address = ADDRESS.fullmatch(ANY_TAG.sub("", node.opening)) is not None
            count += bool(words) and self.to.keys().isdisjoint(words) and not is_address
            count += self.count_unaligned(node.inside)
        return count

    def find_words(self, node: Node) -> range:
        """Find the source words whose links place a tag: those inside it, or those beside it.

        Around all words, and before the first or behind the last one, a tag needs no link.
        """
        spans = self.source.spans
        if node.end > node.start:
            words = self.source.touched(node.start, node.end)
            return words if len(words) < len(spans) else range(0)
        before = bisect_left(self.source.starts, node.start) - 1
        if before < 0 or node.start >= spans[-1][1]:
            return range(0)
        return range(before, before + 1 if node.start < spans[before][1] else before + 2)

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

    def fill_empty_pairs(self, nodes: Sequence[Node], made: Sequence[Node], low: int, high: int) -> None:
        """Put pairs that lost their words around the nearest free one, or an outer one of a neighbour with several.

        `made` are neighbours in the order of the translation, and `nodes` those that they were in the source. Where
        there are fewer words than pairs, some stay empty.
        """
        empty = [
            self.source.has_letters(node.start, node.end) and not self.target.text[placed.start : placed.end].strip()
            for node, placed in zip(nodes, made, strict=True)
        ]
        for last in (False, True):  # first with the words behind them, then with those before them
            direction = range(len(made) - 1, -1, -1) if last else range(len(made))
            fixed: Node | None = None  # the next one in this direction that is not empty
            neighbours: dict[int, Node | None] = {}
            for number in reversed(direction):
                neighbours[number] = fixed
                fixed = fixed if empty[number] else made[number]
            reached = high if last else low
            for number in direction:
                placed, other = made[number], neighbours[number]
                if empty[number]:
                    place = min(placed.start, reached) if last else max(placed.start, reached)
                    found = self.find_free_word(place, other, low, high, last)
                    placed.start, placed.end = found or (place, place)
                    empty[number] = found is None
                reached = placed.start if last else placed.end

    def find_free_word(self, place: int, other: Node | None, low: int, high: int, last: bool) -> tuple[int, int] | None:
        """Find the next word behind (or before) a place, outside of a neighbour; else take one from the neighbour."""
        if last:
            found = self.target.find_core(other.end if other else low, place, last)
        else:
            found = self.target.find_core(place, other.start if other else high)
        if found or not other or other.alone:
            return found
        found = self.target.find_core(other.start, other.end, last)
        if not found:
            return None
        start, end = (other.start, found[0]) if last else (found[1], other.end)
        rest = self.target.find_core(start, end, last)
        if not rest:
            return None
        other.start, other.end = (start, rest[1]) if last else (rest[0], end)
        return found

    def all(self, nodes: Sequence[Node], low: int, high: int) -> list[Node]:
        """Neighbours, within their parent's bounds, none reaching into another."""
        moved = [self.moved(node, low, high) for node in nodes]
        order = sorted(range(len(nodes)), key=lambda place: (moved[place].start, moved[place].end))
        reached = low
        for place in order:
            node = moved[place]
            node.start = max(node.start, reached)
            reached = node.end = max(node.end, node.start)
        made = [moved[place] for place in order]
        self.fill_empty_pairs([nodes[place] for place in order], made, low, high)
        for place in order:
            moved[place].inside = self.all(nodes[place].inside, moved[place].start, moved[place].end)
        return made

    def moved(self, node: Node, low: int, high: int) -> Node:
        """One tag, without what is inside it."""
        start, end = (self.beside(node.start),) * 2 if node.alone else self.around(node.start, node.end)
        start = min(max(start, low), high)
        return Node(node.opening, start, node.closing, min(max(end, start), high), node.spaced, node.tight)

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Around what the words of a stretch were translated to; one without links stays beside its neighbour."""
        words = self.source.touched(start, end)
        reached = [right for word in words for right in self.to.get(word, ())]
        if not reached:
            return (self.beside(start),) * 2
        return self.at(words[0], start, min(reached), "start"), self.at(words[-1], end, max(reached), "end")

    def at(self, word: int, place: int, became: int, side: Side) -> int:
        """Where a place in or beside a source word is in the target word that it became.

        Among marks of punctuation it keeps its distance from the word's edge; inside the letters it is at their edge.
        """
        (start, end), (left, right) = self.source.spans[word], self.target.spans[became]
        if self.source.text[start:end] == self.target.text[left:right]:
            return left + min(max(place - start, 0), end - start)
        (before, after), (target_before, target_after) = self.source.marks(word), self.target.marks(became)
        if side == "start" or (before and place - start <= before < end - start):
            inside = before and place - start < before
            return left + (min(max(place - start, 0), target_before) if inside else target_before)
        inside = after and end - place < after
        return right - (min(max(end - place, 0), target_after) if inside else target_after)

    def beside(self, place: int) -> int:
        """Where a place in the source is in the target: before what its next word became, or after its last one."""
        before = bisect_left(self.source.starts, place) - 1  # the last word that begins before it
        glued = before >= 0 and place <= self.source.spans[before][1]
        following, earlier = bisect_left(self.linked, before + 1), bisect_right(self.linked, before) - 1
        if following < len(self.linked) and (not glued or earlier < 0):
            word = self.linked[following]
            return self.target.spans[min(self.to[word])][0]
        if earlier >= 0:
            word = self.linked[earlier]
            return self.at(word, min(place, self.source.spans[word][1]), max(self.to[word]), "end")
        return len(self.target.text) if before >= 0 else 0


def written(nodes: Sequence[Node], text: str, low: int, high: int, entities: Mapping[str, str] | None) -> str:
    """A stretch of text with tags in it."""
    out, place, last = "", low, ""
    for node in nodes:
        between = shown(text[place : node.start], entities)
        out += between
        always = SEPARATING.match(node.opening)
        if node.tight[0] and out.endswith(" ") and (always or SENTENCE_END.search(out[-AHEAD:-1])):
            out = out[:-1]
        if node.alone:
            left, right = node.spaced
            following = text[node.start : node.start + AHEAD]
            glued_left, glued_right = glued(out[-1:] if between else last, node.opening, following)
            space_left = " " if (left and out and not out[-1].isspace()) or glued_left else ""
            space_right = " " if (right and begins(following[:1])) or glued_right else ""
            last = node.opening + space_right
            out += space_left + last
        else:
            out += node.opening + written(node.inside, text, node.start, node.end, entities) + node.closing
            last = node.closing
        place = node.end
        follows = node.tight[1] and place < high and text[place] == " "
        if follows and (always or SENTENCE_END.search(text[max(place - AHEAD, 0) : place])):
            place += 1
    return out + shown(text[place:high], entities)


def glued(before: str, mark: str, after: str) -> tuple[bool, bool]:
    """Whether a mark is an address that would become another by what stands on its left, or on its right."""
    if not ADDRESS.fullmatch(mark):
        return False, False
    right = ADDRESS.match(mark + after)
    return ADDRESS.findall(before + mark) != [*ADDRESS.findall(before), mark], right is None or right[0] != mark


def shown(text: str, entities: Mapping[str, str] | None) -> str:
    """Text as its markup writes it."""
    return text if entities is None else "".join(entities.get(character, character) for character in text)
