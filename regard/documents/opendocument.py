"""LibreOffice's documents, .odt and .odp: each paragraph is a passage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from regard.documents import tree
from regard.documents.archive import Entry, Limits, drafted
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.paragraphs import drafted as drafted_paragraphs
from regard.documents.passage import DEEP, Node, Part, Passage, literal, nested
from regard.documents.tree import TEXT, Element

NAMESPACES = {"urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text"}
KIND = "application/vnd.oasis.opendocument."
PARTS = ("content.xml", "styles.xml")  # headers and footers are in the second
PARAGRAPHS = frozenset(("text:p", "text:h"))
AROUND = frozenset(("text:span", "text:a", "text:meta"))
STALE = frozenset(("text:soft-page-break",))  # where a page ended with the old words
SEPARATING = frozenset(("text:tab", "text:line-break", "text:s"))
DELETED = frozenset(("text:tracked-changes",))
RANGE = re.compile(
    r"text:(bookmark|reference-mark|change|alphabetical-index-mark|toc-mark|user-index-mark)-(start|end)"
)


def text(entries: Mapping[str, Entry], limits: Limits) -> Draft:
    """An .odt file."""
    return document(entries, "text", limits)


def slides(entries: Mapping[str, Entry], limits: Limits) -> Draft:
    """An .odp file."""
    return document(entries, "presentation", limits)


def document(entries: Mapping[str, Entry], kind: str, limits: Limits) -> Draft:
    """A document of a kind."""
    said = entries["mimetype"].data[:100].decode("ascii", "replace").strip() if "mimetype" in entries else "nothing"
    if said not in (KIND + kind, f"{KIND}{kind}-template"):
        raise DocumentError(f"is not what its ending says: its type is {said!r} and not {KIND + kind!r}")
    if "META-INF/manifest.xml" in entries and b"encryption-data" in entries["META-INF/manifest.xml"].data:
        raise DocumentError("is protected by a password")
    if PARTS[0] not in entries:
        raise DocumentError(f"has no {PARTS[0]}")
    return drafted(entries, {name: draft for name in PARTS if name in entries}, limits)


def draft(content: bytes) -> Draft:
    """A part of such a document."""
    source, root = tree.read(content, NAMESPACES)
    found = root.find(PARAGRAPHS, without=DELETED)
    return drafted_paragraphs(source, root, found, lambda element: Passage(nodes(element, 0)))


def nodes(element: Element, depth: int) -> Iterator[Node]:
    """What is inside a paragraph, or inside something in it that goes around words."""
    for child in element.inside:
        if child.name == TEXT:
            yield Node(child.markup)
        elif child.name in AROUND and child.closing and depth < DEEP:
            inside = nested(nodes(child, depth + 1))
            yield Node(opening=[literal(child.opening)], inside=inside, closing=[literal(child.closing)])
        elif half := RANGE.fullmatch(child.name):
            key = f"{half[1]} {child.attribute('name') or child.attribute('id') or child.attribute('change-id')}"
            yield Node(opening=[Part(None, child.source)], half=key, opens=half[2] == "start")
        elif child.name not in STALE:
            yield Node(opening=[Part(None, child.source)], separates=child.name in SEPARATING)
