"""Word's and PowerPoint's documents: each paragraph is a passage, and its runs are what its words look like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.documents.archive import DocumentLimits, ZipEntry, parse_zip_document
from regard.documents.base import DocumentError, ParsedDocument
from regard.documents.escaping import unescape_markup
from regard.documents.tagged_text import (
    MAX_TAG_DEPTH,
    InlineNode,
    OutputFragment,
    RunStyle,
    TaggedText,
    make_literal,
    nest_tag_pairs,
)
from regard.documents.xml_tree import TEXT_NODE, XmlElement, iterate_attributes, parse_xml, parse_xml_paragraphs

NAMESPACES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a",
    "http://purl.oclc.org/ooxml/drawingml/main": "a",
}
PARAGRAPH_ELEMENTS = frozenset(("w:p", "a:p"))
RUN_ELEMENTS = frozenset(("w:r", "a:r"))
RUN_PROPERTIES = frozenset(("w:rPr", "a:rPr"))
TEXT_ELEMENTS = {"w:t": ' xml:space="preserve"', "a:t": ""}
INLINE_CONTAINERS = frozenset(
    ("w:hyperlink", "w:ins", "w:moveTo", "w:smartTag", "w:customXml", "w:sdt", "w:sdtContent", "w:bdo")
)
CONTAINER_PROPERTIES = frozenset(
    ("w:sdtPr", "w:sdtEndPr", "w:smartTagPr", "w:customXmlPr")
)  # before the words inside these
DROPPED_ELEMENTS = frozenset(("w:proofErr", "w:lastRenderedPageBreak"))  # true of the old words, and made anew by Word
SEPARATOR_ELEMENTS = frozenset(("w:tab", "w:ptab", "w:br", "w:cr", "a:br"))
XML_SPACE_ATTRIBUTE = re.compile(r"""\sxml:space\s*=\s*(?:"[^"]*"|'[^']*')""")
RANGE_MARKER = re.compile(r"w:(bookmark|commentRange|perm|moveToRange)(Start|End)")
DOCX_TEXT_PARTS = re.compile(
    r"word/(?:(?:document|header|footer|footnotes|endnotes|comments)|charts/chart|diagrams/\w+?)\d*\.xml"
)
PPTX_TEXT_PARTS = re.compile(r"ppt/(?:slides|notesSlides|charts|diagrams|comments)/[^/]+\.xml")


class FieldNode(NamedTuple):
    """A node, and what it is to a field: its `begin`, the place to `separate` its result, its `end`, an instruction."""

    node: InlineNode
    field_role: str = ""
    instruction: str = ""


def parse_docx(entries: Mapping[str, ZipEntry], limits: DocumentLimits) -> ParsedDocument:
    """A .docx file."""
    return _parse_ooxml_document(entries, "word/document", DOCX_TEXT_PARTS, limits)


def parse_pptx(entries: Mapping[str, ZipEntry], limits: DocumentLimits) -> ParsedDocument:
    """A .pptx file."""
    return _parse_ooxml_document(entries, "ppt/presentation", PPTX_TEXT_PARTS, limits)


def _parse_ooxml_document(
    entries: Mapping[str, ZipEntry], main_part: str, text_parts: re.Pattern[str], limits: DocumentLimits
) -> ParsedDocument:
    """A document with a main part, and all parts with text."""
    if not any(name.startswith(main_part) for name in entries):
        raise DocumentError(f"is not what its ending says: it has no {main_part}.xml")
    if "[Content_Types].xml" not in entries:
        raise DocumentError("is not what its ending says: it has no [Content_Types].xml")
    return parse_zip_document(
        entries, {name: _parse_ooxml_part for name in entries if text_parts.fullmatch(name)}, limits
    )


def _parse_ooxml_part(content: bytes) -> ParsedDocument:
    """A part of such a document."""
    source, root = parse_xml(content, NAMESPACES)
    return parse_xml_paragraphs(
        source,
        root,
        root.find_descendants(PARAGRAPH_ELEMENTS),
        lambda element: TaggedText(_iterate_ooxml_nodes(element, 0)),
    )


