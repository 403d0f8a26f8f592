"""XLIFF, 1.x and 2.x, also as Trados and memoQ write it: targets that are missing, empty or untranslated are filled.

In 1.x a `<trans-unit>` is one text, or each of its segments (`<mrk mtype="seg">` in a `<seg-source>`) is one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from regard.data.readers.xliff import UNTRANSLATED_STATES
from regard.documents.base import DocumentError, ParsedDocument
from regard.documents.tagged_text import (
    MAX_TAG_DEPTH,
    InlineNode,
    OutputFragment,
    TaggedText,
    make_literal,
    nest_tag_pairs,
)
from regard.documents.xml_tree import TEXT_NODE, XmlElement, iterate_attributes, parse_xml

NAMESPACES = {"": "x", "http://sdl.com/FileTypes/SdlXliff/1.0": "sdl"} | {
    f"urn:oasis:names:tc:xliff:document:{version}": "x" for version in ("1.0", "1.1", "1.2", "2.0", "2.1", "2.2")
}
UNIT_ELEMENTS = frozenset(("x:trans-unit", "x:segment"))
INLINE_CONTAINERS = frozenset(("x:g", "x:pc", "x:mrk"))
FILLED_STATES = {"x:target": "needs-review-translation", "x:segment": "translated"}  # the state of what was filled
MEMOQ_STATUS = "mq:status"  # of a trans-unit
# Trados: how well a translation memory's match, which the new translation is not, fitted.
TRADOS_MATCH_ATTRIBUTES = re.compile(
    r"""\s(?:origin-system|percent|struct-match|text-match)\s*=\s*(?:"[^"]*"|'[^']*')"""
)
OPENING_CODES, CLOSING_CODES = frozenset(("x:bpt", "x:bx", "x:sc")), frozenset(("x:ept", "x:ex", "x:ec"))


class UntranslatedUnit(NamedTuple):
    """A source that lacks its translation."""

    element: XmlElement
    tagged_text: TaggedText
    segment_id: str = ""  # the mid of a segment, if it is not all of the holder's source


def parse_xliff(content: bytes) -> ParsedDocument:
    """An XLIFF file."""
    source, root = parse_xml(content, NAMESPACES)
    xliff = root.find_child("x:xliff")
    if not xliff:
        raise DocumentError("is not what its ending says: its first element is not <xliff>")
    found = [unit for unit in _iterate_untranslated_units(root) if unit.tagged_text.text]
    has_states = xliff.find_attribute("version") != "1.0"

    def write(translations: Sequence[str]) -> bytes:
        for _, group in groupby(zip(found, translations, strict=True), key=lambda pair: id(pair[0].element)):
            _fill_target([(unit, unit.tagged_text.write(answer)) for unit, answer in group if answer], has_states)
        return source.encode_like_source(root.serialize(), is_markup=True)

    return ParsedDocument([unit.tagged_text.text for unit in found], write, _find_languages(xliff))


def _find_languages(xliff: XmlElement) -> tuple[str, str]:
    """Return the source and target language that the file states, in 1.x for its first <file>; "" if it does not."""
    file = xliff.find_child("x:file") or xliff
    source = xliff.find_attribute("srcLang") or file.find_attribute("source-language")
    return source, xliff.find_attribute("trgLang") or file.find_attribute("target-language")


def _iterate_untranslated_units(root: XmlElement) -> Iterator[UntranslatedUnit]:
    """Those without a translation; what must not be translated is there for context."""
    left = [root]
    while left:
        element = left.pop()
        left += [child for child in reversed(element.children) if child.find_attribute("translate") != "no"]
        source, target = element.find_child("x:source"), element.find_child("x:target")
        if (
            element.name not in UNIT_ELEMENTS or not source or element.find_attribute("locked") == "locked"
        ):  # as memoQ writes it
            continue
        segmented = element.find_child("x:seg-source")
        if segmented and (parts := _find_segments(segmented)):
            open_segments = _find_untranslated_segments(element, target, parts)
            yield from (
                UntranslatedUnit(element, TaggedText(_iterate_xliff_nodes(part, 0)), mid)
                for mid, part in parts.items()
                if mid in open_segments
            )
        elif not (target and _is_translated(element, target)):
            yield UntranslatedUnit(element, TaggedText(_iterate_xliff_nodes(source, 0)))


