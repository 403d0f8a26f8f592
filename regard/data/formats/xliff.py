"""XLIFF, 1.x and 2.x."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from regard.data.files import name_of
from regard.data.formats import xml
from regard.data.pair import Pair, one_line
from regard.data.sides import Wish, reverses

NATIVE = frozenset({"bpt", "ept", "ph", "it", "x", "bx", "ex"})  # codes of the document that was translated
UNTRANSLATED = frozenset({"new", "needs-translation", "initial"})


class Unit(NamedTuple):
    """A translated sentence, and the languages of the file that it is in, "" where that does not say."""

    line: int
    codes: tuple[str, str]
    pair: Pair


def read(path: Path, wish: Wish) -> Iterator[Pair]:
    """What has a translation, turned round where the languages that were asked for say so."""
    turned: dict[tuple[str, str], bool] = {}
    for unit in units(path):
        if unit.codes not in turned:
            turned[unit.codes] = reverses(unit.codes, wish, f"{name_of(path)}:{unit.line}")
        yield Pair(unit.pair.target, unit.pair.source) if turned[unit.codes] else unit.pair


def languages(path: Path, wish: Wish) -> tuple[str, str] | None:
    """Those of the first translated sentence, as they are read."""
    with closing(units(path)) as everything:
        for unit in everything:
            reverse = reverses(unit.codes, wish, f"{name_of(path)}:{unit.line}")
            source, target = unit.codes[::-1] if reverse else unit.codes
            return (source, target) if source and target else None
    return None


def units(path: Path) -> Generator[Unit]:
    """The translated sentences: of 1.x a whole <trans-unit>, of 2.x a <segment>."""
    whole = codes = ("", "")
    for event, element in xml.elements(path, "xliff", ["trans-unit", "unit"], begins=["xliff", "file"]):
        if event == "start":
            source = element.get("source-language") or element.get("srcLang")
            target = element.get("target-language") or element.get("trgLang")
            codes = (source or whole[0], target or whole[1])
            whole = codes if xml.local(element) == "xliff" else whole
            continue
        holders = [element] if xml.local(element) == "trans-unit" else xml.children(element, "segment")
        for holder in holders if is_translatable(element) else ():
            for pair in pairs(holder, name_of(path)):
                yield Unit(holder.sourceline, codes, pair)


def pairs(holder: xml.Element, name: str) -> Iterator[Pair]:
    """Source and target where both have text and nobody says that the target is only a placeholder."""
    for source in xml.children(holder, "source")[:1]:
        for target in xml.children(holder, "target")[:1]:
            if (target.get("state") or holder.get("state")) in UNTRANSLATED:
                continue
            pair = Pair(*(one_line(xml.text(side, NATIVE, name)) for side in (source, target)))
            if all(pair):
                yield pair


def is_translatable(element: xml.Element) -> bool:
    """What must not be translated is there for context; its target, if any, is its source. Groups hand this down."""
    while element is not None:
        if element.get("translate"):
            return bool(element.get("translate") != "no")
        element = element.getparent()
    return True
