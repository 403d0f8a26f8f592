"""Translation memories (TMX 1.1 to 1.4)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.data.language_pair import (
    LanguageError,
    LanguagePair,
    LanguageRequest,
    choose_language_pair,
    find_matching_code,
    format_languages,
    matches_language,
)
from regard.data.readers import xml_stream
from regard.data.readers.text_io import format_path
from regard.data.sentence_pair import Pair, collapse_whitespace
from regard.errors import UserError

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_NATIVE_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})  # codes of the document that was translated, not its text
_NUM_INSPECTED_UNITS = 1000  # units that are looked at before the languages are chosen


class _TmxUnit(NamedTuple):
    """A translation unit: its text in each language."""

    line: int
    declared_source: str | None
    texts: dict[str, str]


def read_tmx(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """The pairs of two languages; units that lack one of them are left out."""
    everything = _iterate_units(path)
    ahead = list(islice(everything, _NUM_INSPECTED_UNITS))
    if not ahead:
        return
    sides, seen, found = _choose_from_first_units(ahead, request, path), dict[str, None](), False
    for unit in chain(ahead, everything):
        new = [code for code in unit.texts if code not in seen]
        seen |= dict.fromkeys(new)
        if not sides.is_final and not all(_is_in_pair(code, sides) for code in new):
            sides = choose_language_pair(
                list(seen), request, f"{format_path(path)}:{unit.line}", sides.source
            )  # or says that they are three
        source, target = find_matching_code(unit.texts, sides.source), find_matching_code(unit.texts, sides.target)
        if source and target:
            found = True
            yield Pair(unit.texts[source], unit.texts[target])
    if not found:
        raise LanguageError(
            f"{format_path(path)} has no unit in both {sides.source} and {sides.target}; it holds {format_languages(list(seen))}"
        )


def find_tmx_languages(path: Path, request: LanguageRequest) -> tuple[str, str] | None:
    """The two that are read."""
    with closing(_iterate_units(path)) as everything:
        ahead = list(islice(everything, _NUM_INSPECTED_UNITS))
    sides = _choose_from_first_units(ahead, request, path) if ahead else None
    return sides and (sides.source, sides.target)


def _choose_from_first_units(first_units: list[_TmxUnit], request: LanguageRequest, path: Path) -> LanguagePair:
    """Source and target by the first units. What was asked for by name may still come later."""
    if request.source and request.target:
        return LanguagePair(request.source, request.target, is_final=True)
    return choose_language_pair(
        [code for unit in first_units for code in unit.texts],
        request,
        format_path(path),
        first_units[0].declared_source,
    )


def _is_in_pair(code: str, pair: LanguagePair) -> bool:
    """Whether a language is one of the two that are read."""
    return matches_language(code, pair.source) or matches_language(code, pair.target)


def _iterate_units(path: Path) -> Generator[_TmxUnit]:
    """The units of a memory, in order, in a memory that does not grow with the file."""
    first, name = None, format_path(path)
    for _, element in xml_stream.iterate_elements(path, "tmx", end_tags=["header", "tu"]):
        if xml_stream.find_local_name(element) == "header":
            first = element.get("srclang")
            continue
        own = element.get("srclang") or first
        yield _TmxUnit(element.sourceline, None if own == "*all*" else own, _extract_variants(element, name))


def _extract_variants(unit: xml_stream.Element, name: str) -> dict[str, str]:
    """A unit's text in each language; of several in one language, the first."""
    found: dict[str, str] = {}
    for variant in xml_stream.find_children(unit, "tuv"):
        code = variant.get(_XML_LANG) or variant.get("lang")
        if not code:
            raise UserError(f"{name}:{variant.sourceline}: a <tuv> without xml:lang; each says its language")
        for segment in xml_stream.find_children(variant, "seg")[:1]:
            found.setdefault(code, collapse_whitespace(xml_stream.extract_text(segment, _NATIVE_CODES, name)))
    return found
