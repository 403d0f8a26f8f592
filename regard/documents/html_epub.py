"""HTML and XHTML: the text between two block tags is one passage, with the inline tags in it.

The file is cut into tags and text as a browser would; nothing is parsed into a tree and written anew, so what is no
text stays as it is, mistakes included.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from regard.documents.archive import DocumentLimits, ZipEntry, parse_zip_document
from regard.documents.base import (
    META_CHARSET,
    XML_DECLARATION,
    DocumentError,
    EncodedText,
    ParsedDocument,
    decode_declared_encoding,
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
from regard.documents.tagged_text import MAX_TAG_DEPTH, InlineNode, OutputFragment, TaggedText
from regard.documents.xml_tree import XML_TOKEN, check_xml


def _make_name_set(text: str) -> frozenset[str]:
    """Words as a set."""
    return frozenset(text.split())


# Every alternative reaches its end or the file's, so that no file makes the search start over and over.
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
TRANSLATED_ATTRIBUTES = _make_name_set("alt title placeholder")
INLINE_TAGS = _make_name_set(
    "a abbr acronym b bdi bdo big br cite data del dfn em font i img input ins kbd label mark nobr q rb rp rt ruby s "
    "samp small span strike strong sub sup time tt u var wbr code svg math"
)
SEPARATOR_TAGS = _make_name_set("br img input hr")
VOID_TAGS = _make_name_set("area base br col embed hr img input link meta param source track wbr")
RAW_TEXT_TAGS = _make_name_set(
    "script style textarea title iframe noembed noframes xmp plaintext"
)  # there are no tags inside
UNTRANSLATED_TAGS = _make_name_set(
    "script style code pre textarea iframe noembed noframes xmp plaintext svg math docauthor"
)
TAGS_WITHOUT_TRANSLATED_ATTRIBUTES = UNTRANSLATED_TAGS | _make_name_set("link meta")  # a link's title is a name
NO_TRANSLATE_ATTRIBUTE = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"[^"]*|'[^']*)\bnotranslate\b""", re.IGNORECASE
)


@dataclass
class HtmlToken:
    """A tag, a stretch of text, or something else."""

    source: str
    tag_name: str = ""  # of a tag
    is_closing: bool = False
    is_standalone: bool = False
    text: str = ""  # as strict markup has it

    @property
    def starts_untranslated(self) -> bool:
        """Whether it begins something that is not translated."""
        opens = bool(self.tag_name) and not self.is_closing and not self.is_standalone
        return opens and (self.tag_name in UNTRANSLATED_TAGS or bool(NO_TRANSLATE_ATTRIBUTE.search(self.source)))

    @property
    def is_inline(self) -> bool:
        """Whether it stands among words."""
        return not self.tag_name or self.tag_name in INLINE_TAGS

    def make_node(self) -> InlineNode:
        """What it is in a passage."""
        if self.text:
            return InlineNode(self.text)
        half = "" if self.is_standalone else self.tag_name
        part = OutputFragment(None, lambda: self.source)
        return InlineNode(
            opening=[part],
            pair_key=half,
            is_opening=not self.is_closing,
            separates_words=self.tag_name in SEPARATOR_TAGS,
        )


class TranslatedAttribute(NamedTuple):
    """An attribute that people read: its place in a tag with its quotes, and its text."""

    token: HtmlToken
    start: int
    end: int
    text: str

    def format_value(self, translation: str) -> str:
        """The translation as the tag has it."""
        written = self.token.source[self.start : self.end]
        if translation in ("", self.text):
            return written
        inside = written[1:-1] if written[0] in "\"'" else written
        value = make_html_escaper(inside, ENTITY.findall(self.text))(replace_line_breaks(translation))
        if written[0] == "'":
            return "'" + value.replace("'", "&#39;") + "'"
        if written[0] == '"' or not UNQUOTED_VALUE.fullmatch(value):
            return '"' + value.replace('"', "&quot;") + '"'
        return value


def _fill_attributes(attributes: Sequence[tuple[TranslatedAttribute, str]]) -> None:
    """Write the translations of the attributes of one tag into it."""
    token = attributes[0][0].token
    made, place = [], 0
    for attribute, answer in attributes:
        made += [token.source[place : attribute.start], attribute.format_value(answer)]
        place = attribute.end
    token.source = "".join(made) + token.source[place:]


def parse_html(content: bytes) -> ParsedDocument:
    """An HTML file."""
    source = decode_declared_encoding(content, META_CHARSET)
    return _parse_tokens(source, _iterate_html_tokens(source.text))


def parse_xhtml(content: bytes) -> ParsedDocument:
    """An XHTML file, or another one in XML whose text is between its tags."""
    source = decode_declared_encoding(content, XML_DECLARATION)
    check_xml(source.text)
    return _parse_tokens(source, _iterate_xml_tokens(source.text))


def _parse_tokens(source: EncodedText, tokens: Iterable[HtmlToken]) -> ParsedDocument:
    """A file that is cut into tokens."""
    stretches = list(_split_at_block_tags(tokens))
    attributes = [found for stretch in stretches for token in stretch for found in _find_translated_attributes(token)]
    spoken = {
        place: TaggedText(token.make_node() for token in stretch)
        for place, stretch in enumerate(stretches)
        if any(token.text.strip() for token in stretch)
    }
    passages = {place: passage for place, passage in spoken.items() if passage.text}

    def write(translations: Sequence[str]) -> bytes:
        filled = zip(attributes, translations[: len(attributes)], strict=True)
        for _, group in groupby(filled, key=lambda pair: id(pair[0].token)):
            _fill_attributes(list(group))
        out = ["".join(token.source for token in stretch) for stretch in stretches]
        for (place, passage), answer in zip(passages.items(), translations[len(attributes) :], strict=True):
            if answer not in ("", passage.text):
                words = (token.source for token in stretches[place] if token.text)
                written = "".join(source for source in words if not source.startswith("<![CDATA["))
                out[place] = passage.write(answer, make_html_escaper(written, ENTITY.findall(passage.text)))
        return source.encode_like_source("".join(out), is_markup=True)

    return ParsedDocument([*(one.text for one in attributes), *(passage.text for passage in passages.values())], write)


