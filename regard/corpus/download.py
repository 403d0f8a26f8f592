"""Files from the web: resumed where a connection broke, held to a checksum."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.version import VERSION

MAX_ATTEMPTS = 5
_TIMEOUT_SECONDS = 60.0  # seconds without a byte
_CHUNK_BYTES = 1 << 16
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_RESUME_HINT = "run the command again, it goes on where it stopped"

ProgressCallback = Callable[[int, int | None], None]  # bytes that are there, bytes of the whole


class DownloadedFile(NamedTuple):
    """A file that is there, its checksum, and whether that was known before or is only now written down."""

    path: Path
    sha256: str
    had_known_checksum: bool


class InterruptedTransferError(Exception):
    """The connection failed; another attempt may do better."""


def download_file(
    url: str,
    path: Path,
    sha256: str | None = None,
    progress: ProgressCallback = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> DownloadedFile:
    """Downloads a file and checks it: by the checksum given, else by the one written beside it the first time."""
    beside = path.with_name(f"{path.name}.sha256")
    expected = sha256 or read_recorded_checksum(beside)
    if not path.exists():
        _download_with_retries(url, path, expected, progress, sleep)
    found = _compute_sha256(path)
    if expected and found != expected:
        raise _make_checksum_error(path, found, expected)
    if not beside.exists():
        beside.write_text(f"{found}  {path.name}\n", encoding="utf-8")
    return DownloadedFile(path, found, expected is not None)


def _download_with_retries(
    url: str, path: Path, expected: str | None, progress: ProgressCallback, sleep: Callable[[float], None]
) -> None:
    """Writes a `.part` file until it is whole and right, then gives it its name."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url} is no web address; it begins with http:// or https://")
    part = PartialDownload(path)
    for attempt in range(MAX_ATTEMPTS):
        try:
            _transfer(url, part, progress)
            break
        except InterruptedTransferError as error:
            if attempt == MAX_ATTEMPTS - 1:
                raise UserError(f"{url}: {error}, {MAX_ATTEMPTS} times over; {_RESUME_HINT}") from error
            sleep(2.0**attempt)
    found = _compute_sha256(part.path)
    if expected and found != expected:
        part.remove_files()
        raise _make_checksum_error(Path(url), found, expected, url)
    part.path.replace(path)
    part.remove_files()


class PartialDownload:
    """What is there of a file so far, and how the server can tell whether it still is of the same file."""

    def __init__(self, final_path: Path) -> None:
        self.path = final_path.with_name(f"{final_path.name}.part")
        self._metadata_path = final_path.with_name(f"{final_path.name}.part.json")

    def count_bytes(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read_metadata(self) -> dict[str, Any]:
        """`validator` and `length` of the file that it is a part of."""
        try:
            told = json.loads(self._metadata_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def create_empty(self, validator: str | None, length: int | None) -> None:
        """A new file, from its first byte."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        self._metadata_path.write_text(json.dumps({"validator": validator, "length": length}), encoding="utf-8")

    def remove_files(self) -> None:
        """Leaves nothing behind."""
        self.path.unlink(missing_ok=True)
        self._metadata_path.unlink(missing_ok=True)


def _transfer(url: str, part: PartialDownload, progress: ProgressCallback) -> None:
    """One connection: the rest of the file where the server can give it, else all of it."""
    try:
        with _send_request(url, part) as answer:
            length = _start_or_resume(answer, part)
            with part.path.open("ab") as file:
                while some := answer.read(_CHUNK_BYTES):
                    file.write(some)
                    progress(file.tell(), length)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.remove_files()  # it is no part of what is there now
            raise InterruptedTransferError("the file changed while it was being fetched") from error
        if error.code >= 500 or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
            raise InterruptedTransferError(f"the server answers {error.code} ({error.reason})") from error
        raise UserError(
            f"{url}: the server answers {error.code} ({error.reason}); the file may have moved, and --from names a "
            f"copy elsewhere"
        ) from error
    except urllib.error.URLError as error:
        raise InterruptedTransferError(f"cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the disk's trouble, not the network's
        raise InterruptedTransferError(f"the connection broke ({error or type(error).__name__})") from error
    if length is not None and part.count_bytes() != length:
        raise InterruptedTransferError(f"the connection broke after {part.count_bytes():,} of {length:,} bytes")


def _send_request(url: str, part: PartialDownload) -> Any:
    """The server's answer."""
    request = urllib.request.Request(url, headers={"User-Agent": f"regard/{VERSION}"})
    have, about = part.count_bytes(), part.read_metadata()
    if have and about.get("length") is not None and have < about["length"]:
        request.add_header("Range", f"bytes={have}-")
        if about.get("validator"):
            request.add_header("If-Range", about["validator"])
    return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)


def _start_or_resume(response: Any, part: PartialDownload) -> int | None:
    """Makes the part ready for what comes: to go on where it ends, or from the start; the length of the whole."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        place = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if place and int(place[1]) == part.count_bytes() and int(place[2]) == part.read_metadata().get("length"):
            return int(place[2])
        part.remove_files()
        raise InterruptedTransferError("the file changed while it was being fetched")
    said = response.headers.get("Content-Length", "")
    length = int(said) if said.isdecimal() else None
    tag = response.headers.get("ETag", "")
    strong = tag if tag and not tag.startswith("W/") else None  # a weak one does not promise the same bytes
    part.create_empty(strong or response.headers.get("Last-Modified"), length)
    return length


def _compute_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_recorded_checksum(checksum_path: Path) -> str | None:
    """The checksum that was written down when the file came first."""
    if not checksum_path.exists():
        return None
    first = checksum_path.read_text(encoding="utf-8", errors="replace").split()[:1]
    if not first or not re.fullmatch("[0-9a-f]{64}", first[0]):
        raise UserError(f"{checksum_path} holds no SHA-256 checksum; remove it to trust the next download")
    return first[0]


def _make_checksum_error(path: Path, actual: str, expected: str, url: str | None = None) -> UserError:
    """What is said of a file that is not the one that was meant."""
    return UserError(
        f"{url or path} has the SHA-256 checksum {actual} and should have {expected}; "
        + ("it was not kept" if url else "remove it and fetch it again")
    )
