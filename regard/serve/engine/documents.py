"""Translation of documents in processes of their own, which are killed if a document takes too much.

Untrusted documents may be made to cost as much time or memory as possible. A document is therefore parsed in a process
with limits of processor time and memory: one that exceeds them costs that process and nothing else. The texts go back
to the service, which translates them. Messages are JSON, and the bytes of a document follow theirs. Texts are sent in
many small messages, because reading and writing JSON blocks all threads of the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.http.errors import OverloadedError

try:
    import resource
except ImportError:  # Windows, which can neither limit a process nor pass it a socket in this way
    resource = None  # type: ignore[assignment]

MESSAGE_TEXTS = 1_000  # at most in one message
MESSAGE_CHARACTERS = 200_000  # at most in one message, unless a single text has more

Translate = Callable[[Sequence[str]], Coroutine[Any, Any, list[str]]]
Languages = tuple[str | None, str | None]  # source and target


class Document(NamedTuple):
    """A document to translate."""

    name: str
    content: bytes
    limits: DocumentLimits = DocumentLimits()
    languages: Languages = (None, None)

    def translate(self, translate: Callable[[Sequence[str]], list[str]], warn: Callable[[str], None]) -> bytes:
        """Translate it in this process."""
        return translate_document(self.name, self.content, translate, self.limits, warn, self.languages)


class ProcessLimits(NamedTuple):
    """Limits of a process that translates documents."""

    seconds: int = 60  # of processor time that one document may take
    memory: int = 2 << 30  # bytes of address space
    kept_memory: int = 300 << 20  # bytes: a process that has grown beyond that is replaced by a fresh one


class DocumentProcess:
    """A process that parses and writes documents, one after the other."""

    def __init__(self, limits: ProcessLimits) -> None:
        self.limits = limits
        ours, theirs = socket.socketpair()
        function = run_document_process.__name__
        arguments = f"{theirs.fileno()}, {tuple(limits)}"
        script = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import {function}; {function}({arguments})"
        # A process inherits the signals that this thread blocks. systemd sends them to all processes of the service,
        # but they are for the service alone, which lets documents finish.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", script],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.connection = Connection(ours.detach())

    def exchange(self, name: str, *messages: Any) -> tuple[Any, bytes]:
        """Send messages, and receive the next one, with the translation if that is known.

        If the process ends meanwhile, the error says why.
        """
        try:
            for message in messages:
                _send(self.connection, message)
            answer = _receive(self.connection)
            is_translated = isinstance(answer, dict) and "warnings" in answer
            return answer, self.connection.recv_bytes() if is_translated else b""
        except (EOFError, OSError) as error:
            code = self.process.wait()
            if code == -signal.SIGXCPU:
                why = f"takes more than {self.limits.seconds} seconds of processor time; it is not translated"
            else:
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
            if resource is None:
                return await _translate_in_thread(document, translate, warn)
            return await self._translate_in_process(document, translate, warn)

    async def _translate_in_process(
        self, document: Document, translate: Translate, warn: Callable[[str], None]
    ) -> bytes:
        process = self._take_process()
        is_reusable = False
        try:
            request = {**document._asdict(), "content": None}
            message, translated = await asyncio.to_thread(process.exchange, document.name, request, document.content)
            if isinstance(message, list):
                translations = await translate(message)
                message, translated = await asyncio.to_thread(process.exchange, document.name, translations)
            is_reusable = not message["last"]
        finally:
            if is_reusable:
                self.idle.append(process)
            else:  # it may wait for translations that do not come
                process.process.kill()
                asyncio.get_running_loop().run_in_executor(None, process.process.wait)
        if "error" in message:
            raise DocumentError(message["error"])
        if "failure" in message:
            raise RuntimeError(f"{document.name} cannot be translated: {message['failure']}")
        for warning in message["warnings"]:
            warn(warning)
        return translated

    def _take_process(self) -> DocumentProcess:
        while self.idle:
            if (process := self.idle.pop()).process.poll() is None:
                return process
        return DocumentProcess(self.limits)

    def close(self) -> None:
        """End the processes."""
        for process in self.idle:
            process.process.kill()
            process.process.wait()


async def _translate_in_thread(document: Document, translate: Translate, warn: Callable[[str], None]) -> bytes:
    """Translate a document in a thread of this process; if this is cancelled, its texts are not translated further."""
    loop, started, is_cancelled = asyncio.get_running_loop(), list[Future[list[str]]](), threading.Event()

    def translate_in_loop(texts: Sequence[str]) -> list[str]:
        if is_cancelled.is_set():  # while the document was parsed
            raise CancelledError
        started.append(asyncio.run_coroutine_threadsafe(translate(texts), loop))
        return started[-1].result()

    try:
        return await asyncio.to_thread(document.translate, translate_in_loop, warn)
    finally:
        is_cancelled.set()
        for future in started:
            future.cancel()


def _send(connection: Connection, message: Any) -> None:
    """Send a message; texts are sent in several, and an empty one after them."""
    if isinstance(message, bytes):
        connection.send_bytes(message)
        return
    for part in [*split_texts(message), []] if isinstance(message, list) else [message]:
        connection.send_bytes(json.dumps(part, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _receive(connection: Connection) -> Any:
    """Receive what `_send` sends."""
    message = part = json.loads(connection.recv_bytes())
    while isinstance(message, list) and part:
        part = json.loads(connection.recv_bytes())
        message += part
    return message


def split_texts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split texts into batches, each for one message."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == MESSAGE_TEXTS or characters + len(text) > MESSAGE_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


def run_document_process(descriptor: int, arguments: tuple[int, int, int]) -> None:
    """Parse and write documents in this process until the service closes the connection."""
    connection, process_limits = Connection(descriptor), ProcessLimits(*arguments)
    with suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            limits, languages = DocumentLimits(*request["limits"]), tuple(request["languages"])
            document = Document(request["name"], connection.recv_bytes(), limits, languages)
            _limit_resources(process_limits)
            message, translated = answer_request(connection, document)
            _send(connection, message | {"last": _get_memory() > process_limits.kept_memory})
            if translated is not None:
                connection.send_bytes(translated)
            del document, translated


def answer_request(connection: Connection, document: Document) -> tuple[dict[str, Any], bytes | None]:
    """Return the message for a document, and its translation; its texts are translated by the service."""
    warnings: list[str] = []

    def translate(texts: Sequence[str]) -> list[str]:
        try:
            _send(connection, list(texts))
            translations: list[str] = _receive(connection)
        except MemoryError:  # the service waits for further texts, or sends some: only the end of this process is clear
            sys.exit(1)
        return translations

    try:
        return {"warnings": warnings}, document.translate(translate, warnings.append)
    except DocumentError as error:
        return {"error": str(error)}, None
    except MemoryError:
        return {"error": f"{document.name} takes too much memory; it is not translated"}, None
    except (EOFError, OSError):
        raise
    except Exception:
        return {"failure": traceback.format_exc()}, None


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
