"""Office documents: each paragraph is a text, and its inline elements are tags.

Word and PowerPoint (.docx, .pptx) are OOXML, where all text is in runs, which are styles of tagged texts; LibreOffice's
.odt and .odp are OpenDocument (ODF).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from regard.documents.base import DocumentError, DocumentLimits, ParsedDocument, ZipEntry, parse_zip_document
from regard.documents.escaping import unescape_markup
from regard.documents.tagged_text import MAX_TAG_DEPTH, InlineNode, RunStyle, make_tag_node
from regard.documents.xml_tree import ELEMENT_NAMES, TEXT_NODE, XmlElement, iterate_attributes, parse_xml_paragraphs
from regard.tokenizers.markup import TagHalf, match_tag_pairs

OOXML, ODF = ELEMENT_NAMES["ooxml"], ELEMENT_NAMES["odf"]
TEXT_ELEMENTS = {"w:t": ' xml:space="preserve"', "a:t": ""}
# Properties of paragraphs and runs in Word are in a fixed order: these come after w:bidi and w:rtl.
AFTER_BIDI = (
    "adjustRightInd|snapToGrid|spacing|ind|contextualSpacing|mirrorIndents|suppressOverlap|jc|textDirection|textAlignment|"
    "textboxTightWrap|outlineLvl|divId|cnfStyle|rPr|sectPr|pPrChange"
)
AFTER_RTL = "cs|em|lang|eastAsianLayout|specVanish|oMath|rPrChange"
XML_SPACE_ATTRIBUTE = re.compile(r"""\sxml:space\s*=\s*(?:"[^"]*"|'[^']*')""")
OOXML_RANGE_MARKER = re.compile(r"w:(bookmark|commentRange|perm|moveToRange)(Start|End)")
DOCX_TEXT_PARTS = re.compile(
    r"word/(?:(?:document|header|footer|footnotes|endnotes|comments)|charts/chart|diagrams/\w+?)\d*\.xml"
)
PPTX_TEXT_PARTS = re.compile(r"ppt/(?:slides|notesSlides|charts|diagrams|comments)/[^/]+\.xml")


class FieldNode(NamedTuple):
    """A node, and its role in a field: `begin`, `separate` (before the result), `end`, or its instruction."""

    node: InlineNode
    field_role: str = ""
    instruction: str = ""


def _parse_ooxml_document(
    entries: Mapping[str, ZipEntry], limits: DocumentLimits, main_part: str, text_parts: re.Pattern[str]
) -> ParsedDocument:
    """Parse all parts with text; raise DocumentError without the main part."""
    if not any(name.startswith(main_part) for name in entries):
        raise DocumentError(f"does not match its extension: it has no {main_part}.xml")
    if "[Content_Types].xml" not in entries:
        raise DocumentError("does not match its extension: it has no [Content_Types].xml")
    parser = partial(
        parse_xml_paragraphs, format="ooxml", iterate_nodes=_iterate_ooxml_nodes, set_direction=_set_ooxml_direction
    )
    return parse_zip_document(entries, limits, list(filter(text_parts.fullmatch, entries)), parser)


