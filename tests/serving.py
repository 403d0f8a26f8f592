"""A real server process, and ways to ask it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
from conftest import command, environment

from regard.serve.app import application
from regard.serve.service import Service
from regard.serve.settings import Settings

T = TypeVar("T")


class Clock:
    """Time that goes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Server:
    """A process that serves, what it has logged, and a client for it."""

    process: subprocess.Popen[str]
    port: int
    log: list[dict[str, Any]] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)  # lines that are no JSON
    news: threading.Condition = field(default_factory=threading.Condition)  # of the log: it comes after the answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def logged(self, path: str) -> dict[str, Any]:
        """The line of the request for a path, waited for."""
        with self.news:
            while not (found := [line for line in self.log if line.get("path") == path]):
                assert self.news.wait(60), (path, self.log)
        return found[-1]

    def ask(self, path: str, status: int = 200, /, **fields: Any) -> Any:
        """A JSON request, and the JSON that comes back."""
        answer = httpx.post(f"{self.url}{path}", json=fields, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()

    def translate(self, q: Any, source: str = "en", target: str = "de", /, **fields: Any) -> Any:
        return self.ask("/translate", 200, q=q, source=source, target=target, **fields)

    def error(self, path: str, status: int, /, **fields: Any) -> str:
        found = self.ask(path, status, **fields)
        assert set(found) == {"error"}
        return str(found["error"])


@contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    """`regard serve …` on a free port; asked to stop in the end. It decodes itself, unless it is told otherwise."""
    apart = () if "--processes" in arguments else ("--processes", 0)
    process = subprocess.Popen(
        command(["serve", *arguments, *apart, "--port", "0"]),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**environment(), **os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "running on" in line:
            break
    else:
        raise AssertionError("".join(said))
    port = int(json.loads(line)["event"].split("127.0.0.1:")[1].split()[0])
    server = Server(process, port)
    reader = threading.Thread(target=collect, args=(server,), daemon=True)
    reader.start()
    try:
        yield server
    finally:
        process.terminate()
        process.wait()
        reader.join()
        process.stderr.close()
    assert not server.stray, server.stray


def collect(server: Server) -> None:
    """Reads the log while the server runs."""
    assert server.process.stderr is not None
    for line in server.process.stderr:
        with server.news:
            try:
                server.log.append(json.loads(line))
            except ValueError:
                server.stray.append(line)  # reading goes on: a server that nobody reads from would stand still
            server.news.notify_all()


def inside(run: Path | str, settings: Settings, ask: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
    """What somebody is answered who asks a service in this very process, without a socket."""

    async def asking() -> T:
        service = Service([str(run)], replace(settings, processes=0))
        try:
            transport = httpx.ASGITransport(application(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://inside") as client:
                return await ask(client)
        finally:
            service.close()

    return asyncio.run(asking())
