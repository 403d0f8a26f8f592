"""What strangers may send to the service: refused or handled, with a clear answer, never a 500 and never a hang."""

from __future__ import annotations

import json
import random
import select
import socket
import string
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.server import Server, start_server

from regard.runs import Run

ASKED = {"q": "the old house", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def server(fluent_run: Run) -> Iterator[Server]:
    with start_server(fluent_run.folder, "--body-limit", 2_000_000, "--beam", 1, "--processes", 1) as process:
        yield process


def alive(server: Server) -> bool:
    return bool(server.translate("the old house")["translatedText"])


def test_bodies_that_are_too_large(server: Server) -> None:
    for body in ({"json": {**ASKED, "q": "a" * 2_000_001}}, {"data": {**ASKED, "q": "a" * 2_000_001}}):
        answer = httpx.post(f"{server.url}/translate", **body)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert answer.json() == {"error": "Invalid request: the body exceeds 2000000 bytes"}

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"a" * 100_000

    headers = {"Content-Type": "application/json"}
    assert httpx.post(f"{server.url}/translate", content=chunks(), headers=headers).status_code == 413
    assert alive(server)


def raw(server: Server, sent: bytes, close: bool = True) -> bytes:
    """What comes back for bytes that nobody would call a request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            connection.sendall(sent)
            if close:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            return b""
    return received


def test_who_has_said_all_may_still_listen(server: Server) -> None:
    body = b"q=the+old+house&source=en&target=de"
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    answer = raw(server, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == server.translate("the old house")


def test_clients_that_are_too_slow(fluent_run: Run) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with start_server(fluent_run.folder, "--patience", 1) as server:
        answer = raw(server, head + b'{"q": ', close=False)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"took too long" in answer
        unended = b"POST /translate HTTP/1.1\r\nHost: x\r\nX-Slow: "
        assert raw(server, unended, close=False) == b"", "headers that never end"
        assert raw(server, b"", close=False) == b"", "somebody who says nothing at all"
        assert alive(server)


def unread(server: Server, length: int) -> socket.socket:
    """A connection on which a long answer was asked for, nothing of which is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"q": "x" * length, "source": "de", "target": "de"}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return connection


def test_clients_that_do_not_listen(fluent_run: Run) -> None:
    with start_server(fluent_run.folder, "--patience", 4, "--char-limit", -1, "--body-limit", 30_000_000) as server:
        with unread(server, 20_000_000) as connection:
            ended = select.poll()
            ended.register(connection, 0)  # no more than that it has ended
            assert ended.poll(60_000) == [(connection.fileno(), select.POLLERR | select.POLLHUP)]
        with unread(server, 20_000_000) as connection:
            received = 0
            while part := connection.recv(65536):
                received += len(part)
                if received > 20_000_000:
                    break
        assert received > 20_000_000, "who listens, however little at a time, hears it to the end"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\xff" * 100,
        b"GET / HTTQ/1.1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    ],
)
def test_what_is_no_request(server: Server, sent: bytes) -> None:
    answer = raw(server, sent)
    assert answer == b"" or answer.split()[1][:1] == b"4"
    assert alive(server)


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "a\x00b\x00",
        "\ud800 half a character \udc00",
        "".join(map(chr, range(32))) + "\x7f\x80\x9f",
        "\u202e\u2066 the house \u2069",
        "\ufeff\ufffe\uffff",
        "🏳️‍🌈" * 50,
        "a" * 20_000,
        "e\u0301" * 5000,
        "word " * 4000,
        ". " * 5000,
        "<" * 5000,
        "&" * 5000,
        "<b>" * 3000,
        "</p>" * 3000,
        "{" * 5000,
        "\n" * 19_000,
    ],
)
@pytest.mark.parametrize("form", ["text", "html"])
def test_texts_of_every_kind(server: Server, text: str, form: str) -> None:
    body = json.dumps({**ASKED, "q": text, "format": form})
    answer = httpx.post(
        f"{server.url}/translate", content=body, headers={"Content-Type": "application/json"}, timeout=300
    )
    assert answer.status_code in (200, 400), answer.text
    assert isinstance(answer.json().get("translatedText", ""), str)


