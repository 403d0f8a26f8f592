"""OpenDocument files of LibreOffice (.odt, .odp): each paragraph is a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from regard.documents.archive import DocumentLimits, ZipEntry, parse_zip_document
from regard.documents.base import DocumentError, ParsedDocument
from regard.documents.tagged_text import MAX_TAG_DEPTH, InlineNode
from regard.documents.xml_tree import TEXT_NODE, XmlElement, parse_xml_paragraphs

NAMESPACES = {"urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text"}
ODF_MIMETYPE_PREFIX = "application/vnd.oasis.opendocument."
TEXT_PARTS = ("content.xml", "styles.xml")  # headers and footers are in the second
PARAGRAPH_ELEMENTS = frozenset(("text:p", "text:h"))
INLINE_CONTAINERS = frozenset(("text:span", "text:a", "text:meta"))
DROPPED_ELEMENTS = frozenset(("text:soft-page-break",))  # page breaks of the source text
SEPARATOR_ELEMENTS = frozenset(("text:tab", "text:line-break", "text:s"))
TRACKED_CHANGES = frozenset(("text:tracked-changes",))
RANGE_MARKER = re.compile(
    r"text:(bookmark|reference-mark|change|alphabetical-index-mark|toc-mark|user-index-mark)-(start|end)"
)


def parse_odt(entries: Mapping[str, ZipEntry], limits: DocumentLimits) -> ParsedDocument:
    """Parse an .odt file."""
    return _parse_odf_document(entries, "text", limits)


def parse_odp(entries: Mapping[str, ZipEntry], limits: DocumentLimits) -> ParsedDocument:
    """Parse an .odp file."""
    return _parse_odf_document(entries, "presentation", limits)


def _parse_odf_document(entries: Mapping[str, ZipEntry], document_type: str, limits: DocumentLimits) -> ParsedDocument:
    """Check the type of a document and parse its parts with text."""
    mimetype = entries["mimetype"].data[:100].decode("ascii", "replace").strip() if "mimetype" in entries else "nothing"
    if mimetype not in (ODF_MIMETYPE_PREFIX + document_type, f"{ODF_MIMETYPE_PREFIX}{document_type}-template"):
        raise DocumentError(
            f"does not match its extension: its type is {mimetype!r}, not {ODF_MIMETYPE_PREFIX + document_type!r}"
        )
    if "META-INF/manifest.xml" in entries and b"encryption-data" in entries["META-INF/manifest.xml"].data:
        raise DocumentError("is protected by a password")
    if TEXT_PARTS[0] not in entries:
        raise DocumentError(f"has no {TEXT_PARTS[0]}")
    return parse_zip_document(entries, {name: _parse_odf_part for name in TEXT_PARTS if name in entries}, limits)


def _parse_odf_part(content: bytes) -> ParsedDocument:
    return parse_xml_paragraphs(content, NAMESPACES, PARAGRAPH_ELEMENTS, _iterate_odf_nodes, TRACKED_CHANGES)


def _iterate_odf_nodes(element: XmlElement, depth: int = 0) -> Iterator[InlineNode]:
    """Yield the nodes of a paragraph or of an inline container."""
    for child in element.children:
        if child.name == TEXT_NODE:
            yield InlineNode(child.markup)
        elif child.name in INLINE_CONTAINERS and child.closing and depth < MAX_TAG_DEPTH:
            yield child.make_container_node(_iterate_odf_nodes(child, depth + 1))
        elif marker := RANGE_MARKER.fullmatch(child.name):
            name = child.find_attribute("name") or child.find_attribute("id") or child.find_attribute("change-id")
            yield child.make_node(f"{marker[1]} {name}", is_opening=marker[2] == "start")
        elif child.name not in DROPPED_ELEMENTS:
            yield child.make_node(separates_words=child.name in SEPARATOR_ELEMENTS)
