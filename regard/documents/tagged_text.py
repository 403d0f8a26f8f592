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

from regard.documents.escaping import (
    ENTITY,
    has_translatable_words,
    normalize_entities,
    replace_line_breaks,
    unescape_markup,
)

PLACEHOLDER_TAG = re.compile(r"<(?P<close>/?)r(?P<number>[0-9]{1,6})(?P<alone>/?)>")
WHITE_SPACE = re.compile(r"[ \t\r\n]+")
# A tag that separates words is `<!r1/>` while the white space around it is handled: other tags beside it keep theirs.
STANDALONE_TAG = re.compile(r"<r(?P<number>[0-9]{1,6})/>")
SPACED_SEPARATOR = re.compile(r"(?P<left>(?<![ \t\r\n])[ \t\r\n]++)?<!r(?P<number>[0-9]{1,6})/>(?P<right>[ \t\r\n]*+)")
MAX_TAG_DEPTH = 50  # pairs inside each other; what is deeper stands alone

EscapeFunction = Callable[[str], str]


class RunStyle(NamedTuple):
    """What text is wrapped in where a format does not let it stand bare: an office document's run."""

    key: str  # equal where two runs look the same
    opening: str
    closing: str
    before: str  # around the text itself, inside the run
    before_space: str  # the same for text with white space at an end, which would be lost
    after: str

    def wrap_text(self, text: str) -> str:
        """Text inside the run."""
        plain = unescape_markup(text)
        return f"{self.before if plain == plain.strip() else self.before_space}{text}{self.after}"


class OutputFragment(NamedTuple):
    """A stretch of the finished document; written late, as it may hold passages of its own."""

    style: RunStyle | None
    write: Callable[[], str]


@dataclass(slots=True)
class InlineNode:
    """Words, or a pair with something inside it, or else what stands alone, which is its opening."""

    markup: str = ""  # as markup writes them
    style: RunStyle | None = None  # of the words, or of those that are directly inside
    opening: list[OutputFragment] = field(default_factory=list)
    children: list[InlineNode] = field(default_factory=list)
    closing: list[OutputFragment] = field(default_factory=list)
    pair_key: str = ""  # what it has in common with its other half, which comes later if it opens
    is_opening: bool = False
    separates_words: bool = False  # a line break, a tab, an image: words on its two sides are two words without a space

    @property
    def is_standalone(self) -> bool:
        """Whether it stands between words."""
        return not self.markup and not self.children

    @property
    def has_text(self) -> bool:
        """Whether there are words in it."""
        return bool(self.markup) or any(node.has_text for node in self.children)

    @property
    def is_blank(self) -> bool:
        """Whether it may stay where it is while the words around it move."""
        return not self.children and not self.markup.strip()

    def list_fragments(self) -> list[OutputFragment]:
        """Everything in it, as it stands in the source."""
        own = [_make_text_fragment(self.markup, self.style)] if self.markup else self.opening
        return [*own, *(part for node in self.children for part in node.list_fragments()), *self.closing]

    def fits_style(self, style: RunStyle | None) -> bool:
        """Whether it can be in a run of that style; how a space looks is seldom meant."""
        if self.markup:
            return self.markup == " " or _is_same_style(self.style, style)
        return not self.children and all(_is_same_style(part.style, style) for part in self.opening)


def _is_same_style(one: RunStyle | None, other: RunStyle | None) -> bool:
    """Whether two styles look the same."""
    return (one and one.key) == (other and other.key)


def make_literal(source: str, style: RunStyle | None = None) -> OutputFragment:
    """A part that is known already."""
    return OutputFragment(style, lambda: source)


def _make_text_fragment(text: str, style: RunStyle | None) -> OutputFragment:
    """A part that is text."""
    return make_literal(style.wrap_text(text) if style else text, style)


