"""Shared parts of document parsers: errors, limits, text encodings, and zip archives from untrusted sources."""

from __future__ import annotations

import codecs
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath
from typing import NamedTuple

from regard.errors import UserError, to_single_line


class DocumentError(UserError):
    """A document that cannot be translated, or must not be trusted.

    The parsers raise it with a predicate ("is cut off"); `translate_document` puts the document's name in front.
    """


@dataclass(eq=False)
class TranslatableText:
    """A text of a document, and its translation when there is one."""

    text: str
    translation: str = ""

    @property
    def is_unchanged(self) -> bool:
        """True if the translation is empty, or the same as the text: the source of the text stays as it is."""
        return self.translation in ("", self.text)


class ParsedDocument(NamedTuple):
    """The texts of a document, and a function that writes it with their translations."""

    texts: Sequence[TranslatableText]
    write: Callable[[], bytes]
    languages: tuple[str, str] = ("", "")  # source and target; "" if the document does not declare them
    set_language: Callable[[str], None] = lambda code: None  # called before `write` with the target, if it is known


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


LOCAL_HEADER_SIGNATURE, CENTRAL_HEADER_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02"
MIN_UNPACKED_LIMIT = 2 << 20  # bytes that any document may unpack to, however small it is
ALLOWED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OSError)


DocumentParser = Callable[[bytes], ParsedDocument]


class DocumentLimits(NamedTuple):
    """Limits on the size of a document."""

    total_bytes: int = 256 << 20  # of a document, and of all its files unpacked
    text_bytes: int = 32 << 20  # of a single text file
    entries: int = 10_000  # files in an archive
    compression_ratio: int = 100  # unpacked to packed size, for more than MIN_UNPACKED_LIMIT bytes
    tags: int = 1_000_000  # in all texts together; in formats without tags, lines and characters that begin markup


def check_tag_count(contents: Iterable[bytes], limits: DocumentLimits, markup_bytes: bytes = b"<") -> None:
    """Raise DocumentError for texts with too many tags: a tag takes up to a hundred times its size in memory."""
    count = 0
    for content in contents:
        count += sum(content.count(mark) for mark in markup_bytes)
        count -= content.count(b"\r\n") if b"\r" in markup_bytes else 0  # CRLF is one line end
    if count > limits.tags:
        raise DocumentError(f"has {count:,} tags or lines; the maximum is {limits.tags:,}")


class ZipEntry(NamedTuple):
    """A file in a zip archive."""

    info: zipfile.ZipInfo
    data: bytes


ArchiveParser = Callable[[Mapping[str, ZipEntry], DocumentLimits], ParsedDocument]


def unpack_zip(content: bytes, limits: DocumentLimits) -> dict[str, ZipEntry]:
    """Unpack a zip archive; return its files by name, in order."""
    if not content.startswith(LOCAL_HEADER_SIGNATURE):
        old = " (it may be an older format, or protected by a password)" if content[:4] == b"\xd0\xcf\x11\xe0" else ""
        raise DocumentError(f"does not match its extension: it is not a zip file{old}")
    if content.count(CENTRAL_HEADER_SIGNATURE) > limits.entries:  # checked before the list is built
        raise DocumentError(f"contains more than {limits.entries:,} files")
    try:
        with zipfile.ZipFile(BytesIO(content), metadata_encoding="utf-8") as file:
            _check_entries(file.infolist())
            max_bytes = min(limits.total_bytes, max(MIN_UNPACKED_LIMIT, limits.compression_ratio * len(content)))
            return _read_entries(file, max_bytes)
    except DocumentError:
        raise
    except ZIP_ERRORS as error:
        raise DocumentError(f"is damaged or cut off, it cannot be unpacked: {to_single_line(error)}") from error


def _read_entries(file: zipfile.ZipFile, max_bytes: int) -> dict[str, ZipEntry]:
    """Unpack files, which may have that many bytes together; the sizes that they declare are not trusted."""
    entries, remaining = {}, max_bytes
    for info in file.infolist():
        with file.open(info) as member:
            data = member.read(remaining + 1)
        remaining -= len(data)
        if remaining < 0:
            raise DocumentError(f"unpacks to more than {max_bytes:,} bytes, which is more than allowed")
        entries[info.filename] = ZipEntry(info, data)
    return entries


def _check_entries(infos: Sequence[zipfile.ZipInfo]) -> None:
    """Raise DocumentError for unsafe or repeated file names, passwords and unusual compression."""
    seen = set()
    for info in infos:
        name = info.orig_filename
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or name[1:2] == ":" or "\\" in name or "\0" in name or not name:
            raise DocumentError(f"contains {name[:100]!r}, which is not a valid file name in a document")
        if name in seen:
            raise DocumentError(f"contains {name[:100]!r} twice")
        seen.add(name)
        if info.flag_bits & 0x1:
            raise DocumentError("is protected by a password")
        if info.compress_type not in ALLOWED_COMPRESSION:
            raise DocumentError(f"has an unsupported compression (method {info.compress_type})")


def _pack_zip(entries: Mapping[str, ZipEntry]) -> bytes:
    """Pack files into a zip archive, in order and with their original compression."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, entry in entries.items():
            info = zipfile.ZipInfo(name, entry.info.date_time)
            info.compress_type = entry.info.compress_type
            info.external_attr, info.create_system = entry.info.external_attr, entry.info.create_system
            info.comment = entry.info.comment
            file.writestr(info, entry.data)
    return out.getvalue()


def parse_zip_document(
    entries: Mapping[str, ZipEntry], limits: DocumentLimits, names: Sequence[str], parser: DocumentParser
) -> ParsedDocument:
    """Parse the files of these names in an archive; copy the others."""
    check_tag_count((entries[name].data for name in names), limits)
    parsed = {name: _parse_part(name, entries[name].data, parser, limits) for name in names}

    def write() -> bytes:
        written = {name: entries[name]._replace(data=part.write()) for name, part in parsed.items() if part.texts}
        return _pack_zip({**entries, **written})

    return ParsedDocument([text for part in parsed.values() for text in part.texts], write)


def _parse_part(name: str, data: bytes, parser: DocumentParser, limits: DocumentLimits) -> ParsedDocument:
    if len(data) > limits.text_bytes:
        raise DocumentError(f"contains {name}, which has more than {limits.text_bytes:,} bytes")
    try:
        return parser(data)
    except DocumentError as error:
        raise DocumentError(f"contains {to_single_line(name)}, which {error}") from error
