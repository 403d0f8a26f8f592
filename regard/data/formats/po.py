"""Gettext's PO files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.files import in_a_line, name_of, reading
from regard.data.pair import Pair, one_line
from regard.data.sides import Wish, reverses
from regard.errors import UserError

CHARSET = re.compile(rb"charset=([A-Za-z0-9_.:-]+)")

if TYPE_CHECKING:
    from translate.storage.pypo import pofile, pounit


def read(path: Path, wish: Wish) -> Iterator[Pair]:
    """Every translated message: not the header, nothing fuzzy, obsolete or untranslated; contexts count for nothing."""
    file = parsed(path)
    turned = reverses(("", language(file)), wish, name_of(path))
    for unit in file.units:
        if not (unit.isheader() or unit.isobsolete() or unit.isfuzzy()):
            for pair in forms(unit):
                if all(pair):
                    yield Pair(pair.target, pair.source) if turned else pair


def forms(unit: pounit) -> Iterator[Pair]:
    """The message and its translation; of one with plurals the singular with the first form, the plural with the last.

    Those are forms for one and for many in every language; where there is one form alone, it stands for both.
    """
    whole = unit.source, unit.target
    sides = [side.strings for side in whole] if unit.hasplural() else [[side] for side in whole]
    sources, targets = ([one_line(str(text)) for text in side] for side in sides)
    yield Pair(sources[0], targets[0])
    if len(sources) > 1:
        yield Pair(sources[-1], targets[-1])


def parsed(path: Path) -> pofile:
    """The file as translate-toolkit reads it; whole, as such files are small."""
    try:
        from translate.storage.poparser import PoParseError
        from translate.storage.pypo import pofile
    except ImportError as error:
        raise UserError(
            f"{name_of(path)}: PO files need translate-toolkit; install it with pip install 'regard[formats]'"
        ) from error
    with reading(path) as file:
        content = file.read()
    try:
        return pofile.parsestring(in_utf8(content))
    except PoParseError as error:
        where = f"{name_of(path)}:{error.parse_state.lineno}"
        raise UserError(f"{where}: damaged or not a PO file: {in_a_line(error)}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name_of(path)}:{line}: not {error.encoding}, as the header says it is") from error
    except (ValueError, LookupError) as error:
        raise UserError(f"{name_of(path)} is damaged or not a PO file: {in_a_line(error)}") from error


def in_utf8(content: bytes) -> bytes:
    """The file in UTF-8, whatever encoding its header names: translate-toolkit reads others by halves."""
    named = CHARSET.search(content)
    if named is None or named[1] == b"CHARSET":  # as gettext leaves it until somebody fills it in
        return content
    encoding = named[1].decode("ascii")
    return content.decode(encoding).replace(f"charset={encoding}", "charset=UTF-8", 1).encode()


def language(file: pofile) -> str:
    """The language that is translated into, "" where the header does not say."""
    return file.gettargetlanguage() or ""
