"""Documents are read and written in processes of their own, which are ended if a document takes too much.

Untrusted input may be made to cost as much time or memory as possible. A document is therefore parsed in a process with
limits of processor time and memory: one that exceeds them costs that process and nothing else. The texts go back to the
service, which translates them. Messages are JSON, and the bytes of a document follow theirs. Texts are sent in many
small messages, because reading and writing JSON blocks all threads of the service.
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
from regard.serve.engine.thread_pool import Aside

try:
    import resource
except ImportError:  # Windows, which can neither limit a process nor pass it a socket in this way
    HAS_PROCESSES = False
else:
    HAS_PROCESSES = True

SECONDS = 60  # of processor time that one document may take
MEMORY = 2 << 30  # bytes of address space of a process
LARGE = 300 << 20  # bytes: a process that has grown beyond that is replaced by a fresh one
MESSAGE_TEXTS = 1_000  # at most in one message
MESSAGE_CHARACTERS = 200_000  # at most in one message, unless a single text has more

Translate = Callable[[Sequence[str]], list[str]]
Languages = tuple[str | None, str | None]  # source and target


class DocumentProcess:
    """A process that reads and writes documents, started with the first one and again after it has ended."""

    def __init__(self, seconds: int = SECONDS, memory: int = MEMORY, large: int = LARGE) -> None:
        self.seconds, self.memory, self.large = seconds, memory, large
        self.lock = threading.RLock()  # held while the process is started or ended
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = False  # whether it was killed on purpose

    def start(self) -> Connection:
        """Start it unless it runs, and return the connection to it."""
        with self.lock:
            if self.ended or self.process is None or self.process.poll() is not None:
                self.close()
                ours, theirs = socket.socketpair()
                script = (
                    f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
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
                self.ended = False
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
        """Do what `regard.documents.translate_document` does; `translate` and `warn` are called here."""
        if not HAS_PROCESSES:
            return translate_document(name, content, translate, limits, warn, languages)
        connection = self.start()
        order = {
            "name": name,
            "limits": limits,
            "languages": languages,
            "seconds": self.seconds,
            "memory": self.memory,
            "large": self.large,
        }
        with self.watching(name):
            send(connection, order)
            connection.send_bytes(content)
            message = json.loads(connection.recv_bytes())
            texts = receive_texts(connection) if "texts" in message else []
        if texts:
            try:
                answers = translate(texts)
            except BaseException:  # the process waits for answers that do not come: a fresh one takes its place
                self.kill()
                self.close()
                raise
            with self.watching(name):
                send_texts(connection, answers)
                message = json.loads(connection.recv_bytes())
        with self.watching(name):
            made = connection.recv_bytes() if "warnings" in message else b""
        if message["last"]:
            self.close()
        if "error" in message:
            raise DocumentError(message["error"])
        if "failure" in message:
            raise RuntimeError(f"{name} cannot be translated: {message['failure']}")
        for warning in message["warnings"]:
            warn(warning)
        return made

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Raise an error that says why the process has ended if it does so during an exchange with it."""
        try:
            yield
        except (EOFError, OSError) as error:
            code = self.process.wait() if self.process else 0
            if self.ended:
                raise CancelledError from error
            raise DocumentError(f"{name} {describe_end(code, self.seconds)}") from error

    def kill(self) -> None:
        """End it at once: the document that it works on is not wanted any longer."""
        with self.lock:
            self.ended = True
            if self.process is not None:
                self.process.kill()

    def close(self) -> None:
        """End it after its last document."""
        with self.lock:
            if self.process is not None:
                self.connection.close()
                self.process.wait()
                self.process = None


class Documents(Aside):
    """Threads that have documents translated, each by a process of its own."""

    def __init__(self, threads: int, room: int) -> None:
        super().__init__(threads, room)
        self.processes = [DocumentProcess() for _ in range(threads)]
        self.free: SimpleQueue[DocumentProcess] = SimpleQueue()
        for process in self.processes:
            self.free.put(process)
        self.working: dict[object, DocumentProcess] = {}  # by the documents that they work on
        self.changing = threading.Lock()  # held by who changes that

    async def translate(
        self,
        name: str,
        content: bytes,
        translate: Translate,
        limits: DocumentLimits,
        warn: Callable[[str], None],
        languages: Languages = (None, None),
    ) -> bytes:
        """Do what `regard.documents.translate_document` does. If this is cancelled, the process is ended."""
        document = object()
        try:
            return await self(self.work, document, name, content, translate, limits, warn, languages)
        except asyncio.CancelledError:
            with self.changing:
                if document in self.working:
                    self.working[document].kill()
            raise

    def work(self, document: object, *arguments: Any) -> bytes:
        """Have a document translated by a process that is free."""
        process = self.free.get()
        with self.changing:
            self.working[document] = process
        try:
            return process.translate(*arguments)
        finally:
            with self.changing:
                del self.working[document]
            self.free.put(process)

    def close(self) -> None:
        """End the threads and processes; nothing waits any longer for what they work on."""
        for process in self.processes:
            process.kill()
        self.pool.shutdown(cancel_futures=True)
        for process in self.processes:
            process.close()


def describe_end(code: int, seconds: int) -> str:
    """Return why there is no translation if a process has ended with this code."""
    if code == -signal.SIGXCPU:
        return f"takes more than {seconds} seconds of processor time; it is not translated"
    return f"takes too much memory, or cannot be read: the process that read it has ended with {code}"


def send(connection: Connection, message: Any) -> None:
    """Send something as JSON."""
    connection.send_bytes(json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def send_texts(connection: Connection, texts: Sequence[str]) -> None:
    """Send texts in several messages, and an empty one after them."""
    for batch in split_texts(texts):
        send(connection, batch)
    send(connection, [])


def receive_texts(connection: Connection) -> list[str]:
    """Receive what `send_texts` sends."""
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


def serve(file: int) -> None:
    """Read and write documents in this process until the other end of the connection is closed."""
    connection = Connection(file)
    with suppress(EOFError, OSError):
        while True:
            order = json.loads(connection.recv_bytes())
            content = connection.recv_bytes()
            limit_resources(order["seconds"], order["memory"])
            source, target = order["languages"]
            message, made = answer(
                connection, order["name"], content, DocumentLimits(*order["limits"]), (source, target)
            )
            send(connection, message | {"last": has_grown(order["large"])})
            if made is not None:
                connection.send_bytes(made)
            del content, made


def answer(
    connection: Connection, name: str, content: bytes, limits: DocumentLimits, languages: Languages = (None, None)
) -> tuple[dict[str, Any], bytes | None]:
    """Translate a document, whose texts are translated at the other end of the connection."""
    warnings: list[str] = []

    def translate(texts: Sequence[str]) -> list[str]:
        try:
            send(connection, {"texts": len(texts)})
            send_texts(connection, texts)
            return receive_texts(connection)
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


def limit_resources(seconds: int, memory: int) -> None:
    """Limit the processor time from now on, and the memory of this process, where the platform can."""
    limits = {
        resource.RLIMIT_CPU: int(time.process_time()) + 1 + seconds,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):  # macOS does not limit memory
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def has_grown(large: int) -> bool:
    """Return True if this process holds more than so many bytes of memory, and a fresh one should take its place."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # not on Linux
        return False
    return pages * resource.getpagesize() > large
