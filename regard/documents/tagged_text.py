"""Tagged text: a paragraph with its inline elements, as text with numbered tags for the translator and back.

A parser passes the content of a paragraph as a list of nodes: text; standalone elements between words (a tab, a
footnote, an image); and halves, which open or close something around words (a link, a bookmark). For the translator
each becomes a numbered tag, `<r1>…</r1>` or `<r2/>`, with as few tags as possible: elements that surround the whole
text, or are at an end of it, stay there and are not shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.data.languages import is_right_to_left
from regard.documents.base import ParsedDocument, TranslatableText
from regard.documents.escaping import (
    ENTITY,
    has_translatable_words,
    normalize_entities,
    replace_line_breaks,
    unescape_markup,
)
from regard.tokenizers.markup import TagHalf, match_tag_pairs

PLACEHOLDER_TAG = re.compile(r"<(?P<close>/?)r(?P<number>[0-9]{1,6})(?P<alone>/?)>")
WHITE_SPACE = re.compile(r"[ \t\r\n]+")
# While white space is handled, tags that separate words are written `<!r1/>`: other tags beside them keep theirs.
STANDALONE_TAG = re.compile(r"<r(?P<number>[0-9]{1,6})/>")
SPACED_SEPARATOR = re.compile(r"(?P<left>(?<![ \t\r\n])[ \t\r\n]++)?<!r(?P<number>[0-9]{1,6})/>(?P<right>[ \t\r\n]*+)")
MAX_TAG_DEPTH = 50  # nested pairs; deeper ones are standalone

EscapeFunction = Callable[[str], str]


@dataclass(frozen=True)
class RunStyle:
    """Wrapping of text in formats that do not allow bare text: a run of an Office document."""

    key: str  # equal if two runs look the same
    opening: str = field(compare=False)
    closing: str = field(compare=False)
    before: str = field(default="", compare=False)  # before the text, inside the run
    # Instead of `before` for text with white space at an end, which would be lost.
    before_space: str = field(default="", compare=False)
    after: str = field(default="", compare=False)

    def wrap_text(self, text: str) -> str:
        """Wrap text for use inside the run."""
        plain = unescape_markup(text)
        return f"{self.before if plain == plain.strip() else self.before_space}{text}{self.after}"


class OutputFragment(NamedTuple):
    """A part of the output document; written late, since it may contain other tagged texts."""

    style: RunStyle | None
    write: Callable[[], str]
    is_text: bool = False


@dataclass(slots=True)
class InlineNode:
    """Text, a pair with children, or a standalone element, which is its opening."""

    markup: str = ""  # text, escaped
    style: RunStyle | None = None  # of the text, or of the text directly inside
    opening: list[OutputFragment] = field(default_factory=list)
    children: list[InlineNode] = field(default_factory=list)
    closing: list[OutputFragment] = field(default_factory=list)
    pair_key: str = ""  # of both halves of a pair
    is_opening: bool = False
    separates_words: bool = False  # a line break, a tab, an image: it separates words without a space

    @property
    def is_standalone(self) -> bool:
        """True for an element between words."""
        return not self.markup and not self.children

    @property
    def has_text(self) -> bool:
        """True if there is text in it."""
        return bool(self.markup) or any(node.has_text for node in self.children)

    @property
    def is_blank(self) -> bool:
        """True if it may keep its position when the words around it move."""
        return not self.children and not self.markup.strip()

    def list_fragments(self) -> list[OutputFragment]:
        """Return all its fragments, as in the source."""
        own = [_make_text_fragment(self.markup, self.style)] if self.markup else self.opening
        return [*own, *(fragment for node in self.children for fragment in node.list_fragments()), *self.closing]

    def fits_style(self, style: RunStyle | None) -> bool:
        """Return True if it can be in a run of that style; a single space fits every style."""
        if self.markup:
            return self.markup == " " or self.style == style
        return not self.children and all(fragment.style == style for fragment in self.opening)


def make_tag_node(
    source: str | Callable[[], str],
    pair_key: str = "",
    is_opening: bool = False,
    separates_words: bool = False,
    style: RunStyle | None = None,
) -> InlineNode:
    """Build a standalone node or, with a key, half of a pair; a callable source is called when it is written."""
    fragment = OutputFragment(style, (lambda: source) if isinstance(source, str) else source)
    return InlineNode(opening=[fragment], pair_key=pair_key, is_opening=is_opening, separates_words=separates_words)


def iterate_tagged_nodes(text: str, tag_pattern: re.Pattern[str], to_markup: EscapeFunction) -> Iterator[InlineNode]:
    """Yield the text and the tags of a paragraph; `tag_pattern` has the groups `name` and `close`."""
    position = 0
    for tag in tag_pattern.finditer(text):
        yield InlineNode(to_markup(text[position : tag.start()]))
        position = tag.end()
        yield make_tag_node(tag[0], pair_key=(tag["name"] or "").lower(), is_opening=not tag["close"])
    yield InlineNode(to_markup(text[position:]))


def _make_text_fragment(text: str, style: RunStyle | None, escape: EscapeFunction = str) -> OutputFragment:
    """Build a fragment of text, wrapped in its style; it is escaped when it is written."""
    return OutputFragment(style, lambda: style.wrap_text(escape(text)) if style else escape(text), is_text=True)


def _join_fragments(fragments: Iterable[OutputFragment]) -> str:
    """Join fragments, with neighbours of the same style in one run."""
    out: list[str] = []
    current: RunStyle | None = None
    for fragment in fragments:
        if fragment.style != current:
            out += [current.closing if current else "", fragment.style.opening if fragment.style else ""]
            current = fragment.style
        out.append(fragment.write())
    return "".join(out) + (current.closing if current else "")


def nest_tag_pairs(nodes: Iterable[InlineNode]) -> list[InlineNode]:
    """Join the halves of pairs; a half without the other, or one that crosses a pair, is standalone."""
    nodes = list(nodes)
    if not any(node.pair_key for node in nodes):
        return nodes
    tags = (TagHalf(node.pair_key, node.is_opening, not node.is_opening) for node in nodes)
    partners, stack = match_tag_pairs(tags, MAX_TAG_DEPTH), [InlineNode()]
    for index, node in enumerate(nodes):
        if partners.get(index, -1) > index:
            stack.append(node)
            continue
        if index in partners:
            closing, node = node.opening, stack.pop()
            node.closing = closing
        stack[-1].children.append(node)
    return stack[0].children


def _simplify_nodes(nodes: Iterable[InlineNode]) -> list[InlineNode]:
    """Reduce the number of nodes: a pair without text is standalone, adjacent standalone nodes and pairs are merged."""
    simplified: list[InlineNode] = []
    for node in nodes:
        if node.markup:
            simplified.append(node)
        elif node.has_text:
            node.children = _simplify_nodes(node.children)
            if len(node.children) == 1 and node.children[0].children:  # only another pair is inside
                inner = node.children[0]
                node.opening, node.closing = [*node.opening, *inner.opening], [*inner.closing, *node.closing]
                node.children = inner.children
            simplified.append(node)
        elif simplified and simplified[-1].is_standalone:
            simplified[-1].opening += node.list_fragments()
            simplified[-1].separates_words |= _has_separator(node)
        elif fragments := node.list_fragments():
            simplified.append(InlineNode(opening=fragments, separates_words=_has_separator(node)))
    return simplified


def _has_separator(node: InlineNode) -> bool:
    """Return True if a node without text contains a line break, a tab or the like."""
    return node.separates_words or any(map(_has_separator, node.children))


def _split_by_style(pair: InlineNode) -> InlineNode:
    """Give a pair its most common style, which needs no tag; spans in other styles become pairs."""
    lengths = Counter[RunStyle]()
    for node in pair.children:
        if node.markup and node.style:
            lengths[node.style] += len(node.markup)
    pair.style = max(lengths, key=lambda style: lengths[style], default=None)
    new_children: list[InlineNode] = []
    in_other_style = False  # True if the last node is such a span
    for node in pair.children:
        if in_other_style and node.fits_style(new_children[-1].style):
            new_children[-1].children.append(node)
            continue
        in_other_style = bool(node.markup and node.style) and not node.fits_style(pair.style)
        if in_other_style:
            new_children.append(InlineNode(children=[node], style=node.style))
        else:
            new_children.append(_split_by_style(node) if node.children else node)
    pair.children = new_children
    return pair


def _iterate_descendants(pair: InlineNode) -> Iterator[InlineNode]:
    """Yield all descendants of a pair, in order."""
    for node in pair.children:
        yield node
        yield from _iterate_descendants(node)


def _copy_line_breaks(text: str, source: str) -> str:
    """Break a text into lines at the same relative positions as its source."""
    gaps, source_gaps = list(WHITE_SPACE.finditer(text)), list(WHITE_SPACE.finditer(source))
    breaks = {}
    for number, gap in enumerate(source_gaps, 1):
        if "\n" in gap[0] or "\r" in gap[0]:
            breaks[round(number * (len(gaps) + 1) / (len(source_gaps) + 1)) - 1] = gap[0]
    gap_indices = iter(range(len(gaps)))
    return WHITE_SPACE.sub(lambda gap: breaks.get(next(gap_indices), gap[0]), text)


def strip_placeholder_tags(text: str) -> str:
    """Return a text for the translator without its tags, unescaped."""
    return unescape_markup(PLACEHOLDER_TAG.sub("", text))


def find_new_direction(text: str, translation: str) -> str | None:
    """Return `rtl` or `ltr`, the direction of a translation, if it is not that of the text; tags do not count."""
    reversed_before, is_reversed = (is_right_to_left(strip_placeholder_tags(one)) for one in (text, translation))
    return None if is_reversed == reversed_before else "rtl" if is_reversed else "ltr"


class TaggedText(TranslatableText):
    """Text with numbered tags for the translator, and the conversion of its translation back.

    `source` is the part of the file that has the text, and `escape` escapes a translation for the format.
    """

    def __init__(self, nodes: Iterable[InlineNode], source: str = "", escape: EscapeFunction | None = None) -> None:
        self.source = source
        self.escape = escape
        self.body = _split_by_style(InlineNode(children=_simplify_nodes(nest_tag_pairs(nodes))))
        self.leading_fragments: list[OutputFragment] = []
        self.trailing_fragments: list[OutputFragment] = []  # in reverse order
        self.tag_nodes: list[InlineNode] = []
        any_style = next((node.style for node in _iterate_descendants(self.body) if node.style), None)
        while self._peel_ends():
            pass
        self.body.style = self.body.style or any_style
        self._trim_white_space()
        self.tag_spaces: dict[int, tuple[str, str]] = {}  # white space of the source around tags that separate words
        text = "".join(self._iterate_tagged_source(self.body.children))
        self.tagged_source = SPACED_SEPARATOR.sub(self._add_spaces, text)
        text = replace_line_breaks(self.tagged_source)
        self.text = text if has_translatable_words(strip_placeholder_tags(text)) else ""  # empty: nothing to translate

    def _peel_ends(self) -> bool:
        """Remove fixed parts from both ends; return True if the rest was a single pair, which is removed as well."""
        children = self.body.children
        first = next((index for index, node in enumerate(children) if not node.is_blank), len(children))
        last = next((index for index in range(len(children), first, -1) if not children[index - 1].is_blank), first)
        self.leading_fragments += [fragment for node in children[:first] for fragment in node.list_fragments()]
        self.trailing_fragments += reversed([part for node in children[last:] for part in node.list_fragments()])
        self.body.children = children[first:last]
        if last - first != 1 or not children[first].children:
            return False
        self.body = children[first]
        self.leading_fragments += self.body.opening
        self.trailing_fragments += reversed(self.body.closing)
        return True

    def _trim_white_space(self) -> None:
        """Remove white space from both ends of the text."""
        for node in self.body.children[:1]:
            if space := node.markup[: len(node.markup) - len(node.markup.lstrip())]:
                self.leading_fragments.append(_make_text_fragment(space, node.style))
                node.markup = node.markup.lstrip()
        for node in self.body.children[-1:]:
            if space := node.markup[len(node.markup.rstrip()) :]:
                self.trailing_fragments.append(_make_text_fragment(space, node.style))
                node.markup = node.markup.rstrip()

    def _iterate_tagged_source(self, nodes: Iterable[InlineNode]) -> Iterator[str]:
        """Yield the text for the translator, in parts."""
        for node in nodes:
            if node.markup:
                yield node.markup
                continue
            self.tag_nodes.append(node)
            number = len(self.tag_nodes)
            if node.is_standalone:
                yield f"<!r{number}/>" if node.separates_words else f"<r{number}/>"
            else:
                yield f"<r{number}>"
                yield from self._iterate_tagged_source(node.children)
                yield f"</r{number}>"

    def _mark_separator(self, found: re.Match[str]) -> str:
        return f"<!{found[0][1:]}" if int(found["number"]) in self.tag_spaces else found[0]

    def _add_spaces(self, found: re.Match[str]) -> str:
        """Put spaces around a tag that separates words, and remember the white space that the source has there."""
        number = int(found["number"])
        self.tag_spaces[number] = found["left"] or "", found["right"]
        return f" <r{number}/> "

    def _restore_spaces(self, found: re.Match[str]) -> str:
        """Write the white space of the source around a tag that separates words."""
        left, right = self.tag_spaces[int(found["number"])]
        return f"{left}<r{found['number']}/>{right}"

    def fill(self) -> str:
        """Return the part of the file with the translation, or as it is."""
        return self.source if self.is_unchanged else self.write()

    def write(self) -> str:
        """Return the translation as the document has it."""
        kept = frozenset(ENTITY.findall(self.text))
        escape = self.escape or (lambda text: normalize_entities(text, kept))
        translation = _copy_line_breaks(replace_line_breaks(self.translation), self.tagged_source)
        translation = STANDALONE_TAG.sub(self._mark_separator, translation)
        translation = SPACED_SEPARATOR.sub(self._restore_spaces, translation)
        core = self._insert_at_tags(translation, escape)
        if core is None:
            core = self._insert_without_tags(translation, escape)
        return _join_fragments([*self.leading_fragments, *core, *reversed(self.trailing_fragments)])

    def _insert_at_tags(self, translation: str, escape: EscapeFunction) -> list[OutputFragment] | None:
        """Return the translation with each element at its tag; None unless it has all tags, each once and nested."""
        fragments: list[OutputFragment] = []
        stack, seen, position = [self.body], set[int](), 0

        def add_text(text: str) -> None:
            if text:
                style = next((pair.style for pair in reversed(stack) if pair.style), None)
                fragments.append(_make_text_fragment(text, style, escape))

        for tag in PLACEHOLDER_TAG.finditer(translation):
            add_text(translation[position : tag.start()])
            position, number = tag.end(), int(tag["number"])
            node = self.tag_nodes[number - 1] if 0 < number <= len(self.tag_nodes) else None
            if tag["close"]:
                if stack[-1] is not node:
                    return None
                fragments += stack.pop().closing
                continue
            if node is None or number in seen or node.is_standalone != bool(tag["alone"]):
                return None
            seen.add(number)
            fragments += node.opening
            if not node.is_standalone:
                stack.append(node)
        add_text(translation[position:])
        return fragments if len(stack) == 1 and len(seen) == len(self.tag_nodes) else None

    def _insert_without_tags(self, translation: str, escape: EscapeFunction) -> list[OutputFragment]:
        """Return the translation as one text in place of the first words, after tags were lost."""
        fragments = [fragment for node in self.body.children for fragment in node.list_fragments()]
        first = next(index for index, fragment in enumerate(fragments) if fragment.is_text)
        text = _make_text_fragment(PLACEHOLDER_TAG.sub("", translation), fragments[first].style, escape)
        return [*fragments[:first], text, *(fragment for fragment in fragments[first:] if not fragment.is_text)]


def join_parts(parts: Sequence[str | TaggedText], encode: Callable[[str], bytes]) -> ParsedDocument:
    """Build a document of parts to copy and parts that may have words."""

    def write() -> bytes:
        return encode("".join(part if isinstance(part, str) else part.fill() for part in parts))

    return ParsedDocument([part for part in parts if not isinstance(part, str) and part.text], write)
