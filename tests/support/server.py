"""A client for the HTTP service, which runs as a process, in a thread of this process, or without a socket.

A process takes several seconds to start, so tests start one only where the command line, the log, signals or worker
processes matter. `serve_in_thread` is the same HTTP server in a thread, `ask_in_process` the bare ASGI application.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn

from regard.serve import server as http_server
from regard.serve.app import make_application
from regard.serve.metrics import LOG, JsonFormatter
from regard.serve.server import make_server_config
from regard.serve.service import Service
from regard.serve.settings import Settings
from support.commands import environment, regard_command

T = TypeVar("T")
TIMEOUT = 300  # seconds; generous, because a machine under load answers slowly
LOG.setLevel(logging.INFO)  # as in `regard serve`; servers in this process write a line for every request as well


class FakeClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Client:
    """Requests to a server on a port of this machine, and the log of that server."""

    port: int
    log: list[dict[str, Any]] = field(default_factory=list, init=False)
    stray: list[str] = field(default_factory=list, init=False)  # lines that are not JSON
    news: threading.Condition = field(default_factory=threading.Condition, init=False)  # notified of every line

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def http(self) -> httpx.Client:
        """Client with relative URLs; every request has a new connection, which no idle timeout can have closed."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(base_url=self.url, timeout=TIMEOUT, limits=limits, verify=False)

    def ask(self, path: str, status: int = 200, /, **fields: Any) -> Any:
        """Post JSON, check the status and return the JSON answer."""
        answer = self.http.post(path, json=fields)
        assert answer.status_code == status, answer.text
        return answer.json()

    def translate(self, q: Any, source: str = "en", target: str = "de", /, **fields: Any) -> Any:
        return self.ask("/translate", 200, q=q, source=source, target=target, **fields)

    def error(self, path: str, status: int, /, **fields: Any) -> str:
        """Post JSON, check the status and return the error message."""
        found = self.ask(path, status, **fields)
        assert set(found) == {"error"}
        return str(found["error"])

    def logged(self, path: str, client: str = "127.0.0.1") -> dict[str, Any]:
        """Wait for a client's log line of a request for `path`, which is written after the answer, and return it."""
        with self.news:
            wanted = {"path": path, "client": client}.items()
            while not (found := [line for line in self.log if wanted <= line.items()]):
                assert self.news.wait(TIMEOUT), (path, self.log)
        return found[-1]

    def add_to_log(self, line: str) -> None:
        with self.news:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.stray.append(line)
            self.news.notify_all()


@dataclass
class Server(Client):
    """A `regard serve` process."""

    process: subprocess.Popen[str]
    greeting: str  # the line on standard output


@dataclass
class ThreadServer(Client):
    """A server in a thread of this process, and its service."""

    service: Service
    server: uvicorn.Server

    def stop(self) -> None:
        """End at once, without waiting for requests in progress, as a second Ctrl-C does."""
        self.server.should_exit = self.server.force_exit = True


@contextmanager
def start_server(*arguments: object) -> Iterator[Server]:
    """Start `regard serve …` on a free port and terminate it at the end; without `--processes`, it has no workers."""
    workers = () if "--processes" in arguments else ("--processes", 0)
    process = subprocess.Popen(
        regard_command(["serve", *arguments, *workers, "--port", "0"]),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), **os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "running on" in line:
            break
    else:
        process.communicate()
        raise AssertionError("".join(lines))
    port = int(json.loads(line)["event"].split("127.0.0.1:")[1].split()[0])
    server = Server(port, process, process.stdout.readline())
    reader = threading.Thread(target=_collect_log, args=(server,), daemon=True)
    reader.start()
    try:
        yield server
    finally:
        process.terminate()
        process.wait()
        reader.join()
        process.stderr.close()
        process.stdout.close()
    assert not server.stray, server.stray


def _collect_log(server: Server) -> None:
    """Read the log while the server runs."""
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.add_to_log(line)


class _LogHandler(logging.Handler):
    """Add every record of this process to the log of a server, in the format of `regard serve`."""

    def __init__(self, server: Client) -> None:
        super().__init__()
        self.server = server
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:
            line = f"{record.msg!r}: {error!r}"  # not JSON
        self.server.add_to_log(line)


@contextmanager
def serve_in_thread(*runs: Path | str, **settings: Any) -> Iterator[ThreadServer]:
    """Serve runs over HTTP from a thread of this process; `settings` are fields of `Settings`.

    The log is that of all servers of this process; every line must be JSON.
    """
    service = Service(list(map(str, runs)), Settings(**{"processes": 0, **settings}))
    service.rate_limiter.clock = FakeClock()  # rate-limit windows do not end, however slow the machine
    sockets = http_server.listen("127.0.0.1", 0)
    try:
        server = uvicorn.Server(make_server_config(service))
        thread = threading.Thread(target=server.run, args=(sockets,))
        client = ThreadServer(sockets[0].getsockname()[1], service, server)
        handler = _LogHandler(client)
        logging.getLogger().addHandler(handler)
        thread.start()
        try:
            yield client
        finally:
            server.should_exit = True
            thread.join()
            logging.getLogger().removeHandler(handler)
    finally:
        service.close()
        http_server.close_all(sockets)
    assert not client.stray, client.stray


@contextmanager
def hold_decoding(server: ThreadServer) -> Iterator[threading.Event]:
    """Let no batch be decoded until the block ends; the event is set once a batch waits to be decoded."""
    started, gate = threading.Event(), threading.Event()
    batchers = [served.batcher for served in server.service.models.models.values()]
    for batcher in batchers:
        batcher.decode = partial(_wait_at_gate, started, gate, batcher.decode)
    try:
        yield started
    finally:
        gate.set()
        for batcher in batchers:
            batcher.decode = batcher.decode.args[-1]  # type: ignore[attr-defined]


def _wait_at_gate(started: threading.Event, gate: threading.Event, find: Callable[..., None], *batch: Any) -> None:
    started.set()
    gate.wait()
    find(*batch)


def ask_in_process(
    run: Path | str | list[str], settings: Settings, ask: Callable[[httpx.AsyncClient], Awaitable[T]]
) -> T:
    """Call `ask` with a client of the application in this process, without a socket."""

    async def asking() -> T:
        service = Service(run if isinstance(run, list) else [str(run)], replace(settings, processes=0))
        try:
            transport = httpx.ASGITransport(make_application(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://inside") as client:
                return await ask(client)
        finally:
            service.close()

    with ThreadPoolExecutor(1) as thread:  # the main thread may have Playwright's running event loop
        return thread.submit(asyncio.run, asking()).result()
