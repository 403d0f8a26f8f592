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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.engine.thread_pool import BoundedThreadPool

try:
    import resource
except ImportError:  # Windows, which can neither limit a process nor pass it a socket in this way
    resource = None  # type: ignore[assignment]

MESSAGE_TEXTS = 1_000  # at most in one message
MESSAGE_CHARACTERS = 200_000  # at most in one message, unless a single text has more

Translate = Callable[[Sequence[str]], list[str]]
Languages = tuple[str | None, str | None]  # source and target


class Document(NamedTuple):
    """A document to translate."""

    name: str
    content: bytes
    limits: DocumentLimits = DocumentLimits()
    languages: Languages = (None, None)

    def translate(self, translate: Translate, warn: Callable[[str], None]) -> bytes:
        """Translate it in this process."""
        return translate_document(self.name, self.content, translate, self.limits, warn, self.languages)


class ProcessLimits(NamedTuple):
    """Limits of a process that translates documents."""

    seconds: int = 60  # of processor time that one document may take
    memory: int = 2 << 30  # bytes of address space
    kept_memory: int = 300 << 20  # bytes: a process that has grown beyond that is replaced by a fresh one


class DocumentProcess:
    """A process that parses and writes documents, started with the first one and again after it has ended."""

    def __init__(self) -> None:
        self.limits = ProcessLimits()
        self.lock = threading.RLock()  # held while the process is started or ended, or gets another document
        self.process: subprocess.Popen[bytes] | None = None
        self.document: Document | None = None
        self.is_killed = False  # on purpose

    def start(self) -> Connection:
        """Start the process unless it runs, and return the connection to it."""
        with self.lock:
            if self.is_killed or self.process is None or self.process.poll() is not None:
                self.close()
                ours, theirs = socket.socketpair()
                function = run_document_process.__name__
                script = (
                    f"import sys; sys.path[:] = {sys.path!r}; "
                    f"from {__name__} import {function}; {function}({theirs.fileno()})"
                )
                # A process inherits the signals that this thread blocks. systemd sends them to all processes of the
                # service, but they are for the service alone, which lets documents finish.
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
                self.is_killed = False
            return self.connection

    def translate(self, document: Document, translate: Translate, warn: Callable[[str], None]) -> bytes:
        """Translate a document; `translate` and `warn` are called in this process."""
        if resource is None:
            return document.translate(translate, warn)
        with self.lock:
            self.document = document
            connection = self.start()
        try:
            return self._exchange_messages(connection, document, translate, warn)
        finally:
            with self.lock:
                self.document = None

    def _exchange_messages(
        self, connection: Connection, document: Document, translate: Translate, warn: Callable[[str], None]
    ) -> bytes:
        name = document.name
        with self._explain_end(name):
            _send(connection, {**document._asdict(), "content": None, "process_limits": self.limits})
            connection.send_bytes(document.content)
            message = _receive(connection)
        if isinstance(message, list):
            try:
                translations = translate(message)
            except BaseException:  # the process waits for translations that do not come: replace it
                self.kill()
                self.close()
                raise
            with self._explain_end(name):
                _send(connection, translations)
                message = _receive(connection)
        with self._explain_end(name):
            translated = connection.recv_bytes() if "warnings" in message else b""
        if message["last"]:
            self.close()
        if "error" in message:
            raise DocumentError(message["error"])
        if "failure" in message:
            raise RuntimeError(f"{name} cannot be translated: {message['failure']}")
        for warning in message["warnings"]:
            warn(warning)
        return translated

    @contextmanager
    def _explain_end(self, name: str) -> Iterator[None]:
        """Raise an error that says why the process has ended if it does so while messages are exchanged."""
        try:
            yield
        except (EOFError, OSError) as error:
            code = self.process.wait() if self.process else 0
            if self.is_killed:
                raise CancelledError from error
            if code == -signal.SIGXCPU:
                why = f"takes more than {self.limits.seconds} seconds of processor time; it is not translated"
            else:
                why = f"takes too much memory, or cannot be read: the process that read it has ended with {code}"
            raise DocumentError(f"{name} {why}") from error

    def kill(self, document: Document | None = None) -> None:
        """End the process at once; only if it translates this document, where one is given."""
        with self.lock:
            if document is None or document is self.document:
                self.is_killed = True
                if self.process is not None:
                    self.process.kill()

    def close(self) -> None:
        """End the process after its last document."""
        with self.lock:
            if self.process is not None:
                self.connection.close()
                self.process.wait()
                self.process = None


class DocumentPool(BoundedThreadPool):
    """Threads that translate documents, each with a process of its own."""

    def __init__(self, threads: int, queue_size: int) -> None:
        super().__init__(threads, queue_size)
        self.processes = [DocumentProcess() for _ in range(threads)]
        self.idle: SimpleQueue[DocumentProcess] = SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    async def translate(self, document: Document, translate: Translate, warn: Callable[[str], None]) -> bytes:
        """Translate a document, see `DocumentProcess.translate`; if this is cancelled, the process is killed."""

        def translate_in_process() -> bytes:
            process = self.idle.get()
            try:
                return process.translate(document, translate, warn)
            finally:
                self.idle.put(process)

        try:
            return await self(translate_in_process)
        except asyncio.CancelledError:
            for process in self.processes:
                process.kill(document)
            raise

    def close(self) -> None:
        """Kill the processes and end the threads: nothing waits for their documents any more."""
        for process in self.processes:
            process.kill()
        self.executor.shutdown(cancel_futures=True)
        for process in self.processes:
            process.close()


def _send(connection: Connection, message: Any) -> None:
    """Send a message; texts are sent in several, and an empty one after them."""
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


def run_document_process(descriptor: int) -> None:
    """Parse and write documents in this process until the service closes the connection."""
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            process_limits, limits = ProcessLimits(*request["process_limits"]), DocumentLimits(*request["limits"])
            document = Document(request["name"], connection.recv_bytes(), limits, tuple(request["languages"]))
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
