"""Characters and how markup writes them."""

from __future__ import annotations

import html
import re
import string
from collections.abc import Callable, Collection, Container
from html.entities import html5

from regard.text.addresses import worded
from regard.text.entities import unescape

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][\w.-]{0,63});")
# In HTML, numbers and the oldest names need no semicolon. The longest name comes first.
OLD_NAMES = "|".join(sorted((name for name in html5 if name[-1] != ";"), reverse=True))
HTML_ENTITY = re.compile(rf"({ENTITY.pattern}|&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|{OLD_NAMES}))")
PLAIN = frozenset(string.ascii_letters + string.digits + string.whitespace)
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
    entities = {entity: unescape(entity) for entity in HTML_ENTITY.findall(source)}
    signs = {"&", "<", ">", *(sign for sign in entities.values() if len(sign) == 1 and sign not in PLAIN)}
    bare = re.compile(f"[{''.join(map(re.escape, sorted(signs)))}]")
    forms: dict[str, list[str]] = {sign: [] for sign in signs}
    for number, part in enumerate(HTML_ENTITY.split(source)):
        for form in [part] if number % 2 else bare.findall(part):
            forms.get(entities.get(form, form), []).append(form)
    rest = {sign: iter(some) for sign, some in forms.items()}
    seen_bare = {sign for sign, some in forms.items() if sign in some} - {"&", "<", ">"}

    def spell(markup: str) -> str:
        def write(found: re.Match[str]) -> str:
            sign = html.unescape(found[0])
            written = next(rest.get(sign, iter(())), sign if sign in seen_bare else found[0])
            start, end = found.span()
            before, after = text[max(start - 1, 0) : start], text[end : end + 40]
            return written if is_harmless(before, written, after) else found[0]

        text = spelled(markup, kept)
        return re.sub(f"{ENTITY.pattern}|{bare.pattern}", write, text)

    return spell


def is_harmless(before: str, written: str, after: str) -> bool:
    """Return True if a bare sign, or an entity, means between these texts what it means alone."""
    if written == "<":
        return not re.match(r"[A-Za-z!?/]", after)
    if written == ">":
        return before != "]"  # XML has no ]]> in its text
    if written == "&":
        return html.unescape(written + after).startswith(written + after[:1])
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
