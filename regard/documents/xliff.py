"""XLIFF 1.x and 2.x, also of Trados and memoQ: fill in targets that are missing, empty or untranslated.

In 1.x a `<trans-unit>` is one text, or each of its segments (`<mrk mtype="seg">` in a `<seg-source>`) is one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from regard.data.readers.tmx_xliff import UNTRANSLATED_STATES
from regard.documents.base import DocumentError, ParsedDocument
from regard.documents.tagged_text import MAX_TAG_DEPTH, InlineNode, TaggedText
from regard.documents.xml_tree import ELEMENT_NAMES, TEXT_NODE, XmlElement, iterate_attributes, parse_xml

XLIFF = ELEMENT_NAMES["xliff"]
FILLED_STATES = {"x:target": "needs-review-translation", "x:segment": "translated"}  # state of filled targets
MEMOQ_STATUS = "mq:status"  # of a trans-unit
# Trados: attributes of a translation memory match, which do not apply to the new translation.
TRADOS_MATCH_ATTRIBUTES = re.compile(
    r"""\s(?:origin-system|percent|struct-match|text-match)\s*=\s*(?:"[^"]*"|'[^']*')"""
)


class UntranslatedUnit(NamedTuple):
    """A source without a translation."""

    element: XmlElement
    tagged_text: TaggedText
    segment_id: str = ""  # mid of a segment; empty: the whole source of the element


def parse_xliff(content: bytes) -> ParsedDocument:
    """Parse an XLIFF file."""
    source, root = parse_xml(content, "xliff")
    xliff = root.find_child("x:xliff")
    if not xliff:
        raise DocumentError("does not match its extension: its first element is not <xliff>")
    units = [unit for unit in _iterate_untranslated_units(root) if unit.tagged_text.text]
    has_states = xliff.find_attribute("version") != "1.0"

    def write() -> bytes:
        translated = [unit for unit in units if unit.tagged_text.translation]
        for _, group in groupby(translated, key=lambda unit: id(unit.element)):
            _fill_target(list(group), has_states)
        return source.encode_like_source(root.serialize(), is_markup=True)

    file = xliff.find_child("x:file") or xliff  # languages are declared here in 1.x
    source_language = xliff.find_attribute("srcLang") or file.find_attribute("source-language")
    target_language = xliff.find_attribute("trgLang") or file.find_attribute("target-language")
    return ParsedDocument([unit.tagged_text for unit in units], write, (source_language, target_language))


def _iterate_untranslated_units(root: XmlElement) -> Iterator[UntranslatedUnit]:
    """Yield the units without a translation, except those that must not be translated or are locked."""
    for element in root.walk(enters=_is_translatable):
        source, target = element.find_child("x:source"), element.find_child("x:target")
        is_unit = element.name in XLIFF["units"] and _is_translatable(element)
        # memoQ marks locked units with an attribute of the unit.
        if not is_unit or not source or element.find_attribute("locked") == "locked":
            continue
        segmented = element.find_child("x:seg-source")
        if segmented and (parts := _find_segments(segmented)):
            open_segments = _find_untranslated_segments(element, target, parts)
            for mid, part in parts.items():
                if mid in open_segments:
                    yield UntranslatedUnit(element, TaggedText(_iterate_xliff_nodes(part)), mid)
        elif not (target and _is_translated(element, target)):
            yield UntranslatedUnit(element, TaggedText(_iterate_xliff_nodes(source)))


def _is_translatable(element: XmlElement) -> bool:
    return element.find_attribute("translate") != "no"


def _find_untranslated_segments(unit: XmlElement, target: XmlElement | None, segment_ids: Collection[str]) -> set[str]:
    """Return the ids of unlocked segments without a translation; of a target without segments all or none."""
    locked = {seg.find_attribute("id") for seg in _find_trados_segments(unit) if seg.find_attribute("locked") == "true"}
    if target and (target_segments := _find_segments(target)):
        is_new = _is_marked_untranslated(target)
        done = {mid for mid, part in target_segments.items() if not is_new and _is_translated(unit, part)}
        return set(segment_ids) - done - locked
    return set() if target and _is_translated(unit, target) else set(segment_ids) - locked


def _find_segments(element: XmlElement) -> dict[str, XmlElement]:
    """Return the outermost segments of a <seg-source> or of a target, by their mid."""
    segments: dict[str, XmlElement] = {}
    for part in element.walk(enters=lambda part: not _find_segment_id(part)):
        if mid := _find_segment_id(part):
            segments.setdefault(mid, part)
    return segments


def _find_segment_id(element: XmlElement) -> str:
    """Return the mid of a segment; "" for other elements."""
    is_segment = element.name == "x:mrk" and element.find_attribute("mtype") == "seg"
    return element.find_attribute("mid") if is_segment else ""


def _find_trados_segments(unit: XmlElement) -> list[XmlElement]:
    """Return Trados' elements with the status of each segment."""
    definitions = unit.find_child("sdl:seg-defs")
    return [seg for seg in definitions.children if seg.name == "sdl:seg"] if definitions else []


def _is_translated(unit: XmlElement, target: XmlElement) -> bool:
    """Return True if a target has text and is not marked as new (tools may copy the source there)."""
    parts = [part for part in target.walk() if part is target or part.name in XLIFF["containers"]]
    has_text = any(part.text_markup.strip() for part in parts)
    return has_text and not (_is_marked_untranslated(unit) or _is_marked_untranslated(target))