def _set_ooxml_direction(paragraph: XmlElement, content: str, direction: str) -> str:
    """Return the content of a paragraph with its direction, and in Word that of its runs, in their properties."""
    prefix = re.escape(paragraph.opening[1:].split()[0].rstrip(">").removesuffix("p"))
    if not re.match(rf"<{prefix}pPr[\s/>]", content):
        content = f"<{prefix}pPr/>{content}"
    if paragraph.name == "a:p":
        content = re.sub(rf"""^(<{prefix}pPr\b[^>]*?)\srtl=["'][^"']*["']""", r"\1", content)
        return re.sub(rf"^<{prefix}pPr\b", rf'\g<0> rtl="{int(direction == "rtl")}"', content)
    content = re.sub(rf"^<{prefix}pPr\s*/>", f"<{prefix}pPr></{prefix}pPr>", content)
    head, end, runs = content.partition(f"</{prefix}pPr>")
    parts = re.split(rf"(<{prefix}txbxContent\b.*?</{prefix}txbxContent>)", runs, flags=re.DOTALL)
    old = re.compile(rf"<{prefix}(?:bidi|rtl)(?:\s[^>]*)?/>")
    head, parts[::2] = old.sub("", head), [old.sub("", part) for part in parts[::2]]  # the others have theirs
    if direction == "ltr":
        return head + end + "".join(parts)
    before = re.compile(rf"(?=<{prefix}(?:{AFTER_RTL})[\s/>]|\Z)")
    run = re.compile(
        rf"(<{prefix}r(?:\s[^>]*)?(?<!/)>)(?:<{prefix}rPr>(.*?)</{prefix}rPr>|<{prefix}rPr\s*/>)?", re.DOTALL
    )

    def add_rtl(found: re.Match[str]) -> str:
        inside = before.sub(f"<{prefix}rtl/>", found[2] or "", count=1)
        return f"{found[1]}<{prefix}rPr>{inside}</{prefix}rPr>"

    head = re.sub(rf"(?=<{prefix}(?:{AFTER_BIDI})[\s/>]|\Z)", f"<{prefix}bidi/>", head, count=1)
    parts[::2] = [run.sub(add_rtl, part) for part in parts[::2]]
    return head + end + "".join(parts)


def _iterate_ooxml_nodes(element: XmlElement, depth: int = 0) -> Iterator[InlineNode]:
    """Yield the nodes of a paragraph or of an inline container, with fields merged."""
    return _merge_fields(list(_iterate_field_nodes(element, depth)))


def _iterate_field_nodes(element: XmlElement, depth: int) -> Iterator[FieldNode]:
    """Yield the nodes of a paragraph or of an inline container one by one."""
    for child in element.children:
        if child.name in OOXML["runs"]:
            yield from _iterate_run_nodes(child)
        elif child.name in OOXML["containers"] and depth < MAX_TAG_DEPTH:
            inside = _iterate_ooxml_nodes(child, depth + 1)
            yield FieldNode(child.make_container_node(inside, OOXML["container_properties"]))
        elif marker := OOXML_RANGE_MARKER.fullmatch(child.name):
            key = f"{marker[1]} {child.find_attribute('id')}"
            yield FieldNode(child.make_node(key, is_opening=marker[2] == "Start"))
        elif child.name not in OOXML["dropped"] | OOXML["container_properties"] and not child.is_white_space:
            yield FieldNode(child.make_node(separates_words=child.name in OOXML["separators"]))


def _iterate_run_nodes(element: XmlElement) -> Iterator[FieldNode]:
    """Yield the text of a run, and the elements between it."""
    properties = "".join(child.serialize() for child in element.children if child.name in OOXML["run_properties"])
    opening = element.opening + properties
    style = RunStyle(properties, opening, element.closing)
    for child in element.children:
        if child.name in TEXT_ELEMENTS:
            tag = tag_with_space = child.opening
            if dict(iterate_attributes(tag)).get("xml:space") != "preserve":
                tag_with_space = f"{XML_SPACE_ATTRIBUTE.sub('', tag)[:-1]}{TEXT_ELEMENTS[child.name]}>"
            text_style = replace(style, before=tag, before_space=tag_with_space, after=child.closing)
            yield FieldNode(InlineNode(child.text_markup, text_style))
        elif child.name not in OOXML["run_properties"] | OOXML["dropped"] and not child.is_white_space:
            field_role = child.find_attribute("fldCharType") if child.name == "w:fldChar" else ""
            instruction = unescape_markup(child.text_markup) if child.name == "w:instrText" else ""
            node = make_tag_node(child.serialize, separates_words=child.name in OOXML["separators"], style=style)
            yield FieldNode(node, field_role, instruction)


