"""Translation of documents in processes of their own, which are killed if a document takes too much.

Untrusted documents may be made to cost as much time or memory as possible. A document is therefore parsed in a process
with limits of processor time and memory: one that exceeds them costs that process and nothing else. The texts go back
to the service, which translates them.
"""

from __future__ import annotations

import asyncio
import signal
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.engine.background import ignore_signals, start_process
from regard.serve.http.errors import OverloadedError

try:
    import resource
except ImportError:  # Windows, which cannot limit a process in this way
    resource = None  # type: ignore[assignment]

Translate = Callable[[Sequence[str]], Coroutine[Any, Any, list[str]]]
Languages = tuple[str | None, str | None]  # source and target


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
