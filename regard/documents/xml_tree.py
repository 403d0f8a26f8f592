"""XML tree that keeps the source of each tag, so that unchanged parts are written byte for byte; element names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from sys import intern  # a document has few different tags, and many of each

from regard.data.readers.tmx_xliff import SAFE_PARSER_OPTIONS, free_element
from regard.documents.base import XML_DECLARATION, DocumentError, EncodedText, ParsedDocument, decode_declared_encoding
from regard.documents.escaping import escape_text
from regard.documents.tagged_text import (
    InlineNode,
    OutputFragment,
    TaggedText,
    find_new_direction,
    make_tag_node,
    nest_tag_pairs,
)
from regard.errors import to_single_line
from regard.paths import read_package_yaml

_DECLARATION = read_package_yaml("regard.documents", "elements.yaml")
NAMESPACES: dict[str, dict[str, str]] = _DECLARATION.pop("namespaces")  # prefix of each namespace, by format
ELEMENT_NAMES = {  # sets of names, by format and by what they mean
    format: {kind: frozenset(names.split()) for kind, names in kinds.items()} for format, kinds in _DECLARATION.items()
}

MAX_XML_DEPTH = 256
MAX_NAMESPACE_PREFIXES = 500  # declared by an element and those around it
PROLOGUE = re.compile(r"(?:\s++|(?><\?.*?\?>)|(?><!--.*?-->))*+", re.DOTALL)
DOCTYPE = r"""<!DOCTYPE(?:[^>"'\[]++|"[^"]*+"|'[^']*+')*+"""
DOCTYPE_WITH_SUBSET = re.compile(rf"{DOCTYPE}\[")
XML_TOKEN = re.compile(
    rf"<!--.*?-->|<\?.*?\?>|{DOCTYPE}>|<!\[CDATA\[(?P<data>.*?)\]\]>"
    r"""|<(?P<close>/?)(?P<name>[^\s/<>]++)(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>|(?P<text>[^<]+)""",
    re.DOTALL,
)
XML_ATTRIBUTE = re.compile(r"""\s(?P<name>[^\s=<>"']+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')""")
TEXT_NODE = "#text"
CDATA_START = "<![CDATA["


@dataclass(slots=True)
class XmlElement:
    """An element with the source of its tags; text, comments and the like have only an opening."""

    name: str  # with the fixed prefix; `#text` for text, empty for comments and the like
    opening: str
    closing: str = ""
    children: list[XmlElement] = field(default_factory=list)

    @property
    def text_markup(self) -> str:
        """The text directly inside, as markup."""
        return "".join(child.markup for child in self.children if child.name == TEXT_NODE)

    @property
    def markup(self) -> str:
        """The text of a text node as markup; that of a CDATA section is escaped."""
        is_data = self.opening.startswith(CDATA_START)
        return escape_text(self.opening.removeprefix(CDATA_START).removesuffix("]]>")) if is_data else self.opening

    @property
    def is_white_space(self) -> bool:
        """True for a text node without words."""
        return self.name == TEXT_NODE and not self.markup.strip()

    def find_attribute(self, name: str) -> str:
        """Return an attribute by its local name; "" if there is none."""
        return next((value for key, value in iterate_attributes(self.opening) if key.rpartition(":")[2] == name), "")

    def find_child(self, name: str) -> XmlElement | None:
        """Return the first child of a name."""
        return next((child for child in self.children if child.name == name), None)

    def replace_content(self, source: str) -> None:
        """Replace the content by a source text."""
        if not self.closing:  # written as <name/>
            self.closing = f"</{self.opening[1:-2].split()[0]}>"
            self.opening = f"{self.opening[:-2].rstrip()}>"
        self.children = [XmlElement(TEXT_NODE, source)]

    def serialize(self) -> str:
        """Return the source of the element."""
        return self.opening + "".join(child.serialize() for child in self.children) + self.closing

    def make_node(self, pair_key: str = "", is_opening: bool = False, separates_words: bool = False) -> InlineNode:
        """Build a standalone node of a tagged text or, with a key, half of a pair."""
        return make_tag_node(self.serialize, pair_key, is_opening, separates_words)

    def make_container_node(self, children: Iterable[InlineNode], properties: Collection[str] = ()) -> InlineNode:
        """Build a pair of a tagged text; children named in `properties` belong to its beginning."""
        opening = [child.serialize for child in self.children if child.name in properties]
        return InlineNode(
            opening=[OutputFragment(None, write) for write in [lambda: self.opening, *opening]],
            children=nest_tag_pairs(children),
            closing=[OutputFragment(None, lambda: self.closing)],
        )

    def walk(self, enters: Callable[[XmlElement], bool] = lambda element: True) -> Iterator[XmlElement]:
        """Yield the element and its descendants in order; children only of elements that it `enters`."""
        pending = [self]
        while pending:
            element = pending.pop()
            yield element
            if enters(element):
                pending += reversed(element.children)


def check_xml(text: str) -> list[str]:
    """Return all element names, `{namespace}name`; raise DocumentError for malformed XML and declared entities."""
    from lxml import etree

    prologue = PROLOGUE.match(text)
    if DOCTYPE_WITH_SUBSET.match(text, prologue.end() if prologue else 0):
        raise DocumentError("declares XML entities, which are not supported")
    names, depth, prefix_count = [], 0, 0
    events = ("start", "end", "start-ns", "end-ns")
    try:
        for event, element in etree.iterparse(BytesIO(text.encode()), events, encoding="utf-8", **SAFE_PARSER_OPTIONS):
            if event == "start":
                names.append(intern(element.tag))
                depth += 1
                if depth > MAX_XML_DEPTH:
                    raise DocumentError(f"has elements nested more than {MAX_XML_DEPTH} deep")
                if prefix_count > MAX_NAMESPACE_PREFIXES:
                    raise DocumentError(f"has {prefix_count:,} namespace prefixes; maximum {MAX_NAMESPACE_PREFIXES:,}")
            elif event == "end":
                depth -= 1
                free_element(element)
            else:
                prefix_count += 1 if event == "start-ns" else -1
    except etree.XMLSyntaxError as error:
        reason = to_single_line(error.msg).partition(", line ")[0]
        raise DocumentError(f"is damaged or cut off; its XML cannot be read: {reason}") from error
    return names


def iterate_attributes(tag: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a tag, as written."""
    for attribute in XML_ATTRIBUTE.finditer(tag):
        yield attribute["name"], attribute["double"] or attribute["single"] or ""


def parse_xml(content: bytes, format: str) -> tuple[EncodedText, XmlElement]:
    """Parse an XML file to a tree; names have the fixed prefixes of the format's namespaces, others get `?`."""
    source = decode_declared_encoding(content, XML_DECLARATION)
    names = iter(check_xml(source.text))
    root = XmlElement("", "")
    stack, position = [root], 0
    while (token := XML_TOKEN.match(source.text, position)) and not (token["close"] and len(stack) == 1):
        position = token.end()
        if token["close"]:
            stack.pop().closing = intern(token[0])
        elif token["name"]:
            namespace, _, local_name = next(names, "").removeprefix("{").rpartition("}")
            element = XmlElement(intern(f"{NAMESPACES[format].get(namespace, '?')}:{local_name}"), intern(token[0]))
            stack[-1].children.append(element)
            if not token[0].endswith("/>"):
                stack.append(element)
        else:
            is_text = token["text"] or token["data"] is not None
            stack[-1].children.append(XmlElement(TEXT_NODE if is_text else "", token[0]))
    if position != len(source.text) or len(stack) > 1:
        raise DocumentError("is XML that cannot be read")
    return source, root


def parse_xml_paragraphs(
    content: bytes,
    format: str,
    iterate_nodes: Callable[[XmlElement], Iterable[InlineNode]],
    set_direction: Callable[[XmlElement, str, str], str] = lambda element, content, direction: content,
) -> ParsedDocument:
    """Parse an XML file whose texts are the format's paragraphs, outside of its excluded elements.

    `set_direction` gets a paragraph whose translation runs in another direction than its text, its new content, and
    that direction; it returns the content with it.
    """
    (encoded, root), names = parse_xml(content, format), ELEMENT_NAMES[format]
    elements = root.walk(enters=lambda element: element.name not in names["excluded"])
    paragraphs = [element for element in elements if element.name in names["paragraphs"] and element.children]
    tagged_texts = [(element, TaggedText(iterate_nodes(element))) for element in paragraphs]
    translatable = [(element, tagged_text) for element, tagged_text in tagged_texts if tagged_text.text]

    def write() -> bytes:
        # From the end, because inner paragraphs are written before outer ones.
        for element, tagged_text in reversed(translatable):
            if not tagged_text.is_unchanged:
                content = tagged_text.write()
                if direction := find_new_direction(tagged_text.text, tagged_text.translation):
                    content = set_direction(element, content, direction)
                element.replace_content(content)
        return encoded.encode_like_source(root.serialize(), is_markup=True)

    return ParsedDocument([tagged_text for _, tagged_text in translatable], write)
