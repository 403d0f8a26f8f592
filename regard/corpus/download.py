"""Resumable HTTP downloads, verified by SHA-256, and extraction of archives (tar, zip, gzip) with a size limit.

Members of archives are written only to paths that the caller chooses.
"""

from __future__ import annotations

import gzip
import http.client
import json
import lzma
import re
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from regard.errors import UserError
from regard.paths import compute_sha256, create_file_atomically, read_json_object
from regard.version import VERSION

MAX_ATTEMPTS = 5
_TIMEOUT_SECONDS = 60.0  # without receiving a byte
_CHUNK_BYTES = 1 << 16
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_RESUME_HINT = "run the command again to resume the download"

ProgressCallback = Callable[[int, int | None], None]  # bytes downloaded, bytes in total


class DownloadedFile(NamedTuple):
    """Checksum of a downloaded file, and whether it was known before the download."""

    sha256: str
    had_known_checksum: bool


class InterruptedTransferError(Exception):
    """The connection failed; another attempt may succeed."""


def download_file(
    url: str,
    path: Path,
    sha256: str | None = None,
    progress: ProgressCallback = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> DownloadedFile:
    """Download a file and verify it, by `sha256` or else by the checksum recorded at its first download."""
    checksum_path = path.with_name(f"{path.name}.sha256")
    expected = sha256 or read_recorded_checksum(checksum_path)
    if path.exists():
        actual = compute_sha256(path)
        if expected and actual != expected:
            raise UserError(f"{path} has the SHA-256 checksum {actual}, not {expected}; remove it and fetch it again")
    else:
        actual = _download_with_retries(url, path, expected, progress, sleep)
    if not checksum_path.exists():
        checksum_path.write_text(f"{actual}  {path.name}\n", encoding="utf-8")
    return DownloadedFile(actual, expected is not None)


def _download_with_retries(
    url: str, path: Path, expected: str | None, progress: ProgressCallback, sleep: Callable[[float], None]
) -> str:
    """Write a `.part` file until it is complete and verified, then rename it; return its checksum."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url} is not a web address; it begins with http:// or https://")
    part = PartialDownload(path)
    for attempt in range(MAX_ATTEMPTS):
        try:
            _transfer(url, part, progress)
            break
        except InterruptedTransferError as error:
            if attempt == MAX_ATTEMPTS - 1:
                raise UserError(f"{url}: {error}, {MAX_ATTEMPTS} times over; {_RESUME_HINT}") from error
            sleep(2.0**attempt)
    actual = compute_sha256(part.path)
    if expected and actual != expected:
        part.remove_files()
        raise UserError(f"{url} has the SHA-256 checksum {actual} and should have {expected}; it was not kept")
    part.path.replace(path)
    part.remove_files()
    return actual


class PartialDownload:
    """A partly downloaded file, with the server's validator (ETag or date), by which the server tells if it changed."""

    def __init__(self, final_path: Path) -> None:
        self.path = final_path.with_name(f"{final_path.name}.part")
        self._metadata_path = final_path.with_name(f"{final_path.name}.part.json")

    def count_bytes(self) -> int:
        """Return the number of bytes downloaded so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read_metadata(self) -> dict[str, Any]:
        """Return `validator` and `length` of the complete file, or an empty dict."""
        return read_json_object(self._metadata_path)

    def create_empty(self, validator: str | None, length: int | None) -> None:
        """Start a new file from its first byte."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        self._metadata_path.write_text(json.dumps({"validator": validator, "length": length}), encoding="utf-8")

    def remove_files(self) -> None:
        """Remove the partial file and its metadata."""
        self.path.unlink(missing_ok=True)
        self._metadata_path.unlink(missing_ok=True)


def _transfer(url: str, part: PartialDownload, progress: ProgressCallback) -> None:
    """Download over one connection: the rest of the file if the server supports it, else all of it."""
    try:
        with _send_request(url, part) as response:
            length = _start_or_resume(response, part)
            with part.path.open("ab") as file:
                while chunk := response.read(_CHUNK_BYTES):
                    file.write(chunk)
                    progress(file.tell(), length)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answers {error.code} ({error.reason})"
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.remove_files()  # it is not a part of the server's current file
            raise InterruptedTransferError("the file changed while it was being fetched") from error
        if error.code >= 500 or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
            raise InterruptedTransferError(answer) from error
        raise UserError(f"{url}: {answer}; the file may have moved; --from takes the address of a copy") from error
    except urllib.error.URLError as error:
        raise InterruptedTransferError(f"cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # an error of the local file system, not of the network
        raise InterruptedTransferError(f"the connection broke ({error or type(error).__name__})") from error
    if length is not None and part.count_bytes() != length:
        raise InterruptedTransferError(f"the connection broke after {part.count_bytes():,} of {length:,} bytes")


def _send_request(url: str, part: PartialDownload) -> Any:
    """Send the request, for a byte range if a part exists already, and return the response."""
    request = urllib.request.Request(url, headers={"User-Agent": f"regard/{VERSION}"})
    num_bytes, metadata = part.count_bytes(), part.read_metadata()
    if num_bytes and metadata.get("length") is not None and num_bytes < metadata["length"]:
        request.add_header("Range", f"bytes={num_bytes}-")
        if metadata.get("validator"):
            request.add_header("If-Range", metadata["validator"])
    return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)


def _start_or_resume(response: Any, part: PartialDownload) -> int | None:
    """Prepare the partial file for appending or from the start, and return the length of the complete file."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        content_range = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        start, total = map(int, content_range.groups()) if content_range else (None, None)
        if total is not None and (start, total) == (part.count_bytes(), part.read_metadata().get("length")):
            return total
        part.remove_files()
        raise InterruptedTransferError("the file changed while it was being fetched")
    length: int | None = response.length  # None without a Content-Length
    etag = response.headers.get("ETag", "")
    strong_etag = etag if etag and not etag.startswith("W/") else None  # a weak ETag does not guarantee identical bytes
    part.create_empty(strong_etag or response.headers.get("Last-Modified"), length)
    return length


def read_recorded_checksum(checksum_path: Path) -> str | None:
    """Return the checksum that was recorded at the first download, or None."""
    if not checksum_path.exists():
        return None
    first = checksum_path.read_text(encoding="utf-8", errors="replace").split()[:1]
    if not first or not re.fullmatch("[0-9a-f]{64}", first[0]):
        raise UserError(f"{checksum_path} holds no SHA-256 checksum; remove it to trust the next download")
    return first[0]


_MAX_LINE_BYTES = 1 << 20
_MIN_SIZE_LIMIT, _MAX_COMPRESSION_RATIO = 100 << 20, 100  # text compresses to a fifth or a tenth, never to a hundredth

LineTransform = Callable[[Iterator[bytes]], Iterator[bytes]]
_MemberOpener = Callable[[], Any]


def unpack_members(
    archive: Path, outputs: Mapping[str, tuple[Path, LineTransform]], max_bytes: int | None = None
) -> None:
    """Write members of an archive to the given paths, each through its line transform, at most `max_bytes` in all."""
    if max_bytes is None:
        max_bytes = max(_MIN_SIZE_LIMIT, _MAX_COMPRESSION_RATIO * archive.stat().st_size)
    num_bytes = 0

    def iterate_limited_lines(file: IO[bytes]) -> Iterator[bytes]:
        """Yield lines; a decompression bomb ends in a UserError."""
        nonlocal num_bytes
        while line := file.readline(_MAX_LINE_BYTES):
            num_bytes += len(line)
            if num_bytes > max_bytes:
                raise UserError(f"{archive} unpacks to more than {max_bytes:,} bytes; no text does, so it is refused")
            yield line

    with _open_members(archive) as openers:
        for name, (path, transform) in outputs.items():
            if name not in openers:
                raise UserError(f"{archive} holds no file {name}; it has {', '.join(sorted(openers)) or 'none'}")
            with openers[name]() as member, create_file_atomically(path) as part, part.open("wb") as file:
                file.writelines(transform(iterate_limited_lines(member)))


@contextmanager
def _open_members(archive: Path) -> Iterator[dict[str, _MemberOpener]]:
    """Yield functions that open the regular files of an archive, by name without folders; a .gz file has one.

    Links and devices are ignored. An archive with a path that leads out of its folder is refused as a whole.
    """
    names: list[str] = []
    openers: dict[str, _MemberOpener] = {}
    try:
        with ExitStack() as stack:
            if archive.name.endswith((".tgz", ".tar.gz", ".tar")):
                tar = stack.enter_context(tarfile.open(archive))
                names = tar.getnames()
                openers |= {entry.name: partial(tar.extractfile, entry) for entry in tar.getmembers() if entry.isfile()}
            elif archive.name.endswith(".zip"):
                file = stack.enter_context(zipfile.ZipFile(archive))
                names = file.namelist()
                openers |= {info.filename: partial(file.open, info) for info in file.infolist() if not info.is_dir()}
            else:
                openers[archive.name.removesuffix(".gz")] = partial(gzip.open, archive)
            for name in names:
                path = PurePosixPath(name.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or name[1:2] == ":":
                    raise UserError(f"{archive} holds {name!r}, which leads out of its folder; nothing was unpacked")
            yield {PurePosixPath(name).name: opener for name, opener in openers.items()}
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{archive} is damaged, it cannot be unpacked: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # an unsupported zip method, or a password
        raise UserError(f"{archive} cannot be unpacked: {error}") from error
