"""Characters and how markup writes them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Container
from html.entities import html5

from regard.tokenizers.urls import remove_urls, unescape_html

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][\w.-]{0,63});")
# In HTML, numbers and the oldest names need no semicolon. The longest name comes first.
ENTITIES_WITHOUT_SEMICOLON = "|".join(sorted((name for name in html5 if name[-1] != ";"), reverse=True))
HTML_ENTITY = rf"{ENTITY.pattern}|&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|{ENTITIES_WITHOUT_SEMICOLON})"
SPECIAL_SIGN = re.compile(rf"({HTML_ENTITY}|[^A-Za-z0-9 \t\n\r\f\v])")
ENTITY_LOOKAHEAD = 40  # characters that show whether an entity begins; the longest name has 33
# What XML has no way to write, not even as a number.
INVALID_XML_CHARACTER = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# From the beginning of white space on: a run of blanks without a line break is read once, not from each blank.
LINE_BREAKS = re.compile(r"(?<![ \t])[ \t]*+[\r\n][ \t\r\n]*+")


def escape_text(text: str) -> str:
    """Text as both XML and HTML can hold it."""
    return html.escape(INVALID_XML_CHARACTER.sub("", text), quote=False)


def unescape_markup(markup: str) -> str:
    """What markup without tags says. An & that begins no entity stands for itself."""
    return ENTITY.sub(lambda found: html.unescape(found[0]), markup)


def has_translatable_words(text: str) -> bool:
    """Whether there is anything to translate: a letter, and not in an address alone."""
    return any(map(str.isalpha, remove_urls(text)))


def normalize_entities(markup: str, kept_entities: Container[str] = ()) -> str:
    """The same markup, with nothing in it that a document could trip over; entities are written out unless `kept`."""
    out, place = [], 0
    for found in ENTITY.finditer(markup):
        out.append(escape_text(markup[place : found.start()]))
        out.append(found[0] if found[0] in kept_entities else escape_text(html.unescape(found[0])))
        place = found.end()
    return "".join(out) + escape_text(markup[place:])


def make_html_escaper(source: str, kept_entities: Collection[str]) -> Callable[[str], str]:
    """Build a `spelled` that writes signs as an HTML source does, the nth & as its nth one, and so on.

    Signs are &, < and >, and those that the source has as entities, with a semicolon or without. Where a form would
    mean something else beside its new neighbours, `spelled` decides.
    """
    known = frozenset(kept_entities)
    forms: dict[str, list[str]] = {"&": [], "<": [], ">": []}
    for form in SPECIAL_SIGN.findall(source):
        forms.setdefault(_decode_sign(form), []).append(form)
    rest = {sign: iter(some) for sign, some in forms.items() if sign in "&<>" or set(some) != {sign}}
    seen_bare = {sign for sign in rest if sign in forms[sign]} - {"&", "<", ">"}

    def choose_source_spelling(entity: str) -> str:
        sign = _decode_sign(entity)
        return next(rest[sign], sign if sign in seen_bare else entity) if sign in rest else entity

    def escape_like_source(markup: str) -> str:
        parts = SPECIAL_SIGN.split(normalize_entities(markup, known))  # every second one is a sign
        chosen = [choose_source_spelling(form) for form in parts[1::2]]
        after = parts[-1][:ENTITY_LOOKAHEAD]
        for number in range(len(parts) - 2, 0, -2):  # from the end, so that what follows a sign is as it will be
            form = chosen.pop()
            if form != parts[number]:
                before = _decode_sign(parts[number - 2]) if number > 1 and not parts[number - 1] else ""
                parts[number] = form if _is_harmless(before, form, after) else parts[number]
            after = f"{parts[number - 1][:ENTITY_LOOKAHEAD]}{parts[number]}{after}"[:ENTITY_LOOKAHEAD]
        return "".join(parts)

    return escape_like_source


def _decode_sign(entity: str) -> str:
    """Return the sign that a form, bare or an entity, stands for."""
    return entity if len(entity) == 1 else unescape_html(entity)


def _is_harmless(before: str, sign: str, after: str) -> bool:
    """Return True if a bare sign, or an entity, means between these texts what it means alone."""
    if sign == "<":
        return not re.match(r"[A-Za-z!?/]", after)
    if sign == ">":
        return before != "]"  # XML has no ]]> in its text
    if sign == "&":
        return not re.match(HTML_ENTITY, sign + after)
    return sign[0] != "&" or sign[-1] == ";" or not re.match(r"[\w=;]", after)


def normalize_html_text(text: str) -> str:
    """The text of an HTML file, where a browser forgives an & or an entity without its end, as all markup takes it."""
    out, place = [], 0
    for found in ENTITY.finditer(text):
        out += [escape_text(unescape_html(text[place : found.start()])), found[0]]
        place = found.end()
    return "".join(out) + escape_text(unescape_html(text[place:]))


def replace_line_breaks(text: str) -> str:
    """Text whose line breaks mean no more than a space."""
    return LINE_BREAKS.sub(" ", text)
