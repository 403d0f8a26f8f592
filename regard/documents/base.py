"""What is wrong with a document."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from regard.errors import UserError


class DocumentError(UserError):
    """A document that cannot be translated, or must not be trusted.

    The readers say what it is or has ("is cut off"); `translated` puts the document's name in front.
    """


class ParsedDocument(NamedTuple):
    """The texts of a document, and what writes it once all of them are translated.

    An empty translation leaves its text in the document as it is.
    """

    texts: list[str]
    write: Callable[[Sequence[str]], bytes]
    languages: tuple[str, str] = ("", "")  # source and target, where the document states them


BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
XML_DECLARATION = re.compile(rb"""<\?xml[^<>]*?\sencoding\s*=\s*["']([\w.:-]{1,40})["']""")
META_CHARSET = re.compile(rb"""<meta\s[^<>]*?charset\s*=\s*+["']?\s*+([\w.:-]{1,40})""", re.IGNORECASE)
# By Python's names. ASCII and Latin 1 are read as browsers do; UTF-16 has a mark, or is not what it says.
SUPPORTED_CODECS = re.compile(
    r"utf-8|cp125[0-8]|iso8859-(?:[2-8]|1[03456])|koi8-[ru]|shift_jis|euc_(?:jp|kr)|gb(?:2312|k|18030)|big5"
)
CODEC_SUBSTITUTES = {"ascii": "cp1252", "iso8859-1": "cp1252", "utf-16": "utf-8"}


class EncodedText(NamedTuple):
    """The text of a file, and how it was written."""

    byte_order_mark: bytes  # a byte order mark, or nothing
    codec: str
    text: str

    def encode_like_source(self, text: str, is_markup: bool = False) -> bytes:
        """Another text, written alike; what it lacks is a number in markup, and else a ?."""
        return self.byte_order_mark + text.encode(self.codec, "xmlcharrefreplace" if is_markup else "replace")


def decode_utf8(content: bytes) -> EncodedText:
    """The text of a file that does not say how it is written, which must be UTF-8."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    return _decode_losslessly(content, mark, "utf-8")


def decode_declared_encoding(content: bytes, encoding_pattern: re.Pattern[bytes]) -> EncodedText:
    """The text of a file that may say how it is written, by a byte order mark or a declaration near its beginning."""
    for mark, codec in BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return _decode_losslessly(content, mark, codec)
    found = encoding_pattern.search(content, 0, 4096)
    if not found:
        return _decode_losslessly(content, b"", "utf-8")
    said = found[1].decode("ascii", "replace")
    try:
        codec = codecs.lookup(said).name
    except LookupError:
        codec = ""
    codec = CODEC_SUBSTITUTES.get(codec, codec)
    if not SUPPORTED_CODECS.fullmatch(codec):
        raise DocumentError(f"is written in {said!r}, which is not read here; save it as UTF-8")
    return _decode_losslessly(content, b"", codec)


def _decode_losslessly(content: bytes, byte_order_mark: bytes, codec: str) -> EncodedText:
    """The text, where it is text and would be written with the very same bytes."""
    try:
        text = content[len(byte_order_mark) :].decode(codec)
        same = text.encode(codec) == content[len(byte_order_mark) :]
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not {codec} text: byte {error.start:,} belongs to no character") from error
    if not same:
        raise DocumentError(f"is not clean {codec} text; save it as UTF-8")
    if "\0" in text:
        raise DocumentError("has NUL characters, as no text has")
    return EncodedText(byte_order_mark, codec, text)
