"""Zip files from strangers, in memory: nothing is written to a disk, and no number that they say is believed."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import PurePosixPath
from typing import NamedTuple

from regard.data.files import in_a_line
from regard.documents.draft import Draft
from regard.documents.errors import DocumentError

CHUNK = 1 << 16
BEGINNING, ENTRY = b"PK\x03\x04", b"PK\x01\x02"
LEAST = 2 << 20  # bytes that any file may unpack to, however small it is
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)

Reader = Callable[[bytes], Draft]


class Limits(NamedTuple):
    """What a document may take."""

    size: int = 256 << 20  # bytes of a file, and of all that is in it, unpacked
    text: int = 32 << 20  # bytes of a single file of text
    entries: int = 10_000  # files in it
    ratio: int = 100  # how many times larger all becomes when it is unpacked, where that is more than a few megabytes
    tags: int = 1_000_000  # in all its texts together; in formats without tags, lines and marks that begin markup


def check_tags(contents: Iterable[bytes], limits: Limits, marks: bytes = b"<") -> None:
    """Refuse texts with too many tags: a tag takes up to a hundred times its size in memory."""
    found = 0
    for content in contents:
        found += sum(content.count(mark) for mark in marks)
        found -= content.count(b"\r\n") if b"\r" in marks else 0  # one line end, not two
    if found > limits.tags:
        raise DocumentError(f"has {found:,} tags or lines, and may have {limits.tags:,}")


class Entry(NamedTuple):
    """A file in a zip file."""

    info: zipfile.ZipInfo
    data: bytes


def unpacked(content: bytes, limits: Limits) -> dict[str, Entry]:
    """Everything in a zip file, by name and in order."""
    if not content.startswith(BEGINNING):
        old = " (it may be an older format, or protected by a password)" if content[:4] == b"\xd0\xcf\x11\xe0" else ""
        raise DocumentError(f"is not what its ending says: it is no zip file{old}")
    if content.count(ENTRY) > limits.entries:  # before a list of them is made
        raise DocumentError(f"holds more than {limits.entries:,} files")
    try:
        with zipfile.ZipFile(BytesIO(content), metadata_encoding="utf-8") as file:
            infos = file.infolist()
            checked(infos)
            most = Most(min(limits.size, max(LEAST, limits.ratio * len(content))))
            return {info.filename: Entry(info, b"".join(most.chunks(file, info))) for info in infos}
    except DocumentError:
        raise
    except DAMAGE as error:
        raise DocumentError(f"is damaged or cut off, it cannot be unpacked: {in_a_line(error)}") from error


class Most:
    """How many bytes may still come, all files together."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def chunks(self, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """A file's bytes, counted as they come."""
        with file.open(info) as member:
            while chunk := member.read(min(CHUNK, self.left + 1)):
                self.left -= len(chunk)
                if self.left < 0:
                    raise DocumentError(f"unpacks to more than {self.most:,} bytes; it is not trusted")
                yield chunk


def checked(infos: Sequence[zipfile.ZipInfo]) -> None:
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
        if info.compress_type not in METHODS:
            raise DocumentError(f"is packed in a way (method {info.compress_type}) that documents are not")


def packed(entries: Mapping[str, Entry]) -> bytes:
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


def drafted(entries: Mapping[str, Entry], readers: Mapping[str, Reader], limits: Limits) -> Draft:
    """A document of those of its files that have a reader; the others stay as they are."""
    check_tags((entries[name].data for name in readers), limits)
    drafts = {name: part(name, entries[name].data, reader, limits) for name, reader in readers.items()}

    def write(answers: Sequence[str]) -> bytes:
        made, place = dict(entries), 0
        for name, draft in drafts.items():
            some = answers[place : place + len(draft.texts)]
            place += len(some)
            if some:
                made[name] = Entry(entries[name].info, draft.write(some))
        return packed(made)

    return Draft([text for draft in drafts.values() for text in draft.texts], write)


def part(name: str, data: bytes, reader: Reader, limits: Limits) -> Draft:
    """One of the files in a document."""
    if len(data) > limits.text:
        raise DocumentError(f"has a part {name} of more than {limits.text:,} bytes")
    try:
        return reader(data)
    except DocumentError as error:
        raise DocumentError(f"has a part {in_a_line(name)} that {error}") from error
