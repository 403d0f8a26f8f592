"""XLIFF files (versions 1.x and 2.x)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from regard.data.languages import LanguageRequest, is_reversed
from regard.data.readers import xml_stream
from regard.data.readers.text import Pair, collapse_whitespace, format_path

_NATIVE_CODES = frozenset({"bpt", "ept", "ph", "it", "x", "bx", "ex"})  # markup of the translated document
UNTRANSLATED_STATES = frozenset({"new", "needs-translation", "initial"})


class _XliffUnit(NamedTuple):
    """A translated sentence, and the name and the languages of its file, "" if unknown."""

    line: int
    document: str
    codes: tuple[str, str]
    pair: Pair


def read_xliff(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the translated sentences, with sides swapped if the requested languages say so."""
    swapped: dict[tuple[str, str], bool] = {}
    for unit in _iterate_units(path):
        if unit.codes not in swapped:
            swapped[unit.codes] = is_reversed(unit.codes, request, f"{format_path(path)}:{unit.line}")
        request.document = unit.document
        yield Pair(unit.pair.target, unit.pair.source) if swapped[unit.codes] else unit.pair


def _iterate_units(path: Path) -> Iterator[_XliffUnit]:
    """Yield the translated sentences: in 1.x each <trans-unit>, in 2.x each <segment>."""
    document, document_codes, codes = "", ("", ""), ("", "")
    for event, element in xml_stream.iterate_elements(path, "xliff", ["trans-unit", "unit"], ["xliff", "file"]):
        if event == "start":
            source = element.get("source-language") or element.get("srcLang")
            target = element.get("target-language") or element.get("trgLang")
            codes = (source or document_codes[0], target or document_codes[1])
            document_codes = codes if xml_stream.find_local_name(element) == "xliff" else document_codes
            document = element.get("original") or element.get("id") or ""
            continue
        is_unit = xml_stream.find_local_name(element) == "trans-unit"
        holders = [element] if is_unit else xml_stream.find_children(element, "segment")
        for holder in holders if _is_translatable(element) else ():
            for pair in _extract_pairs(holder, format_path(path)):
                yield _XliffUnit(holder.sourceline, document, codes, pair)


def _extract_pairs(holder: xml_stream.Element, name: str) -> Iterator[Pair]:
    """Yield source and target if both have text and the target is not marked as untranslated."""
    for source in xml_stream.find_children(holder, "source")[:1]:
        for target in xml_stream.find_children(holder, "target")[:1]:
            if (target.get("state") or holder.get("state")) in UNTRANSLATED_STATES:
                continue
            texts = (xml_stream.extract_text(side, _NATIVE_CODES, name) for side in (source, target))
            pair = Pair(*map(collapse_whitespace, texts))
            if all(pair):
                yield pair


def _is_translatable(element: xml_stream.Element) -> bool:
    """Return False if an element or one of its parents says translate="no": it is there for context only."""
    while element is not None:
        if element.get("translate"):
            return bool(element.get("translate") != "no")
        element = element.getparent()
    return True
