"""Documents: translated in processes that are killed if a document takes too much, and stored for download.

Untrusted documents may be made to cost as much time or memory as possible. A document is therefore parsed in a process
with limits of processor time and memory: one that exceeds them costs that process and nothing else. The texts go back
to the service, which translates them. Translations are stored for a while; files of one client never displace those of
another.
"""

from __future__ import annotations

import asyncio
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.engine.background import ignore_signals, start_process
from regard.serve.errors import HTTPError, OverloadedError

try:
    import resource
except ImportError:  # Windows, which cannot limit a process in this way
    resource = None  # type: ignore[assignment]

Translate = Callable[[Sequence[str]], Coroutine[Any, Any, list[str]]]
Languages = tuple[str | None, str | None]  # source and target

PREFIX = "regard-document-"  # of the names of the files in the system's temporary folder
LIFETIME = 1800.0  # seconds for which a file can be downloaded
CLIENT_FRACTION = 10  # one client may use a tenth of the capacity
MIN_SIZE = 100_000  # bytes that the smallest file counts as, which also limits the number of files
OWNER_ONLY = 0o600


class Document(NamedTuple):
    """A document to translate."""

    name: str
    content: bytes
    limits: DocumentLimits = DocumentLimits()
    languages: Languages = (None, None)


class DocumentResult(NamedTuple):
    """Outcome of a document in its process."""

    content: bytes = b""
    warnings: Sequence[str] = ()
    error: str = ""  # why it is not translated
    failure: str = ""  # traceback of an unexpected error
    is_last: bool = False  # the process ends


class ProcessLimits(NamedTuple):
    """Limits of a process that translates documents."""

    seconds: int = 60  # of processor time that one document may take
    memory: int = 2 << 30  # bytes of address space
    kept_memory: int = 300 << 20  # bytes: a process that has grown beyond that is replaced by a fresh one


class DocumentProcess:
    """A process that parses and writes documents, one after the other."""

    def __init__(self, limits: ProcessLimits) -> None:
        self.limits = limits
        self.process, self.pipe = start_process(run_document_process, limits)

    def exchange(self, name: str, message: Any) -> Any:
        """Send a message and receive the next one; if the process ends meanwhile, the error says why."""
        try:
            self.pipe.send(message)
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            if resource is not None and self.process.exitcode == -signal.SIGXCPU:
                why = f"takes more than {self.limits.seconds} seconds of processor time; it is not translated"
            else:
                code = self.process.exitcode
                why = f"takes too much memory, or cannot be read: the process that read it has ended with {code}"
            raise DocumentError(f"{name} {why}") from error


class DocumentPool:
    """Processes that translate documents, started when they are needed, and a bounded queue in front of them."""

    def __init__(self, processes: int, queue_size: int) -> None:
        self.capacity = processes + queue_size
        self.slots = asyncio.Semaphore(self.capacity)  # of documents that are translated or wait
        self.process_slots = asyncio.Semaphore(processes)
        self.limits = ProcessLimits()
        self.idle: list[DocumentProcess] = []

    async def translate(self, document: Document, translate: Translate, warn: Callable[[str], None]) -> bytes:
        """Translate a document. If this is cancelled, its process is killed."""
        if self.slots.locked():
            raise OverloadedError(f"{self.capacity} documents are translated or wait already")
        async with self.slots, self.process_slots:
            process = self._take_process()
            result: DocumentResult = DocumentResult(is_last=True)
            try:
                answer = await asyncio.to_thread(process.exchange, document.name, document)
                while isinstance(answer, list):  # texts to translate
                    answer = await asyncio.to_thread(process.exchange, document.name, await translate(answer))
                result = answer
            finally:
                if result.is_last:  # or it waits for translations that do not come
                    process.process.kill()
                else:
                    self.idle.append(process)
        if result.error:
            raise DocumentError(result.error)
        if result.failure:
            raise RuntimeError(f"{document.name} cannot be translated: {result.failure}")
        for warning in result.warnings:
            warn(warning)
        return result.content

    def _take_process(self) -> DocumentProcess:
        while self.idle:
            if (process := self.idle.pop()).process.is_alive():
                return process
        return DocumentProcess(self.limits)

    def close(self) -> None:
        """End the processes."""
        for process in self.idle:
            process.process.kill()
            process.process.join()


