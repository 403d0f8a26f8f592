"""A client that goes away takes its work with it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from support.server import start_server

from regard.runs import Run
from regard.serve.leaving import Leaving

HTTP: Scope = {"type": "http"}
BODY: list[Message] = [
    {"type": "http.request", "body": b"a", "more_body": True},
    {"type": "http.request", "body": b"b", "more_body": False},
]


def heard(messages: list[Message], then: asyncio.Event) -> Receive:
    """What a client sends, and that it goes when the event comes."""
    left = iter(messages)

    async def receive() -> Message:
        for message in left:
            return message
        await then.wait()
        return {"type": "http.disconnect"}

    return receive


async def send(message: Message) -> None:
    raise AssertionError(message)


def test_work_is_called_off_when_the_client_goes() -> None:
    async def asked() -> list[str]:
        seen: list[str] = []
        leaves = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append((b"".join([(await receive())["body"] for _ in BODY])).decode())
            leaves.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("called off")
                raise

        await Leaving(app)(HTTP, heard(BODY, leaves), send)
        return seen

    assert asyncio.run(asked()) == ["ab", "called off"]


def test_who_listens_for_it_hears_that_the_client_has_gone() -> None:
    async def asked() -> str:
        found: list[str] = []
        leaves = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            for _ in BODY:
                await receive()
            leaves.set()
            try:
                found.append((await receive())["type"])
            except asyncio.CancelledError:
                found.append("called off")

        await Leaving(app)(HTTP, heard(BODY, leaves), send)
        return found[0]

    assert asyncio.run(asked()) in ("http.disconnect", "called off")


def test_a_client_that_stays_is_answered_and_errors_come_through() -> None:
    async def asked(error: Exception | None) -> str:
        sent: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            if error is not None:
                raise error
            await send({"type": "http.response.start"})

        async def kept(message: Message) -> None:
            sent.append(message["type"])

        await Leaving(app)(HTTP, heard(BODY, asyncio.Event()), kept)
        return str(sent)

    assert asyncio.run(asked(None)) == "['http.response.start']"
    with pytest.raises(ArithmeticError, match="lost"):
        asyncio.run(asked(ArithmeticError("lost")))


@pytest.mark.parametrize("reset", [True, False], ids=["the connection breaks", "it ends in peace"])
def test_what_nobody_waits_for_is_not_decoded(fluent_run: Run, reset: bool) -> None:
    texts = [f"The dog number {number} sees the old house." for number in range(3000)]
    body = json.dumps({"q": texts, "source": "en", "target": "de"}).encode()
    with start_server(fluent_run.folder, "--batch-limit", "-1", "--patience", "1") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = (
                f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            while not figure(server.url, "regard_batch_sentences_sum"):
                pass
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while not any(line.get("status") == 499 for line in server.log):
            server.translate("The old house.")
        server.translate("The dog sees the house.")
        assert figure(server.url, "regard_batch_sentences_sum") < 3000


def figure(url: str, name: str) -> float:
    """One figure that the service tells Prometheus; 0 where it is not there yet."""
    found = re.search(rf"^{name}{{.*}} (.+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0