def _join_fragments(fragments: Iterable[OutputFragment]) -> str:
    """Parts one after the other, neighbours of one style in one run."""
    out: list[str] = []
    now: RunStyle | None = None
    for part in fragments:
        if not _is_same_style(part.style, now):
            out += [now.closing if now else "", part.style.opening if part.style else ""]
            now = part.style
        out.append(part.write())
    return "".join(out) + (now.closing if now else "")


def nest_tag_pairs(nodes: Iterable[InlineNode]) -> list[InlineNode]:
    """Nodes with the halves put together; a half without the other, or one that crosses a pair, stands alone."""
    stack = [InlineNode()]
    for node in nodes:
        if node.pair_key and node.is_opening and len(stack) <= MAX_TAG_DEPTH:
            stack.append(node)
        elif node.pair_key and not node.is_opening and any(other.pair_key == node.pair_key for other in stack):
            while (top := stack.pop()).pair_key != node.pair_key:
                _unnest_unclosed(top, stack[-1])
            top.closing, top.pair_key = node.opening, ""
            stack[-1].children.append(top)
        else:
            stack[-1].children.append(node)
    while len(stack) > 1:
        top = stack.pop()
        _unnest_unclosed(top, stack[-1])
    return stack[0].children


def _unnest_unclosed(node: InlineNode, parent: InlineNode) -> None:
    """What opens and is never closed holds nothing: what was inside it comes after it."""
    parent.children += [InlineNode(opening=node.opening), *node.children]


def _simplify_nodes(nodes: Iterable[InlineNode]) -> list[InlineNode]:
    """As few as will do: what goes around no words stands alone, and neighbours that stand alone are one."""
    made: list[InlineNode] = []
    for node in nodes:
        if node.markup:
            made.append(node)
        elif node.has_text:
            node.children = _simplify_nodes(node.children)
            made.append(_merge_nested_pair(node))
        elif made and made[-1].is_standalone:
            made[-1].opening += node.list_fragments()
            made[-1].separates_words |= _has_separator(node)
        elif parts := node.list_fragments():
            made.append(InlineNode(opening=parts, separates_words=_has_separator(node)))
    return made


def _has_separator(node: InlineNode) -> bool:
    """Return True if a node without words holds a line break, a tab or the like."""
    return node.separates_words or any(map(_has_separator, node.children))


def _merge_nested_pair(pair: InlineNode) -> InlineNode:
    """A pair around nothing but a pair is one with it."""
    inner = pair.children[0]
    if len(pair.children) > 1 or not inner.children:
        return pair
    return InlineNode(
        opening=[*pair.opening, *inner.opening], children=inner.children, closing=[*inner.closing, *pair.closing]
    )


def _split_by_style(pair: InlineNode) -> InlineNode:
    """A pair whose most common style needs no tag; stretches of words in another one become pairs of their own."""
    pair.style = _find_commonest_style(pair.children)
    made: list[InlineNode] = []
    within = False  # whether the last one is such a stretch
    for node in pair.children:
        if within and node.fits_style(made[-1].style):
            made[-1].children.append(node)
            continue
        within = bool(node.markup and node.style) and not node.fits_style(pair.style)
        if within:
            made.append(InlineNode(children=[node], style=node.style))
        else:
            made.append(_split_by_style(node) if node.children else node)
    pair.children = made
    return pair


def _find_commonest_style(nodes: Iterable[InlineNode]) -> RunStyle | None:
    """The style of most of the words."""
    styles: dict[str, RunStyle] = {}
    lengths: dict[str, int] = {}
    for node in nodes:
        if node.markup and node.style:
            styles.setdefault(node.style.key, node.style)
            lengths[node.style.key] = lengths.get(node.style.key, 0) + len(node.markup)
    return styles[max(lengths, key=lambda key: lengths[key])] if styles else None


def _iterate_descendants(pair: InlineNode) -> Iterator[InlineNode]:
    """All that is in a pair, in order."""
    for node in pair.children:
        yield node
        yield from _iterate_descendants(node)


