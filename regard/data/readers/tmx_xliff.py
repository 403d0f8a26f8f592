"""TMX translation memories (versions 1.1 to 1.4) and XLIFF files (1.x and 2.x), parsed as streams of XML elements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from regard.data.languages import (
    LanguageError,
    LanguagePair,
    LanguageRequest,
    choose_language_pair,
    find_matching_code,
    format_languages,
    is_reversed,
    matches_language,
)
from regard.data.readers.text import Pair, collapse_whitespace, format_path, open_decompressed
from regard.errors import UserError, to_single_line

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_TMX_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})  # markup of the translated document, not its text
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
    units = _iterate_tmx_units(path)
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


def _iterate_tmx_units(path: Path) -> Iterator[_TmxUnit]:
    """Yield the units in order; memory use does not grow with the file."""
    default_source, name = None, format_path(path)
    for _, element in iterate_elements(path, "tmx", end_tags=["header", "tu"]):
        if find_local_name(element) == "header":
            default_source = element.get("srclang")
            continue
        source = element.get("srclang") or default_source
        declared_source, document = None if source == "*all*" else source, _find_document(element)
        yield _TmxUnit(element.sourceline, document, declared_source, _extract_variants(element, name))


def _find_document(unit: Element) -> str:
    """Return the document that a property of the unit names, or ""."""
    properties = find_children(unit, "prop")
    names = [prop.text or "" for prop in properties if (prop.get("type") or "").lower() in _DOCUMENT_PROPERTIES]
    return next((name.strip() for name in names if name.strip()), "")


def _extract_variants(unit: Element, name: str) -> dict[str, str]:
    """Return a unit's text in each language; the first one if a language occurs several times."""
    texts: dict[str, str] = {}
    for variant in find_children(unit, "tuv"):
        code = variant.get(_XML_LANG) or variant.get("lang")
        if not code:
            raise UserError(f"{name}:{variant.sourceline}: a <tuv> without xml:lang; add its language code")
        for segment in find_children(variant, "seg")[:1]:
            texts.setdefault(code, collapse_whitespace(extract_text(segment, _TMX_CODES, name)))
    return texts


_XLIFF_CODES = frozenset({"bpt", "ept", "ph", "it", "x", "bx", "ex"})  # markup of the translated document
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
    for unit in _iterate_xliff_units(path):
        if unit.codes not in swapped:
            swapped[unit.codes] = is_reversed(unit.codes, request, f"{format_path(path)}:{unit.line}")
        request.document = unit.document
        yield Pair(unit.pair.target, unit.pair.source) if swapped[unit.codes] else unit.pair


def _iterate_xliff_units(path: Path) -> Iterator[_XliffUnit]:
    """Yield the translated sentences: in 1.x each <trans-unit>, in 2.x each <segment>."""
    document, document_codes, codes = "", ("", ""), ("", "")
    for event, element in iterate_elements(path, "xliff", ["trans-unit", "unit"], ["xliff", "file"]):
        if event == "start":
            source = element.get("source-language") or element.get("srcLang")
            target = element.get("target-language") or element.get("trgLang")
            codes = (source or document_codes[0], target or document_codes[1])
            document_codes = codes if find_local_name(element) == "xliff" else document_codes
            document = element.get("original") or element.get("id") or ""
            continue
        is_unit = find_local_name(element) == "trans-unit"
        holders = [element] if is_unit else find_children(element, "segment")
        for holder in holders if _is_translatable(element) else ():
            for pair in _extract_pairs(holder, format_path(path)):
                yield _XliffUnit(holder.sourceline, document, codes, pair)


def _extract_pairs(holder: Element, name: str) -> Iterator[Pair]:
    """Yield source and target if both have text and the target is not marked as untranslated."""
    for source in find_children(holder, "source")[:1]:
        for target in find_children(holder, "target")[:1]:
            if (target.get("state") or holder.get("state")) in UNTRANSLATED_STATES:
                continue
            texts = (extract_text(side, _XLIFF_CODES, name) for side in (source, target))
            pair = Pair(*map(collapse_whitespace, texts))
            if all(pair):
                yield pair


def _is_translatable(element: Element) -> bool:
    """Return False if an element or one of its parents says translate="no": it is there for context only."""
    while element is not None:
        if element.get("translate"):
            return bool(element.get("translate") != "no")
        element = element.getparent()
    return True


Element = Any  # lxml brings no types
_STANDALONE_CODES = frozenset({"ph", "x"})  # such as a line break; other codes begin or end something

