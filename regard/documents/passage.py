"""A passage: text with what is inside it, as one text for the translator, and its translation as the document has it.

What a format has inside a paragraph comes here as a list of nodes: words; what stands alone between words (a tab, a
footnote, an image); and halves, which open or close something around words (a link, a bookmark). For the translator
each becomes a numbered tag, `<r1>…</r1>` or `<r2/>`, as few as will do: what surrounds all of the text, or stands at an
end of it, stays there and is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.documents.spelling import ENTITY, in_a_line, meant, spelled, spoken

TAG = re.compile(r"<(?P<close>/?)r(?P<number>[0-9]{1,6})(?P<alone>/?)>")
GAP = re.compile(r"[ \t\r\n]+")
SPACED_TAG = re.compile(r"(?P<left>(?<![ \t\r\n])[ \t\r\n]++)?<r(?P<number>[0-9]{1,6})/>(?P<right>[ \t\r\n]*+)")
DEEP = 50  # pairs inside each other; what is deeper stands alone

Spell = Callable[[str], str]


class Style(NamedTuple):
    """What text is wrapped in where a format does not let it stand bare: an office document's run."""

    key: str  # equal where two runs look the same
    opening: str
    closing: str
    before: str  # around the text itself, inside the run
    before_space: str  # the same for text with white space at an end, which would be lost
    after: str

    def holds(self, text: str) -> str:
        """Text inside the run."""
        plain = meant(text)
        return f"{self.before if plain == plain.strip() else self.before_space}{text}{self.after}"


class Part(NamedTuple):
    """A stretch of the finished document; written late, as it may hold passages of its own."""

    style: Style | None
    write: Callable[[], str]


@dataclass(slots=True)
class Node:
    """Words, or a pair with something inside it, or else what stands alone, which is its opening."""

    words: str = ""  # as markup writes them
    style: Style | None = None  # of the words, or of those that are directly inside
    opening: list[Part] = field(default_factory=list)
    inside: list[Node] = field(default_factory=list)
    closing: list[Part] = field(default_factory=list)
    half: str = ""  # what it has in common with its other half, which comes later if it opens
    opens: bool = False
    separates: bool = False  # a line break, a tab, an image: words on its two sides are two words without a space

    @property
    def alone(self) -> bool:
        """Whether it stands between words."""
        return not self.words and not self.inside

    @property
    def speaks(self) -> bool:
        """Whether there are words in it."""
        return bool(self.words) or any(node.speaks for node in self.inside)

    @property
    def blank(self) -> bool:
        """Whether it may stay where it is while the words around it move."""
        return not self.inside and not self.words.strip()

    def flat(self) -> list[Part]:
        """Everything in it, as it stands in the source."""
        own = [written(self.words, self.style)] if self.words else self.opening
        return [*own, *(part for node in self.inside for part in node.flat()), *self.closing]

    def wears(self, style: Style | None) -> bool:
        """Whether it can be in a run of that style; how a space looks is seldom meant."""
        if self.words:
            return self.words == " " or alike(self.style, style)
        return not self.inside and all(alike(part.style, style) for part in self.opening)


def alike(one: Style | None, other: Style | None) -> bool:
    """Whether two styles look the same."""
    return (one and one.key) == (other and other.key)


def literal(source: str, style: Style | None = None) -> Part:
    """A part that is known already."""
    return Part(style, lambda: source)


def written(text: str, style: Style | None) -> Part:
    """A part that is text."""
    return literal(style.holds(text) if style else text, style)


def joined(parts: Iterable[Part]) -> str:
    """Parts one after the other, neighbours of one style in one run."""
    out: list[str] = []
    now: Style | None = None
    for part in parts:
        if not alike(part.style, now):
            out += [now.closing if now else "", part.style.opening if part.style else ""]
            now = part.style
        out.append(part.write())
    return "".join(out) + (now.closing if now else "")


def nested(nodes: Iterable[Node]) -> list[Node]:
    """Nodes with the halves put together; a half without the other, or one that crosses a pair, stands alone."""
    stack = [Node()]
    for node in nodes:
        if node.half and node.opens and len(stack) <= DEEP:
            stack.append(node)
        elif node.half and not node.opens and any(other.half == node.half for other in stack):
            while (top := stack.pop()).half != node.half:
                unclosed(top, stack[-1])
            top.closing, top.half = node.opening, ""
            stack[-1].inside.append(top)
        else:
            stack[-1].inside.append(node)
    while len(stack) > 1:
        top = stack.pop()
        unclosed(top, stack[-1])
    return stack[0].inside


