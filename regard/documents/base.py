"""Shared parts of document parsers: errors, parsed documents, and text encodings."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from regard.errors import UserError


class DocumentError(UserError):
    """A document that cannot be translated, or must not be trusted.

    The parsers raise it with a predicate ("is cut off"); `translate_document` puts the document's name in front.
    """


class ParsedDocument(NamedTuple):
    """The texts of a document, and a function that writes it with their translations.

    An empty translation leaves its text in the document unchanged.
    """

    texts: list[str]
    write: Callable[[Sequence[str]], bytes]
    languages: tuple[str, str] = ("", "")  # source and target; "" if the document does not declare them


BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
XML_DECLARATION = re.compile(rb"""<\?xml[^<>]*?\sencoding\s*=\s*["']([\w.:-]{1,40})["']""")
META_CHARSET = re.compile(rb"""<meta\s[^<>]*?charset\s*=\s*+["']?\s*+([\w.:-]{1,40})""", re.IGNORECASE)
# Python's names. ASCII and Latin-1 are read as cp1252, as in browsers; UTF-16 without a byte order mark as UTF-8.
SUPPORTED_CODECS = re.compile(
    r"utf-8|cp125[0-8]|iso8859-(?:[2-8]|1[03456])|koi8-[ru]|shift_jis|euc_(?:jp|kr)|gb(?:2312|k|18030)|big5"
)
CODEC_SUBSTITUTES = {"ascii": "cp1252", "iso8859-1": "cp1252", "utf-16": "utf-8"}


class EncodedText(NamedTuple):
    """The text of a file and its encoding."""

    byte_order_mark: bytes  # empty if there is none
    codec: str
    text: str

    def encode_like_source(self, text: str, is_markup: bool = False) -> bytes:
        """Encode another text alike; missing characters become character references in markup, else a ?."""
        return self.byte_order_mark + text.encode(self.codec, "xmlcharrefreplace" if is_markup else "replace")


def decode_utf8(content: bytes) -> EncodedText:
    """Decode a file without a declared encoding, which must be UTF-8."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    return _decode_losslessly(content, mark, "utf-8")


def decode_declared_encoding(content: bytes, encoding_pattern: re.Pattern[bytes]) -> EncodedText:
    """Decode a file by its byte order mark or the encoding declared near its beginning; default: UTF-8."""
    for mark, codec in BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return _decode_losslessly(content, mark, codec)
    declaration = encoding_pattern.search(content, 0, 4096)
    if not declaration:
        return _decode_losslessly(content, b"", "utf-8")
    declared = declaration[1].decode("ascii", "replace")
    try:
        codec = codecs.lookup(declared).name
    except LookupError:
        codec = ""
    codec = CODEC_SUBSTITUTES.get(codec, codec)
    if not SUPPORTED_CODECS.fullmatch(codec):
        raise DocumentError(f"has the unsupported encoding {declared!r}; save it as UTF-8")
    return _decode_losslessly(content, b"", codec)


def _decode_losslessly(content: bytes, byte_order_mark: bytes, codec: str) -> EncodedText:
    """Decode a file; raise DocumentError unless encoding the text again gives the same bytes."""
    try:
        text = content[len(byte_order_mark) :].decode(codec)
        same = text.encode(codec) == content[len(byte_order_mark) :]
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not {codec} text: byte {error.start:,} is invalid") from error
    if not same:
        raise DocumentError(f"is not clean {codec} text; save it as UTF-8")
    if "\0" in text:
        raise DocumentError("has NUL characters, so it is not text")
    return EncodedText(byte_order_mark, codec, text)