def _iterate_html_tokens(source: str) -> Iterator[HtmlToken]:
    """An HTML file, piece by piece."""
    place = 0
    while found := HTML_TOKEN.match(source, place):
        place = found.end()
        name = (found["name"] or "").lower()
        if found["text"]:
            yield HtmlToken(found[0], text=normalize_html_text(found[0]))
            continue
        yield HtmlToken(found[0], name, bool(found["close"]), name in VOID_TAGS)
        if name in RAW_TEXT_TAGS and not found["close"]:
            end = re.compile(rf"</{name}(?=[\s/>])|\Z", re.IGNORECASE).search(source, place)
            stop = end.start() if end else len(source)
            if stop > place:
                yield HtmlToken(
                    source[place:stop], text=normalize_html_text(source[place:stop]) if name == "title" else ""
                )
            place = stop


def _iterate_xml_tokens(source: str) -> Iterator[HtmlToken]:
    """An XML file, piece by piece; it has been checked."""
    place = 0
    while found := XML_TOKEN.match(source, place):
        place = found.end()
        if found["text"]:
            yield HtmlToken(found[0], text=found[0])
        elif found["data"]:
            yield HtmlToken(found[0], text=escape_text(found["data"]))
        else:
            name = (found["name"] or "").rpartition(":")[2].lower()
            yield HtmlToken(found[0], name, bool(found["close"]), found[0].endswith("/>"))


def _split_at_block_tags(tokens: Iterable[HtmlToken]) -> Iterator[list[HtmlToken]]:
    """Stretches of inline tokens, and everything between them."""
    stretch: list[HtmlToken] = []
    for token in _merge_untranslated_elements(iter(tokens)):
        if token.is_inline:
            stretch.append(token)
        else:
            yield from _split_at_unbalanced_tags(stretch)
            yield [token]
            stretch = []
    yield from _split_at_unbalanced_tags(stretch)


def _split_at_unbalanced_tags(stretch: Sequence[HtmlToken]) -> Iterator[list[HtmlToken]]:
    """A stretch, cut at each tag whose other half is outside: among moving words, halves could pass each other."""
    place = 0
    for bound in sorted(_find_unbalanced_tags(stretch)):
        yield list(stretch[place:bound])
        yield [stretch[bound]]
        place = bound + 1
    yield list(stretch[place:])


def _find_unbalanced_tags(stretch: Sequence[HtmlToken]) -> set[int]:
    """The places of tags that have no other half in a stretch, cross others, are too deep, or go around such a one."""
    found: set[int] = set()
    opened: list[int] = []
    names: Counter[str] = Counter()
    last = -1
    for place, token in enumerate(stretch):
        if not token.tag_name or token.is_standalone:
            continue
        if not token.is_closing:
            opened.append(place)
            names[token.tag_name] += 1
        elif not names[token.tag_name]:
            found.add(place)
            last = place
        else:
            inner, deep = set(), len(opened) > MAX_TAG_DEPTH
            while stretch[start := opened.pop()].tag_name != token.tag_name:
                names[stretch[start].tag_name] -= 1
                inner.add(start)
            names[token.tag_name] -= 1
            if inner or deep or last > start:
                found.update(inner, (start, place))
                last = place
    return found | set(opened)


def _merge_untranslated_elements(tokens: Iterator[HtmlToken]) -> Iterator[HtmlToken]:
    """The tokens, where all of what is not translated is one."""
    for token in tokens:
        if not token.starts_untranslated:
            yield token
            continue
        pieces, depth = [token.source], 1
        while depth and (following := next(tokens, None)):
            pieces.append(following.source)
            if following.tag_name == token.tag_name and not following.is_standalone:
                depth += -1 if following.is_closing else 1
        yield HtmlToken("".join(pieces), "" if token.is_inline else token.tag_name, is_standalone=True)


def _find_translated_attributes(token: HtmlToken) -> Iterator[TranslatedAttribute]:
    """The attributes of a tag that people read."""
    if token.is_closing or not token.tag_name or token.tag_name in TAGS_WITHOUT_TRANSLATED_ATTRIBUTES:
        return
    for found in HTML_ATTRIBUTE.finditer(token.source, len(token.tag_name) + 1):
        value = found["value"]
        if value and found["name"].lower() in TRANSLATED_ATTRIBUTES:
            text = normalize_html_text(value[1:-1] if value[0] in "\"'" else value)
            if has_translatable_words(unescape_markup(text)):
                yield TranslatedAttribute(token, *found.span("value"), replace_line_breaks(text))


EPUB_MIMETYPE = b"application/epub+zip"
XHTML_EXTENSIONS = (".xhtml", ".html", ".htm", ".xht", ".ncx")


def parse_epub(entries: Mapping[str, ZipEntry], limits: DocumentLimits) -> ParsedDocument:
    """An .epub file."""
    if "mimetype" not in entries or entries["mimetype"].data.strip() != EPUB_MIMETYPE:
        raise DocumentError(f"is not what its ending says: its type is not {EPUB_MIMETYPE.decode()!r}")
    return parse_zip_document(
        entries, {name: parse_xhtml for name in entries if name.lower().endswith(XHTML_EXTENSIONS)}, limits
    )