def _iterate_ooxml_nodes(element: XmlElement, depth: int) -> Iterator[InlineNode]:
    """What is inside a paragraph, or inside something in it that goes around words."""
    return _merge_fields(list(_iterate_field_nodes(element, depth)))


def _iterate_field_nodes(element: XmlElement, depth: int) -> Iterator[FieldNode]:
    """The same, one by one."""
    for child in element.children:
        if child.name in RUN_ELEMENTS:
            yield from _iterate_run_nodes(child)
        elif child.name in INLINE_CONTAINERS and depth < MAX_TAG_DEPTH:
            opening = [
                make_literal(child.opening),
                *(_make_element_fragment(one) for one in child.children if one.name in CONTAINER_PROPERTIES),
            ]
            inside = nest_tag_pairs(_iterate_ooxml_nodes(child, depth + 1))
            yield FieldNode(InlineNode(opening=opening, children=inside, closing=[make_literal(child.closing)]))
        elif half := RANGE_MARKER.fullmatch(child.name):
            key = f"{half[1]} {child.find_attribute('id')}"
            yield FieldNode(
                InlineNode(opening=[_make_element_fragment(child)], pair_key=key, is_opening=half[2] == "Start")
            )
        elif child.name not in DROPPED_ELEMENTS | CONTAINER_PROPERTIES and not (
            child.name == TEXT_NODE and child.markup.isspace()
        ):
            yield FieldNode(
                InlineNode(opening=[_make_element_fragment(child)], separates_words=child.name in SEPARATOR_ELEMENTS)
            )


def _make_element_fragment(element: XmlElement, style: RunStyle | None = None) -> OutputFragment:
    """An element as it will be when all is written."""
    return OutputFragment(style, element.serialize)


def _iterate_run_nodes(element: XmlElement) -> Iterator[FieldNode]:
    """The words of a run, and what stands between them."""
    looks = "".join(child.serialize() for child in element.children if child.name in RUN_PROPERTIES)
    opening = element.opening + looks
    style = RunStyle(looks, opening, element.closing, "", "", "")
    for child in element.children:
        if child.name in TEXT_ELEMENTS:
            tag = child.opening
            is_preserved = dict(iterate_attributes(tag)).get("xml:space") == "preserve"
            spaced = tag if is_preserved else f"{XML_SPACE_ATTRIBUTE.sub('', tag)[:-1]}{TEXT_ELEMENTS[child.name]}>"
            yield FieldNode(
                InlineNode(child.text_markup, style._replace(before=tag, before_space=spaced, after=child.closing))
            )
        elif child.name not in RUN_PROPERTIES | DROPPED_ELEMENTS and not (
            child.name == TEXT_NODE and child.markup.isspace()
        ):
            field = child.find_attribute("fldCharType") if child.name == "w:fldChar" else ""
            instruction = unescape_markup(child.text_markup) if child.name == "w:instrText" else ""
            yield FieldNode(
                InlineNode(
                    opening=[_make_element_fragment(child, style)], separates_words=child.name in SEPARATOR_ELEMENTS
                ),
                field,
                instruction,
            )


def _merge_fields(field_nodes: Sequence[FieldNode]) -> Iterator[InlineNode]:
    """Nodes where a field with its result stands alone; of a link the result is words, which it goes around."""
    ends, opened = {}, []
    for place, piece in enumerate(field_nodes):
        if piece.field_role == "begin":
            opened.append(place)
        elif piece.field_role == "end" and opened:
            ends[opened.pop()] = place
    place, closing = 0, set()
    while place < len(field_nodes):
        end = ends.get(place)
        if end is None:
            node = field_nodes[place].node
            yield InlineNode(opening=node.opening, pair_key=f"field {place}") if place in closing else node
            place += 1
            continue
        result = next((one for one in range(place, end) if field_nodes[one].field_role == "separate"), end)
        instruction = "".join(piece.instruction for piece in field_nodes[place:result])
        link = instruction.split()[:1] == ["HYPERLINK"] and result < end
        last = result if link else end
        parts = [part for piece in field_nodes[place : last + 1] for part in piece.node.list_fragments()]
        yield InlineNode(opening=parts, pair_key=f"field {end}" if link else "", is_opening=link)
        closing |= {end} if link else set()
        place = last + 1
