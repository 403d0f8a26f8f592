"""EPUB: the XHTML files of a book, and the old form of its table of contents."""

from __future__ import annotations

from collections.abc import Mapping

from regard.documents.archive import Entry, Limits, drafted
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError
from regard.documents.web import strict_draft

KIND = b"application/epub+zip"
PAGES = (".xhtml", ".html", ".htm", ".xht", ".ncx")


def draft(entries: Mapping[str, Entry], limits: Limits) -> Draft:
    """An .epub file."""
    if "mimetype" not in entries or entries["mimetype"].data.strip() != KIND:
        raise DocumentError(f"is not what its ending says: its type is not {KIND.decode()!r}")
    return drafted(entries, {name: strict_draft for name in entries if name.lower().endswith(PAGES)}, limits)
