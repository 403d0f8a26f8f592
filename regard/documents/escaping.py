"""Escape and unescape text of HTML and XML: entities, special characters, line breaks."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Container
from html.entities import html5

from regard.tokenizers.markup import remove_urls, unescape_html

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][\w.-]{0,63});")
ENTITY_SPLITTER = re.compile(f"({ENTITY.pattern})")
# In HTML, numeric references and the oldest names need no semicolon. The longest name comes first.
ENTITIES_WITHOUT_SEMICOLON = "|".join(sorted((name for name in html5 if name[-1] != ";"), reverse=True))
HTML_ENTITY = rf"{ENTITY.pattern}|&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|{ENTITIES_WITHOUT_SEMICOLON})"
SPECIAL_SIGN = re.compile(rf"({HTML_ENTITY}|[^A-Za-z0-9 \t\n\r\f\v])")
ENTITY_LOOKAHEAD = 40  # characters that suffice to recognise an entity; the longest name has 33
# Characters that XML cannot represent, not even as a character reference.
INVALID_XML_CHARACTER = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# White space is matched from its beginning only, so that matching takes linear time.
LINE_BREAKS = re.compile(r"(?<![ \t])[ \t]*+[\r\n][ \t\r\n]*+")


def escape_text(text: str) -> str:
    """Escape text for both XML and HTML."""
    return html.escape(INVALID_XML_CHARACTER.sub("", text), quote=False)


def unescape_markup(markup: str) -> str:
    """Decode the entities of markup without tags; an & that begins no entity stays."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), markup)


def has_translatable_words(text: str) -> bool:
    """Return True if there is anything to translate: a letter outside of URLs."""
    return any(map(str.isalpha, remove_urls(text)))


def normalize_entities(markup: str, kept_entities: Container[str] = ()) -> str:
    """Escape markup so that it is valid XML; decode entities unless they are in `kept_entities`."""
    parts = ENTITY_SPLITTER.split(markup)  # every second part is an entity
    parts[::2] = map(escape_text, parts[::2])
    parts[1::2] = [part if part in kept_entities else escape_text(html.unescape(part)) for part in parts[1::2]]
    return "".join(parts)


def make_html_escaper(source: str, kept_entities: Collection[str]) -> Callable[[str], str]:
    """Build a function that escapes characters as an HTML source does, the nth & like its nth one, and so on.

    Characters are &, < and >, and those that the source writes as entities, with a semicolon or without. If a spelling
    would mean something else beside its new neighbours, `normalize_entities` decides.
    """
    kept = frozenset(kept_entities)
    spellings: dict[str, list[str]] = {"&": [], "<": [], ">": []}
    for spelling in SPECIAL_SIGN.findall(source):
        spellings.setdefault(_decode_sign(spelling), []).append(spelling)
    remaining = {sign: iter(of_sign) for sign, of_sign in spellings.items() if sign in "&<>" or set(of_sign) != {sign}}
    unescaped = {sign for sign in remaining if sign in spellings[sign]} - {"&", "<", ">"}

    def choose_source_spelling(entity: str) -> str:
        sign = _decode_sign(entity)
        return next(remaining[sign], sign if sign in unescaped else entity) if sign in remaining else entity

    def escape_like_source(markup: str) -> str:
        parts = SPECIAL_SIGN.split(normalize_entities(markup, kept))  # every second part is a special character
        chosen = [choose_source_spelling(spelling) for spelling in parts[1::2]]
        after = parts[-1][:ENTITY_LOOKAHEAD]
        for number in range(len(parts) - 2, 0, -2):  # from the end, so that the text after a character is final
            spelling = chosen.pop()
            if spelling != parts[number]:
                before = _decode_sign(parts[number - 2]) if number > 1 and not parts[number - 1] else ""
                parts[number] = spelling if _is_harmless(before, spelling, after) else parts[number]
            after = f"{parts[number - 1][:ENTITY_LOOKAHEAD]}{parts[number]}{after}"[:ENTITY_LOOKAHEAD]
        return "".join(parts)

    return escape_like_source


def _decode_sign(entity: str) -> str:
    """Return the character of a spelling, bare or an entity."""
    return entity if len(entity) == 1 else unescape_html(entity)


def _is_harmless(before: str, sign: str, after: str) -> bool:
    """Return True if a bare character, or an entity, keeps its meaning between these texts."""
    if sign == "<":
        return not re.match(r"[A-Za-z!?/]", after)
    if sign == ">":
        return before != "]"  # ]]> is not allowed in the text of XML
    if sign == "&":
        return not re.match(HTML_ENTITY, sign + after)
    return sign[0] != "&" or sign[-1] == ";" or not re.match(r"[\w=;]", after)


def normalize_html_text(text: str) -> str:
    """Escape text of an HTML file strictly, where browsers tolerate a bare & or an entity without its semicolon."""
    parts = ENTITY_SPLITTER.split(text)
    parts[::2] = [escape_text(unescape_html(part)) for part in parts[::2]]
    return "".join(parts)


def replace_line_breaks(text: str) -> str:
    """Replace line breaks, with the blanks around them, by a space."""
    return LINE_BREAKS.sub(" ", text)