def _copy_line_breaks(text: str, source: str) -> str:
    """Break a text into lines where its source has line breaks, as far through the words as there."""
    gaps, source_gaps = list(WHITE_SPACE.finditer(text)), list(WHITE_SPACE.finditer(source))
    breaks = {}
    for number, gap in enumerate(source_gaps, 1):
        if "\n" in gap[0] or "\r" in gap[0]:
            breaks[round(number * (len(gaps) + 1) / (len(source_gaps) + 1)) - 1] = gap[0]
    places = iter(range(len(gaps)))
    return WHITE_SPACE.sub(lambda gap: breaks.get(next(places), gap[0]), text)


def strip_placeholder_tags(text: str) -> str:
    """What a text for the translator says, without its tags."""
    return unescape_markup(PLACEHOLDER_TAG.sub("", text))


class TaggedText:
    """Text for the translator, and the way back."""

    def __init__(self, nodes: Iterable[InlineNode]) -> None:
        self.body = _split_by_style(InlineNode(children=_simplify_nodes(nest_tag_pairs(nodes))))
        self.leading_fragments: list[OutputFragment] = []
        self.trailing_fragments: list[OutputFragment] = []  # from its end
        self.tag_nodes: list[InlineNode] = []
        some = next((node.style for node in _iterate_descendants(self.body) if node.style), None)
        while self._peel_ends():
            pass
        self.body.style = self.body.style or some
        self._trim_white_space()
        self.tag_spaces: dict[int, tuple[str, str]] = {}  # white space of the source around tags that separate words
        source = "".join(self._iterate_tagged_source(self.body.children))
        self.source = SPACED_SEPARATOR.sub(self._add_spaces, self._mark_separators(source))
        text = replace_line_breaks(self.source)
        self.text = text if has_translatable_words(strip_placeholder_tags(text)) else ""  # empty: nothing to translate

    def _peel_ends(self) -> bool:
        """Takes what does not move off both ends; true where all that is left was in a pair, which is taken off too."""
        inside = self.body.children
        first = next((place for place, node in enumerate(inside) if not node.is_blank), len(inside))
        last = next((place for place in range(len(inside), first, -1) if not inside[place - 1].is_blank), first)
        self.leading_fragments += [part for node in inside[:first] for part in node.list_fragments()]
        self.trailing_fragments += [
            part for node in reversed(inside[last:]) for part in reversed(node.list_fragments())
        ]
        self.body.children = inside[first:last]
        if last - first != 1 or not inside[first].children:
            return False
        self.body = inside[first]
        self.leading_fragments += self.body.opening
        self.trailing_fragments += reversed(self.body.closing)
        return True

    def _trim_white_space(self) -> None:
        """Takes white space off both ends of the words."""
        for node in self.body.children[:1]:
            bare = node.markup.lstrip()
            if node.markup != bare:
                self.leading_fragments.append(
                    _make_text_fragment(node.markup[: len(node.markup) - len(bare)], node.style)
                )
                node.markup = bare
        for node in self.body.children[-1:]:
            bare = node.markup.rstrip()
            if node.markup != bare:
                self.trailing_fragments.append(_make_text_fragment(node.markup[len(bare) :], node.style))
                node.markup = bare

    def _iterate_tagged_source(self, nodes: Iterable[InlineNode]) -> Iterator[str]:
        """What the translator sees, piece by piece."""
        for node in nodes:
            if node.markup:
                yield node.markup
                continue
            self.tag_nodes.append(node)
            number = len(self.tag_nodes)
            if node.is_standalone:
                yield f"<r{number}/>"
            else:
                yield f"<r{number}>"
                yield from self._iterate_tagged_source(node.children)
                yield f"</r{number}>"

    def _mark_separators(self, text: str) -> str:
        def mark(found: re.Match[str]) -> str:
            number = int(found["number"])
            is_separator = 0 < number <= len(self.tag_nodes) and self.tag_nodes[number - 1].separates_words
            return f"<!r{number}/>" if is_separator else found[0]

        return STANDALONE_TAG.sub(mark, text)

    def _add_spaces(self, found: re.Match[str]) -> str:
        """Put spaces around a tag that separates words, and remember the white space that the source has there."""
        number = int(found["number"])
        self.tag_spaces[number] = found["left"] or "", found["right"]
        return f" <r{number}/> "

    def _restore_spaces(self, found: re.Match[str]) -> str:
        """Write the white space of the source around a tag that separates words."""
        number = int(found["number"])
        left, right = self.tag_spaces[number]
        return f"{left}<r{number}/>{right}"

    def write(self, translation: str, escape: EscapeFunction | None = None) -> str:
        """The passage with its translation, as the document has it; `spell` says how the format writes text."""
        kept = frozenset(ENTITY.findall(self.text))
        escape = escape or (lambda text: normalize_entities(text, kept))
        translation = _copy_line_breaks(replace_line_breaks(translation), self.source)
        translation = SPACED_SEPARATOR.sub(self._restore_spaces, self._mark_separators(translation))
        core = (
            self._insert_at_tags(translation, escape)
            if self._has_all_tags(translation)
            else self._insert_without_tags(translation, escape)
        )
        return _join_fragments([*self.leading_fragments, *core, *reversed(self.trailing_fragments)])

    def _has_all_tags(self, translation: str) -> bool:
        """Whether all tags came back, each once, and inside each other as tags must be."""
        seen: set[int] = set()
        stack: list[int] = []
        for found in PLACEHOLDER_TAG.finditer(translation):
            number = int(found["number"])
            if found["close"]:
                if not stack or stack.pop() != number:
                    return False
                continue
            if (
                number in seen
                or not 0 < number <= len(self.tag_nodes)
                or self.tag_nodes[number - 1].is_standalone != bool(found["alone"])
            ):
                return False
            seen.add(number)
            if not found["alone"]:
                stack.append(number)
        return not stack and len(seen) == len(self.tag_nodes)

    def _insert_at_tags(self, translation: str, escape: EscapeFunction) -> Iterator[OutputFragment]:
        """The translation with everything where its tag is."""
        stack, place = [self.body], 0
        for found in PLACEHOLDER_TAG.finditer(translation):
            if found.start() > place:
                yield _make_text_fragment(escape(translation[place : found.start()]), _find_innermost_style(stack))
            place = found.end()
            node = self.tag_nodes[int(found["number"]) - 1]
            if found["close"]:
                yield from stack.pop().closing
                continue
            yield from node.opening
            if not node.is_standalone:
                stack.append(node)
        if translation[place:]:
            yield _make_text_fragment(escape(translation[place:]), _find_innermost_style(stack))

    def _insert_without_tags(self, translation: str, escape: EscapeFunction) -> Iterator[OutputFragment]:
        """The translation in one piece where the first words were, and everything else as it was: tags were lost."""
        text: str | None = escape(PLACEHOLDER_TAG.sub("", translation))
        for node in self.body.children:
            for part, speaks in _iterate_fragments(node):
                if not speaks:
                    yield part
                elif text is not None:
                    yield _make_text_fragment(text, part.style)
                    text = None


def _find_innermost_style(stack: Sequence[InlineNode]) -> RunStyle | None:
    """The style of the innermost pair that has one."""
    return next((pair.style for pair in reversed(stack) if pair.style), None)


def _iterate_fragments(node: InlineNode) -> Iterator[tuple[OutputFragment, bool]]:
    """The parts of a node as they stand in the source, each with whether it is words."""
    if node.markup:
        yield _make_text_fragment(node.markup, node.style), True
        return
    yield from ((part, False) for part in node.opening)
    for child in node.children:
        yield from _iterate_fragments(child)
    yield from ((part, False) for part in node.closing)
