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

ATTEMPTS = 5
TIMEOUT = 60.0  # seconds without a byte
CHUNK = 1 << 16
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
GO_ON = "run the command again, it goes on where it stopped"

Progress = Callable[[int, int | None], None]  # bytes that are there, bytes of the whole


class Fetched(NamedTuple):
    """A file that is there, its checksum, and whether that was known before or is only now written down."""

    path: Path
    sha256: str
    known: bool


class InterruptedTransferError(Exception):
    """The connection failed; another attempt may do better."""


def fetch(
    address: str,
    path: Path,
    sha256: str | None = None,
    progress: Progress = lambda done, total: None,
    pause: Callable[[float], None] = time.sleep,
) -> Fetched:
    """Downloads a file and checks it: by the checksum given, else by the one written beside it the first time."""
    beside = path.with_name(f"{path.name}.sha256")
    expected = sha256 or recorded(beside)
    if not path.exists():
        download(address, path, expected, progress, pause)
    found = checksum(path)
    if expected and found != expected:
        raise mismatch(path, found, expected)
    if not beside.exists():
        beside.write_text(f"{found}  {path.name}\n", encoding="utf-8")
    return Fetched(path, found, expected is not None)


def download(
    address: str, path: Path, expected: str | None, progress: Progress, pause: Callable[[float], None]
) -> None:
    """Writes a `.part` file until it is whole and right, then gives it its name."""
    if not address.startswith(("http://", "https://")):
        raise UserError(f"{address} is no web address; it begins with http:// or https://")
    part = Part(path)
    for attempt in range(ATTEMPTS):
        try:
            transfer(address, part, progress)
            break
        except InterruptedTransferError as error:
            if attempt == ATTEMPTS - 1:
                raise UserError(f"{address}: {error}, {ATTEMPTS} times over; {GO_ON}") from error
            pause(2.0**attempt)
    found = checksum(part.path)
    if expected and found != expected:
        part.remove()
        raise mismatch(Path(address), found, expected, address)
    part.path.replace(path)
    part.remove()


class Part:
    """What is there of a file so far, and how the server can tell whether it still is of the same file."""

    def __init__(self, whole: Path) -> None:
        self.path = whole.with_name(f"{whole.name}.part")
        self._about = whole.with_name(f"{whole.name}.part.json")

    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.exists() else 0

    def about(self) -> dict[str, Any]:
        """`validator` and `length` of the file that it is a part of."""
        try:
            told = json.loads(self._about.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def begin(self, validator: str | None, length: int | None) -> None:
        """A new file, from its first byte."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        self._about.write_text(json.dumps({"validator": validator, "length": length}), encoding="utf-8")

    def remove(self) -> None:
        """Leaves nothing behind."""
        self.path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)


def transfer(address: str, part: Part, progress: Progress) -> None:
    """One connection: the rest of the file where the server can give it, else all of it."""
    try:
        with asked(address, part) as answer:
            length = begun(answer, part)
            with part.path.open("ab") as file:
                while some := answer.read(CHUNK):
                    file.write(some)
                    progress(file.tell(), length)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.remove()  # it is no part of what is there now
            raise InterruptedTransferError("the file changed while it was being fetched") from error
        if error.code >= 500 or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
            raise InterruptedTransferError(f"the server answers {error.code} ({error.reason})") from error
        raise UserError(
            f"{address}: the server answers {error.code} ({error.reason}); the file may have moved, and --from names a "
            f"copy elsewhere"
        ) from error
    except urllib.error.URLError as error:
        raise InterruptedTransferError(f"cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the disk's trouble, not the network's
        raise InterruptedTransferError(f"the connection broke ({error or type(error).__name__})") from error
    if length is not None and part.size() != length:
        raise InterruptedTransferError(f"the connection broke after {part.size():,} of {length:,} bytes")


def asked(address: str, part: Part) -> Any:
    """The server's answer."""
    request = urllib.request.Request(address, headers={"User-Agent": f"regard/{VERSION}"})
    have, about = part.size(), part.about()
    if have and about.get("length") is not None and have < about["length"]:
        request.add_header("Range", f"bytes={have}-")
        if about.get("validator"):
            request.add_header("If-Range", about["validator"])
    return urllib.request.urlopen(request, timeout=TIMEOUT)


def begun(answer: Any, part: Part) -> int | None:
    """Makes the part ready for what comes: to go on where it ends, or from the start; the length of the whole."""
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        place = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if place and int(place[1]) == part.size() and int(place[2]) == part.about().get("length"):
            return int(place[2])
        part.remove()
        raise InterruptedTransferError("the file changed while it was being fetched")
    said = answer.headers.get("Content-Length", "")
    length = int(said) if said.isdecimal() else None
    tag = answer.headers.get("ETag", "")
    strong = tag if tag and not tag.startswith("W/") else None  # a weak one does not promise the same bytes
    part.begin(strong or answer.headers.get("Last-Modified"), length)
    return length


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recorded(beside: Path) -> str | None:
    """The checksum that was written down when the file came first."""
    if not beside.exists():
        return None
    first = beside.read_text(encoding="utf-8", errors="replace").split()[:1]
    if not first or not re.fullmatch("[0-9a-f]{64}", first[0]):
        raise UserError(f"{beside} holds no SHA-256 checksum; remove it to trust the next download")
    return first[0]


def mismatch(path: Path, found: str, expected: str, address: str | None = None) -> UserError:
    """What is said of a file that is not the one that was meant."""
    return UserError(
        f"{address or path} has the SHA-256 checksum {found} and should have {expected}; "
        + ("it was not kept" if address else "remove it and fetch it again")
    )
