"""XLIFF, 1.x and 2.x, also as Trados and memoQ write it: targets that are missing, empty or untranslated are filled.

In 1.x a `<trans-unit>` is one text, or each of its segments (`<mrk mtype="seg">` in a `<seg-source>`) is one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from regard.data.formats.xliff import UNTRANSLATED
from regard.documents import tree
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.passage import DEEP, Node, Part, Passage, literal, nested
from regard.documents.tree import TEXT, Element

NAMESPACES = {"": "x", "http://sdl.com/FileTypes/SdlXliff/1.0": "sdl"} | {
    f"urn:oasis:names:tc:xliff:document:{version}": "x" for version in ("1.0", "1.1", "1.2", "2.0", "2.1", "2.2")
}
HOLDERS = frozenset(("x:trans-unit", "x:segment"))
AROUND = frozenset(("x:g", "x:pc", "x:mrk"))
AFTER = {"x:target": "needs-review-translation", "x:segment": "translated"}  # the state of what was filled
MEMOQ_STATUS = "mq:status"  # of a trans-unit
# Trados: how well a translation memory's match, which the new translation is not, fitted.
MATCH = re.compile(r"""\s(?:origin-system|percent|struct-match|text-match)\s*=\s*(?:"[^"]*"|'[^']*')""")
OPENING, CLOSING = frozenset(("x:bpt", "x:bx", "x:sc")), frozenset(("x:ept", "x:ex", "x:ec"))


class Unit(NamedTuple):
    """A source that lacks its translation."""

    holder: Element
    passage: Passage
    segment: str = ""  # the mid of a segment, if it is not all of the holder's source


def draft(content: bytes) -> Draft:
    """An XLIFF file."""
    source, root = tree.read(content, NAMESPACES)
    xliff = root.child("x:xliff")
    if not xliff:
        raise DocumentError("is not what its ending says: its first element is not <xliff>")
    found = [unit for unit in units(root) if unit.passage.text]
    has_states = xliff.attribute("version") != "1.0"

    def write(answers: Sequence[str]) -> bytes:
        for _, group in groupby(zip(found, answers, strict=True), key=lambda pair: id(pair[0].holder)):
            fill([(unit, unit.passage.write(answer)) for unit, answer in group if answer], has_states)
        return source.bytes(root.source(), markup=True)

    return Draft([unit.passage.text for unit in found], write, find_languages(xliff))


def find_languages(xliff: Element) -> tuple[str, str]:
    """Return the source and target language that the file states, in 1.x for its first <file>; "" if it does not."""
    file = xliff.child("x:file") or xliff
    source = xliff.attribute("srcLang") or file.attribute("source-language")
    return source, xliff.attribute("trgLang") or file.attribute("target-language")


def units(root: Element) -> Iterator[Unit]:
    """Those without a translation; what must not be translated is there for context."""
    left = [root]
    while left:
        element = left.pop()
        left += [child for child in reversed(element.inside) if child.attribute("translate") != "no"]
        source, target = element.child("x:source"), element.child("x:target")
        if element.name not in HOLDERS or not source or element.attribute("locked") == "locked":  # as memoQ writes it
            continue
        segmented = element.child("x:seg-source")
        if segmented and (parts := find_segments(segmented)):
            open_segments = find_untranslated_segments(element, target, parts)
            yield from (
                Unit(element, Passage(nodes(part, 0)), mid) for mid, part in parts.items() if mid in open_segments
            )
        elif not (target and translated(element, target)):
            yield Unit(element, Passage(nodes(source, 0)))


def find_untranslated_segments(holder: Element, target: Element | None, parts: Collection[str]) -> set[str]:
    """The segments without a translation that are not locked; of a target without segments all or none."""
    locked = {seg.attribute("id") for seg in find_trados_segments(holder) if seg.attribute("locked") == "true"}
    if target and (known := find_segments(target)):
        done = {mid for mid, part in known.items() if not new(target) and translated(holder, part)}
        return set(parts) - done - locked
    return set() if target and translated(holder, target) else set(parts) - locked


def find_segments(element: Element) -> dict[str, Element]:
    """The segments of a <seg-source> or of its target, by their mid; one inside another is a part of that."""
    found: dict[str, Element] = {}
    left = [element]
    while left:
        one = left.pop()
        mid = one.attribute("mid") if one.name == "x:mrk" and one.attribute("mtype") == "seg" else ""
        if mid:
            found.setdefault(mid, one)
        else:
            left += reversed(one.inside)
    return found


def find_trados_segments(holder: Element) -> list[Element]:
    """Trados' elements with the status of each segment."""
    defined = holder.child("sdl:seg-defs")
    return [seg for seg in defined.inside if seg.name == "sdl:seg"] if defined else []


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
            yield Node(child.markup)
        elif child.name in AROUND and child.closing and depth < DEEP and child.attribute("translate") != "no":
            inside = nested(nodes(child, depth + 1))
            yield Node(opening=[literal(child.opening)], inside=inside, closing=[literal(child.closing)])
        elif child.name in OPENING | CLOSING:
            key = child.attribute("startRef") or child.attribute("rid") or child.attribute("id")
            yield Node(opening=[part], half=f"code {key}", opens=child.name in OPENING)
        else:
            yield Node(opening=[part])


