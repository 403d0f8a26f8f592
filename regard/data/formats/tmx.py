"""Translation memories (TMX 1.1 to 1.4)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.data.files import name_of
from regard.data.formats import xml
from regard.data.languages import matches
from regard.data.pair import Pair, one_line
from regard.data.sides import LanguageError, Sides, Wish, choose, listed, nearest_code
from regard.errors import UserError

LANG = "{http://www.w3.org/XML/1998/namespace}lang"
NATIVE = frozenset({"bpt", "ept", "ph", "it", "ut"})  # codes of the document that was translated, not its text
AHEAD = 1000  # units that are looked at before the languages are chosen


class Unit(NamedTuple):
    """A translation unit: its text in each language."""

    line: int
    first: str | None
    texts: dict[str, str]


def read(path: Path, wish: Wish) -> Iterator[Pair]:
    """The pairs of two languages; units that lack one of them are left out."""
    everything = units(path)
    ahead = list(islice(everything, AHEAD))
    if not ahead:
        return
    sides, seen, found = choice(ahead, wish, path), dict[str, None](), False
    for unit in chain(ahead, everything):
        new = [code for code in unit.texts if code not in seen]
        seen |= dict.fromkeys(new)
        if not sides.sure and not all(known(code, sides) for code in new):
            sides = choose(
                list(seen), wish, f"{name_of(path)}:{unit.line}", sides.source
            )  # or says that they are three
        source, target = nearest_code(unit.texts, sides.source), nearest_code(unit.texts, sides.target)
        if source and target:
            found = True
            yield Pair(unit.texts[source], unit.texts[target])
    if not found:
        raise LanguageError(
            f"{name_of(path)} has no unit in both {sides.source} and {sides.target}; it holds {listed(list(seen))}"
        )


def languages(path: Path, wish: Wish) -> tuple[str, str] | None:
    """The two that are read."""
    with closing(units(path)) as everything:
        ahead = list(islice(everything, AHEAD))
    sides = choice(ahead, wish, path) if ahead else None
    return sides and (sides.source, sides.target)


def choice(ahead: list[Unit], wish: Wish, path: Path) -> Sides:
    """Source and target by the first units. What was asked for by name may still come later."""
    if wish.source and wish.target:
        return Sides(wish.source, wish.target, sure=True)
    return choose([code for unit in ahead for code in unit.texts], wish, name_of(path), ahead[0].first)


def known(code: str, sides: Sides) -> bool:
    """Whether a language is one of the two that are read."""
    return matches(code, sides.source) or matches(code, sides.target)


def units(path: Path) -> Generator[Unit]:
    """The units of a memory, in order, in a memory that does not grow with the file."""
    first, name = None, name_of(path)
    for _, element in xml.elements(path, "tmx", ends=["header", "tu"]):
        if xml.local(element) == "header":
            first = element.get("srclang")
            continue
        own = element.get("srclang") or first
        yield Unit(element.sourceline, None if own == "*all*" else own, texts(element, name))


def texts(unit: xml.Element, name: str) -> dict[str, str]:
    """A unit's text in each language; of several in one language, the first."""
    found: dict[str, str] = {}
    for variant in xml.children(unit, "tuv"):
        code = variant.get(LANG) or variant.get("lang")
        if not code:
            raise UserError(f"{name}:{variant.sourceline}: a <tuv> without xml:lang; each says its language")
        for segment in xml.children(variant, "seg")[:1]:
            found.setdefault(code, one_line(xml.text(segment, NATIVE, name)))
    return found
