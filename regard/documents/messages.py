"""Gettext's PO files: messages without a translation are filled; translate-toolkit reads the file and writes it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from regard.data.files import in_a_line
from regard.data.formats.po import in_utf8
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.passage import Node, Passage, literal
from regard.documents.spelling import escaped, meant

if TYPE_CHECKING:
    from translate.storage.pypo import pofile, pounit

TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+)(?:\s[^<>]*+)?>")
PLURALS = re.compile(r"nplurals\s*+=\s*+([1-9])")
USUAL = 2  # forms, one for one and one for many, where the header does not say


class Message(NamedTuple):
    """A unit of the file, and the lines of each text that is to be translated for it."""

    unit: pounit
    texts: list[list[Passage]]


def draft(content: bytes) -> Draft:
    """A PO file."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    file = parsed(content[len(mark) :])
    messages = list(untranslated(file))
    spoken = [line for message in messages for lines in message.texts for line in lines if line.text]

    def write(answers: Sequence[str]) -> bytes:
        made = dict(zip(map(id, spoken), answers, strict=True))
        for unit, texts in messages:
            if any(line.text and not made[id(line)] for lines in texts for line in lines):
                continue
            forms = ["\n".join(line.write(made.get(id(line), ""), meant) for line in lines) for lines in texts]
            unit.target = plural(forms, count(file)) if unit.hasplural() else forms[0]
        return mark + bytes(file)

    return Draft([line.text for line in spoken], write)


def parsed(content: bytes) -> pofile:
    """The file as translate-toolkit reads it."""
    try:
        from translate.storage.poparser import PoParseError
        from translate.storage.pypo import pofile
    except ImportError as error:
        raise DocumentError("needs translate-toolkit; install it with pip install 'regard[formats]'") from error
    try:
        file = pofile.parsestring(in_utf8(content))
        bytes(file)  # whatever it reads it must be able to write
    except (PoParseError, ValueError, LookupError) as error:
        raise DocumentError(f"is damaged or not a PO file: {in_a_line(error)}") from error
    if not file.units and content.strip():
        raise DocumentError("has no messages, as a PO file has")
    return file


def untranslated(file: pofile) -> Iterator[Message]:
    """The messages that have no translation at all: neither the header nor what is obsolete or only doubtful."""
    for unit in file.units:
        done = unit.isheader() or unit.isobsolete() or unit.isfuzzy()
        if not done and not any(map(str, targets(unit))):
            texts = [passages(str(text)) for text in sources(unit)]
            if any(line.text for lines in texts for line in lines):
                yield Message(unit, texts)


def sources(unit: pounit) -> list[str]:
    """The message; of one with plurals that for one, and that for many."""
    return list(unit.source.strings) if unit.hasplural() else [unit.source or ""]


def targets(unit: pounit) -> list[str]:
    """Its translations."""
    return list(unit.target.strings) if unit.hasplural() else [unit.target or ""]


def passages(text: str) -> list[Passage]:
    """The lines of a message, each with its tags."""
    return [Passage(nodes(line)) for line in text.split("\n")]


def nodes(line: str) -> Iterator[Node]:
    """Words and tags."""
    place = 0
    for found in TAG.finditer(line):
        yield Node(escaped(line[place : found.start()]))
        place = found.end()
        yield Node(opening=[literal(found[0])], half=found["name"].lower(), opens=not found["close"])
    yield Node(escaped(line[place:]))


def count(file: pofile) -> int:
    """The forms that a message with plurals has in the language that is translated into."""
    header = file.header()
    found = PLURALS.search(str(header.target)) if header is not None else None
    return int(found[1]) if found else USUAL


def plural(forms: list[str], count: int) -> list[str]:
    """A form for one first, and then those for many, which are alike; a language that has but one form has that."""
    return [*forms[:1], *forms[-1:] * (count - 1)] if count > 1 else forms[-1:]