def unclosed(node: Node, parent: Node) -> None:
    """What opens and is never closed holds nothing: what was inside it comes after it."""
    parent.inside += [Node(opening=node.opening), *node.inside]


def simple(nodes: Iterable[Node]) -> list[Node]:
    """As few as will do: what goes around no words stands alone, and neighbours that stand alone are one."""
    made: list[Node] = []
    for node in nodes:
        if node.words:
            made.append(node)
        elif node.speaks:
            node.inside = simple(node.inside)
            made.append(one(node))
        elif made and made[-1].alone:
            made[-1].opening += node.flat()
            made[-1].separates |= separates(node)
        elif parts := node.flat():
            made.append(Node(opening=parts, separates=separates(node)))
    return made


def separates(node: Node) -> bool:
    """Return True if a node without words holds a line break, a tab or the like."""
    return node.separates or any(map(separates, node.inside))


def one(pair: Node) -> Node:
    """A pair around nothing but a pair is one with it."""
    inner = pair.inside[0]
    if len(pair.inside) > 1 or not inner.inside:
        return pair
    return Node(opening=[*pair.opening, *inner.opening], inside=inner.inside, closing=[*inner.closing, *pair.closing])


def dressed(pair: Node) -> Node:
    """A pair whose most common style needs no tag; stretches of words in another one become pairs of their own."""
    pair.style = commonest(pair.inside)
    made: list[Node] = []
    within = False  # whether the last one is such a stretch
    for node in pair.inside:
        if within and node.wears(made[-1].style):
            made[-1].inside.append(node)
            continue
        within = bool(node.words and node.style) and not node.wears(pair.style)
        if within:
            made.append(Node(inside=[node], style=node.style))
        else:
            made.append(dressed(node) if node.inside else node)
    pair.inside = made
    return pair


def commonest(nodes: Iterable[Node]) -> Style | None:
    """The style of most of the words."""
    styles: dict[str, Style] = {}
    lengths: dict[str, int] = {}
    for node in nodes:
        if node.words and node.style:
            styles.setdefault(node.style.key, node.style)
            lengths[node.style.key] = lengths.get(node.style.key, 0) + len(node.words)
    return styles[max(lengths, key=lambda key: lengths[key])] if styles else None


def below(pair: Node) -> Iterator[Node]:
    """All that is in a pair, in order."""
    for node in pair.inside:
        yield node
        yield from below(node)


def copy_line_breaks(text: str, source: str) -> str:
    """Break a text into lines where its source has line breaks, as far through the words as there."""
    gaps, source_gaps = list(GAP.finditer(text)), list(GAP.finditer(source))
    breaks = {}
    for number, gap in enumerate(source_gaps, 1):
        if "\n" in gap[0] or "\r" in gap[0]:
            breaks[round(number * (len(gaps) + 1) / (len(source_gaps) + 1)) - 1] = gap[0]
    places = iter(range(len(gaps)))
    return GAP.sub(lambda gap: breaks.get(next(places), gap[0]), text)


def bare(text: str) -> str:
    """What a text for the translator says, without its tags."""
    return meant(TAG.sub("", text))


