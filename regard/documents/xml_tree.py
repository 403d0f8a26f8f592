"""XML as a tree that remembers how each tag was written: what is not changed is written again as it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from sys import intern  # a document has few different tags, and many of each

from regard.data.readers.text_io import to_single_line
from regard.data.readers.xml_stream import SAFE_PARSER_OPTIONS, free_element
from regard.documents.base import XML_DECLARATION, DocumentError, EncodedText, ParsedDocument, decode_declared_encoding
from regard.documents.escaping import escape_text
from regard.documents.tagged_text import TaggedText

MAX_XML_DEPTH = 256
MAX_NAMESPACE_PREFIXES = (
    500  # of namespaces in an element: each element inside that declares another has a copy of them
)
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
    """An element with its tags as they are written; text, comments and the like are all opening."""

    name: str  # with the prefix that we use; `#text`, or empty for what is neither text nor element
    opening: str
    closing: str = ""
    children: list[XmlElement] = field(default_factory=list)

    @property
    def text_markup(self) -> str:
        """The text directly inside, as markup."""
        return "".join(child.markup for child in self.children if child.name == TEXT_NODE)

    @property
    def markup(self) -> str:
        """The words of a text as markup: those of a CDATA section are escaped."""
        is_data = self.opening.startswith(CDATA_START)
        return escape_text(self.opening.removeprefix(CDATA_START).removesuffix("]]>")) if is_data else self.opening

    @property
    def prefix(self) -> str:
        """The prefix that the file uses, with its colon."""
        tag = XML_TOKEN.match(self.opening)
        return "".join((tag["name"] if tag else "").rpartition(":")[:2])

    def find_attribute(self, name: str) -> str:
        """An attribute by its name without prefix, or nothing."""
        return next((value for key, value in iterate_attributes(self.opening) if key.rpartition(":")[2] == name), "")

    def find_child(self, name: str) -> XmlElement | None:
        """The first child of a name."""
        return next((child for child in self.children if child.name == name), None)

    def replace_content(self, source: str) -> None:
        """Puts something else inside."""
        if not self.closing:  # it was written <so/>
            self.closing = f"</{self.opening[1:-2].split()[0]}>"
            self.opening = f"{self.opening[:-2].rstrip()}>"
        self.children = [XmlElement(TEXT_NODE, source)]

    def serialize(self) -> str:
        """How it is written."""
        out: list[str] = []
        self.append_source(out)
        return "".join(out)

    def append_source(self, out: list[str]) -> None:
        """How it is written, piece by piece."""
        out.append(self.opening)
        for child in self.children:
            child.append_source(out)
        out.append(self.closing)

    def find_descendants(self, names: Collection[str], excluding: Collection[str] = ()) -> list[XmlElement]:
        """All of these names, inner ones before outer ones; what is inside `without` is left alone."""
        found, left = [], [self]
        while left:
            element = left.pop()
            if element.name in names:
                found.append(element)
            left += [child for child in element.children if child.name not in excluding]
        return found[::-1]


def check_xml(text: str) -> None:
    """Refuses what is no XML, and XML with entities of its own."""
    from lxml import etree

    prologue = PROLOGUE.match(text)
    if DOCTYPE_WITH_SUBSET.match(text, prologue.end() if prologue else 0):
        raise DocumentError("declares XML entities of its own, which are not read")
    depth = 0
    try:
        for event, element in etree.iterparse(
            BytesIO(text.encode()), ("start", "end"), encoding="utf-8", **SAFE_PARSER_OPTIONS
        ):
            depth += 1 if event == "start" else -1
            if depth > MAX_XML_DEPTH:
                raise DocumentError(f"has elements in more than {MAX_XML_DEPTH} others")
            if event == "end":
                free_element(element)
    except etree.XMLSyntaxError as error:
        said = to_single_line(error.msg).partition(", line ")[0]
        raise DocumentError(f"is damaged or cut off, its XML cannot be read: {said}") from error


def iterate_attributes(tag: str) -> Iterator[tuple[str, str]]:
    """The attributes of a tag, as they are written."""
    for found in XML_ATTRIBUTE.finditer(tag):
        yield found["name"], found["double"] or found["single"] or ""


class NamespaceResolver:
    """Names with the prefixes that we use, whichever a file has chosen."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self.prefixes = prefixes  # our prefix for a namespace
        self.scopes: list[dict[str, str]] = [{}]

    def enter_element(self, tag: str) -> None:
        """Begins an element, which may declare prefixes."""
        scope = self.scopes[-1]
        if "xmlns" in tag:
            declared = {name: value for name, value in iterate_attributes(tag) if name.partition(":")[0] == "xmlns"}
            scope = scope | {name.partition(":")[2]: value for name, value in declared.items()}
            if len(scope) > MAX_NAMESPACE_PREFIXES:
                raise DocumentError(f"has {len(scope):,} namespace prefixes, and may have {MAX_NAMESPACE_PREFIXES:,}")
        self.scopes.append(scope)

    def leave_element(self) -> None:
        """Ends an element."""
        self.scopes.pop()

    def resolve_name(self, name: str) -> str:
        """A name as we write it; one of a namespace that we do not know has a ? for its prefix."""
        prefix, _, local = name.rpartition(":")
        return intern(f"{self.prefixes.get(self.scopes[-1].get(prefix, ''), '?')}:{local}")


def parse_xml(content: bytes, prefixes: Mapping[str, str]) -> tuple[EncodedText, XmlElement]:
    """An XML file and its tree; `known` are our prefixes for the namespaces that matter."""
    source = decode_declared_encoding(content, XML_DECLARATION)
    check_xml(source.text)
    return source, _build_tree(source.text, NamespaceResolver(prefixes))


def _build_tree(text: str, namespaces: NamespaceResolver) -> XmlElement:
    """The tree of a text that is known to be XML."""
    root = XmlElement("", "")
    stack, place = [root], 0
    while (found := XML_TOKEN.match(text, place)) and not (found["close"] and len(stack) == 1):
        place = found.end()
        if found["close"]:
            stack.pop().closing = intern(found[0])
            namespaces.leave_element()
        elif found["name"]:
            namespaces.enter_element(found[0])
            element = XmlElement(namespaces.resolve_name(found["name"]), intern(found[0]))
            stack[-1].children.append(element)
            if found[0].endswith("/>"):
                namespaces.leave_element()
            else:
                stack.append(element)
        else:
            is_text = found["text"] or found["data"] is not None
            stack[-1].children.append(XmlElement(TEXT_NODE if is_text else "", found[0]))
    if place != len(text) or len(stack) > 1:
        raise DocumentError("is XML that cannot be read")
    return root


def parse_xml_paragraphs(
    encoded: EncodedText,
    root: XmlElement,
    paragraphs: Iterable[XmlElement],
    parse_paragraph: Callable[[XmlElement], TaggedText],
) -> ParsedDocument:
    """The file with this root; paragraphs come before those that they are in, and are written before them."""
    made = [(element, parse_paragraph(element)) for element in paragraphs if element.children]
    spoken = [(element, passage) for element, passage in made if passage.text]

    def write(translations: Sequence[str]) -> bytes:
        for (element, passage), answer in zip(spoken, translations, strict=True):
            if answer not in ("", passage.text):
                element.replace_content(passage.write(answer))
        return encoded.encode_like_source(root.serialize(), is_markup=True)

    return ParsedDocument([passage.text for _, passage in spoken], write)
