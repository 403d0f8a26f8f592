"""XML tree that keeps the source of each tag, so that unchanged parts are written byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from sys import intern  # a document has few different tags, and many of each

from regard.data.readers.text import to_single_line
from regard.data.readers.xml_stream import SAFE_PARSER_OPTIONS, free_element
from regard.documents.base import XML_DECLARATION, DocumentError, EncodedText, ParsedDocument, decode_declared_encoding
from regard.documents.escaping import escape_text
from regard.documents.tagged_text import TaggedText

MAX_XML_DEPTH = 256
MAX_NAMESPACE_PREFIXES = 500  # in scope: each nested element that declares another one copies them all
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
    def prefix(self) -> str:
        """The namespace prefix in the file, with its colon."""
        tag = XML_TOKEN.match(self.opening)
        return "".join((tag["name"] if tag else "").rpartition(":")[:2])

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
        out: list[str] = []
        self.append_source(out)
        return "".join(out)

    def append_source(self, out: list[str]) -> None:
        """Append the source of the element, in parts."""
        out.append(self.opening)
        for child in self.children:
            child.append_source(out)
        out.append(self.closing)

    def find_descendants(self, names: Collection[str], excluding: Collection[str] = ()) -> list[XmlElement]:
        """Return all elements of these names, inner ones first, but not those inside `excluding`."""
        descendants, pending = [], [self]
        while pending:
            element = pending.pop()
            if element.name in names:
                descendants.append(element)
            pending += [child for child in element.children if child.name not in excluding]
        return descendants[::-1]


def check_xml(text: str) -> None:
    """Raise DocumentError for malformed XML, and for XML that declares entities."""
    from lxml import etree

    prologue = PROLOGUE.match(text)
    if DOCTYPE_WITH_SUBSET.match(text, prologue.end() if prologue else 0):
        raise DocumentError("declares XML entities, which are not supported")
    depth = 0
    try:
        for event, element in etree.iterparse(
            BytesIO(text.encode()), ("start", "end"), encoding="utf-8", **SAFE_PARSER_OPTIONS
        ):
            depth += 1 if event == "start" else -1
            if depth > MAX_XML_DEPTH:
                raise DocumentError(f"has elements nested more than {MAX_XML_DEPTH} deep")
            if event == "end":
                free_element(element)
    except etree.XMLSyntaxError as error:
        reason = to_single_line(error.msg).partition(", line ")[0]
        raise DocumentError(f"is damaged or cut off; its XML cannot be read: {reason}") from error


def iterate_attributes(tag: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a tag, as written."""
    for attribute in XML_ATTRIBUTE.finditer(tag):
        yield attribute["name"], attribute["double"] or attribute["single"] or ""


class NamespaceResolver:
    """Resolve names to fixed prefixes, whatever prefixes a file uses."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self.prefixes = prefixes  # fixed prefix of each namespace
        self.scopes: list[dict[str, str]] = [{}]

    def enter_element(self, tag: str) -> None:
        """Enter an element, which may declare prefixes."""
        scope = self.scopes[-1]
        if "xmlns" in tag:
            declared = {name: value for name, value in iterate_attributes(tag) if name.partition(":")[0] == "xmlns"}
            scope = scope | {name.partition(":")[2]: value for name, value in declared.items()}
            if len(scope) > MAX_NAMESPACE_PREFIXES:
                raise DocumentError(f"has {len(scope):,} namespace prefixes; the maximum is {MAX_NAMESPACE_PREFIXES:,}")
        self.scopes.append(scope)

    def leave_element(self) -> None:
        """Leave an element."""
        self.scopes.pop()

    def resolve_name(self, name: str) -> str:
        """Return a name with the fixed prefix of its namespace; `?` for an unknown namespace."""
        prefix, _, local = name.rpartition(":")
        return intern(f"{self.prefixes.get(self.scopes[-1].get(prefix, ''), '?')}:{local}")


def parse_xml(content: bytes, prefixes: Mapping[str, str]) -> tuple[EncodedText, XmlElement]:
    """Parse an XML file to a tree; `prefixes` maps namespaces to fixed prefixes."""
    source = decode_declared_encoding(content, XML_DECLARATION)
    check_xml(source.text)
    return source, _build_tree(source.text, NamespaceResolver(prefixes))


def _build_tree(text: str, namespaces: NamespaceResolver) -> XmlElement:
    """Build the tree of well-formed XML."""
    root = XmlElement("", "")
    stack, position = [root], 0
    while (token := XML_TOKEN.match(text, position)) and not (token["close"] and len(stack) == 1):
        position = token.end()
        if token["close"]:
            stack.pop().closing = intern(token[0])
            namespaces.leave_element()
        elif token["name"]:
            namespaces.enter_element(token[0])
            element = XmlElement(namespaces.resolve_name(token["name"]), intern(token[0]))
            stack[-1].children.append(element)
            if token[0].endswith("/>"):
                namespaces.leave_element()
            else:
                stack.append(element)
        else:
            is_text = token["text"] or token["data"] is not None
            stack[-1].children.append(XmlElement(TEXT_NODE if is_text else "", token[0]))
    if position != len(text) or len(stack) > 1:
        raise DocumentError("is XML that cannot be read")
    return root


def parse_xml_paragraphs(
    encoded: EncodedText,
    root: XmlElement,
    paragraphs: Iterable[XmlElement],
    parse_paragraph: Callable[[XmlElement], TaggedText],
) -> ParsedDocument:
    """Build the document of a tree; inner paragraphs come, and are written, before outer ones."""
    tagged_texts = [(element, parse_paragraph(element)) for element in paragraphs if element.children]
    translatable = [(element, tagged_text) for element, tagged_text in tagged_texts if tagged_text.text]

    def write(translations: Sequence[str]) -> bytes:
        for (element, tagged_text), translation in zip(translatable, translations, strict=True):
            if translation not in ("", tagged_text.text):
                element.replace_content(tagged_text.write(translation))
        return encoded.encode_like_source(root.serialize(), is_markup=True)

    return ParsedDocument([tagged_text.text for _, tagged_text in translatable], write)
