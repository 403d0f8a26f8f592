"""Word's and PowerPoint's documents: each paragraph is a passage, and its runs are what its words look like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.documents import tree
from regard.documents.archive import Entry, Limits, drafted
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.paragraphs import drafted as drafted_paragraphs
from regard.documents.passage import DEEP, Node, Part, Passage, Style, literal, nested
from regard.documents.spelling import meant
from regard.documents.tree import TEXT, Element, attributes

NAMESPACES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a",
    "http://purl.oclc.org/ooxml/drawingml/main": "a",
}
PARAGRAPHS = frozenset(("w:p", "a:p"))
RUNS = frozenset(("w:r", "a:r"))
LOOKS = frozenset(("w:rPr", "a:rPr"))
TEXTS = {"w:t": ' xml:space="preserve"', "a:t": ""}
AROUND = frozenset(("w:hyperlink", "w:ins", "w:moveTo", "w:smartTag", "w:customXml", "w:sdt", "w:sdtContent", "w:bdo"))
SETTINGS = frozenset(("w:sdtPr", "w:sdtEndPr", "w:smartTagPr", "w:customXmlPr"))  # before the words inside these
STALE = frozenset(("w:proofErr", "w:lastRenderedPageBreak"))  # true of the old words, and made anew by Word
SEPARATING = frozenset(("w:tab", "w:ptab", "w:br", "w:cr", "a:br"))
SPACE = re.compile(r"""\sxml:space\s*=\s*(?:"[^"]*"|'[^']*')""")
RANGE = re.compile(r"w:(bookmark|commentRange|perm|moveToRange)(Start|End)")
WORD = re.compile(r"word/(?:(?:document|header|footer|footnotes|endnotes|comments)|charts/chart|diagrams/\w+?)\d*\.xml")
SLIDES = re.compile(r"ppt/(?:slides|notesSlides|charts|diagrams|comments)/[^/]+\.xml")


class Piece(NamedTuple):
    """A node, and what it is to a field: its `begin`, the place to `separate` its result, its `end`, an instruction."""

    node: Node
    field: str = ""
    instruction: str = ""


def word(entries: Mapping[str, Entry], limits: Limits) -> Draft:
    """A .docx file."""
    return document(entries, "word/document", WORD, limits)


def slides(entries: Mapping[str, Entry], limits: Limits) -> Draft:
    """A .pptx file."""
    return document(entries, "ppt/presentation", SLIDES, limits)


def document(entries: Mapping[str, Entry], main: str, parts: re.Pattern[str], limits: Limits) -> Draft:
    """A document with a main part, and all parts with text."""
    if not any(name.startswith(main) for name in entries):
        raise DocumentError(f"is not what its ending says: it has no {main}.xml")
    if "[Content_Types].xml" not in entries:
        raise DocumentError("is not what its ending says: it has no [Content_Types].xml")
    return drafted(entries, {name: draft for name in entries if parts.fullmatch(name)}, limits)


def draft(content: bytes) -> Draft:
    """A part of such a document."""
    source, root = tree.read(content, NAMESPACES)
    return drafted_paragraphs(source, root, root.find(PARAGRAPHS), lambda element: Passage(nodes(element, 0)))


def nodes(element: Element, depth: int) -> Iterator[Node]:
    """What is inside a paragraph, or inside something in it that goes around words."""
    return fields(list(pieces(element, depth)))


def pieces(element: Element, depth: int) -> Iterator[Piece]:
    """The same, one by one."""
    for child in element.inside:
        if child.name in RUNS:
            yield from run(child)
        elif child.name in AROUND and depth < DEEP:
            opening = [literal(child.opening), *(lone(one) for one in child.inside if one.name in SETTINGS)]
            inside = nested(nodes(child, depth + 1))
            yield Piece(Node(opening=opening, inside=inside, closing=[literal(child.closing)]))
        elif half := RANGE.fullmatch(child.name):
            key = f"{half[1]} {child.attribute('id')}"
            yield Piece(Node(opening=[lone(child)], half=key, opens=half[2] == "Start"))
        elif child.name not in STALE | SETTINGS and not (child.name == TEXT and child.markup.isspace()):
            yield Piece(Node(opening=[lone(child)], separates=child.name in SEPARATING))


def lone(element: Element, style: Style | None = None) -> Part:
    """An element as it will be when all is written."""
    return Part(style, element.source)


def run(element: Element) -> Iterator[Piece]:
    """The words of a run, and what stands between them."""
    looks = "".join(child.source() for child in element.inside if child.name in LOOKS)
    opening = element.opening + looks
    style = Style(looks, opening, element.closing, "", "", "")
    for child in element.inside:
        if child.name in TEXTS:
            tag = child.opening
            is_preserved = dict(attributes(tag)).get("xml:space") == "preserve"
            spaced = tag if is_preserved else f"{SPACE.sub('', tag)[:-1]}{TEXTS[child.name]}>"
            yield Piece(Node(child.text, style._replace(before=tag, before_space=spaced, after=child.closing)))
        elif child.name not in LOOKS | STALE and not (child.name == TEXT and child.markup.isspace()):
            field = child.attribute("fldCharType") if child.name == "w:fldChar" else ""
            instruction = meant(child.text) if child.name == "w:instrText" else ""
            yield Piece(Node(opening=[lone(child, style)], separates=child.name in SEPARATING), field, instruction)


def fields(found: Sequence[Piece]) -> Iterator[Node]:
    """Nodes where a field with its result stands alone; of a link the result is words, which it goes around."""
    ends, opened = {}, []
    for place, piece in enumerate(found):
        if piece.field == "begin":
            opened.append(place)
        elif piece.field == "end" and opened:
            ends[opened.pop()] = place
    place, closing = 0, set()
    while place < len(found):
        end = ends.get(place)
        if end is None:
            node = found[place].node
            yield Node(opening=node.opening, half=f"field {place}") if place in closing else node
            place += 1
            continue
        result = next((one for one in range(place, end) if found[one].field == "separate"), end)
        instruction = "".join(piece.instruction for piece in found[place:result])
        link = instruction.split()[:1] == ["HYPERLINK"] and result < end
        last = result if link else end
        parts = [part for piece in found[place : last + 1] for part in piece.node.flat()]
        yield Node(opening=parts, half=f"field {end}" if link else "", opens=link)
        closing |= {end} if link else set()
        place = last + 1
