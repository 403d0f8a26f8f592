"""Inline tags and placeholders: taken out before translating, put back by the alignment, always balanced.

`<b>…</b>` goes around what the words inside it were translated to; `<br/>`, `{name}` and `%d` go where the word beside
them went. A text without tags is text; one with tags is markup, and its entities are read and written as such.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from regard.evaluate import Link

TAG = re.compile(r"<!--.*?-->|<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*)[^<>]*?(?P<alone>/?)>", re.DOTALL)
PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|[$%#]\{[^{}]*\}|\{[\w.:!\[\]]*\}|%\(\w+\)[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]|%(?:\d+\$)?[sdifgxu@](?!\w)"
)
MARK = re.compile(f"{TAG.pattern}|{PLACEHOLDER.pattern}", re.DOTALL)
ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))
BEGINS = tuple("<{%$#&(")  # what stands before a word rather than after one
WORD = re.compile(r"\S+")
CORE = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


@dataclass
class Node:
    """A tag with what is inside it, or one that stands alone; positions are places in the plain text."""

    opening: str
    start: int
    closing: str = ""
    end: int = 0
    spaced: tuple[bool, bool] = (False, False)  # alone: whether white space stood on its left, on its right
    inside: list[Node] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether there is nothing to go around."""
        return not self.closing


class Marked(NamedTuple):
    """A text without its tags, and the tags."""

    plain: str
    tags: list[Node]
    markup: bool  # whether entities stand for characters


def parse(text: str) -> Marked:
    """Takes the tags out."""
    markup = bool(TAG.search(text) or ENTITY.search(text))
    root = Node("", 0, " ")
    stack, plain, place = [root], "", 0
    for found in MARK.finditer(text):
        plain += read(text[place : found.start()], markup)
        place = found.end()
        name, closes, alone = (found["name"] or "").lower(), found["close"], found["alone"]
        if closes:
            close(stack, found[0], name, len(plain))
        elif name and not alone and name not in VOID:
            node = Node(found[0], len(plain), "?")
            stack[-1].inside.append(node)
            stack.append(node)
        else:
            after = text[place : place + 1]
            plain = lone(stack[-1], found[0], plain, after)
            place += after.isspace() and (not plain or plain[-1].isspace())  # of two spaces one is left
    for node in stack[1:]:  # never closed: stands alone
        node.closing = ""
    return Marked(plain + read(text[place:], markup), hoisted(root.inside), markup)


def read(text: str, markup: bool) -> str:
    """Text as it is meant."""
    return html.unescape(text) if markup else text


def close(stack: list[Node], written: str, name: str, place: int) -> None:
    """Ends the innermost open tag of that name; without one, the closing tag stands alone."""
    for depth in range(len(stack) - 1, 0, -1):
        if tag_name(stack[depth].opening) == name:
            for node in stack[depth + 1 :]:
                node.closing = ""
            stack[depth].closing, stack[depth].end = written, place
            del stack[depth:]
            return
    stack[-1].inside.append(Node(written, place))


def tag_name(written: str) -> str:
    """The name in a tag."""
    found = TAG.fullmatch(written)
    return (found["name"] or "").lower() if found else ""


def lone(parent: Node, written: str, plain: str, after: str) -> str:
    """Adds what stands alone, and gives the text before it as it goes on without it."""
    left, right = plain[-1:].isspace(), after.isspace()
    if left and not right and after not in BEGINS and not after.isalnum():
        plain = plain[:-1]  # the end, or the mark behind it, goes with the word before
    elif plain[-1:].isalnum() and after.isalnum():
        plain += " "
    parent.inside.append(Node(written, len(plain), spaced=(left, right)))
    return plain


def hoisted(nodes: Iterable[Node]) -> list[Node]:
    """The same tags, where one that was never closed holds nothing: what was inside it comes after it."""
    made: list[Node] = []
    for node in nodes:
        inside = hoisted(node.inside)
        if node.alone:
            node.inside = []
            made += [node, *inside]
        else:
            node.inside = inside
            made.append(node)
    return made


Side = Literal["start", "end"]


