"""Project inline tags into a translation: around the words aligned with theirs, or around the whole sentence."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from regard.data.readers.text import Link
from regard.tokenizers.markup import URL_OR_PLACEHOLDER
from regard.tokenizers.segmentation import find_word_spans, has_unspaced_script, split_words
from regard.translate import markup
from regard.translate.markup import InlineMarkup, ParsedMarkup, TagNode

# Detached marks, as in French (`« non » !`, `50 %`), are part of the word that they belong to.
OPENING_MARK = re.compile(r"[^\w\s]*[«‹]")
CLOSING_MARK = re.compile(r"[!?:;%»›][^\w\s]*")
MIN_LINKED_FRACTION = 1 / 3  # of the source's words; with fewer links, tags go around the sentence

Side = Literal["start", "end"]


def restore_markup(parsed: ParsedMarkup, translations: Sequence[str], links: Sequence[Sequence[Link]]) -> str:
    """Join the translations of the blocks, each with its tags, and the separators between the blocks."""
    out = parsed.separators[0]
    for block, text, block_links, after in zip(parsed.blocks, translations, links, parsed.separators[1:], strict=True):
        out += write_tags(place_tags(block, text, block_links), text, 0, len(text), parsed.entities) + after
    return out


def place_tags(inline: InlineMarkup, text: str, links: Sequence[Link]) -> list[TagNode]:
    """Return the tags of a block with positions in its translation."""
    single = _find_single_marks(inline)
    source = WordSpans(inline.plain_text, single)
    target = WordSpans(text, {right for left, right in links if left in single})
    placer = TagPlacer(source, target, links)
    if len(placer.linked_source_words) < MIN_LINKED_FRACTION * len(source.spans):
        pairs = (node for node in _iterate_tags(inline.tags) if not node.is_standalone)
        words_of_pairs = (source.find_touched(node.start, node.end) for node in pairs)
        if any(words and placer.target_words_of.keys().isdisjoint(words) for words in words_of_pairs):
            return placer.place_around_sentence(inline.tags, 0, 0, len(text))
    return placer.place_by_links(inline.tags, 0, len(text))


def count_unaligned_tags(inline: InlineMarkup, links: Sequence[Link]) -> int:
    """Count the tags whose words have no alignment link; URLs do not count."""
    source = WordSpans(inline.plain_text, _find_single_marks(inline))
    linked = {source.word_of_token[left] for left, _ in links}
    count = 0
    for node in _iterate_tags(inline.tags):
        words = _find_placing_words(node, source)
        is_url = URL_OR_PLACEHOLDER.fullmatch(markup.ANY_TAG.sub("", node.opening)) is not None
        count += bool(words) and linked.isdisjoint(words) and not is_url
    return count


def _iterate_tags(nodes: Sequence[TagNode]) -> Iterator[TagNode]:
    """Yield the tags and all that are inside them, in no particular order."""
    left = list(nodes)
    while left:
        node = left.pop()
        left += node.children
        yield node


def _find_single_marks(inline: InlineMarkup) -> set[int]:
    """Find the detached marks that a tag pair encloses without their word, by their index among the source's tokens."""
    tokens, spans = split_words(inline.plain_text), find_word_spans(inline.plain_text)
    marks = [bool(CLOSING_MARK.fullmatch(token) or OPENING_MARK.fullmatch(token)) for token in tokens]
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    single: set[int] = set()
    for node in _iterate_tags(inline.tags):
        inside = range(bisect_right(ends, node.start), bisect_left(starts, node.end))
        if all(marks[token] for token in inside):  # stops at the first word
            single.update(inside)
    return single


def _find_placing_words(node: TagNode, source: WordSpans) -> range:
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


def _has_letters_or_digits(text: str) -> bool:
    """Return True if a text contains a letter or a digit."""
    return any(map(str.isalnum, text))