def test_a_megabyte_of_one_word(fluent_run: Run) -> None:
    with start_server(fluent_run.folder, "--char-limit", -1, "--beam", 1) as server:
        found = server.translate("the " * 200 + "x" * 50_000)["translatedText"]
        assert isinstance(found, str)
    with start_server(fluent_run.folder) as server:
        said = server.error("/translate", 400, **{**ASKED, "q": "x" * 1_000_000})
        assert said == "Invalid request: request (1000000) exceeds text limit (20000)"


def test_thousands_of_keys(server: Server) -> None:
    many = {f"k{number}": "v" for number in range(20_000)}
    assert server.ask("/translate", **ASKED, **many)["translatedText"]
    assert httpx.post(f"{server.url}/translate", data={**ASKED, **many}).status_code == 400
    assert httpx.post(f"{server.url}/translate", params={**ASKED, **dict(list(many.items())[:2000])}).status_code in (
        200,
        400,
        414,
    )
    assert alive(server)


def test_paths_that_lead_out(server: Server) -> None:
    for path in (
        "/page/../settings.py",
        "/page/..%2f..%2fsettings.py",
        "/page/%2e%2e/%2e%2e/etc/passwd",
        "/page//etc/passwd",
        "/v1/models/..%2f..%2fetc/curves",
        "/download_file/..%2f..%2fetc%2fpasswd",
    ):
        answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] in (b"400", b"404"), (path, answer[:200])
        assert b"root:" not in answer


values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["en", "de", "auto", "html", "text", "the old house", "<b>x</b>", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = ("q", "source", "target", "format", "alternatives", "alignment", "model", "api_key", "beam", "s")
names = st.sampled_from(NAMES)
paths = st.sampled_from(["/translate", "/detect", "/suggest", "/v1/trace", "/v1/translate/stream", "/translate_file"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths, fields=st.dictionaries(names, values, max_size=8), likely=st.booleans(), how=st.integers(0, 3))
def test_whatever_is_asked_there_is_an_answer(
    server: Server, path: str, fields: dict[str, Any], likely: bool, how: int
) -> None:
    given = {**(ASKED if likely else {}), **fields}
    body = json.dumps(given)
    written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    flat = {key: value.encode("utf-8", "replace").decode() for key, value in written.items()}
    if how == 0:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=120)
    elif how == 1:
        answer = httpx.post(f"{server.url}{path}", data=flat, timeout=120)
    elif how == 2:
        answer = httpx.post(f"{server.url}{path}", params=flat, timeout=120)
    else:
        answer = httpx.post(f"{server.url}{path}", data=flat, files={"file": ("x.txt", body.encode())}, timeout=120)
    assert answer.status_code in (200, 400, 403, 404, 413), (given, answer.text)
    if answer.status_code == 400:
        assert set(answer.json()) == {"error"}


@pytest.mark.thorough
def test_noise_as_bodies(server: Server) -> None:
    dice = random.Random(1)
    form, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
    kinds = ["application/json", form, parts, "text/plain", ""]
    for _ in range(300):
        body = bytes(dice.choices(range(256), k=dice.randrange(200)))
        letters = "".join(dice.choices(string.printable, k=dice.randrange(60))).encode()
        headers = {"Content-Type": dice.choice(kinds)}
        answer = httpx.post(f"{server.url}/translate", content=dice.choice([body, letters]), headers=headers)
        assert answer.status_code == 400
        assert set(answer.json()) == {"error"}


@pytest.mark.hypothesis
def test_the_description_is_true(server: Server) -> None:
    """Requests made of the service's own description: no 500, and no answer that is not described."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    held = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    quick = settings(
        settings(),
        max_examples=max(10, settings().max_examples // 4),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    for made in schema.get_all_operations():
        operation: Any = made.ok()  # type: ignore[union-attr]

        @quick
        @given(case=operation.as_strategy())
        def holds(case: Any) -> None:
            answer = case.call(base_url=server.url, timeout=120)
            case.validate_response(answer, checks=held)

        holds()