class Passage:
    """Text for the translator, and the way back."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.core = dressed(Node(inside=simple(nested(nodes))))
        self.head: list[Part] = []
        self.tail: list[Part] = []  # from its end
        self.tags: list[Node] = []
        some = next((node.style for node in below(self.core) if node.style), None)
        while self.peeled():
            pass
        self.core.style = self.core.style or some
        self.trim()
        self.spaces: dict[int, tuple[str, str]] = {}  # white space of the source around tags that separate words
        self.source = SPACED_TAG.sub(self.add_spaces, "".join(self.shown(self.core.inside)))
        text = in_a_line(self.source)
        self.text = text if spoken(bare(text)) else ""  # empty: nothing to translate

    def peeled(self) -> bool:
        """Takes what does not move off both ends; true where all that is left was in a pair, which is taken off too."""
        inside = self.core.inside
        first = next((place for place, node in enumerate(inside) if not node.blank), len(inside))
        last = next((place for place in range(len(inside), first, -1) if not inside[place - 1].blank), first)
        self.head += [part for node in inside[:first] for part in node.flat()]
        self.tail += [part for node in reversed(inside[last:]) for part in reversed(node.flat())]
        self.core.inside = inside[first:last]
        if last - first != 1 or not inside[first].inside:
            return False
        self.core = inside[first]
        self.head += self.core.opening
        self.tail += reversed(self.core.closing)
        return True

    def trim(self) -> None:
        """Takes white space off both ends of the words."""
        for node in self.core.inside[:1]:
            bare = node.words.lstrip()
            if node.words != bare:
                self.head.append(written(node.words[: len(node.words) - len(bare)], node.style))
                node.words = bare
        for node in self.core.inside[-1:]:
            bare = node.words.rstrip()
            if node.words != bare:
                self.tail.append(written(node.words[len(bare) :], node.style))
                node.words = bare

    def shown(self, nodes: Iterable[Node]) -> Iterator[str]:
        """What the translator sees, piece by piece."""
        for node in nodes:
            if node.words:
                yield node.words
                continue
            self.tags.append(node)
            number = len(self.tags)
            if node.alone:
                yield f"<r{number}/>"
            else:
                yield f"<r{number}>"
                yield from self.shown(node.inside)
                yield f"</r{number}>"

    def add_spaces(self, found: re.Match[str]) -> str:
        """Put spaces around a tag that separates words, and remember the white space that the source has there."""
        number = int(found["number"])
        if not self.tags[number - 1].separates:
            return found[0]
        self.spaces[number] = found["left"] or "", found["right"]
        return f" <r{number}/> "

    def restore_spaces(self, found: re.Match[str]) -> str:
        """Write the white space of the source around a tag that separates words."""
        number = int(found["number"])
        left, right = self.spaces.get(number, (found["left"] or "", found["right"]))
        return f"{left}<r{number}/>{right}"

    def write(self, answer: str, spell: Spell | None = None) -> str:
        """The passage with its translation, as the document has it; `spell` says how the format writes text."""
        kept = frozenset(ENTITY.findall(self.text))
        spell = spell or (lambda text: spelled(text, kept))
        answer = SPACED_TAG.sub(self.restore_spaces, copy_line_breaks(in_a_line(answer), self.source))
        core = self.carried(answer, spell) if self.whole(answer) else self.poured(answer, spell)
        return joined([*self.head, *core, *reversed(self.tail)])

    def whole(self, answer: str) -> bool:
        """Whether all tags came back, each once, and inside each other as tags must be."""
        seen: set[int] = set()
        stack: list[int] = []
        for found in TAG.finditer(answer):
            number = int(found["number"])
            if found["close"]:
                if not stack or stack.pop() != number:
                    return False
                continue
            if (
                number in seen
                or not 0 < number <= len(self.tags)
                or self.tags[number - 1].alone != bool(found["alone"])
            ):
                return False
            seen.add(number)
            if not found["alone"]:
                stack.append(number)
        return not stack and len(seen) == len(self.tags)

    def carried(self, answer: str, spell: Spell) -> Iterator[Part]:
        """The translation with everything where its tag is."""
        stack, place = [self.core], 0
        for found in TAG.finditer(answer):
            if found.start() > place:
                yield written(spell(answer[place : found.start()]), innermost(stack))
            place = found.end()
            node = self.tags[int(found["number"]) - 1]
            if found["close"]:
                yield from stack.pop().closing
                continue
            yield from node.opening
            if not node.alone:
                stack.append(node)
        if answer[place:]:
            yield written(spell(answer[place:]), innermost(stack))

    def poured(self, answer: str, spell: Spell) -> Iterator[Part]:
        """The translation in one piece where the first words were, and everything else as it was: tags were lost."""
        text: str | None = spell(TAG.sub("", answer))
        for node in self.core.inside:
            for part, speaks in told(node):
                if not speaks:
                    yield part
                elif text is not None:
                    yield written(text, part.style)
                    text = None


def innermost(stack: Sequence[Node]) -> Style | None:
    """The style of the innermost pair that has one."""
    return next((pair.style for pair in reversed(stack) if pair.style), None)


def told(node: Node) -> Iterator[tuple[Part, bool]]:
    """The parts of a node as they stand in the source, each with whether it is words."""
    if node.words:
        yield written(node.words, node.style), True
        return
    yield from ((part, False) for part in node.opening)
    for child in node.inside:
        yield from told(child)
    yield from ((part, False) for part in node.closing)