class WordSpans:
    """The words of a text with their positions; a word may have punctuation marks before and after its core."""

    def __init__(self, text: str, single: Collection[int] = ()) -> None:
        self.text = text
        self.spans: list[tuple[int, int]] = []
        self.word_of_token: list[int] = []  # the word of each token
        self.mark_counts: dict[int, tuple[int, int]] = {}
        opened = False
        for number, (token_start, end) in enumerate(find_word_spans(text)):  # links number these
            closes = bool(CLOSING_MARK.fullmatch(text, token_start, end))
            joined = bool(self.spans) and (opened or closes) and number not in single and number - 1 not in single
            start = self.spans.pop()[0] if joined else token_start
            self.spans.append((start, end))
            self.word_of_token.append(len(self.spans) - 1)
            opened = not (closes and joined) and bool(OPENING_MARK.fullmatch(text, token_start, end))
        self.starts, self.ends = [start for start, _ in self.spans], [end for _, end in self.spans]

    def count_marks(self, word: int) -> tuple[int, int]:
        """Count the characters at a word's beginning, and at its end, that are neither letters nor digits."""
        if word not in self.mark_counts:  # thousands of tags may be in one long word
            start, end = self.spans[word]
            letters = [position for position in range(start, end) if self.text[position].isalnum()]
            self.mark_counts[word] = (letters[0] - start, end - 1 - letters[-1]) if letters else (end - start, 0)
        return self.mark_counts[word]

    def find_cores(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Find the words in a span, without the punctuation marks at their ends."""
        for word in self.find_touched(start, end):
            (left, right), (before, after) = self.spans[word], self.count_marks(word)
            left, right = max(left + before, start), min(right - after, end)
            if _has_letters_or_digits(self.text[left:right]):
                yield left, right

    def find_touched(self, start: int, end: int) -> range:
        """Find the words that overlap a span."""
        first = bisect_right(self.ends, start)
        return range(first, max(first, bisect_left(self.starts, end)))


@dataclass
class TagClaim:
    """The words of the translation that a tag claims, from `first` up to `end`, and how many it needs."""

    node: TagNode
    needed: int
    first: int
    end: int
    lendable: int = 0  # words at its beginning that neighbours before it may take because they lack free words
    limit: int = 0  # the latest end that leaves the tags behind it the words they need

    @property
    def is_met(self) -> bool:
        """Return True if it has the words that it needs."""
        return self.end - self.first >= self.needed


class TagPlacer:
    """Move tags from positions in the source to positions in the translation, by word alignment links."""

    def __init__(self, source: WordSpans, target: WordSpans, links: Sequence[Link]) -> None:
        self.source = source
        self.target = target
        self.target_words_of: dict[int, set[int]] = {}
        for left, right in links:
            self.target_words_of.setdefault(source.word_of_token[left], set()).add(target.word_of_token[right])
        self.linked_source_words = sorted(self.target_words_of)
        # For each linked source word: the last target word of it and all before, the first of it and all behind.
        linked = [self.target_words_of[word] for word in self.linked_source_words]
        self.last_target_words = list(accumulate(map(max, linked), max))
        self.first_target_words = list(accumulate(map(min, reversed(linked)), min))[::-1]
        self.needed_words: dict[int, int] = {}  # words of the translation, by the id of a tag of the source

    def place_around_sentence(self, nodes: Sequence[TagNode], source_low: int, low: int, high: int) -> list[TagNode]:
        """Place tags in source order, the pair with the longest source span around a span of the translation.

        Tags before that pair stay before the span, tags after it behind the span. No pair gets into another one.
        """
        pairs = [node for node in nodes if not node.is_standalone and node.end > node.start]
        longest = max(pairs, key=lambda node: node.end - node.start, default=None)
        placed_nodes: list[TagNode] = []
        is_after_longest = False
        for node in nodes:
            is_after_longest |= node is longest or (longest is None and node.start > source_low)
            start, end = (low, high) if node is longest else (high, high) if is_after_longest else (low, low)
            placed_nodes.append(replace(node, start=start, end=end))
        self.fill_empty_pairs(nodes, placed_nodes, low, high)
        for node, placed in zip(nodes, placed_nodes, strict=True):
            placed.children = self.place_around_sentence(node.children, node.start, placed.start, placed.end)
        return placed_nodes

    def place_by_links(self, nodes: Sequence[TagNode], low: int, high: int) -> list[TagNode]:
        """Place sibling tags where their words went, within the bounds of their parent and without overlaps."""
        moved = [(node, self.place_by_own_links(node, low, high)) for node in nodes]
        moved.sort(key=lambda pair: (pair[1].start, pair[1].end))
        placed_nodes = [placed for _, placed in moved]
        _remove_overlaps(placed_nodes, low)
        self.fill_empty_pairs([node for node, _ in moved], placed_nodes, low, high)
        for node, placed in moved:
            placed.children = self.place_by_links(node.children, placed.start, placed.end)
        return placed_nodes

    def place_by_own_links(self, node: TagNode, low: int, high: int) -> TagNode:
        """Place one tag where its words went, without its children."""
        start, end = self.find_span(node.start, node.end)
        if node.is_standalone:
            boundary = self.find_sentence_boundary(node.start) if markup.ANY_TAG.fullmatch(node.opening) else None
            start = end = self.find_position(node.start) if boundary is None else boundary
        start = min(max(start, low), high)
        return replace(node, start=start, end=min(max(end, start), high))

    def count_needed(self, node: TagNode) -> int:
        """Count the words that a tag needs so that it is not empty, nor any pair inside it that had words."""
        if id(node) not in self.needed_words:
            own = int(_has_letters_or_digits(self.source.text[node.start : node.end]))
            self.needed_words[id(node)] = max(own, sum(map(self.count_needed, node.children)))
        return self.needed_words[id(node)]

    def fill_empty_pairs(self, nodes: Sequence[TagNode], placed_nodes: Sequence[TagNode], low: int, high: int) -> None:
        """Give each pair that lost its words the nearest free word, else a spare word of a neighbour.

        If no neighbour has one, the tags between such a pair and the next spare word move on by a word. `placed_nodes`
        are neighbours in the order of the translation, and `nodes` the same tags in the source. With fewer words than
        pairs, some pairs stay empty.
        """
        spans: list[tuple[int, int]] = []
        claims: list[TagClaim] = []
        reached = low
        for node, placed in zip(nodes, placed_nodes, strict=True):
            needed = self.count_needed(node)
            if self.target.text[placed.start : placed.end].strip():
                spans += self.target.find_cores(reached, placed.start)
                first = len(spans)
                spans += list(self.target.find_cores(placed.start, placed.end)) or [(placed.start, placed.end)]
                claims.append(TagClaim(placed, max(needed, 1), first, len(spans)))
                reached = placed.end
            elif needed:
                claims.append(TagClaim(placed, needed, -1, -1))
        if all(claim.is_met for claim in claims):
            return
        spans += self.target.find_cores(reached, high)
        starts = [start for start, _ in spans]
        for claim in claims:
            if claim.first < 0:
                claim.first = claim.end = bisect_left(starts, claim.node.start)
        _fit_claims(_drop_unmet_claims(claims, len(spans)), spans)
        limit = high
        for placed in reversed(placed_nodes):
            if not self.target.text[placed.start : placed.end].strip():  # an empty tag stays before the next one
                placed.start, placed.end = min(placed.start, limit), min(placed.end, limit)
            limit = placed.start
        _remove_overlaps(placed_nodes, low)

    def find_span(self, start: int, end: int) -> tuple[int, int]:
        """Find the translation of the words of a span; without links it stays beside its neighbour."""
        words = self.source.find_touched(start, end)
        reached = [right for word in words for right in self.target_words_of.get(word, ())]
        if not reached:
            return (self.find_position(start),) * 2
        first = self.find_position_in_word(words[0], start, min(reached), "start")
        return first, self.find_position_in_word(words[-1], end, max(reached), "end")

    def find_position_in_word(self, word: int, position: int, target_word: int, side: Side) -> int:
        """Map a position in or beside a source word to its target word.

        Among punctuation marks it keeps its distance from the word's edge; inside the letters it goes to their edge.
        """
        (start, end), (left, right) = self.source.spans[word], self.target.spans[target_word]
        if self.source.text[start:end] == self.target.text[left:right]:
            return left + min(max(position - start, 0), end - start)
        before, after = self.source.count_marks(word)
        target_before, target_after = self.target.count_marks(target_word)
        if side == "start" or (before and position - start <= before < end - start):
            inside = before and position - start < before
            return left + (min(max(position - start, 0), target_before) if inside else target_before)
        inside = after and end - position < after
        return right - (min(max(end - position, 0), target_after) if inside else target_after)

    def find_sentence_boundary(self, position: int) -> int | None:
        """Map the boundary between two sentences to the target; None elsewhere, and where their words are mixed.

        The first word of a sentence may be translated anywhere in it.
        """
        before = bisect_left(self.source.starts, position)  # number of words that begin before it
        following = bisect_left(self.linked_source_words, before)
        if not 0 < following < len(self.linked_source_words):
            return None
        start, end = self.source.spans[before - 1]
        if not markup.SENTENCE_END.search(self.source.text[start : min(position, end)][-markup.URL_CONTEXT :]):
            return None
        last, first = self.last_target_words[following - 1], self.first_target_words[following]
        if last >= first:
            return None
        return self.target.spans[first - 1][1] if position <= end else self.target.spans[first][0]

    def find_position(self, position: int) -> int:
        """Map a source position to the target: before the translation of the next word, or after that of the last."""
        before = bisect_left(self.source.starts, position) - 1  # the last word that begins before it
        is_glued = before >= 0 and position <= self.source.spans[before][1]
        following = bisect_left(self.linked_source_words, before + 1)
        earlier = following - 1
        if following < len(self.linked_source_words) and (not is_glued or earlier < 0):
            word = self.linked_source_words[following]
            return self.target.spans[min(self.target_words_of[word])][0]
        if earlier >= 0:
            word = self.linked_source_words[earlier]
            position = min(position, self.source.spans[word][1])
            return self.find_position_in_word(word, position, max(self.target_words_of[word]), "end")
        return len(self.target.text) if before >= 0 else 0


def _remove_overlaps(nodes: Sequence[TagNode], low: int) -> None:
    """Move tags behind what the tags before them reach."""
    for node in nodes:
        node.start = max(node.start, low)
        low = node.end = max(node.end, node.start)


def _drop_unmet_claims(claims: Sequence[TagClaim], words: int) -> Sequence[TagClaim]:
    """Drop empty tags from the end until the words suffice for the remaining tags."""
    if sum(claim.needed for claim in claims) <= words:
        return claims
    for claim in claims:
        claim.needed = 1
    empty = [number for number, claim in enumerate(claims) if not claim.is_met]
    dropped = set(empty[len(empty) - max(len(claims) - words, 0) :])
    return [claim for number, claim in enumerate(claims) if number not in dropped]


def _fit_claims(claims: Sequence[TagClaim], spans: Sequence[tuple[int, int]]) -> None:
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


def write_tags(nodes: Sequence[TagNode], text: str, low: int, high: int, entities: Mapping[int, str]) -> str:
    """Write a span of text with its tags; `entities` is a table for `str.translate`."""
    out, position, last = "", low, ""
    for node in nodes:
        between = text[position : node.start].translate(entities)
        out += between
        always = markup.WORD_SEPARATING_TAG.match(node.opening)
        if (
            node.added_spaces[0]
            and out.endswith(" ")
            and (always or markup.SENTENCE_END.search(out[-markup.URL_CONTEXT : -1]))
        ):
            out = out[:-1]
        if node.is_standalone:
            left, right = node.spaces_around
            following = text[node.start : node.start + markup.URL_CONTEXT]
            before = out[-1:] if between else last
            is_glued_left, is_glued_right = _find_sides_extending_url(before, node.opening, following)
            left = left and out != "" and not out[-1].isspace() and not has_unspaced_script(out[-1])
            right = right and markup.is_word_start(following[:1]) and not has_unspaced_script(following[0])
            space_left = " " if left or is_glued_left else ""
            space_right = " " if right or is_glued_right else ""
            last = node.opening + space_right
            out += space_left + last
        else:
            out += node.opening + write_tags(node.children, text, node.start, node.end, entities) + node.closing
            last = node.closing
        position = node.end
        follows = node.added_spaces[1] and position < high and text[position] == " "
        if follows and (always or markup.SENTENCE_END.search(text[max(position - markup.URL_CONTEXT, 0) : position])):
            position += 1
    return out + text[position:high].translate(entities)


def _find_sides_extending_url(before: str, mark: str, after: str) -> tuple[bool, bool]:
    """Return (left, right): True where `mark` is a URL and the text on that side would become part of it."""
    if not URL_OR_PLACEHOLDER.fullmatch(mark):
        return False, False
    right = URL_OR_PLACEHOLDER.match(mark + after)
    separate = [*URL_OR_PLACEHOLDER.findall(before), mark]
    return URL_OR_PLACEHOLDER.findall(before + mark) != separate, right is None or right[0] != mark