def _merge_fields(field_nodes: Sequence[FieldNode]) -> Iterator[InlineNode]:
    """Merge each field with its result into a standalone node; that of a hyperlink goes around the result's words."""
    roles = [field_node.field_role for field_node in field_nodes]
    partners = match_tag_pairs(TagHalf("field", role == "begin", role == "end") for role in roles)
    index, closing = 0, set()
    while index < len(field_nodes):
        end = partners.get(index, -1)
        if end < index:
            node = field_nodes[index].node
            yield InlineNode(opening=node.opening, pair_key=f"field {index}") if index in closing else node
            index += 1
            continue
        result = roles.index("separate", index, end) if "separate" in roles[index:end] else end
        instruction = "".join(field_node.instruction for field_node in field_nodes[index:result])
        link = instruction.split()[:1] == ["HYPERLINK"] and result < end
        last = result if link else end
        inside = InlineNode(children=[field_node.node for field_node in field_nodes[index : last + 1]])
        fragments = [fragment._replace(is_text=False) for fragment in inside.list_fragments()]  # no text of a paragraph
        yield InlineNode(opening=fragments, pair_key=f"field {end}" if link else "", is_opening=link)
        closing |= {end} if link else set()
        index = last + 1


ODF_MIMETYPE_PREFIX = "application/vnd.oasis.opendocument."
ODF_TEXT_PARTS = ("content.xml", "styles.xml")  # headers and footers are in the second
ODF_RANGE_MARKER = re.compile(
    r"text:(bookmark|reference-mark|change|alphabetical-index-mark|toc-mark|user-index-mark)-(start|end)"
)


def _parse_odf_document(entries: Mapping[str, ZipEntry], limits: DocumentLimits, document_type: str) -> ParsedDocument:
    """Check the type of a document and parse its parts with text."""
    mimetype = entries["mimetype"].data[:100].decode("ascii", "replace").strip() if "mimetype" in entries else "nothing"
    expected = ODF_MIMETYPE_PREFIX + document_type
    if mimetype not in (expected, f"{expected}-template"):
        raise DocumentError(f"does not match its extension: its type is {mimetype!r}, not {expected!r}")
    if "META-INF/manifest.xml" in entries and b"encryption-data" in entries["META-INF/manifest.xml"].data:
        raise DocumentError("is protected by a password")
    if ODF_TEXT_PARTS[0] not in entries:
        raise DocumentError(f"has no {ODF_TEXT_PARTS[0]}")
    parser = partial(parse_xml_paragraphs, format="odf", iterate_nodes=_iterate_odf_nodes)
    return parse_zip_document(entries, limits, [name for name in ODF_TEXT_PARTS if name in entries], parser)


def _iterate_odf_nodes(element: XmlElement, depth: int = 0) -> Iterator[InlineNode]:
    """Yield the nodes of a paragraph or of an inline container."""
    for child in element.children:
        if child.name == TEXT_NODE:
            yield InlineNode(child.markup)
        elif child.name in ODF["containers"] and child.closing and depth < MAX_TAG_DEPTH:
            yield child.make_container_node(_iterate_odf_nodes(child, depth + 1))
        elif marker := ODF_RANGE_MARKER.fullmatch(child.name):
            name = child.find_attribute("name") or child.find_attribute("id") or child.find_attribute("change-id")
            yield child.make_node(f"{marker[1]} {name}", is_opening=marker[2] == "start")
        elif child.name not in ODF["dropped"]:
            yield child.make_node(separates_words=child.name in ODF["separators"])


OFFICE_PARSERS = {
    ".docx": partial(_parse_ooxml_document, main_part="word/document", text_parts=DOCX_TEXT_PARTS),
    ".pptx": partial(_parse_ooxml_document, main_part="ppt/presentation", text_parts=PPTX_TEXT_PARTS),
    ".odt": partial(_parse_odf_document, document_type="text"),
    ".odp": partial(_parse_odf_document, document_type="presentation"),
}
