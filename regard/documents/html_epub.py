"""HTML, XHTML and EPUB: the text between two block tags is one text, with its inline tags.

The file is split into tags and text as in a browser. It is not parsed into a tree and serialised again, so everything
but the text is copied, mistakes included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

from regard.documents.base import (
    META_CHARSET,
    XML_DECLARATION,
    DocumentError,
    DocumentLimits,
    EncodedText,
    ParsedDocument,
    TranslatableText,
    ZipEntry,
    decode_declared_encoding,
    parse_zip_document,
)
from regard.documents.escaping import (
    ENTITY,
    escape_text,
    has_translatable_words,
    make_html_escaper,
    normalize_html_text,
    replace_line_breaks,
    unescape_markup,
)
from regard.documents.tagged_text import MAX_TAG_DEPTH, InlineNode, TaggedText, find_new_direction, make_tag_node
from regard.documents.xml_tree import CDATA_START, ELEMENT_NAMES, XML_TOKEN, check_xml
from regard.tokenizers.markup import NO_TRANSLATE_ATTRIBUTE, VOID_ELEMENTS, TagHalf, match_tag_pairs

# Every alternative matches up to its end or the end of the file, so that matching takes linear time.
HTML_TOKEN = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))"
    r"|<[!?][^>]*(?:>|\Z)"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)"
    r"""(?:[^>"'=]++|=\s*+(?:"[^"]*+"|'[^']*+')|[="'])*+(?:>|\Z)"""
    r"|(?P<text>(?:[^<]++|<(?![A-Za-z!?]|/[A-Za-z]))++)",
    re.DOTALL,
)
HTML_ATTRIBUTE = re.compile(r"""(?P<name>[^\s"'<>/=]++)(?:\s*=\s*(?P<value>"[^"]*"|'[^']*'|[^\s"'>]+))?""")
UNQUOTED_VALUE = re.compile(r"""[^\s"'=<>`]+(?<!/)""")
HTML = ELEMENT_NAMES["html"]


@dataclass(eq=False)
class HtmlToken:
    """A tag, a span of text, or something else (comment, declaration, untranslated element)."""

    source: str
    tag_name: str = ""  # empty if it is not a tag
    is_closing: bool = False
    is_standalone: bool = False
    text: str = ""  # strictly escaped

    @property
    def pair_key(self) -> str:
        """The name of a tag that has, or should have, another half; else empty."""
        return "" if self.is_standalone else self.tag_name

    @property
    def is_inline(self) -> bool:
        """True for text and inline tags."""
        return not self.tag_name or self.tag_name in HTML["inline"]

    def make_node(self) -> InlineNode:
        """Convert the token to a node of a tagged text."""
        if self.text:
            return InlineNode(self.text)
        is_separator = self.tag_name in HTML["separators"]
        return make_tag_node(lambda: self.source, self.pair_key, not self.is_closing, is_separator)


@dataclass(eq=False, kw_only=True)
class TranslatedAttribute(TranslatableText):
    """A translatable attribute, and its position in a tag with its quotes."""

    token: HtmlToken
    start: int
    end: int

    def format_value(self) -> str:
        """Write the translation as a value of the attribute, with its quotes."""
        source_value = self.token.source[self.start : self.end]
        if self.is_unchanged:
            return source_value
        inside = source_value[1:-1] if source_value[0] in "\"'" else source_value
        value = make_html_escaper(inside, ENTITY.findall(self.text))(replace_line_breaks(self.translation))
        if source_value[0] == "'":
            return "'" + value.replace("'", "&#39;") + "'"
        if source_value[0] == '"' or not UNQUOTED_VALUE.fullmatch(value):
            return '"' + value.replace('"', "&quot;") + '"'
        return value


def _fill_attributes(token: HtmlToken, attributes: Iterable[TranslatedAttribute]) -> None:
    """Write the translations of the attributes of a tag into it."""
    out, position = [], 0
    for attribute in attributes:
        out += [token.source[position : attribute.start], attribute.format_value()]
        position = attribute.end
    token.source = "".join(out) + token.source[position:]


