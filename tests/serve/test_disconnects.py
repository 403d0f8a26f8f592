"""Clients that disconnect: their request is cancelled and no longer decoded."""

from __future__ import annotations

import json
import socket
import struct

import pytest
from support.server import TIMEOUT, hold_decoding, serve_in_thread

from regard.runs import Run


@pytest.mark.parametrize("reset", [True, False], ids=["connection reset", "connection closed"])
def test_sentences_of_a_disconnected_client_are_not_decoded(fluent_run: Run, reset: bool) -> None:
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


def test_client_that_disconnects_while_it_sends_its_body_is_logged(fluent_run: Run) -> None:
    head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    with serve_in_thread(fluent_run.folder) as server:
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as client:
            client.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 100"), "the service waits for the body"
            client.sendall(b'{"q": "The dog')
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert server.logged("/translate")["status"] == 499
        assert server.translate("The dog sees the house.")
