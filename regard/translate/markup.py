"""Parse markup: remove inline tags, placeholders and URLs before translation; split at block tags.

`<b>…</b>` is restored around the translation of its words; `<br/>`, `{name}`, `%d` and `www.example.org` beside the
translation of their neighbour, always balanced. Block tags (`<p>`, `<li>`) split a text into blocks that are translated
one by one; comments, declarations, scripts and elements with `translate="no"` are copied. Text with tags is markup, and
its entities are decoded and encoded; text without tags is plain. `tag_projection` restores the tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.tokenizers.markup import (
    NO_TRANSLATE_ATTRIBUTE,
    URL_OR_PLACEHOLDER,
    VOID_ELEMENTS,
    TagHalf,
    match_tag_pairs,
    unescape_html,
)
from regard.tokenizers.segmentation import has_unspaced_script, needs_space

ATTRIBUTES = r"""(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*\s*"""
TAG = re.compile(rf"<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*){ATTRIBUTES}(?P<alone>/?)>")
OPAQUE_MARKUP = {  # copied unchanged: pattern of the beginning, and of the rest
    "comment": (r"<!--", r".*?-->"),
    "data": (r"<!\[CDATA\[", r".*?\]\]>"),
    "instruction": (r"<\?", r".*?\?>"),
    "declaration": (r"<![A-Za-z]", r".*?>"),
    "program": (r"<(?:script|style)\b", r"(?>.*?>).*?</(?:script|style)\s*+>"),
}
BLOCK_TAG_NAMES = (
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure footer form h[1-6] "
    "head header hr html legend li main nav ol option p pre section select summary table tbody td tfoot th thead title "
    "tr ul"
).replace(" ", "|")
# White space is matched from its beginning only, so that matching takes linear time.
LEADING_WHITESPACE = r"(?:(?<!\s)\s++)?"
BLOCK_TAG = rf"</?(?:{BLOCK_TAG_NAMES})(?![\w.:-]){ATTRIBUTES}/?>"
OPAQUE_START = "|".join(f"(?P<{kind}>{beginning})" for kind, (beginning, _) in OPAQUE_MARKUP.items())
BLOCK_BOUNDARY = re.compile(rf"{LEADING_WHITESPACE}(?:{OPAQUE_START}|{BLOCK_TAG})", re.IGNORECASE)
OPAQUE_REST = {kind: re.compile(rf"{rest}\s*+", re.IGNORECASE | re.DOTALL) for kind, (_, rest) in OPAQUE_MARKUP.items()}
WHITESPACE = re.compile(r"\s*+")
ANYTHING = re.compile(r".*", re.DOTALL)
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
TAG_SEQUENCE = re.compile(rf"(?=<)(?P<closing>(?:</[A-Za-z][\w.:-]*\s*>)*+)(?:{ANY_TAG.pattern})*+")
WORD_SEPARATING_TAG = re.compile(r"<(?:br|img|tab)(?![\w.:-])", re.IGNORECASE)  # separates words without a space
SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\Z")
SENTENCE_START = re.compile(r"[\"'“‘„«¿¡(\[]*(\w)")
URL_CONTEXT = 50  # characters after a URL that could be read as part of it
MAX_TAG_DEPTH = 100  # nested tags; deeper ones are standalone
ESCAPED_CHARACTERS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass
class TagNode:
    """A tag pair with its children, or a standalone tag; positions are offsets in the plain text."""

    opening: str
    start: int
    closing: str = ""
    end: int = 0
    spaces_around: tuple[bool, bool] = (False, False)  # standalone: white space on its left, right
    added_spaces: tuple[bool, bool] = (False, False)  # left, right: only the plain text has a space here
    children: list[TagNode] = field(default_factory=list)

    @property
    def is_standalone(self) -> bool:
        """True for a tag without a closing tag."""
        return not self.closing


class InlineMarkup(NamedTuple):
    """A block of text without its tags, and the tags."""

    plain_text: str
    tags: list[TagNode]


class ParsedMarkup(NamedTuple):
    """Blocks of a text and the separators around them: one more than blocks."""

    blocks: list[InlineMarkup]
    separators: list[str]
    entities: Mapping[int, str]  # how this markup escapes characters, for `str.translate`; empty for plain text


def parse_markup(text: str) -> ParsedMarkup:
    """Split markup into blocks and remove their tags."""
    decoded = {entity: unescape_html(entity) for entity in ENTITY.findall(text)}
    entities = {ord(character): entity for entity, character in decoded.items() if len(character) == 1}
    boundaries = list(iterate_block_boundaries(text))
    is_markup = any(entity != character for entity, character in decoded.items()) or boundaries or TAG.search(text)
    blocks, separators, position = [], [""], 0
    for start, end in [*boundaries, (len(text), len(text))]:
        block = parse_inline_markup(text[position:start], bool(is_markup))
        if has_translatable_text(block):
            blocks.append(block)
            separators.append(text[start:end])
        else:
            separators[-1] += text[position:end]
        position = end
    return ParsedMarkup(blocks, separators, entities | ESCAPED_CHARACTERS if is_markup else {})


def has_translatable_text(inline_markup: InlineMarkup) -> bool:
    """Return True if there is anything to translate: beside tags, punctuation alone is not."""
    return any(map(str.isalnum, inline_markup.plain_text)) if inline_markup.tags else bool(inline_markup.plain_text)


def iterate_block_boundaries(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that separate blocks, with white space around them: block tags and opaque markup.

    An untranslated element that is or contains one of these is a separator as a whole.
    """
    position = 0
    end_of_text = (len(text), len(text))
    untranslated = iter(_find_untranslated_elements(text).items())
    element_start, element_end = next(untranslated, end_of_text)
    unclosed: set[str] = set()  # kinds that do not end in the rest of the text, which is not searched again
    while match := BLOCK_BOUNDARY.search(text, position):
        start = match.start()
        tag_start = match.end() - len(match[0].lstrip())
        while element_start < position or element_end <= tag_start:
            element_start, element_end = next(untranslated, end_of_text)
        position = match.end()
        kind = match.lastgroup or ""
        if element_start <= tag_start:
            start = min(start, element_start)
            rest = WHITESPACE.match(text, element_end)
        elif kind in unclosed:
            continue
        else:
            rest = OPAQUE_REST.get(kind, WHITESPACE).match(text, position)
        if rest:
            position = rest.end()
            yield start, position
        else:
            unclosed.add(kind)


def _find_untranslated_elements(text: str) -> dict[int, int]:
    """Return the end of each outermost element with `translate="no"` or `class="notranslate"`, by its start."""
    if not NO_TRANSLATE_ATTRIBUTE.search(text):
        return {}
    tags = list(TAG.finditer(text))
    partners = match_tag_pairs(map(_parse_tag_half, tags))
    elements: dict[int, int] = {}
    end = 0
    for index, tag in enumerate(tags):
        partner = partners.get(index, index)
        if partner > index and tag.start() >= end and NO_TRANSLATE_ATTRIBUTE.search(tag[0]):
            end = elements[tag.start()] = tags[partner].end()
    return elements


def parse_inline_markup(text: str, is_markup: bool, protected_span: re.Pattern[str] = PROTECTED_SPAN) -> InlineMarkup:
    """Parse a block without block tags; `protected_span` matches what is removed."""
    decode: Callable[[str], str] = unescape_html if is_markup else str
    untranslated = _find_untranslated_elements(text) if is_markup else {}
    spans = list(_iterate_protected_spans(text, protected_span, untranslated))
    tags = list(map(_parse_tag_half, spans))
    partners = match_tag_pairs(tags, MAX_TAG_DEPTH)
    added_spaces = _find_added_space_positions(text) if is_markup else frozenset()
    stack, plain, position = [TagNode("", 0)], "", 0
    for index, (span, tag) in enumerate(zip(spans, tags, strict=True)):
        plain += decode(text[position : span.start()])
        position = span.end()
        is_added = span.start() in added_spaces, position in added_spaces
        if is_added[0] and not plain[-1:].isspace():
            plain += " "
        partner = partners.get(index, -1)
        if 0 <= partner < index:
            closed = stack.pop()
            closed.end, closed.added_spaces = len(plain), (closed.added_spaces[0], is_added[1])
            plain += " " if is_added[1] else ""
            continue
        node = TagNode(span[0], len(plain), added_spaces=(is_added[0], is_added[0] and not tag.key))
        stack[-1].children.append(node)
        if partner > index:
            node.closing = spans[partner][0]
            stack.append(node)
        elif not tag.key:
            before, after = text[span.start() - 1 : span.start()], text[position : position + 1]
            # A placeholder or a URL beside a script without spaces is a word of its own.
            is_word = not span[0].startswith("<")
            node.spaces_around = (
                before.isspace() or (is_word and has_unspaced_script(before)),
                after.isspace() or (is_word and has_unspaced_script(after)),
            )
            if plain[-1:].isspace() and not (after.isspace() or is_word_start(after)):
                plain = plain[:-1]  # punctuation behind it, or the end, follows the word before
                _clamp_positions(stack[0].children, len(plain))
            elif plain[-1:].isalnum() and after.isalnum() and needs_space(plain, after):
                plain += " "
                node.start = len(plain)
            position += after.isspace() and (not plain or plain[-1].isspace())  # keep one of two spaces
        elif tag.closes and is_added[1]:
            plain += " "
    return InlineMarkup(plain + decode(text[position:]), stack[0].children)


def _iterate_protected_spans(
    text: str, protected_span: re.Pattern[str], untranslated: Mapping[int, int]
) -> Iterator[re.Match[str]]:
    """Yield tags, placeholders and URLs, untranslated elements, and elements whose text is only a URL."""
    position = 0
    while match := protected_span.search(text, position):
        end = untranslated.get(match.start())
        span = (ANYTHING.match(text, match.start(), end) if end else None) or _expand_to_url_element(text, match)
        yield span
        position = span.end()


def _parse_tag_half(span: re.Match[str]) -> TagHalf:
    """Return a tag as half of a pair; the key of a standalone tag, a placeholder and a URL is empty."""
    groups = span.groupdict()
    name = (groups.get("name") or "").lower()
    if groups.get("close"):
        return TagHalf(name, opens=False, closes=True)
    is_standalone = name in VOID_ELEMENTS or bool(groups.get("alone"))
    return TagHalf("" if is_standalone else name, opens=True, closes=False)


def _find_added_space_positions(text: str) -> frozenset[int]:
    """Find where only tags separate two sentences, or a line break or an image separates two words.

    The model's input gets a space there, behind closing tags and before all others.
    """
    positions: set[int] = set()
    for tags in TAG_SEQUENCE.finditer(text):
        before = text[max(tags.start() - URL_CONTEXT, 0) : tags.start()]
        after = text[tags.end() : tags.end() + URL_CONTEXT]
        first = SENTENCE_START.match(after)
        if not tags[0] or not first or not before or before[-1].isspace():
            continue
        if WORD_SEPARATING_TAG.search(tags[0]) or (first[1].isupper() and SENTENCE_END.search(before)):
            positions.add(tags.end("closing"))
    return frozenset(positions)


def _expand_to_url_element(text: str, found: re.Match[str]) -> re.Match[str]:
    """Return the element that begins with a tag if its text is only a URL; else the tag."""
    link = URL_ELEMENT.match(text, found.start())
    tags = ANY_TAG.findall(link[0]) if link else []
    balanced = 2 * sum(tag.startswith("</") for tag in tags) == len(tags)
    return link if link and balanced and URL_OR_PLACEHOLDER.fullmatch(ANY_TAG.sub("", link[0])) else found


def _clamp_positions(nodes: Sequence[TagNode], end: int) -> None:
    """Move positions back into a text that lost a space at its end."""
    for node in reversed(nodes):
        inside = node.start < end
        node.start, node.end = min(node.start, end), min(node.end, end)
        _clamp_positions(node.children, end)
        if inside:  # siblings before it end at or before its start
            return


def is_word_start(character: str) -> bool:
    """Return True if a word, or a tag or placeholder that is separate from the text before it, may begin like this."""
    return character.isalnum() or (character != "" and character in "<{%$#&(")
