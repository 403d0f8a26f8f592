"""XML as a tree that remembers how each tag was written: what is not changed is written again as it was."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from sys import intern  # a document has few different tags, and many of each

from regard.data.files import in_a_line
from regard.data.formats.xml import SAFE, let_go
from regard.documents.encoding import XML, Encoded, declared
from regard.documents.errors import DocumentError
from regard.documents.spelling import escaped

DEEPEST = 256
MOST_PREFIXES = 500  # of namespaces in an element: each element inside that declares another has a copy of them
PROLOGUE = re.compile(r"(?:\s++|(?><\?.*?\?>)|(?><!--.*?-->))*+", re.DOTALL)
DOCTYPE = r"""<!DOCTYPE(?:[^>"'\[]++|"[^"]*+"|'[^']*+')*+"""
SUBSET = re.compile(rf"{DOCTYPE}\[")
TOKEN = re.compile(
    rf"<!--.*?-->|<\?.*?\?>|{DOCTYPE}>|<!\[CDATA\[(?P<data>.*?)\]\]>"
    r"""|<(?P<close>/?)(?P<name>[^\s/<>]++)(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>|(?P<text>[^<]+)""",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"""\s(?P<name>[^\s=<>"']+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')""")
TEXT = "#text"
CDATA = "<![CDATA["


@dataclass(slots=True)
class Element:
    """An element with its tags as they are written; text, comments and the like are all opening."""

    name: str  # with the prefix that we use; `#text`, or empty for what is neither text nor element
    opening: str
    closing: str = ""
    inside: list[Element] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text directly inside, as markup."""
        return "".join(child.markup for child in self.inside if child.name == TEXT)

    @property
    def markup(self) -> str:
        """The words of a text as markup: those of a CDATA section are escaped."""
        is_data = self.opening.startswith(CDATA)
        return escaped(self.opening.removeprefix(CDATA).removesuffix("]]>")) if is_data else self.opening

    @property
    def prefix(self) -> str:
        """The prefix that the file uses, with its colon."""
        tag = TOKEN.match(self.opening)
        return "".join((tag["name"] if tag else "").rpartition(":")[:2])

    def attribute(self, name: str) -> str:
        """An attribute by its name without prefix, or nothing."""
        return next((value for key, value in attributes(self.opening) if key.rpartition(":")[2] == name), "")

    def child(self, name: str) -> Element | None:
        """The first child of a name."""
        return next((child for child in self.inside if child.name == name), None)

    def fill(self, source: str) -> None:
        """Puts something else inside."""
        if not self.closing:  # it was written <so/>
            self.closing = f"</{self.opening[1:-2].split()[0]}>"
            self.opening = f"{self.opening[:-2].rstrip()}>"
        self.inside = [Element(TEXT, source)]

    def source(self) -> str:
        """How it is written."""
        out: list[str] = []
        self.write(out)
        return "".join(out)

    def write(self, out: list[str]) -> None:
        """How it is written, piece by piece."""
        out.append(self.opening)
        for child in self.inside:
            child.write(out)
        out.append(self.closing)

    def find(self, names: Collection[str], without: Collection[str] = ()) -> list[Element]:
        """All of these names, inner ones before outer ones; what is inside `without` is left alone."""
        found, left = [], [self]
        while left:
            element = left.pop()
            if element.name in names:
                found.append(element)
            left += [child for child in element.inside if child.name not in without]
        return found[::-1]


def checked(text: str) -> None:
    """Refuses what is no XML, and XML with entities of its own."""
    from lxml import etree

    prologue = PROLOGUE.match(text)
    if SUBSET.match(text, prologue.end() if prologue else 0):
        raise DocumentError("declares XML entities of its own, which are not read")
    depth = 0
    try:
        for event, element in etree.iterparse(BytesIO(text.encode()), ("start", "end"), encoding="utf-8", **SAFE):
            depth += 1 if event == "start" else -1
            if depth > DEEPEST:
                raise DocumentError(f"has elements in more than {DEEPEST} others")
            if event == "end":
                let_go(element)
    except etree.XMLSyntaxError as error:
        said = in_a_line(error.msg).partition(", line ")[0]
        raise DocumentError(f"is damaged or cut off, its XML cannot be read: {said}") from error


def attributes(tag: str) -> Iterator[tuple[str, str]]:
    """The attributes of a tag, as they are written."""
    for found in ATTRIBUTE.finditer(tag):
        yield found["name"], found["double"] or found["single"] or ""


class Names:
    """Names with the prefixes that we use, whichever a file has chosen."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known  # our prefix for a namespace
        self.scopes: list[dict[str, str]] = [{}]

    def enter(self, tag: str) -> None:
        """Begins an element, which may declare prefixes."""
        scope = self.scopes[-1]
        if "xmlns" in tag:
            declared = {name: value for name, value in attributes(tag) if name.partition(":")[0] == "xmlns"}
            scope = scope | {name.partition(":")[2]: value for name, value in declared.items()}
            if len(scope) > MOST_PREFIXES:
                raise DocumentError(f"has {len(scope):,} namespace prefixes, and may have {MOST_PREFIXES:,}")
        self.scopes.append(scope)

    def leave(self) -> None:
        """Ends an element."""
        self.scopes.pop()

    def of(self, name: str) -> str:
        """A name as we write it; one of a namespace that we do not know has a ? for its prefix."""
        prefix, _, local = name.rpartition(":")
        return intern(f"{self.known.get(self.scopes[-1].get(prefix, ''), '?')}:{local}")


def read(content: bytes, known: Mapping[str, str]) -> tuple[Encoded, Element]:
    """An XML file and its tree; `known` are our prefixes for the namespaces that matter."""
    source = declared(content, XML)
    checked(source.text)
    return source, built(source.text, Names(known))


def built(text: str, names: Names) -> Element:
    """The tree of a text that is known to be XML."""
    root = Element("", "")
    stack, place = [root], 0
    while (found := TOKEN.match(text, place)) and not (found["close"] and len(stack) == 1):
        place = found.end()
        if found["close"]:
            stack.pop().closing = intern(found[0])
            names.leave()
        elif found["name"]:
            names.enter(found[0])
            element = Element(names.of(found["name"]), intern(found[0]))
            stack[-1].inside.append(element)
            if found[0].endswith("/>"):
                names.leave()
            else:
                stack.append(element)
        else:
            is_text = found["text"] or found["data"] is not None
            stack[-1].inside.append(Element(TEXT if is_text else "", found[0]))
    if place != len(text) or len(stack) > 1:
        raise DocumentError("is XML that cannot be read")
    return root