def _find_untranslated_segments(unit: XmlElement, target: XmlElement | None, segment_ids: Collection[str]) -> set[str]:
    """The segments without a translation that are not locked; of a target without segments all or none."""
    locked = {seg.find_attribute("id") for seg in _find_trados_segments(unit) if seg.find_attribute("locked") == "true"}
    if target and (known := _find_segments(target)):
        done = {
            mid for mid, part in known.items() if not _is_marked_untranslated(target) and _is_translated(unit, part)
        }
        return set(segment_ids) - done - locked
    return set() if target and _is_translated(unit, target) else set(segment_ids) - locked


def _find_segments(element: XmlElement) -> dict[str, XmlElement]:
    """The segments of a <seg-source> or of its target, by their mid; one inside another is a part of that."""
    found: dict[str, XmlElement] = {}
    left = [element]
    while left:
        one = left.pop()
        mid = one.find_attribute("mid") if one.name == "x:mrk" and one.find_attribute("mtype") == "seg" else ""
        if mid:
            found.setdefault(mid, one)
        else:
            left += reversed(one.children)
    return found


def _find_trados_segments(unit: XmlElement) -> list[XmlElement]:
    """Trados' elements with the status of each segment."""
    defined = unit.find_child("sdl:seg-defs")
    return [seg for seg in defined.children if seg.name == "sdl:seg"] if defined else []


def _is_translated(unit: XmlElement, target: XmlElement) -> bool:
    """Whether there is text in a target that is not said to be new, in which tools put the source."""
    return not (_is_marked_untranslated(unit) or _is_marked_untranslated(target)) and any(
        one.text_markup.strip() for one in [target, *target.find_descendants(INLINE_CONTAINERS)]
    )


def _is_marked_untranslated(element: XmlElement) -> bool:
    """Whether a target, or a segment, is marked as untranslated."""
    return element.name in FILLED_STATES and element.find_attribute("state") in UNTRANSLATED_STATES


def _iterate_xliff_nodes(element: XmlElement, depth: int) -> Iterator[InlineNode]:
    """Words and inline elements."""
    for child in element.children:
        part = OutputFragment(None, child.serialize)
        if child.name == TEXT_NODE:
            yield InlineNode(child.markup)
        elif (
            child.name in INLINE_CONTAINERS
            and child.closing
            and depth < MAX_TAG_DEPTH
            and child.find_attribute("translate") != "no"
        ):
            inside = nest_tag_pairs(_iterate_xliff_nodes(child, depth + 1))
            yield InlineNode(
                opening=[make_literal(child.opening)], children=inside, closing=[make_literal(child.closing)]
            )
        elif child.name in OPENING_CODES | CLOSING_CODES:
            key = child.find_attribute("startRef") or child.find_attribute("rid") or child.find_attribute("id")
            yield InlineNode(opening=[part], pair_key=f"code {key}", is_opening=child.name in OPENING_CODES)
        else:
            yield InlineNode(opening=[part])


def _fill_target(translated_units: Sequence[tuple[UntranslatedUnit, str]], has_states: bool) -> None:
    """Puts the translations of a holder into its target, which comes after the source where there was none.

    The states are set as well.
    """
    if not translated_units:
        return
    holder, segments = translated_units[0][0].element, {unit.segment_id for unit, _ in translated_units}
    target = holder.find_child("x:target") or _insert_target(holder)
    known = _find_segments(target) if segments != {""} else {}
    if not segments <= {"", *known}:
        _insert_segments(target, _copy_segments(holder))
        known = _find_segments(target)
    for unit, made in translated_units:
        (known[unit.segment_id] if unit.segment_id else target).replace_content(made)
    if holder.name == "x:segment":
        _set_attribute(holder, "state", FILLED_STATES["x:segment"])
    elif statuses := _find_trados_segments(holder):
        for seg in statuses:
            if seg.find_attribute("id") in segments:
                seg.opening = TRADOS_MATCH_ATTRIBUTES.sub("", seg.opening)
                _set_attribute(seg, "conf", "Draft")
                _set_attribute(seg, "origin", "mt")
    elif has_states:
        _set_attribute(target, "state", FILLED_STATES["x:target"])
    if MEMOQ_STATUS in dict(iterate_attributes(holder.opening)):
        _set_attribute(holder, MEMOQ_STATUS, "MachineTranslated")
    if holder.find_attribute("approved") == "yes":
        _set_attribute(holder, "approved", "no")


