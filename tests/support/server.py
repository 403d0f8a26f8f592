"""A real server process, a client for it, and the same application without a socket."""

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

from regard.serve.app import application
from regard.serve.service import Service
from regard.serve.settings import Settings
from support.commands import environment, regard_command

T = TypeVar("T")


class FakeClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Server:
    """A `regard serve` process, its log, and a client for it."""

    process: subprocess.Popen[str]
    port: int
    log: list[dict[str, Any]] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)  # lines that are not JSON
    news: threading.Condition = field(
        default_factory=threading.Condition
    )  # signals new log lines, which are written after the answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def logged(self, path: str) -> dict[str, Any]:
        """Wait for the log line of a request for `path` and return it."""
        with self.news:
            while not (found := [line for line in self.log if line.get("path") == path]):
                assert self.news.wait(60), (path, self.log)
        return found[-1]

    def ask(self, path: str, status: int = 200, /, **fields: Any) -> Any:
        """Post JSON, check the status and return the JSON answer."""
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
def start_server(*arguments: object) -> Iterator[Server]:
    """Start `regard serve …` on a free port and terminate it at the end; it decodes in its own process by default."""
    apart = () if "--processes" in arguments else ("--processes", 0)
    process = subprocess.Popen(
        regard_command(["serve", *arguments, *apart, "--port", "0"]),
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
    reader = threading.Thread(target=_collect_log, args=(server,), daemon=True)
    reader.start()
    try:
        yield server
    finally:
        process.terminate()
        process.wait()
        reader.join()
        process.stderr.close()
    assert not server.stray, server.stray


def _collect_log(server: Server) -> None:
    """Read the log while the server runs."""
    assert server.process.stderr is not None
    for line in server.process.stderr:
        with server.news:
            try:
                server.log.append(json.loads(line))
            except ValueError:
                server.stray.append(line)  # keep reading, or the server would block on a full pipe
            server.news.notify_all()


def ask_in_process(run: Path | str, settings: Settings, ask: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
    """Call `ask` with a client of the application in this process, without a socket."""

    async def asking() -> T:
        service = Service([str(run)], replace(settings, processes=0))
        try:
            transport = httpx.ASGITransport(application(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://inside") as client:
                return await ask(client)
        finally:
            service.close()

    return asyncio.run(asking())