class Words:
    """The words of a text with their places: a word may have marks of punctuation before and after its core."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans = [found.span() for found in WORD.finditer(text)]

    def edges(self, word: int) -> tuple[int, int, int, int]:
        """Where a word begins, its core begins, its core ends, it ends."""
        start, end = self.spans[word]
        before, _, after = CORE.fullmatch(self.text[start:end]).groups()  # type: ignore[union-attr]
        return start, start + len(before), end - len(after), end

    def touched(self, start: int, end: int) -> list[int]:
        """The words that a stretch of text has a part of."""
        return [word for word, (left, right) in enumerate(self.spans) if left < end and right > start]

    def edge(self, word: int, place: int, side: Side) -> int:
        """Which of a word's edges, 0 to 3, a place in or beside it stands for."""
        start, core, core_end, end = self.edges(word)
        if side == "start":
            return 0 if place <= start or core == start else 1
        return 3 if place >= end or core_end == end else 2


def restore(marked: Marked, translated: str, links: Sequence[Link]) -> str:
    """The translation of `marked.plain` with the tags where their words went."""
    source, target = Words(marked.plain), Words(translated)
    to: dict[int, list[int]] = {}
    for left, right in links:
        to.setdefault(left, []).append(right)
    carried = Carrier(source, target, to)
    return written(carried.all(marked.tags, 0, len(translated)), translated, 0, len(translated), marked.markup)


class Carrier:
    """Tags with places in the source become tags with places in the target."""

    def __init__(self, source: Words, target: Words, to: dict[int, list[int]]) -> None:
        self.source = source
        self.target = target
        self.to = to

    def all(self, nodes: Sequence[Node], low: int, high: int) -> list[Node]:
        """Neighbours, within their parent's bounds, none reaching into another."""
        moved = [self.moved(node, low, high) for node in nodes]
        for place, node in enumerate(moved):
            node.inside = self.all(nodes[place].inside, node.start, node.end)
        ordered = sorted(moved, key=lambda node: (node.start, node.end))
        reached = low
        for node in ordered:
            if node.start < reached:
                node.start, node.end = reached, max(node.end, reached)
                node.inside = self.all(node.inside, node.start, node.end) if not node.inside else clipped(node)
            reached = node.end
        return ordered

    def moved(self, node: Node, low: int, high: int) -> Node:
        """One tag, without what is inside it."""
        start, end = (self.beside(node.start, node.spaced),) * 2 if node.alone else self.around(node.start, node.end)
        start = min(max(start, low), high)
        return Node(node.opening, start, node.closing, min(max(end, start), high), node.spaced)

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Around what the words of a stretch were translated to; an empty one stays beside its neighbour."""
        words = self.source.touched(start, end)
        reached = sorted(right for word in words for right in self.to.get(word, ()))
        if not reached:
            place = self.beside(start, (True, True))
            return place, place
        first, last = self.source.edge(words[0], start, "start"), self.source.edge(words[-1], end, "end")
        return self.target.edges(reached[0])[first], self.target.edges(reached[-1])[last]

    def beside(self, place: int, spaced: tuple[bool, bool]) -> int:
        """Where a place in the source is in the target: before what its next word became, or after its last one."""
        before = [word for word, (start, _) in enumerate(self.source.spans) if start < place]
        after = [word for word, (start, _) in enumerate(self.source.spans) if start >= place]
        glued = bool(before) and place <= self.source.spans[before[-1]][1]
        if not glued:
            for word in after:
                if word in self.to:
                    return self.target.edges(min(self.to[word]))[0]
        for word in reversed(before):
            if word in self.to:
                edge = self.source.edge(word, place, "end")
                return self.target.edges(max(self.to[word]))[edge]
        return len(self.target.text) if before else 0


def clipped(node: Node) -> list[Node]:
    """What is inside a tag, moved to be inside it still."""
    for child in node.inside:
        child.start = min(max(child.start, node.start), node.end)
        child.end = min(max(child.end, child.start), node.end)
        child.inside = clipped(child)
    return node.inside


def written(nodes: Sequence[Node], text: str, low: int, high: int, markup: bool) -> str:
    """A stretch of text with tags in it."""
    out, place = "", low
    for node in nodes:
        out += shown(text[place : node.start], markup)
        if node.alone:
            left, right = node.spaced
            following = text[node.start : node.start + 1]
            space_left = " " if left and out and not out[-1].isspace() else ""
            space_right = " " if right and following and following.isalnum() else ""
            out += space_left + node.opening + space_right
        else:
            out += node.opening + written(node.inside, text, node.start, node.end, markup) + node.closing
        place = node.end
    return out + shown(text[place:high], markup)


def shown(text: str, markup: bool) -> str:
    """Text as markup writes it."""
    return html.escape(text, quote=False) if markup else text