def run_document_process(pipe: Connection, limits: ProcessLimits) -> None:
    """Parse and write documents in this process until the service closes the pipe."""
    ignore_signals()
    result = DocumentResult()
    with suppress(EOFError, OSError, MemoryError):
        while not result.is_last:
            document = pipe.recv()
            if resource is not None:
                _limit_resources(limits)
            result = translate_in_process(pipe, document)
            if _get_memory() > limits.kept_memory:
                result = result._replace(is_last=True)
            pipe.send(result)


def translate_in_process(pipe: Connection, document: Document) -> DocumentResult:
    """Translate a document in this process; its texts are translated by the service."""
    warnings: list[str] = []

    def translate(texts: Sequence[str]) -> list[str]:
        pipe.send(list(texts))
        translations: list[str] = pipe.recv()
        return translations

    try:
        content = translate_document(*document[:2], translate, document.limits, warnings.append, document.languages)
    except DocumentError as error:
        return DocumentResult(error=str(error))
    except MemoryError:  # some of a message may be left in the pipe
        return DocumentResult(error=f"{document.name} takes too much memory; it is not translated", is_last=True)
    except (EOFError, OSError):
        raise
    except Exception:
        return DocumentResult(failure=traceback.format_exc())
    return DocumentResult(content, warnings)


def _limit_resources(process_limits: ProcessLimits) -> None:
    """Limit the processor time from now on, and the memory of this process, where the platform can."""
    limits = {
        resource.RLIMIT_CPU: int(time.process_time()) + 1 + process_limits.seconds,
        resource.RLIMIT_AS: process_limits.memory,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):  # macOS does not limit memory
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _get_memory() -> int:
    """Return the bytes of memory that this process holds; 0 where this is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # not on Linux
        return 0
    return pages * resource.getpagesize()


class StoredFile(NamedTuple):
    """Owner, size and path of a file."""

    owner: str
    size: int
    path: Path


class FileStore:
    """Files under names that cannot be guessed, which are deleted after their lifetime, or when the service ends."""

    def __init__(self, capacity: int) -> None:
        """Store at most `capacity` bytes."""
        self.capacity = capacity
        self.files: dict[str, StoredFile] = {}  # oldest first
        _remove_stale_files()

    async def add(self, owner: str, name: str, content: bytes) -> str:
        """Store a file, for which the oldest ones of its owner may be deleted, and return its key."""
        size = self.check_capacity(owner, len(content))
        while self.count_bytes(owner) + size > self.capacity // CLIENT_FRACTION:
            self.delete(next(key for key, file in self.files.items() if file.owner == owner))
        id = uuid.uuid4()
        key, path = f"{id}.{name}", Path(gettempdir()) / f"{PREFIX}{id}"
        self.files[key] = StoredFile(owner, size, path)
        asyncio.get_running_loop().call_later(LIFETIME, self.delete, key)
        try:
            await asyncio.to_thread(_write_private, path, content)
        except OSError:
            self.delete(key)
            raise
        if key not in self.files:  # it was deleted while it was written
            path.unlink(missing_ok=True)
        return key

    def check_capacity(self, owner: str, length: int) -> int:
        """Return the size that a file of so many bytes counts as; refuse it if there is no space for it."""
        size, maximum = max(length, MIN_SIZE), self.capacity // CLIENT_FRACTION
        if size > maximum:
            raise HTTPError(
                f"Invalid request: the file ({length}) exceeds what is kept for one client ({maximum})", 413
            )
        own = self.count_bytes(owner)
        if self.count_bytes() - own + min(own + size, maximum) > self.capacity:
            raise HTTPError("Too many translated files are kept; try again later", 503, {"Retry-After": "60"})
        return size

    def count_bytes(self, owner: str | None = None) -> int:
        """Return the bytes that are stored, in all or of one owner."""
        return sum(file.size for file in self.files.values() if owner in (None, file.owner))

    def find(self, key: str) -> Path | None:
        """Return the path of a file, None if there is none; a path is never made of an unknown key."""
        return self.files[key].path if key in self.files else None

    def delete(self, key: str) -> None:
        """Delete a file, unless it was deleted before."""
        if file := self.files.pop(key, None):
            with suppress(PermissionError):  # on Windows, while it is downloaded
                file.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files."""
        for key in list(self.files):
            self.delete(key)


def _write_private(path: Path, content: bytes) -> None:
    _remove_stale_files()
    path.touch(OWNER_ONLY, exist_ok=False)
    path.write_bytes(content)


def _remove_stale_files() -> None:
    """Remove what services that were killed have left: nobody needs a file beyond its lifetime."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, or has gone meanwhile
            if path.lstat().st_mtime < time.time() - LIFETIME:
                path.unlink()
