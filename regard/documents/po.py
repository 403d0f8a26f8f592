"""Gettext's PO files: messages without a translation are filled; translate-toolkit reads the file and writes it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from regard.data.readers.po import convert_to_utf8
from regard.data.readers.text_io import to_single_line
from regard.documents.base import DocumentError, ParsedDocument
from regard.documents.escaping import escape_text, unescape_markup
from regard.documents.tagged_text import InlineNode, TaggedText, make_literal

if TYPE_CHECKING:
    from translate.storage.pypo import pofile, pounit

INLINE_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+)(?:\s[^<>]*+)?>")
PLURAL_FORM_COUNT = re.compile(r"nplurals\s*+=\s*+([1-9])")
DEFAULT_PLURAL_FORMS = 2  # forms, one for one and one for many, where the header does not say


class UntranslatedMessage(NamedTuple):
    """A unit of the file, and the lines of each text that is to be translated for it."""

    unit: pounit
    texts: list[list[TaggedText]]


def parse_po(content: bytes) -> ParsedDocument:
    """A PO file."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    file = _read_po_file(content[len(mark) :])
    messages = list(_iterate_untranslated_messages(file))
    spoken = [line for message in messages for lines in message.texts for line in lines if line.text]

    def write(translations: Sequence[str]) -> bytes:
        made = dict(zip(map(id, spoken), translations, strict=True))
        for unit, texts in messages:
            if any(line.text and not made[id(line)] for lines in texts for line in lines):
                continue
            forms = [
                "\n".join(line.write(made.get(id(line), ""), unescape_markup) for line in lines) for lines in texts
            ]
            unit.target = _make_plural_forms(forms, _count_plural_forms(file)) if unit.hasplural() else forms[0]
        return mark + bytes(file)

    return ParsedDocument([line.text for line in spoken], write)


def _read_po_file(content: bytes) -> pofile:
    """The file as translate-toolkit reads it."""
    try:
        from translate.storage.poparser import PoParseError
        from translate.storage.pypo import pofile
    except ImportError as error:
        raise DocumentError("needs translate-toolkit; install it with pip install 'regard[formats]'") from error
    try:
        file = pofile.parsestring(convert_to_utf8(content))
        bytes(file)  # whatever it reads it must be able to write
    except (PoParseError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise DocumentError(f"is damaged or not a PO file: {to_single_line(error)}") from error
    if not file.units and content.strip():
        raise DocumentError("has no messages, as a PO file has")
    return file


def _iterate_untranslated_messages(file: pofile) -> Iterator[UntranslatedMessage]:
    """The messages that have no translation at all: neither the header nor what is obsolete or only doubtful."""
    for unit in file.units:
        done = unit.isheader() or unit.isobsolete() or unit.isfuzzy()
        if not done and not any(map(str, _list_target_texts(unit))):
            texts = [_parse_message_lines(str(text)) for text in _list_source_texts(unit)]
            if any(line.text for lines in texts for line in lines):
                yield UntranslatedMessage(unit, texts)


def _list_source_texts(unit: pounit) -> list[str]:
    """The message; of one with plurals that for one, and that for many."""
    return list(unit.source.strings) if unit.hasplural() else [unit.source or ""]


def _list_target_texts(unit: pounit) -> list[str]:
    """Its translations."""
    return list(unit.target.strings) if unit.hasplural() else [unit.target or ""]


def _parse_message_lines(text: str) -> list[TaggedText]:
    """The lines of a message, each with its tags."""
    return [TaggedText(_iterate_po_nodes(line)) for line in text.split("\n")]


def _iterate_po_nodes(line: str) -> Iterator[InlineNode]:
    """Words and tags."""
    place = 0
    for found in INLINE_TAG.finditer(line):
        yield InlineNode(escape_text(line[place : found.start()]))
        place = found.end()
        yield InlineNode(
            opening=[make_literal(found[0])], pair_key=found["name"].lower(), is_opening=not found["close"]
        )
    yield InlineNode(escape_text(line[place:]))


def _count_plural_forms(file: pofile) -> int:
    """The forms that a message with plurals has in the language that is translated into."""
    header = file.header()
    found = PLURAL_FORM_COUNT.search(str(header.target)) if header is not None else None
    return int(found[1]) if found else DEFAULT_PLURAL_FORMS


def _make_plural_forms(translations: list[str], form_count: int) -> list[str]:
    """A form for one first, and then those for many, which are alike; a language that has but one form has that."""
    return [*translations[:1], *translations[-1:] * (form_count - 1)] if form_count > 1 else translations[-1:]
