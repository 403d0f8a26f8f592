"""Characters and how markup writes them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Container

from regard.text.addresses import worded
from regard.text.entities import unescape

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][\w.-]{0,63});")
ENTITY_OR_SPECIAL = re.compile(rf"{ENTITY.pattern}|[&<>]")
# What XML has no way to write, not even as a number.
UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# From the beginning of white space on: a run of blanks without a line break is read once, not from each blank.
BREAKS = re.compile(r"(?<![ \t])[ \t]*+[\r\n][ \t\r\n]*+")


def escaped(text: str) -> str:
    """Text as both XML and HTML can hold it."""
    return html.escape(UNWRITABLE.sub("", text), quote=False)


def meant(markup: str) -> str:
    """What markup without tags says. An & that begins no entity stands for itself."""
    return ENTITY.sub(lambda found: html.unescape(found[0]), markup)


def spoken(text: str) -> bool:
    """Whether there is anything to translate: a letter, and not in an address alone."""
    return any(map(str.isalpha, worded(text)))


def spelled(markup: str, kept: Container[str] = ()) -> str:
    """The same markup, with nothing in it that a document could trip over; entities are written out unless `kept`."""
    out, place = [], 0
    for found in ENTITY.finditer(markup):
        out.append(escaped(markup[place : found.start()]))
        out.append(found[0] if found[0] in kept else escaped(html.unescape(found[0])))
        place = found.end()
    return "".join(out) + escaped(markup[place:])


def make_spelling(source: str, kept: Collection[str]) -> Callable[[str], str]:
    """Build a `spelled` that writes the nth &, < and > as the nth one of an HTML source, bare or as an entity.

    Where a bare one would begin an entity or a tag, it is an entity.
    """
    forms: dict[str, list[str]] = {character: [] for character in "&<>"}
    for found in ENTITY_OR_SPECIAL.finditer(source):
        forms.get(html.unescape(found[0]), []).append(found[0])
    rest = {character: iter(found) for character, found in forms.items()}

    def spell(markup: str) -> str:
        def form(found: re.Match[str]) -> str:
            character = html.unescape(found[0])
            written = next(rest.get(character, iter(())), found[0])
            start, end = found.span()
            before, after = text[max(start - 1, 0) : start], text[end : end + 40]
            return written if written != character or is_harmless(before, character, after) else found[0]

        text = spelled(markup, kept)
        return ENTITY.sub(form, text)

    return spell


def is_harmless(before: str, character: str, after: str) -> bool:
    """Return True if a bare &, < or > between these texts means the character itself."""
    if character == "<":
        return not re.match(r"[A-Za-z!?/]", after)
    if character == ">":
        return before != "]"  # XML has no ]]> in its text
    return html.unescape(character + after).startswith(character + after[:1])


def strict(text: str) -> str:
    """The text of an HTML file, where a browser forgives an & or an entity without its end, as all markup takes it."""
    out, place = [], 0
    for found in ENTITY.finditer(text):
        out += [escaped(unescape(text[place : found.start()])), found[0]]
        place = found.end()
    return "".join(out) + escaped(unescape(text[place:]))


def in_a_line(text: str) -> str:
    """Text whose line breaks mean no more than a space."""
    return BREAKS.sub(" ", text)