# Against untrusted input: nothing external is fetched, no entity is expanded, and a text has at most 10 million bytes.
# A file cannot make the reader open other files or use unlimited memory.
SAFE_PARSER_OPTIONS = {
    "resolve_entities": False,
    "no_network": True,
    "load_dtd": False,
    "dtd_validation": False,
    "huge_tree": False,
    "remove_comments": True,
    "remove_pis": True,
    "collect_ids": False,
}


def iterate_elements(
    path: Path, root: str, end_tags: Sequence[str], start_tags: Sequence[str] = ()
) -> Iterator[tuple[str, Element]]:
    """Yield (event, element) at the start of elements in `start_tags` and at the end of those in `end_tags`.

    An element of `end_tags` is emptied afterwards, and everything before it is freed.
    """
    from lxml import etree

    tags = tuple(f"{{*}}{tag}" for tag in (*start_tags, *end_tags))
    events = ("start", "end") if start_tags else ("end",)
    try:
        with open_decompressed(path) as file:
            _check_root(file, root, path)
            for event, element in etree.iterparse(file, events=events, tag=tags, **SAFE_PARSER_OPTIONS):
                is_start_tag = find_local_name(element) in start_tags
                if (event == "start") == is_start_tag:
                    yield event, element
                    if not is_start_tag:
                        free_element(element)
    except etree.XMLSyntaxError as error:
        line = error.lineno or 1
        reason = to_single_line(error.msg).partition(", line ")[0]
        raise UserError(f"{format_path(path)}:{line}: damaged or cut off, the XML cannot be read: {reason}") from error


def _check_root(file: IO[bytes], root: str, path: Path) -> None:
    """Raise a UserError for XML of another kind by its first element, before the whole file is read."""
    from lxml import etree

    parser = etree.XMLPullParser(events=("start",), **SAFE_PARSER_OPTIONS)
    try:
        parser.feed(file.peek(1 << 13))  # type: ignore[attr-defined]  # `open_decompressed` returns buffered streams
        first_name = next((find_local_name(element) for _, element in parser.read_events()), root)
    except etree.XMLSyntaxError:
        return  # the parser itself reports it, with the line
    if first_name != root:
        raise UserError(f"{format_path(path)} is XML, but its first element is <{first_name}> and not <{root}>")


def free_element(element: Element) -> None:
    """Empty an element, and remove its preceding siblings and those of its ancestors."""
    element.clear(keep_tail=False)
    while (parent := element.getparent()) is not None:
        while element.getprevious() is not None:
            del parent[0]
        element = parent


def find_local_name(element: Element) -> str:
    """Return an element's name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def find_children(element: Element, name: str) -> list[Element]:
    """Return the children with a name, in any namespace."""
    return [child for child in element if child.tag == name or find_local_name(child) == name]


def extract_text(element: Element, omitted_tags: Collection[str], name: str) -> str:
    """Return all text inside an element, except that of elements in `omitted_tags`.

    If an omitted standalone element, such as a line break, is between two words, they are separated by a space. `name`
    is the file's name, for errors.
    """
    if not len(element):
        return element.text or ""
    parts: list[str | None] = [element.text or ""]
    stack = list(reversed(element))
    while stack:  # no recursion: a file may nest deeper than Python's recursion limit
        child = stack.pop()
        if isinstance(child, str):
            parts.append(child)
            continue
        stack.append(child.tail or "")
        if find_local_name(child) not in omitted_tags:
            parts.append(_read_leading_text(child, f"{name}:{element.sourceline}"))
            stack.extend(reversed(child))
        elif find_local_name(child) in _STANDALONE_CODES:
            parts.append(None)
    return "".join(_insert_spaces(parts))


def _insert_spaces(parts: Iterable[str | None]) -> Iterator[str]:
    """Yield parts of a text, with a space for None between two letters or digits."""
    last_character, has_gap = "", False
    for part in parts:
        if part:
            if has_gap and last_character.isalnum() and part[0].isalnum():
                yield " "
            yield part
            last_character = part[-1]
        has_gap = part is None or (has_gap and not part)


def _read_leading_text(element: Element, where: str) -> str:
    """Return the text before an element's children; XLIFF's <cp hex="…"/> is a character that XML cannot contain."""
    from lxml import etree

    if element.tag is etree.Entity:
        raise UserError(
            f"{where}: {element.text} is an entity that the file defines, which is not expanded; write its text instead"
        )
    return _decode_character(element.get("hex"), where) if find_local_name(element) == "cp" else element.text or ""


def _decode_character(code: str | None, where: str) -> str:
    """Return the character of a hexadecimal code."""
    try:
        character = chr(int(code or "", 16))
    except (ValueError, OverflowError):
        character = "\ud800"
    if "\ud800" <= character <= "\udfff":
        raise UserError(f'{where}: <cp hex="{code}"/> is not a character')
    return character
