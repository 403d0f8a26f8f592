"""Zip files from strangers, in memory: nothing is written to a disk, and no number that they say is believed."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import PurePosixPath
from typing import NamedTuple

from regard.data.readers.text_io import to_single_line
from regard.documents.base import DocumentError, ParsedDocument

READ_CHUNK_BYTES = 1 << 16
LOCAL_HEADER_SIGNATURE, CENTRAL_HEADER_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02"
MIN_UNPACKED_LIMIT = 2 << 20  # bytes that any file may unpack to, however small it is
ALLOWED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)

DocumentParser = Callable[[bytes], ParsedDocument]


class DocumentLimits(NamedTuple):
    """What a document may take."""

    total_bytes: int = 256 << 20  # bytes of a file, and of all that is in it, unpacked
    text_bytes: int = 32 << 20  # bytes of a single file of text
    entries: int = 10_000  # files in it
    compression_ratio: int = (
        100  # how many times larger all becomes when it is unpacked, where that is more than a few megabytes
    )
    tags: int = 1_000_000  # in all its texts together; in formats without tags, lines and marks that begin markup


def check_tag_count(contents: Iterable[bytes], limits: DocumentLimits, markup_bytes: bytes = b"<") -> None:
    """Refuse texts with too many tags: a tag takes up to a hundred times its size in memory."""
    found = 0
    for content in contents:
        found += sum(content.count(mark) for mark in markup_bytes)
        found -= content.count(b"\r\n") if b"\r" in markup_bytes else 0  # one line end, not two
    if found > limits.tags:
        raise DocumentError(f"has {found:,} tags or lines, and may have {limits.tags:,}")


class ZipEntry(NamedTuple):
    """A file in a zip file."""

    info: zipfile.ZipInfo
    data: bytes


def unpack_zip(content: bytes, limits: DocumentLimits) -> dict[str, ZipEntry]:
    """Everything in a zip file, by name and in order."""
    if not content.startswith(LOCAL_HEADER_SIGNATURE):
        old = " (it may be an older format, or protected by a password)" if content[:4] == b"\xd0\xcf\x11\xe0" else ""
        raise DocumentError(f"is not what its ending says: it is no zip file{old}")
    if content.count(CENTRAL_HEADER_SIGNATURE) > limits.entries:  # before a list of them is made
        raise DocumentError(f"holds more than {limits.entries:,} files")
    try:
        with zipfile.ZipFile(BytesIO(content), metadata_encoding="utf-8") as file:
            infos = file.infolist()
            _check_entries(infos)
            most = UnpackBudget(
                min(limits.total_bytes, max(MIN_UNPACKED_LIMIT, limits.compression_ratio * len(content)))
            )
            return {info.filename: ZipEntry(info, b"".join(most.iterate_chunks(file, info))) for info in infos}
    except DocumentError:
        raise
    except ZIP_ERRORS as error:
        raise DocumentError(f"is damaged or cut off, it cannot be unpacked: {to_single_line(error)}") from error


class UnpackBudget:
    """How many bytes may still come, all files together."""

    def __init__(self, limit: int) -> None:
        self.limit = self.remaining = limit

    def iterate_chunks(self, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """A file's bytes, counted as they come."""
        with file.open(info) as member:
            while chunk := member.read(min(READ_CHUNK_BYTES, self.remaining + 1)):
                self.remaining -= len(chunk)
                if self.remaining < 0:
                    raise DocumentError(f"unpacks to more than {self.limit:,} bytes; it is not trusted")
                yield chunk


def _check_entries(infos: Sequence[zipfile.ZipInfo]) -> None:
    """Refuses what no document has: names that lead elsewhere or come twice, passwords, odd ways of packing."""
    seen = set()
    for info in infos:
        name = info.orig_filename
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or name[1:2] == ":" or "\\" in name or "\0" in name or not name:
            raise DocumentError(f"holds {name[:100]!r}, which is no name for a file in a document")
        if name in seen:
            raise DocumentError(f"holds {name[:100]!r} twice")
        seen.add(name)
        if info.flag_bits & 0x1:
            raise DocumentError("is protected by a password")
        if info.compress_type not in ALLOWED_COMPRESSION:
            raise DocumentError(f"is packed in a way (method {info.compress_type}) that documents are not")


def _pack_zip(entries: Mapping[str, ZipEntry]) -> bytes:
    """A zip file, with its entries in order and each stored or deflated as it was."""
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
    entries: Mapping[str, ZipEntry], parsers: Mapping[str, DocumentParser], limits: DocumentLimits
) -> ParsedDocument:
    """A document of those of its files that have a reader; the others stay as they are."""
    check_tag_count((entries[name].data for name in parsers), limits)
    drafts = {name: _parse_part(name, entries[name].data, reader, limits) for name, reader in parsers.items()}

    def write(translations: Sequence[str]) -> bytes:
        made, place = dict(entries), 0
        for name, draft in drafts.items():
            some = translations[place : place + len(draft.texts)]
            place += len(some)
            if some:
                made[name] = ZipEntry(entries[name].info, draft.write(some))
        return _pack_zip(made)

    return ParsedDocument([text for draft in drafts.values() for text in draft.texts], write)


def _parse_part(name: str, data: bytes, parser: DocumentParser, limits: DocumentLimits) -> ParsedDocument:
    """One of the files in a document."""
    if len(data) > limits.text_bytes:
        raise DocumentError(f"has a part {name} of more than {limits.text_bytes:,} bytes")
    try:
        return parser(data)
    except DocumentError as error:
        raise DocumentError(f"has a part {to_single_line(name)} that {error}") from error