def fill(units: Sequence[tuple[Unit, str]], has_states: bool) -> None:
    """Puts the translations of a holder into its target, which comes after the source where there was none.

    The states are set as well.
    """
    if not units:
        return
    holder, segments = units[0][0].holder, {unit.segment for unit, _ in units}
    target = holder.child("x:target") or insert_target(holder)
    known = find_segments(target) if segments != {""} else {}
    if not segments <= {"", *known}:
        insert_segments(target, copy_segments(holder))
        known = find_segments(target)
    for unit, made in units:
        (known[unit.segment] if unit.segment else target).fill(made)
    if holder.name == "x:segment":
        set_attribute(holder, "state", AFTER["x:segment"])
    elif statuses := find_trados_segments(holder):
        for seg in statuses:
            if seg.attribute("id") in segments:
                seg.opening = MATCH.sub("", seg.opening)
                set_attribute(seg, "conf", "Draft")
                set_attribute(seg, "origin", "mt")
    elif has_states:
        set_attribute(target, "state", AFTER["x:target"])
    if MEMOQ_STATUS in dict(tree.attributes(holder.opening)):
        set_attribute(holder, MEMOQ_STATUS, "MachineTranslated")
    if holder.attribute("approved") == "yes":
        set_attribute(holder, "approved", "no")


def insert_target(holder: Element) -> Element:
    """Put an empty target behind the source, with the white space that is before that."""
    inside, source = holder.inside, holder.child("x:source")
    before = holder.child("x:seg-source") or source
    place = next(place for place, child in enumerate(inside) if child is before)
    space = [child for child in inside[:place][-1:] if child.name == TEXT]
    prefix = source.prefix if source else ""
    target = Element("x:target", f"<{prefix}target>", f"</{prefix}target>")
    inside[place + 1 : place + 1] = [*space, target]
    return target


def insert_segments(target: Element, made: list[Element]) -> None:
    """Put the segments that a target lacks, out of a copy of its <seg-source>, beside their neighbours there."""
    known = find_segments(target)
    if not known:
        target.fill("")
        target.inside = made
        return
    whole = Element("", "", inside=made)
    copies, positions = find_segments(whole), find_positions(whole)
    first: Element | None = None  # that is in the target
    last: Element | None = None
    leading: list[Element] = []  # what comes before that
    following: dict[int, list[Element]] = {}  # what comes behind one that is in the target, by its id
    for mid, segment in copies.items():
        if mid in known:
            last = known[mid]
            first = first or last
            continue
        siblings, place = positions[id(segment)]
        gap = filter(is_white_space, siblings[max(place - 1, 0) : place])
        if last:
            following.setdefault(id(last), []).extend([*gap, segment])
        else:
            leading += [*(gap if leading else ()), segment]
    if not first:
        target.inside += leading
        return
    if leading:
        siblings, place = positions[id(leading[0])]
        leading += filter(is_white_space, siblings[place + 1 : place + 2])
    left = [target]
    while left:
        inside = left.pop().inside
        left += inside
        inside[:] = [
            one
            for child in inside
            for one in [*(leading if child is first else ()), child, *following.get(id(child), ())]
        ]


def find_positions(root: Element) -> dict[int, tuple[list[Element], int]]:
    """Find everything in an element: for the id of each the list that it is in, and its index there."""
    found: dict[int, tuple[list[Element], int]] = {}
    left = [root]
    while left:
        inside = left.pop().inside
        found.update((id(child), (inside, place)) for place, child in enumerate(inside))
        left += inside
    return found


def is_white_space(element: Element) -> bool:
    """Return True for text without words."""
    return element.name == TEXT and not element.markup.strip()


def copy_segments(holder: Element) -> list[Element]:
    """Copy what is in a <seg-source>, for the target; segments that have words are empty."""
    source = holder.child("x:seg-source")
    made = copy.deepcopy(source.inside) if source else []
    for mrk in find_segments(Element("", "", inside=made)).values():
        if Passage(nodes(mrk, 0)).text:
            mrk.fill("")
    return made


def set_attribute(element: Element, name: str, value: str) -> None:
    """Write an attribute into the tag of an element: a new value, or the attribute at the end."""
    pattern = re.compile(rf"""(\s{name}\s*=\s*)(["'])[^"']*\2""")
    if pattern.search(element.opening):
        element.opening = pattern.sub(rf"\g<1>\g<2>{value}\g<2>", element.opening, count=1)
        return
    end = "/>" if element.opening.endswith("/>") else ">"
    element.opening = f'{element.opening.removesuffix(end).rstrip()} {name}="{value}"{end}'
