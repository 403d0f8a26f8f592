"""Gettext PO files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.languages import LanguageRequest, is_reversed
from regard.data.readers.text import Pair, collapse_whitespace, format_path, open_decompressed
from regard.errors import UserError, to_single_line

_CHARSET = re.compile(rb"charset=([A-Za-z0-9_.:-]+)")

if TYPE_CHECKING:
    from translate.storage.pypo import pofile, pounit


def read_po(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield every translated message, but not the header and fuzzy or obsolete messages; contexts are ignored."""
    file = _parse_po_file(path)
    swapped = is_reversed(("", file.gettargetlanguage() or ""), request, format_path(path))
    for unit in file.units:
        if not (unit.isheader() or unit.isobsolete() or unit.isfuzzy()):
            for pair in _iterate_plural_pairs(unit):
                if all(pair):
                    yield Pair(pair.target, pair.source) if swapped else pair


def _iterate_plural_pairs(unit: pounit) -> Iterator[Pair]:
    """Yield a message and its translation; with plurals the singular with the first form and the plural with the last.

    In every language these are the forms for one and for many; if there is only one form, it is used for both.
    """
    texts = unit.source, unit.target
    sides = [side.strings for side in texts] if unit.hasplural() else [[side] for side in texts]
    sources, targets = ([collapse_whitespace(str(text)) for text in side] for side in sides)
    yield Pair(sources[0], targets[0])
    if len(sources) > 1:
        yield Pair(sources[-1], targets[-1])


def _parse_po_file(path: Path) -> pofile:
    """Read the whole file with translate-toolkit; PO files are small."""
    try:
        from translate.storage.poparser import PoParseError
        from translate.storage.pypo import pofile
    except ImportError as error:
        raise UserError(
            f"{format_path(path)}: PO files need translate-toolkit; install it with pip install 'regard[formats]'"
        ) from error
    with open_decompressed(path) as file:
        content = file.read()
    try:
        return pofile.parsestring(convert_to_utf8(content))
    except PoParseError as error:
        where = f"{format_path(path)}:{error.parse_state.lineno}"
        raise UserError(f"{where}: damaged or not a PO file: {to_single_line(error)}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{format_path(path)}:{line}: not {error.encoding}, the encoding that the header names (by default UTF-8)"
        ) from error
    except (ValueError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{format_path(path)} is damaged or not a PO file: {to_single_line(error)}") from error


def convert_to_utf8(content: bytes) -> bytes:
    """Return the file in UTF-8, whatever encoding its header names: translate-toolkit does not fully support others.

    A file whose header names none is in UTF-8.
    """
    charset = _CHARSET.search(content)
    if charset is None or charset[1] == b"CHARSET":  # gettext's placeholder in a header that was not filled in
        content.decode()
        return content
    encoding = charset[1].decode("ascii")
    return content.decode(encoding).replace(f"charset={encoding}", "charset=UTF-8", 1).encode()
