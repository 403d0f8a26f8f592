"""Inline tags, placeholders and addresses: taken out before translating, put back by the alignment, always balanced.

`<b>…</b>` goes around what the words inside it were translated to; `<br/>`, `{name}`, `%d` and `www.example.org` go
where the word beside them went. Block tags (`<p>`, `<li>`) part a text into pieces that are translated one by one;
comments, declarations, scripts and the like are left as they are. A text without tags is text; one with tags is markup,
and its entities are read and written as such. `tag_placement` puts the tags back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.tokenizers.urls import URL_OR_PLACEHOLDER, unescape_html

ATTRIBUTES = r"""(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*\s*"""
TAG = re.compile(rf"<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*){ATTRIBUTES}(?P<alone>/?)>")
OPAQUE_MARKUP = {  # what is left as it is: how it begins, and how each part of it ends
    "comment": (r"<!--", ("-->",)),
    "data": (r"<!\[CDATA\[", (r"\]\]>",)),
    "instruction": (r"<\?", (r"\?>",)),
    "declaration": (r"<![A-Za-z]", (">",)),
    "program": (r"<(?:script|style)\b", (">", r"</(?:script|style)\s*+>")),
}
BLOCK_TAG_NAMES = (
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure footer form h[1-6] "
    "head header hr html legend li main nav ol option p pre section select summary table tbody td tfoot th thead title "
    "tr ul"
).replace(" ", "|")
LEADING_WHITESPACE = (
    r"(?:(?<!\s)\s++)?"  # white space from its beginning on: where it begins elsewhere, nothing is tried twice
)
BLOCK_TAG = rf"</?(?:{BLOCK_TAG_NAMES})(?![\w.:-]){ATTRIBUTES}/?>"
OPAQUE_START = "|".join(f"(?P<{kind}>{beginning})" for kind, (beginning, _) in OPAQUE_MARKUP.items())
BLOCK_BOUNDARY = re.compile(rf"{LEADING_WHITESPACE}(?:{OPAQUE_START}|{BLOCK_TAG})", re.IGNORECASE)
WHITESPACE = re.compile(r"\s*+")
PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|[$%#]\{[^{}]*\}|\{[^{}\n]{0,60}\}"
    r"|%%|%(?:\d++\$|\(\w++\))?(?:(?<!\d%)(?<!\d[ \xa0\u202f]%)[-+ #0]*+|[-+#0]*+)"  # not "10 % d'eau"
    r"(?:\d++|\*)?+(?:\.(?:\d++|\*))?+(?:hh?|ll?|[Lzjt])?"
    r"[sdifgGeExXucopa@](?![^\W\d_])"
)
PROTECTED_SPAN = re.compile(f"{TAG.pattern}|(?i:{URL_OR_PLACEHOLDER.pattern})|{PLACEHOLDER.pattern}")
ANY_TAG = re.compile(rf"</?[A-Za-z][\w.:-]*{ATTRIBUTES}/?>")
URL_ELEMENT = re.compile(
    rf"<(?P<around>[A-Za-z][\w.:-]*){ATTRIBUTES}>(?:(?>{ANY_TAG.pattern})|[^\s<>]++){{0,20}}?</(?P=around)\s*>"
)
ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
VOID_ELEMENTS = frozenset(
    ("area", "base", "br", "col", "embed", "img", "input", "link", "meta", "source", "track", "wbr")
)
TAG_SEQUENCE = re.compile(rf"(?=<)(?P<closing>(?:</[A-Za-z][\w.:-]*\s*>)*+)(?:{ANY_TAG.pattern})*+")
WORD_SEPARATING_TAG = re.compile(r"<(?:br|img|tab)(?![\w.:-])", re.IGNORECASE)  # they separate words without a space
SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\Z")
SENTENCE_START = re.compile(r"[\"'“‘„«¿¡(\[]*(\w)")
URL_CONTEXT = 50  # characters behind an address that may be taken for a part of it
MAX_TAG_DEPTH = 100  # tags inside each other; what is deeper stands alone


@dataclass
class TagNode:
    """A tag with what is inside it, or one that stands alone; positions are places in the plain text."""

    opening: str
    start: int
    closing: str = ""
    end: int = 0
    spaces_around: tuple[bool, bool] = (False, False)  # alone: whether white space stood on its left, on its right
    added_spaces: tuple[bool, bool] = (
        False,
        False,
    )  # left, right: the plain text has a space here that the source has not
    children: list[TagNode] = field(default_factory=list)

    @property
    def is_standalone(self) -> bool:
        """Whether there is nothing to go around."""
        return not self.closing


class InlineMarkup(NamedTuple):
    """A piece of text without its tags, and the tags."""

    plain_text: str
    tags: list[TagNode]


class ParsedMarkup(NamedTuple):
    """A text in pieces: one more break than pieces, the first before the first and the last after the last."""

    blocks: list[InlineMarkup]
    separators: list[str]
    entities: Mapping[str, str] | None  # how characters are written in this markup; None: it is no markup


def parse_markup(text: str) -> ParsedMarkup:
    """Takes the tags out."""
    written = {unescape_html(entity): entity for entity in ENTITY.findall(text) if unescape_html(entity) != entity}
    between = list(iterate_block_boundaries(text))
    markup = bool(written or between or TAG.search(text))
    pieces, breaks, place = [], [""], 0
    for start, end in [*between, (len(text), len(text))]:
        piece = parse_inline_markup(text[place:start], markup)
        if has_translatable_text(piece):
            pieces.append(piece)
            breaks.append(text[start:end])
        else:
            breaks[-1] += text[place:end]
        place = end
    return ParsedMarkup(pieces, breaks, {**written, "&": "&amp;", "<": "&lt;", ">": "&gt;"} if markup else None)


def has_translatable_text(inline_markup: InlineMarkup) -> bool:
    """Whether there is anything to translate: what stands beside tags, and is no more than marks, is not."""
    return any(map(str.isalnum, inline_markup.plain_text)) if inline_markup.tags else bool(inline_markup.plain_text)


def iterate_block_boundaries(text: str) -> Iterator[tuple[int, int]]:
    """Where something parts the text, white space around it included: block tags, and what is left as it is."""
    ends, place = EndFinder(text), 0
    while found := BLOCK_BOUNDARY.search(text, place):
        place = found.end()
        end = ends.find_end_of_sequence(OPAQUE_MARKUP[found.lastgroup][1], place) if found.lastgroup else place
        if end is not None:
            space = WHITESPACE.match(text, end)
            place = space.end() if space else end
            yield found.start(), place


class EndFinder:
    """Where things end in a text: looked for once, not anew from every place where something seems to begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found_ends: dict[str, tuple[int, re.Match[str] | None]] = {}  # from which place on, and what was found

    def find_end_of_sequence(self, endings: Iterable[str], position: int) -> int | None:
        """The end of what ends in these ways, one after the other, from a place on; None where it does not."""
        end: int | None = position
        for ending in endings:
            end = None if end is None else self.find_end(ending, end)
        return end

    def find_end(self, ending: str, position: int) -> int | None:
        """The end of the first such ending from a place on; None where there is none."""
        since, found = self.found_ends.get(ending, (len(self.text) + 1, None))
        if since > position or (found and found.start() < position):
            found = self.search_ending(ending, position)
            self.found_ends[ending] = position, found
        return found.end() if found else None

    def search_ending(self, ending: str, position: int) -> re.Match[str] | None:
        """The first such ending from a place on."""
        return re.compile(ending, re.IGNORECASE).search(self.text, position)


def parse_inline_markup(text: str, is_markup: bool, protected_span: re.Pattern[str] = PROTECTED_SPAN) -> InlineMarkup:
    """A piece without block tags; `mark` is what is taken out."""
    root = TagNode("", 0, " ")
    stack, plain, place = [root], "", 0
    spaceless = _find_added_space_positions(text) if is_markup else frozenset()
    while found := protected_span.search(text, place):
        found = _expand_to_url_element(text, found)
        plain += _decode_entities(text[place : found.start()], is_markup)
        place = found.end()
        tight = found.start() in spaceless, place in spaceless
        if tight[0] and not plain[-1:].isspace():
            plain += " "
        groups = found.groupdict()
        name = (groups.get("name") or "").lower()
        if groups.get("close"):
            _close_tag(stack, found[0], name, len(plain), tight[1])
            plain += " " if tight[1] else ""
        elif name and not groups["alone"] and name not in VOID_ELEMENTS and len(stack) <= MAX_TAG_DEPTH:
            node = TagNode(found[0], len(plain), "?", added_spaces=(tight[0], False))
            stack[-1].children.append(node)
            stack.append(node)
        else:
            before, after = text[found.start() - 1 : found.start()], text[place : place + 1]
            had = len(plain)
            plain = _add_standalone_tag(stack[-1], found[0], plain, before, after)
            stack[-1].children[-1].added_spaces = tight[0], tight[0]
            if len(plain) < had:
                _clamp_positions(root.children, len(plain))
            place += after.isspace() and (not plain or plain[-1].isspace())  # of two spaces one is left
    for node in stack[1:]:  # never closed: stands alone
        node.closing = ""
    return InlineMarkup(plain + _decode_entities(text[place:], is_markup), _flatten_unclosed_tags(root.children))


def _find_added_space_positions(text: str) -> frozenset[int]:
    """Find the places where tags alone stand between two sentences, or a line break or an image between two words.

    The model gets a space there. It belongs behind closing tags and before all others.
    """
    found: set[int] = set()
    for tags in TAG_SEQUENCE.finditer(text):
        before, after = (
            text[max(tags.start() - URL_CONTEXT, 0) : tags.start()],
            text[tags.end() : tags.end() + URL_CONTEXT],
        )
        first = SENTENCE_START.match(after)
        if not tags[0] or not first or not before or before[-1].isspace():
            continue
        if WORD_SEPARATING_TAG.search(tags[0]) or (first[1].isupper() and SENTENCE_END.search(before)):
            found.add(tags.end("closing"))
    return frozenset(found)


def _expand_to_url_element(text: str, found: re.Match[str]) -> re.Match[str]:
    """The element that begins with a mark, where all that it says is an address; else the mark."""
    link = URL_ELEMENT.match(text, found.start())
    inside = ANY_TAG.findall(link[0]) if link else []
    balanced = 2 * sum(tag.startswith("</") for tag in inside) == len(inside)
    return link if link and balanced and URL_OR_PLACEHOLDER.fullmatch(ANY_TAG.sub("", link[0])) else found


def _decode_entities(text: str, is_markup: bool) -> str:
    """Text as it is meant."""
    return unescape_html(text) if is_markup else text


def _close_tag(stack: list[TagNode], tag_text: str, name: str, position: int, added_space: bool) -> None:
    """Ends the innermost open tag of that name; without one, the closing tag stands alone."""
    for depth in range(len(stack) - 1, 0, -1):
        found = TAG.fullmatch(stack[depth].opening)
        if found and found["name"].lower() == name:
            for node in stack[depth + 1 :]:
                node.closing = ""
            ended = stack[depth]
            ended.closing, ended.end, ended.added_spaces = tag_text, position, (ended.added_spaces[0], added_space)
            del stack[depth:]
            return
    stack[-1].children.append(TagNode(tag_text, position))


def _add_standalone_tag(parent: TagNode, tag_text: str, plain: str, before: str, after: str) -> str:
    """Adds what stands alone, and gives the text before it as it goes on without it."""
    spaced = before.isspace(), after.isspace()
    ends = not (after.isspace() or is_word_start(after))
    if plain[-1:].isspace() and ends:
        plain = plain[:-1]  # the mark behind it, or the end, goes with the word before
    elif plain[-1:].isalnum() and after.isalnum():
        plain += " "
    parent.children.append(TagNode(tag_text, len(plain), spaces_around=spaced))
    return plain


def _clamp_positions(nodes: Sequence[TagNode], end: int) -> None:
    """Keeps places inside a text that has lost a space at its end."""
    for node in reversed(nodes):
        inside = node.start < end
        node.start, node.end = min(node.start, end), min(node.end, end)
        _clamp_positions(node.children, end)
        if inside:  # those before it ended where it began
            return


def _flatten_unclosed_tags(nodes: Iterable[TagNode]) -> list[TagNode]:
    """The same tags, where one that was never closed holds nothing: what was inside it comes after it."""
    made: list[TagNode] = []
    for node in nodes:
        inside = _flatten_unclosed_tags(node.children)
        if node.is_standalone:
            node.children = []
            made += [node, *inside]
        else:
            node.children = inside
            made.append(node)
    return made


def is_word_start(character: str) -> bool:
    """Whether a word may begin with it, or something else that stands apart from what is before it."""
    return character.isalnum() or (character != "" and character in "<{%$#&(")