def parse_html(content: bytes) -> ParsedDocument:
    """Parse an HTML file."""
    source = decode_declared_encoding(content, META_CHARSET)
    return _parse_tokens(source, _iterate_html_tokens(source.text))


def parse_xhtml(content: bytes) -> ParsedDocument:
    """Parse an XHTML file, or another XML file whose text is between its tags."""
    source = decode_declared_encoding(content, XML_DECLARATION)
    check_xml(source.text)
    return _parse_tokens(source, _iterate_xml_tokens(source.text))


class HtmlText(TaggedText):
    """The text of tokens without a block tag between them."""

    def __init__(self, tokens: Sequence[HtmlToken]) -> None:
        self.tokens = tokens
        super().__init__(token.make_node() for token in tokens)

    def write(self) -> str:
        """Return the tokens with the translation of their text."""
        words = (token.source for token in self.tokens if token.text and not token.source.startswith(CDATA_START))
        self.escape = make_html_escaper("".join(words), ENTITY.findall(self.text))
        return super().write()


def _set_direction(token: HtmlToken, direction: str, language: str) -> None:
    """Set the direction of a tag that has one, and direction and language of <html>."""
    if not token.tag_name or token.is_closing:
        return
    token.source = re.sub(
        r"""(\sdir\s*=\s*["']?)(?:rtl|ltr)\b""", rf"\g<1>{direction}", token.source, flags=re.IGNORECASE
    )
    if token.tag_name == "html":
        if language:
            token.source = re.sub(r"""(\s(?:xml:)?lang\s*=\s*["']?)[\w-]+""", rf"\g<1>{language}", token.source)
        if not re.search(r"\sdir\s*=", token.source):
            token.source = f'{token.source[:5]} dir="{direction}"{token.source[5:]}'


def _parse_tokens(source: EncodedText, tokens: Iterable[HtmlToken]) -> ParsedDocument:
    """Build the document of a file that is split into tokens."""
    spans = list(_split_at_block_tags(tokens))
    attributes = [attribute for span in spans for token in span for attribute in _find_translated_attributes(token)]
    filled = ((index, HtmlText(span)) for index, span in enumerate(spans) if any(token.text.strip() for token in span))
    texts = {index: text for index, text in filled if text.text}
    target: dict[str, str] = {}

    def write() -> bytes:
        for token, of_token in groupby(attributes, key=lambda attribute: attribute.token):
            _fill_attributes(token, of_token)
        all_texts = [text.text for text in texts.values()], [text.translation for text in texts.values()]
        if direction := find_new_direction(*map(" ".join, all_texts)):
            for token in chain.from_iterable(spans):
                _set_direction(token, direction, target.get("language", ""))
        out = ["".join(token.source for token in span) for span in spans]
        for index, text in texts.items():
            if not text.is_unchanged:
                out[index] = text.write()
        return source.encode_like_source("".join(out), is_markup=True)

    return ParsedDocument([*attributes, *texts.values()], write, set_language=partial(target.__setitem__, "language"))


def _iterate_html_tokens(source: str) -> Iterator[HtmlToken]:
    """Yield the tokens of an HTML file."""
    position = 0
    while match := HTML_TOKEN.match(source, position):
        position = match.end()
        name = (match["name"] or "").lower()
        if match["text"]:
            yield HtmlToken(match[0], text=normalize_html_text(match[0]))
            continue
        yield HtmlToken(match[0], name, bool(match["close"]), name in VOID_ELEMENTS)
        if name in HTML["raw_text"] and not match["close"]:
            end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(source, position)
            raw = source[position : end.start() if end else None]
            if raw:
                yield HtmlToken(raw, text=normalize_html_text(raw) if name == "title" else "")
            position += len(raw)


def _iterate_xml_tokens(source: str) -> Iterator[HtmlToken]:
    """Yield the tokens of an XML file that has been checked."""
    position = 0
    while match := XML_TOKEN.match(source, position):
        position = match.end()
        if match["text"]:
            yield HtmlToken(match[0], text=match[0])
        elif match["data"]:
            yield HtmlToken(match[0], text=escape_text(match["data"]))
        else:
            name = (match["name"] or "").rpartition(":")[2].lower()
            yield HtmlToken(match[0], name, bool(match["close"]), match[0].endswith("/>"))


