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
from typing import Any

from regard.documents import DocumentError, DocumentLimits, translate_document
from regard.serve.engine.thread_pool import BoundedThreadPool

try:
    import resource
except ImportError:  # Windows, which can neither limit a process nor pass it a socket in this way
    HAS_PROCESSES = False
else:
    HAS_PROCESSES = True

SECONDS = 60  # of processor time that one document may take
MEMORY = 2 << 30  # bytes of address space of a process
MAX_KEPT_MEMORY = 300 << 20  # bytes: a process that has grown beyond that is replaced by a fresh one
MESSAGE_TEXTS = 1_000  # at most in one message
MESSAGE_CHARACTERS = 200_000  # at most in one message, unless a single text has more

Translate = Callable[[Sequence[str]], list[str]]
Languages = tuple[str | None, str | None]  # source and target


class DocumentProcess:
    """A process that parses and writes documents, started with the first one and again after it has ended."""

    def __init__(self, seconds: int = SECONDS, memory: int = MEMORY, max_kept_memory: int = MAX_KEPT_MEMORY) -> None:
        self.seconds, self.memory, self.max_kept_memory = seconds, memory, max_kept_memory
        self.lock = threading.RLock()  # held while the process is started or ended
        self.process: subprocess.Popen[bytes] | None = None
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

    def translate(
        self,
        name: str,
        content: bytes,
        translate: Translate,
        limits: DocumentLimits,
        warn: Callable[[str], None],
        languages: Languages = (None, None),
    ) -> bytes:
        """Do what `regard.documents.translate_document` does; `translate` and `warn` are called in this process."""
        if not HAS_PROCESSES:
            return translate_document(name, content, translate, limits, warn, languages)
        connection = self.start()
        request = {
            "name": name,
            "limits": limits,
            "languages": languages,
            "seconds": self.seconds,
            "memory": self.memory,
            "max_kept_memory": self.max_kept_memory,
        }
        with self._explain_end(name):
            _send(connection, request)
            connection.send_bytes(content)
            message = json.loads(connection.recv_bytes())
            texts = _receive_texts(connection) if "texts" in message else []
        if texts:
            try:
                translations = translate(texts)
            except BaseException:  # the process waits for translations that do not come: replace it
                self.kill()
                self.close()
                raise
            with self._explain_end(name):
                _send_texts(connection, translations)
                message = json.loads(connection.recv_bytes())
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
                why = f"takes more than {self.seconds} seconds of processor time; it is not translated"
            else:
                why = f"takes too much memory, or cannot be read: the process that read it has ended with {code}"
            raise DocumentError(f"{name} {why}") from error

    def kill(self) -> None:
        """End the process at once: its document is not wanted any more."""
        with self.lock:
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
        self.kill_lock = threading.Lock()  # held while a process is assigned to another document, or killed

    async def translate(
        self,
        name: str,
        content: bytes,
        translate: Translate,
        limits: DocumentLimits,
        warn: Callable[[str], None],
        languages: Languages = (None, None),
    ) -> bytes:
        """Do what `regard.documents.translate_document` does. If this is cancelled, the process is killed."""
        assigned: list[DocumentProcess] = []  # the process of this document, while it is translated

        def translate_in_process() -> bytes:
            process = self.idle.get()
            with self.kill_lock:
                assigned.append(process)
            try:
                return process.translate(name, content, translate, limits, warn, languages)
            finally:
                with self.kill_lock:
                    assigned.clear()
                self.idle.put(process)

        try:
            return await self(translate_in_process)
        except asyncio.CancelledError:
            with self.kill_lock:
                for process in assigned:
                    process.kill()
            raise

    def close(self) -> None:
        """Kill the processes and end the threads: nothing waits for their documents any more."""
        for process in self.processes:
            process.kill()
        self.executor.shutdown(cancel_futures=True)
        for process in self.processes:
            process.close()


def _send(connection: Connection, message: Any) -> None:
    connection.send_bytes(json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _send_texts(connection: Connection, texts: Sequence[str]) -> None:
    """Send texts in several messages, and an empty one after them."""
    for batch in split_texts(texts):
        _send(connection, batch)
    _send(connection, [])


def _receive_texts(connection: Connection) -> list[str]:
    """Receive what `_send_texts` sends."""
    texts: list[str] = []
    while batch := json.loads(connection.recv_bytes()):
        texts += batch
    return texts


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
            content = connection.recv_bytes()
            _limit_resources(request["seconds"], request["memory"])
            source, target = request["languages"]
            message, translated = answer_request(
                connection, request["name"], content, DocumentLimits(*request["limits"]), (source, target)
            )
            _send(connection, message | {"last": _get_memory() > request["max_kept_memory"]})
            if translated is not None:
                connection.send_bytes(translated)
            del content, translated


def answer_request(
    connection: Connection, name: str, content: bytes, limits: DocumentLimits, languages: Languages = (None, None)
) -> tuple[dict[str, Any], bytes | None]:
    """Return the message for a document, and its translation; its texts are translated by the service."""
    warnings: list[str] = []

    def translate(texts: Sequence[str]) -> list[str]:
        try:
            _send(connection, {"texts": len(texts)})
            _send_texts(connection, texts)
            return _receive_texts(connection)
        except MemoryError:  # the service waits for further texts, or sends some: only the end of this process is clear
            sys.exit(1)

    try:
        return {"warnings": warnings}, translate_document(name, content, translate, limits, warnings.append, languages)
    except DocumentError as error:
        return {"error": str(error)}, None
    except MemoryError:
        return {"error": f"{name} takes too much memory; it is not translated"}, None
    except (EOFError, OSError):
        raise
    except Exception:
        return {"failure": traceback.format_exc()}, None


def _limit_resources(seconds: int, memory: int) -> None:
    """Limit the processor time from now on, and the memory of this process, where the platform can."""
    limits = {
        resource.RLIMIT_CPU: int(time.process_time()) + 1 + seconds,
        resource.RLIMIT_AS: memory,
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
