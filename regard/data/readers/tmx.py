"""TMX translation memories (versions 1.1 to 1.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.data.languages import (
    LanguageError,
    LanguagePair,
    LanguageRequest,
    choose_language_pair,
    find_matching_code,
    format_languages,
    matches_language,
)
from regard.data.readers import xml_stream
from regard.data.readers.text import Pair, collapse_whitespace, format_path
from regard.errors import UserError

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_NATIVE_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})  # markup of the translated document, not its text
_DOCUMENT_PROPERTIES = frozenset({"document", "file", "filename", "x-document", "x-file", "x-filename"})  # of CAT tools
_NUM_INSPECTED_UNITS = 1000  # read before the languages are chosen


class _TmxUnit(NamedTuple):
    """A translation unit: its document, "" if unknown, and its text in each language."""

    line: int
    document: str
    declared_source: str | None
    texts: dict[str, str]


def read_tmx(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs of two languages; units that lack one of them are skipped and counted."""
    units = _iterate_units(path)
    first_units = list(islice(units, _NUM_INSPECTED_UNITS))
    if not first_units:
        return
    if request.source and request.target:  # they may occur later
        sides = LanguagePair(request.source, request.target, is_final=True)
    else:
        codes = [code for unit in first_units for code in unit.texts]
        sides = choose_language_pair(codes, request, format_path(path), first_units[0].declared_source)
    request.chosen = sides.source, sides.target
    seen, has_pairs = dict[str, None](), False
    for unit in chain(first_units, units):
        new_codes = [code for code in unit.texts if code not in seen]
        seen |= dict.fromkeys(new_codes)
        if not sides.is_final and not all(_is_in_pair(code, sides) for code in new_codes):
            # Raises an error if there are three languages now.
            sides = choose_language_pair(list(seen), request, f"{format_path(path)}:{unit.line}", sides.source)
        source, target = find_matching_code(unit.texts, sides.source), find_matching_code(unit.texts, sides.target)
        if source and target:
            has_pairs = True
            request.document = unit.document
            yield Pair(unit.texts[source], unit.texts[target])
        else:
            request.num_incomplete += 1
    if not has_pairs:
        raise LanguageError(
            f"{format_path(path)} has no unit in both {sides.source} and {sides.target}; "
            f"it holds {format_languages(list(seen))}"
        )


def _is_in_pair(code: str, pair: LanguagePair) -> bool:
    return matches_language(code, pair.source) or matches_language(code, pair.target)


def _iterate_units(path: Path) -> Iterator[_TmxUnit]:
    """Yield the units in order; memory use does not grow with the file."""
    default_source, name = None, format_path(path)
    for _, element in xml_stream.iterate_elements(path, "tmx", end_tags=["header", "tu"]):
        if xml_stream.find_local_name(element) == "header":
            default_source = element.get("srclang")
            continue
        source = element.get("srclang") or default_source
        declared_source, document = None if source == "*all*" else source, _find_document(element)
        yield _TmxUnit(element.sourceline, document, declared_source, _extract_variants(element, name))


def _find_document(unit: xml_stream.Element) -> str:
    """Return the document that a property of the unit names, or ""."""
    properties = xml_stream.find_children(unit, "prop")
    names = [prop.text or "" for prop in properties if (prop.get("type") or "").lower() in _DOCUMENT_PROPERTIES]
    return next((name.strip() for name in names if name.strip()), "")


def _extract_variants(unit: xml_stream.Element, name: str) -> dict[str, str]:
    """Return a unit's text in each language; the first one if a language occurs several times."""
    texts: dict[str, str] = {}
    for variant in xml_stream.find_children(unit, "tuv"):
        code = variant.get(_XML_LANG) or variant.get("lang")
        if not code:
            raise UserError(f"{name}:{variant.sourceline}: a <tuv> without xml:lang; add its language code")
        for segment in xml_stream.find_children(variant, "seg")[:1]:
            texts.setdefault(code, collapse_whitespace(xml_stream.extract_text(segment, _NATIVE_CODES, name)))
    return texts
