"""Gettext PO files: fill in missing translations; translate-toolkit reads and writes the file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from regard.data.readers.po import convert_to_utf8
from regard.documents.base import DocumentError, ParsedDocument
from regard.documents.escaping import escape_text, unescape_markup
from regard.documents.tagged_text import TaggedText, iterate_tagged_nodes
from regard.errors import to_single_line

if TYPE_CHECKING:
    from translate.storage.pypo import pofile, pounit

INLINE_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+)(?:\s[^<>]*+)?>")
PLURAL_FORM_COUNT = re.compile(r"nplurals\s*+=\s*+([1-9])")
DEFAULT_PLURAL_FORMS = 2  # singular and plural, if the header does not say


def parse_po(content: bytes) -> ParsedDocument:
    """Parse a PO file."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    file = _read_po_file(content[len(mark) :])
    messages = list(_iterate_untranslated_messages(file))

    def write() -> bytes:
        for unit, texts in messages:
            if any(line.text and not line.translation for lines in texts for line in lines):
                continue
            forms = ["\n".join(line.fill() for line in lines) for lines in texts]
            unit.target = _make_plural_forms(forms, file) if unit.hasplural() else forms[0]
        return mark + bytes(file)

    return ParsedDocument([line for _, texts in messages for lines in texts for line in lines if line.text], write)


def _read_po_file(content: bytes) -> pofile:
    """Read the file with translate-toolkit."""
    try:
        from translate.storage.poparser import PoParseError
        from translate.storage.pypo import pofile
    except ImportError as error:
        raise DocumentError("needs translate-toolkit; install it with pip install 'regard[formats]'") from error
    try:
        file = pofile.parsestring(convert_to_utf8(content))
        bytes(file)  # must be writable as well
    except (PoParseError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise DocumentError(f"is damaged or not a PO file: {to_single_line(error)}") from error
    if not file.units and content.strip():
        raise DocumentError("has no messages, so it is not a PO file")
    return file


def _iterate_untranslated_messages(file: pofile) -> Iterator[tuple[pounit, list[list[TaggedText]]]]:
    """Yield the messages without any translation, except the header, obsolete and fuzzy ones.

    Each comes with the lines of its source text, or those of the singular and of the plural.
    """
    for unit in file.units:
        done = unit.isheader() or unit.isobsolete() or unit.isfuzzy()
        if not done and not any(map(str, _list_texts(unit, "target"))):
            texts = [_parse_message_lines(str(text)) for text in _list_texts(unit, "source")]
            if any(line.text for lines in texts for line in lines):
                yield unit, texts


def _list_texts(unit: pounit, side: str) -> list[str]:
    """Return the source or target text; of a message with plurals the singular and the plural."""
    text = getattr(unit, side)
    return list(text.strings) if unit.hasplural() else [text or ""]


def _parse_message_lines(text: str) -> list[TaggedText]:
    lines = text.split("\n")
    return [TaggedText(iterate_tagged_nodes(line, INLINE_TAG, escape_text), line, unescape_markup) for line in lines]


def _make_plural_forms(translations: list[str], file: pofile) -> list[str]:
    """Use the singular as the first form and the plural for all others; a language with one form gets the plural.

    The header says how many plural forms the target language has.
    """
    header = file.header()
    match = PLURAL_FORM_COUNT.search(str(header.target)) if header is not None else None
    form_count = int(match[1]) if match else DEFAULT_PLURAL_FORMS
    return [*translations[:1], *translations[-1:] * (form_count - 1)] if form_count > 1 else translations[-1:]
