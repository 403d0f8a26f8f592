"""Characters and how markup writes them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Container
from html.entities import html5

from regard.text.addresses import worded
from regard.text.entities import unescape

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][\w.-]{0,63});")
# In HTML, numbers and the oldest names need no semicolon. The longest name comes first.
OLD_NAMES = "|".join(sorted((name for name in html5 if name[-1] != ";"), reverse=True))
HTML_ENTITY = rf"{ENTITY.pattern}|&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|{OLD_NAMES})"
SIGN = re.compile(rf"({HTML_ENTITY}|[^A-Za-z0-9 \t\n\r\f\v])")
AHEAD = 40  # characters that show whether an entity begins; the longest name has 33
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
    """Build a `spelled` that writes signs as an HTML source does, the nth & as its nth one, and so on.

    Signs are &, < and >, and those that the source has as entities, with a semicolon or without. Where a form would
    mean something else beside its new neighbours, `spelled` decides.
    """
    known = frozenset(kept)
    forms: dict[str, list[str]] = {"&": [], "<": [], ">": []}
    for form in SIGN.findall(source):
        forms.setdefault(read_sign(form), []).append(form)
    rest = {sign: iter(some) for sign, some in forms.items() if sign in "&<>" or set(some) != {sign}}
    seen_bare = {sign for sign in rest if sign in forms[sign]} - {"&", "<", ">"}

    def choose(form: str) -> str:
        sign = read_sign(form)
        return next(rest[sign], sign if sign in seen_bare else form) if sign in rest else form

    def spell(markup: str) -> str:
        parts = SIGN.split(spelled(markup, known))  # every second one is a sign
        chosen = [choose(form) for form in parts[1::2]]
        after = parts[-1][:AHEAD]
        for number in range(len(parts) - 2, 0, -2):  # from the end, so that what follows a sign is as it will be
            form = chosen.pop()
            if form != parts[number]:
                before = read_sign(parts[number - 2]) if number > 1 and not parts[number - 1] else ""
                parts[number] = form if is_harmless(before, form, after) else parts[number]
            after = f"{parts[number - 1][:AHEAD]}{parts[number]}{after}"[:AHEAD]
        return "".join(parts)

    return spell


def read_sign(form: str) -> str:
    """Return the sign that a form, bare or an entity, stands for."""
    return form if len(form) == 1 else unescape(form)


def is_harmless(before: str, written: str, after: str) -> bool:
    """Return True if a bare sign, or an entity, means between these texts what it means alone."""
    if written == "<":
        return not re.match(r"[A-Za-z!?/]", after)
    if written == ">":
        return before != "]"  # XML has no ]]> in its text
    if written == "&":
        return not re.match(HTML_ENTITY, written + after)
    return written[0] != "&" or written[-1] == ";" or not re.match(r"[\w=;]", after)


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