def _split_at_block_tags(tokens: Iterable[HtmlToken]) -> Iterator[list[HtmlToken]]:
    """Yield spans of inline tokens, and the block tags between them."""
    span: list[HtmlToken] = []
    for token in _merge_untranslated_elements(iter(tokens)):
        if token.is_inline:
            span.append(token)
        else:
            yield from _split_at_unbalanced_tags(span)
            yield [token]
            span = []
    yield from _split_at_unbalanced_tags(span)


def _split_at_unbalanced_tags(stretch: Sequence[HtmlToken]) -> Iterator[list[HtmlToken]]:
    """Split a span at each tag whose other half is outside: in reordered words, halves could cross."""
    position = 0
    for bound in sorted(_find_unbalanced_tags(stretch)):
        yield list(stretch[position:bound])
        yield [stretch[bound]]
        position = bound + 1
    yield list(stretch[position:])


def _find_unbalanced_tags(stretch: Sequence[HtmlToken]) -> set[int]:
    """Find tags without their other half, that cross others, are nested too deeply, or enclose such tags."""
    tags = [TagHalf(token.pair_key, not token.is_closing, token.is_closing) for token in stretch]
    partners = match_tag_pairs(tags, MAX_TAG_DEPTH)
    unbalanced: set[int] = set()
    last_unbalanced = -1
    for index, half in enumerate(tags):
        partner = partners.get(index, index)
        if half.key and (partner == index or partner < last_unbalanced < index):
            unbalanced.update((partner, index))
            last_unbalanced = index
    return unbalanced


def _is_untranslated(token: HtmlToken) -> bool:
    return token.tag_name in HTML["untranslated"] or bool(NO_TRANSLATE_ATTRIBUTE.search(token.source))


def _merge_untranslated_elements(tokens: Iterator[HtmlToken]) -> Iterator[HtmlToken]:
    """Yield the tokens, with each untranslated element merged into one."""
    for token in tokens:
        if token.is_closing or not token.pair_key or not _is_untranslated(token):
            yield token
            continue
        sources, depth = [token.source], 1
        while depth and (following := next(tokens, None)):
            sources.append(following.source)
            if following.tag_name == token.tag_name and not following.is_standalone:
                depth += -1 if following.is_closing else 1
        yield HtmlToken("".join(sources), "" if token.is_inline else token.tag_name, is_standalone=True)


def _find_translated_attributes(token: HtmlToken) -> Iterator[TranslatedAttribute]:
    """Yield the translatable attributes of a tag."""
    if token.is_closing or not token.tag_name or token.tag_name in HTML["without_translated_attributes"]:
        return
    for attribute in HTML_ATTRIBUTE.finditer(token.source, len(token.tag_name) + 1):
        value = attribute["value"]
        if value and attribute["name"].lower() in HTML["translated_attributes"]:
            text = normalize_html_text(value[1:-1] if value[0] in "\"'" else value)
            if has_translatable_words(unescape_markup(text)):
                start, end = attribute.span("value")
                yield TranslatedAttribute(replace_line_breaks(text), token=token, start=start, end=end)


EPUB_MIMETYPE = b"application/epub+zip"
XHTML_EXTENSIONS = (".xhtml", ".html", ".htm", ".xht", ".ncx")


def parse_epub(entries: Mapping[str, ZipEntry], limits: DocumentLimits) -> ParsedDocument:
    """Parse an .epub file."""
    if "mimetype" not in entries or entries["mimetype"].data.strip() != EPUB_MIMETYPE:
        raise DocumentError(f"does not match its extension: its type is not {EPUB_MIMETYPE.decode()!r}")
    names = [name for name in entries if name.lower().endswith(XHTML_EXTENSIONS)]
    return parse_zip_document(entries, limits, names, parse_xhtml)
