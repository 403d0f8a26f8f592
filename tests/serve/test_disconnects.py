"""Clients that disconnect: their request is cancelled and no longer decoded."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest
from starlette.types import Message, Receive, Scope, Send
from support.server import TIMEOUT, hold_decoding, serve_in_thread

from regard.runs import Run
from regard.serve.http import timeouts
from regard.serve.http.middleware import CancelOnDisconnect

HTTP: Scope = {"type": "http"}
BODY: list[Message] = [
    {"type": "http.request", "body": b"a", "more_body": True},
    {"type": "http.request", "body": b"b", "more_body": False},
]


def make_receive(messages: list[Message], disconnect: asyncio.Event) -> Receive:
    """Return an ASGI `receive` that gives the messages, then the disconnect once its event is set."""
    left = iter(messages)

    async def receive() -> Message:
        for message in left:
            return message
        await disconnect.wait()
        return {"type": "http.disconnect"}

    return receive


async def refuse_to_send(message: Message) -> None:
    raise AssertionError(message)


def test_request_is_cancelled_when_the_client_disconnects() -> None:
    async def disconnect_after_body() -> list[str]:
        seen: list[str] = []
        disconnect = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append((b"".join([(await receive())["body"] for _ in BODY])).decode())
            disconnect.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        await CancelOnDisconnect(app)(HTTP, make_receive(BODY, disconnect), refuse_to_send)
        return seen

    assert asyncio.run(disconnect_after_body()) == ["ab", "cancelled"]


def test_application_that_waits_for_a_disconnect_is_notified() -> None:
    async def disconnect_after_body() -> str:
        seen: list[str] = []
        disconnect = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            for _ in BODY:
                await receive()
            disconnect.set()
            try:
                seen.append((await receive())["type"])
            except asyncio.CancelledError:
                seen.append("cancelled")

        await CancelOnDisconnect(app)(HTTP, make_receive(BODY, disconnect), refuse_to_send)
        return seen[0]

    assert asyncio.run(disconnect_after_body()) in ("http.disconnect", "cancelled")


def test_connected_client_gets_answers_and_exceptions_propagate() -> None:
    async def answer(error: Exception | None) -> list[str]:
        sent: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            if error is not None:
                raise error
            await send({"type": "http.response.start"})

        async def send(message: Message) -> None:
            sent.append(message["type"])

        await CancelOnDisconnect(app)(HTTP, make_receive(BODY, asyncio.Event()), send)
        return sent

    assert asyncio.run(answer(None)) == ["http.response.start"]
    with pytest.raises(ArithmeticError, match="lost"):
        asyncio.run(answer(ArithmeticError("lost")))


@pytest.mark.parametrize("reset", [True, False], ids=["connection reset", "connection closed"])
def test_sentences_of_a_disconnected_client_are_not_decoded(
    fluent_run: Run, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "HALF_CLOSE_GRACE", 0.1)  # seconds after which a half-closed connection is given up
    texts = [f"The dog number {number} sees the old house." for number in range(100)]
    body = json.dumps({"q": texts, "source": "en", "target": "de"}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with serve_in_thread(fluent_run.folder, batch_pieces=4) as server:
        with hold_decoding(server) as started:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(head.encode() + b"\r\n\r\n" + body)
                assert started.wait(TIMEOUT)
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert server.logged("/translate")["status"] == 499
        server.translate("The dog sees the house.")
        decoded = f'regard_batch_sentences_sum{{model="{fluent_run.folder.name}"}} {4 + 1:.1f}\n'
        assert decoded in server.http.get("/metrics").text, "one batch was in progress when the client disconnected"