def _insert_target(unit: XmlElement) -> XmlElement:
    """Put an empty target behind the source, with the white space that is before that."""
    inside, source = unit.children, unit.find_child("x:source")
    before = unit.find_child("x:seg-source") or source
    place = next(place for place, child in enumerate(inside) if child is before)
    space = [child for child in inside[:place][-1:] if child.name == TEXT_NODE]
    prefix = source.prefix if source else ""
    target = XmlElement("x:target", f"<{prefix}target>", f"</{prefix}target>")
    inside[place + 1 : place + 1] = [*space, target]
    return target


def _insert_segments(target: XmlElement, source_copy: list[XmlElement]) -> None:
    """Put the segments that a target lacks, out of a copy of its <seg-source>, beside their neighbours there."""
    known = _find_segments(target)
    if not known:
        target.replace_content("")
        target.children = source_copy
        return
    whole = XmlElement("", "", children=source_copy)
    copies, positions = _find_segments(whole), _find_positions(whole)
    first: XmlElement | None = None  # that is in the target
    last: XmlElement | None = None
    leading: list[XmlElement] = []  # what comes before that
    following: dict[int, list[XmlElement]] = {}  # what comes behind one that is in the target, by its id
    for mid, segment in copies.items():
        if mid in known:
            last = known[mid]
            first = first or last
            continue
        siblings, place = positions[id(segment)]
        gap = filter(_is_white_space, siblings[max(place - 1, 0) : place])
        if last:
            following.setdefault(id(last), []).extend([*gap, segment])
        else:
            leading += [*(gap if leading else ()), segment]
    if not first:
        target.children += leading
        return
    if leading:
        siblings, place = positions[id(leading[0])]
        leading += filter(_is_white_space, siblings[place + 1 : place + 2])
    left = [target]
    while left:
        inside = left.pop().children
        left += inside
        inside[:] = [
            one
            for child in inside
            for one in [*(leading if child is first else ()), child, *following.get(id(child), ())]
        ]


def _find_positions(root: XmlElement) -> dict[int, tuple[list[XmlElement], int]]:
    """Find everything in an element: for the id of each the list that it is in, and its index there."""
    found: dict[int, tuple[list[XmlElement], int]] = {}
    left = [root]
    while left:
        inside = left.pop().children
        found.update((id(child), (inside, place)) for place, child in enumerate(inside))
        left += inside
    return found


def _is_white_space(element: XmlElement) -> bool:
    """Return True for text without words."""
    return element.name == TEXT_NODE and not element.markup.strip()


def _copy_segments(unit: XmlElement) -> list[XmlElement]:
    """Copy what is in a <seg-source>, for the target; segments that have words are empty."""
    source = unit.find_child("x:seg-source")
    made = copy.deepcopy(source.children) if source else []
    for mrk in _find_segments(XmlElement("", "", children=made)).values():
        if TaggedText(_iterate_xliff_nodes(mrk, 0)).text:
            mrk.replace_content("")
    return made


def _set_attribute(element: XmlElement, name: str, value: str) -> None:
    """Write an attribute into the tag of an element: a new value, or the attribute at the end."""
    pattern = re.compile(rf"""(\s{name}\s*=\s*)(["'])[^"']*\2""")
    if pattern.search(element.opening):
        element.opening = pattern.sub(rf"\g<1>\g<2>{value}\g<2>", element.opening, count=1)
        return
    end = "/>" if element.opening.endswith("/>") else ">"
    element.opening = f'{element.opening.removesuffix(end).rstrip()} {name}="{value}"{end}'