def _is_marked_untranslated(element: XmlElement) -> bool:
    """Return True if a target, or a segment, is marked as untranslated."""
    return element.name in FILLED_STATES and element.find_attribute("state") in UNTRANSLATED_STATES


def _iterate_xliff_nodes(element: XmlElement, depth: int = 0) -> Iterator[InlineNode]:
    """Yield the text and inline elements of a source."""
    for child in element.children:
        if child.name == TEXT_NODE:
            yield InlineNode(child.markup)
        elif child.name in XLIFF["containers"] and child.closing and depth < MAX_TAG_DEPTH and _is_translatable(child):
            yield child.make_container_node(_iterate_xliff_nodes(child, depth + 1))
        elif child.name in XLIFF["opening_codes"] | XLIFF["closing_codes"]:
            key = child.find_attribute("startRef") or child.find_attribute("rid") or child.find_attribute("id")
            yield child.make_node(f"code {key}", is_opening=child.name in XLIFF["opening_codes"])
        else:
            yield child.make_node()


def _fill_target(units: Sequence[UntranslatedUnit], has_states: bool) -> None:
    """Write the translations of an element into its target, which is inserted if missing, and set the states."""
    element, segments = units[0].element, {unit.segment_id for unit in units}
    target = element.find_child("x:target") or _insert_target(element)
    target_segments = _find_segments(target) if segments != {""} else {}
    if not segments <= {"", *target_segments}:
        _insert_segments(target, _copy_segments(element))
        target_segments = _find_segments(target)
    for unit in units:
        (target_segments[unit.segment_id] if unit.segment_id else target).replace_content(unit.tagged_text.write())
    if element.name == "x:segment":
        _set_attribute(element, "state", FILLED_STATES["x:segment"])
    elif statuses := _find_trados_segments(element):
        for seg in statuses:
            if seg.find_attribute("id") in segments:
                seg.opening = TRADOS_MATCH_ATTRIBUTES.sub("", seg.opening)
                _set_attribute(seg, "conf", "Draft")
                _set_attribute(seg, "origin", "mt")
    elif has_states:
        _set_attribute(target, "state", FILLED_STATES["x:target"])
    if MEMOQ_STATUS in dict(iterate_attributes(element.opening)):
        _set_attribute(element, MEMOQ_STATUS, "MachineTranslated")
    if element.find_attribute("approved") == "yes":
        _set_attribute(element, "approved", "no")


def _insert_target(unit: XmlElement) -> XmlElement:
    """Insert an empty target after the source, with the same white space before it."""
    names = [child.name for child in unit.children]
    source = unit.children[names.index("x:source")]
    index = names.index("x:seg-source" if "x:seg-source" in names else "x:source")
    space = [child for child in unit.children[:index][-1:] if child.name == TEXT_NODE]
    prefix = "".join(source.opening[1:].split()[0].rpartition(":")[:2])
    target = XmlElement("x:target", f"<{prefix}target>", f"</{prefix}target>")
    unit.children[index + 1 : index + 1] = [*space, target]
    return target


def _insert_segments(target: XmlElement, source_copy: list[XmlElement]) -> None:
    """Insert missing segments into a target, from a copy of its <seg-source>, beside their neighbours."""
    existing = _find_segments(target)
    if not existing:
        target.replace_content("")
        target.children = source_copy
        return
    whole = XmlElement("", "", children=source_copy)
    neighbours = {  # previous and next sibling, in lists that may be empty, for the id of each descendant
        id(child): (parent.children[max(index - 1, 0) : index], parent.children[index + 1 : index + 2])
        for parent in whole.walk()
        for index, child in enumerate(parent.children)
    }
    leading: list[XmlElement] = []  # inserted before the first segment of the target
    replacements: dict[int, list[XmlElement]] = {}  # a segment and what is inserted after it, by its id
    last: list[XmlElement] = []
    for mid, segment in _find_segments(whole).items():
        before, after = (filter(lambda each: each.is_white_space, side) for side in neighbours[id(segment)])
        if mid in existing:
            last = replacements[id(existing[mid])] = [existing[mid]]
        elif last:
            last += [*before, segment]
        else:
            leading += [segment, *after]
    if not last:
        target.children += leading
        return
    next(iter(replacements.values()))[:0] = leading
    for parent in list(target.walk()):
        parent.children = [new for child in parent.children for new in replacements.get(id(child), [child])]


def _copy_segments(unit: XmlElement) -> list[XmlElement]:
    """Copy the content of a <seg-source> for the target, with empty segments except for those without words."""
    source = unit.find_child("x:seg-source")
    copies = copy.deepcopy(source.children) if source else []
    for mrk in _find_segments(XmlElement("", "", children=copies)).values():
        if TaggedText(_iterate_xliff_nodes(mrk)).text:
            mrk.replace_content("")
    return copies


def _set_attribute(element: XmlElement, name: str, value: str) -> None:
    """Set an attribute in the tag of an element, or append it."""
    pattern = re.compile(rf"""(\s{name}\s*=\s*)(["'])[^"']*\2""")
    if pattern.search(element.opening):
        element.opening = pattern.sub(rf"\g<1>\g<2>{value}\g<2>", element.opening, count=1)
        return
    end = "/>" if element.opening.endswith("/>") else ">"
    element.opening = f'{element.opening.removesuffix(end).rstrip()} {name}="{value}"{end}'
