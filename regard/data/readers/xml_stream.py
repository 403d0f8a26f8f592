"""XML as a stream: element by element, each let go as soon as it was read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from regard.data.readers.text_io import format_path, open_decompressed, to_single_line
from regard.errors import UserError

Element = Any  # lxml brings no types
_STANDALONE_CODES = frozenset(
    {"ph", "x"}
)  # codes that stand by themselves, as a line break; others begin or end something

# Nothing from outside is fetched, no entity is expanded, a text has at most 10 million bytes: a file cannot make the
# reader open other files or grow without end.
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
    """(event, element) at the start of those called `begins` and at the end of those called `ends`.

    What is given at its end is emptied afterwards, and everything before it leaves memory.
    """
    from lxml import etree

    tags = tuple(f"{{*}}{tag}" for tag in (*start_tags, *end_tags))
    events = ("start", "end") if start_tags else ("end",)
    try:
        with open_decompressed(path) as file:
            _check_root(file, root, path)
            for event, element in etree.iterparse(file, events=events, tag=tags, **SAFE_PARSER_OPTIONS):
                beginning = find_local_name(element) in start_tags
                if (event == "start") == beginning:
                    yield event, element
                    if not beginning:
                        free_element(element)
    except etree.XMLSyntaxError as error:
        line = error.lineno or 1
        said = to_single_line(error.msg).partition(", line ")[0]
        raise UserError(f"{format_path(path)}:{line}: damaged or cut off, the XML cannot be read: {said}") from error


def _check_root(file: IO[bytes], root: str, path: Path) -> None:
    """A file of another kind is refused by its first element, before all of it is read in search of a unit."""
    from lxml import etree

    parser = etree.XMLPullParser(events=("start",), **SAFE_PARSER_OPTIONS)
    try:
        parser.feed(file.peek(1 << 13))  # type: ignore[attr-defined]  # every stream that `opened` gives can
        found = next((find_local_name(element) for _, element in parser.read_events()), root)
    except etree.XMLSyntaxError:
        return  # which the reader itself will say, with the line
    if found != root:
        raise UserError(f"{format_path(path)} is XML, but its first element is <{found}> and not <{root}>")


def free_element(element: Element) -> None:
    """Empties an element and drops what stands before it and before its parents."""
    element.clear(keep_tail=False)
    while (parent := element.getparent()) is not None:
        while element.getprevious() is not None:
            del parent[0]
        element = parent


def find_local_name(element: Element) -> str:
    """An element's name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def find_children(element: Element, name: str) -> list[Element]:
    """The children of a name, in any namespace."""
    return [child for child in element if child.tag == name or find_local_name(child) == name]


def extract_text(element: Element, omitted_tags: Collection[str], name: str) -> str:
    """What a person reads in an element: all text inside, but for that of the elements called `dropped`.

    Where one of those that stand alone, as a line break, was between two words, they do not become one. `name` is that
    of the file, for complaints.
    """
    if not len(element):
        return element.text or ""
    parts: list[str | None] = [element.text or ""]
    below = list(reversed(element))
    while below:  # not by recursion: a file may nest deeper than Python likes
        child = below.pop()
        if isinstance(child, str):
            parts.append(child)
            continue
        below.append(child.tail or "")
        if find_local_name(child) not in omitted_tags:
            parts.append(_read_leading_text(child, f"{name}:{element.sourceline}"))
            below.extend(reversed(child))
        elif find_local_name(child) in _STANDALONE_CODES:
            parts.append(None)
    return "".join(_insert_spaces(parts))


def _insert_spaces(parts: Iterable[str | None]) -> Iterator[str]:
    """Parts of a text, and a space where None stands between the letters or digits of two of them."""
    before, gap = "", False
    for part in parts:
        if part:
            if gap and before.isalnum() and part[0].isalnum():
                yield " "
            yield part
            before = part[-1]
        gap = part is None or (gap and not part)


def _read_leading_text(element: Element, where: str) -> str:
    """The text at an element's beginning; XLIFF's <cp hex="…"/> stands for a character that XML may not hold."""
    from lxml import etree

    if element.tag is etree.Entity:
        raise UserError(f"{where}: {element.text} is an entity of the file's own, which is not read; write its text")
    return _decode_character(element.get("hex"), where) if find_local_name(element) == "cp" else element.text or ""


def _decode_character(code: str | None, where: str) -> str:
    """The character of a hexadecimal number."""
    try:
        found = chr(int(code or "", 16))
    except (ValueError, OverflowError):
        found = "\ud800"
    if "\ud800" <= found <= "\udfff":
        raise UserError(f'{where}: <cp hex="{code}"/> is no character')
    return found
