"""Bytes as text and back, without a byte changed that is not meant."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from regard.documents.errors import DocumentError

MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
XML = re.compile(rb"""<\?xml[^<>]*?\sencoding\s*=\s*["']([\w.:-]{1,40})["']""")
META = re.compile(rb"""<meta\s[^<>]*?charset\s*=\s*+["']?\s*+([\w.:-]{1,40})""", re.IGNORECASE)
# By Python's names. ASCII and Latin 1 are read as browsers do; UTF-16 has a mark, or is not what it says.
SPOKEN = re.compile(
    r"utf-8|cp125[0-8]|iso8859-(?:[2-8]|1[03456])|koi8-[ru]|shift_jis|euc_(?:jp|kr)|gb(?:2312|k|18030)|big5"
)
MEANT = {"ascii": "cp1252", "iso8859-1": "cp1252", "utf-16": "utf-8"}


class Encoded(NamedTuple):
    """The text of a file, and how it was written."""

    mark: bytes  # a byte order mark, or nothing
    codec: str
    text: str

    def bytes(self, text: str, markup: bool = False) -> bytes:
        """Another text, written alike; what it lacks is a number in markup, and else a ?."""
        return self.mark + text.encode(self.codec, "xmlcharrefreplace" if markup else "replace")


def plain(content: bytes) -> Encoded:
    """The text of a file that does not say how it is written, which must be UTF-8."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    return read(content, mark, "utf-8")


def declared(content: bytes, declaration: re.Pattern[bytes]) -> Encoded:
    """The text of a file that may say how it is written, by a byte order mark or a declaration near its beginning."""
    for mark, codec in MARKS.items():
        if content.startswith(mark):
            return read(content, mark, codec)
    found = declaration.search(content, 0, 4096)
    if not found:
        return read(content, b"", "utf-8")
    said = found[1].decode("ascii", "replace")
    try:
        codec = codecs.lookup(said).name
    except LookupError:
        codec = ""
    codec = MEANT.get(codec, codec)
    if not SPOKEN.fullmatch(codec):
        raise DocumentError(f"is written in {said!r}, which is not read here; save it as UTF-8")
    return read(content, b"", codec)


def read(content: bytes, mark: bytes, codec: str) -> Encoded:
    """The text, where it is text and would be written with the very same bytes."""
    try:
        text = content[len(mark) :].decode(codec)
        same = text.encode(codec) == content[len(mark) :]
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not {codec} text: byte {error.start:,} belongs to no character") from error
    if not same:
        raise DocumentError(f"is not clean {codec} text; save it as UTF-8")
    if "\0" in text:
        raise DocumentError("has NUL characters, as no text has")
    return Encoded(mark, codec, text)
