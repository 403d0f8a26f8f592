"""XLIFF, 1.x and 2.x: targets that are missing, empty or marked as untranslated are filled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from regard.data.formats.xliff import UNTRANSLATED
from regard.documents import tree
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.passage import DEEP, Node, Part, Passage, literal, nested
from regard.documents.tree import TEXT, Element

NAMESPACES = {"": "x"} | {
    f"urn:oasis:names:tc:xliff:document:{version}": "x" for version in ("1.0", "1.1", "1.2", "2.0", "2.1", "2.2")
}
HOLDERS = frozenset(("x:trans-unit", "x:segment"))
AROUND = frozenset(("x:g", "x:pc", "x:mrk"))
STATE = re.compile(r"""(\sstate\s*=\s*)(["'])[^"']*\2""")
AFTER = {"x:target": "needs-review-translation", "x:segment": "translated"}  # the state of what was filled
OPENING, CLOSING = frozenset(("x:bpt", "x:bx", "x:sc")), frozenset(("x:ept", "x:ex", "x:ec"))


class Unit(NamedTuple):
    """What holds a source and lacks its translation."""

    holder: Element
    source: Element
    passage: Passage


def draft(content: bytes) -> Draft:
    """An XLIFF file."""
    source, root = tree.read(content, NAMESPACES)
    if not root.child("x:xliff"):
        raise DocumentError("is not what its ending says: its first element is not <xliff>")
    found = [unit for unit in units(root) if unit.passage.text]

    def write(answers: Sequence[str]) -> bytes:
        for unit, answer in zip(found, answers, strict=True):
            if answer:
                fill(unit, unit.passage.write(answer))
        return source.bytes(root.source(), markup=True)

    return Draft([unit.passage.text for unit in found], write)


def units(root: Element) -> Iterator[Unit]:
    """Those without a translation; what must not be translated is there for context."""
    left = [root]
    while left:
        element = left.pop()
        left += [child for child in reversed(element.inside) if child.attribute("translate") != "no"]
        source, target = element.child("x:source"), element.child("x:target")
        if element.name in HOLDERS and source and not (target and translated(element, target)):
            yield Unit(element, source, Passage(nodes(source, 0)))


def translated(holder: Element, target: Element) -> bool:
    """Whether there is text in a target that is not said to be new, in which tools put the source."""
    return not (new(holder) or new(target)) and any(one.text.strip() for one in [target, *target.find(AROUND)])


def new(element: Element) -> bool:
    """Whether a target, or a segment, is marked as untranslated."""
    return element.name in AFTER and element.attribute("state") in UNTRANSLATED


def nodes(element: Element, depth: int) -> Iterator[Node]:
    """Words and inline elements."""
    for child in element.inside:
        part = Part(None, child.source)
        if child.name == TEXT:
            yield Node(child.opening)
        elif child.name in AROUND and child.closing and depth < DEEP and child.attribute("translate") != "no":
            inside = nested(nodes(child, depth + 1))
            yield Node(opening=[literal(child.opening)], inside=inside, closing=[literal(child.closing)])
        elif child.name in OPENING | CLOSING:
            key = child.attribute("startRef") or child.attribute("rid") or child.attribute("id")
            yield Node(opening=[part], half=f"code {key}", opens=child.name in OPENING)
        else:
            yield Node(opening=[part])


def fill(unit: Unit, made: str) -> None:
    """Puts a translation into its target, which comes after the source where there was none."""
    target = unit.holder.child("x:target")
    for element in filter(None, (unit.holder, target)):
        if new(element):
            element.opening = STATE.sub(rf"\1\2{AFTER[element.name]}\2", element.opening)
    if target:
        target.fill(made)
        return
    inside, prefix = unit.holder.inside, unit.source.prefix
    before = unit.holder.child("x:seg-source") or unit.source
    place = next(place for place, child in enumerate(inside) if child is before)
    space = [child for child in inside[:place][-1:] if child.name == TEXT]
    inside[place + 1 : place + 1] = [*space, Element("x:target", f"<{prefix}target>{made}</{prefix}target>")]
