"""Streaming XML parser: yields element by element, and frees each one after use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from regard.data.readers.text import format_path, open_decompressed
from regard.errors import UserError, to_single_line

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
