"""Untrusted input to the service: malformed, oversized, slow and random requests never cause a 500 or a hang."""

from __future__ import annotations

import http.client
import json
import random
import socket
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from typing import Any

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.server import TIMEOUT, Client, serve_in_thread

from regard.runs import Run
from regard.serve import connections
from regard.serve.app import CLIENT_CLOSED
from regard.serve.service import Service

REQUEST = {"q": "the old house", "source": "en", "target": "de"}


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.slow)], ids="processes={}".format)
def server(fluent_run: Run, request: pytest.FixtureRequest) -> Iterator[Client]:
    with serve_in_thread(fluent_run.folder, body_limit=2_000_000, beam=1, processes=request.param) as server:
        yield server


def assert_alive(server: Client) -> None:
    assert server.translate("the old house")["translatedText"]


def test_oversized_bodies_are_refused(server: Client) -> None:
    for body in ({"json": {**REQUEST, "q": "a" * 2_000_001}}, {"data": {**REQUEST, "q": "a" * 2_000_001}}):
        answer = server.http.post("/translate", **body)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert answer.json() == {"error": "Invalid request: the body exceeds 2000000 bytes"}

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"a" * 100_000

    headers = {"Content-Type": "application/json"}
    assert server.http.post("/translate", content=chunks(), headers=headers).status_code == 413
    assert_alive(server)


@pytest.mark.parametrize("chunked", [False, True], ids=["content length", "chunked"])
def test_client_that_sends_all_before_it_reads_gets_the_refusal(server: Client, chunked: bool) -> None:
    headers = {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)) as client:
        body = b"a" * 20_000_000
        client.request("POST", "/translate", iter([body]) if chunked else body, headers, encode_chunked=chunked)
        answer = client.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read()) == {"error": "Invalid request: the body exceeds 2000000 bytes"}
        client.request("GET", "/health")  # on the same connection
        assert client.getresponse().status == 200


def send_raw(server: Client, sent: bytes, close: bool = False) -> bytes:
    """Send bytes over a socket, may close its sending side, and return everything that comes back."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as client:
        with suppress(OSError):  # the server answers and closes the connection before it has read everything
            client.sendall(sent)
            if close:
                client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while part := client.recv(65536):
                received += part
    return received


def test_slow_senders_time_out(fluent_run: Run) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    unfinished_headers = b"POST /translate HTTP/1.1\r\nHost: x\r\nX-Slow: "
    with serve_in_thread(fluent_run.folder, patience=2) as server, ThreadPoolExecutor(3) as threads:
        sent = (head + b'{"q": ', unfinished_headers, b"")
        answers = list(threads.map(lambda data: send_raw(server, data), sent))
        assert answers[0].startswith(b"HTTP/1.1 408")
        assert b"took too long" in answers[0]
        assert answers[1:] == [b"", b""]
        assert_alive(server)


def test_connections_beyond_the_limit_are_refused(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, connection_limit=2) as server, ExitStack() as sockets:
        for _ in range(2):
            busy = sockets.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT))
            busy.sendall(b"GET /health HTTP/1.1\r\n")
        assert server.http.get("/health").status_code == 503
        sockets.close()
        while server.http.get("/health").status_code != 200:  # until the server has seen that they are closed
            pass


def test_idle_connections_make_way_for_new_ones(fluent_run: Run) -> None:
    def ask(client: socket.socket) -> None:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            part = client.recv(10_000)
            assert part, received
            received += part
        assert received.startswith(b"HTTP/1.1 200")

    with serve_in_thread(fluent_run.folder, connection_limit=2) as server, ExitStack() as sockets:
        address = ("127.0.0.1", server.port)
        first, second, third = (sockets.enter_context(closing(socket.socket())) for _ in range(3))
        for client in (first, second, third):
            client.settimeout(TIMEOUT)
            client.connect(address)
            ask(client)
        assert first.recv(1) == b"", "idle for longest"
        ask(second)


def ask_without_reading(server: Client, length: int) -> socket.socket:
    """Open a connection, request an answer of `length` characters, and read nothing of it."""
    body = json.dumps({"q": "x" * length, "source": "de", "target": "de"}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(TIMEOUT)
    client.connect(("127.0.0.1", server.port))
    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return client


def test_client_that_does_not_read_its_answer_is_disconnected(fluent_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 seconds for an answer to move, but the usual time for a request to arrive
    monkeypatch.setattr("regard.serve.server.make_protocol", lambda seconds: connections.make_protocol(2.0))
    with (
        serve_in_thread(fluent_run.folder, char_limit=-1, body_limit=12_000_000) as server,
        ask_without_reading(server, 8_000_000) as unread,
    ):
        assert unread.recv(1)
        while server.server.server_state.connections:
            pass
        received = 0
        with suppress(ConnectionError):
            while part := unread.recv(1_000_000):
                received += len(part)
        assert received < 8_000_000


def test_client_that_reads_in_small_parts_gets_the_whole_answer(fluent_run: Run) -> None:
    with (
        serve_in_thread(fluent_run.folder, char_limit=-1, body_limit=12_000_000) as server,
        ask_without_reading(server, 8_000_000) as client,
    ):
        received = 0
        while received <= 8_000_000 and (part := client.recv(65536)):
            received += len(part)
        assert received > 8_000_000


@pytest.mark.parametrize(("size", "count", "status"), [(1, 1_500, 400), (1, 900, 200), (1_000, 1_500, 200)])
def test_body_of_thousands_of_tiny_chunks_is_refused(server: Client, size: int, count: int, status: int) -> None:
    body = json.dumps(REQUEST).encode().ljust(size * count)
    chunks = b"".join(b"%x\r\n%b\r\n" % (size, body[start : start + size]) for start in range(0, len(body), size))
    head = POST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert send_raw(server, head + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 %d " % status)
    assert_alive(server)


POST = b"POST /translate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNKED = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "binary": (b"\x00\x01\x02\xff" * 100, 400),
    "unknown protocol": (b"GET / HTTQ/1.1\r\n\r\n", 400),
    "negative content length": (POST + b"Content-Length: -5\r\n\r\n", 400),
    "huge content length": (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
    "invalid chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "long path": (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    "many headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200_000 + b"\r\n", 431),
    "15,000 headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 15_000 + b"\r\n", 431),
    "101 headers": (b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * 101 + b"\r\n", 431),
    "headers behind chunks": (POST + CHUNKED + b"1\r\na\r\n0\r\n" + b"a:\r\n" * 101 + b"\r\n", 400),
    "headers behind no chunks": (POST + CHUNKED + b"0\r\n" + b"a:\r\n" * 101 + b"\r\n", 400),
}


@pytest.mark.parametrize(("sent", "status"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_http_is_refused(server: Client, sent: bytes, status: int) -> None:
    answer = send_raw(server, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b'"error"' in answer) == (status == 413), "the others reach no route"
    assert_alive(server)


@pytest.mark.parametrize(("count", "is_refused"), [(100, False), (101, True), (60_000, True)])
def test_headers_behind_chunks_are_limited_wherever_packets_end(count: int, is_refused: bool) -> None:
    head, end = POST + CHUNKED, b"1\r\na\r\n0\r\n"
    for cut in range(len(end) + 1):
        parser = connections.LimitedParser(h11.SERVER, connections.HEAD_SIZE)
        with pytest.raises(h11.RemoteProtocolError) if is_refused else nullcontext():
            for packet in (head + end[:cut], end[cut:] + b"a:\r\n" * count + b"\r\n"):
                if packet:
                    parser.receive_data(packet)
                while parser.next_event() not in (h11.NEED_DATA, h11.PAUSED):
                    pass
        assert is_refused or parser.their_state is h11.MUST_CLOSE, "the request is complete"


def test_a_hundred_headers_and_bodies_of_many_lines_are_read(server: Client) -> None:
    lines = json.dumps({**REQUEST, "lines": [0] * 200}, indent=0).encode().replace(b"\n", b"\r\n")
    ends = b"0\r\n" * 200  # each line as the end of a chunked body
    sized = b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n"
    for request, expected in (
        (POST.replace(b"POST /translate", b"GET /health") + b"a:\r\n" * 98 + b"\r\n", b'{"status":"ok"}'),
        (POST + sized % (b"application/json", len(lines)) + lines, b"translatedText"),
        (POST + CHUNKED + b"%x\r\n%b\r\n0\r\na: b\r\n\r\n" % (len(lines), lines), b"translatedText"),
        (POST + sized % (b"text/plain", len(ends)) + ends, b"missing q parameter"),
    ):
        assert expected in send_raw(server, request)


def test_malformed_chunk_is_not_logged_as_an_error_of_the_service(server: Client) -> None:
    own = "127.0.0.2"  # tells the log line of this request from those of other tests
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT, source_address=(own, 0)) as client:
        head = POST.replace(b"/translate", b"/detect") + b"Content-Type: application/json\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400")
    assert server.logged("/detect", own)["status"] == CLIENT_CLOSED
    assert not [line for line in server.log if (line["level"], line.get("path")) == ("error", "/detect")]


def test_unexpected_errors_are_json(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> None:
        raise ArithmeticError("secret")

    monkeypatch.setattr(Service, "translate", fail)
    assert server.error("/translate", 500, **REQUEST) == "Internal server error"
    monkeypatch.undo()
    assert_alive(server)


def test_truncated_body_ends_the_connection(server: Client) -> None:
    sent = POST + b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
    assert send_raw(server, sent, close=True) == b""
    assert_alive(server)


TEXTS = {
    "null": "\x00",
    "nulls": "a\x00b\x00",
    "lone surrogates": "\ud800 half a character \udc00",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "bidirectional": "\u202e\u2066 the house \u2069",
    "noncharacters": "\ufeff\ufffe\uffff",
    "emoji sequences": "🏳️‍🌈" * 50,
    "long word": "a" * 20_000,
    "combining characters": "e\u0301" * 5000,
    "many words": "word " * 4000,
    "many sentences": ". " * 5000,
    "braces": "{" * 5000,
    "empty lines": "\n" * 19_000,
}
MARKUP = {"angle brackets": "<" * 5000, "ampersands": "&" * 5000, "open tags": "<b>" * 3000, "end tags": "</p>" * 3000}


@pytest.mark.parametrize(
    ("text", "form"),
    [
        pytest.param(text, form, id=f"{name}-{form}", marks=[pytest.mark.slow] * (form != usual))
        for texts, usual in ((TEXTS, "text"), (MARKUP, "html"))
        for name, text in texts.items()
        for form in ("text", "html")
    ],
)
def test_unusual_texts_are_translated_or_refused(server: Client, text: str, form: str) -> None:
    body = json.dumps({**REQUEST, "q": text, "format": form})
    answer = server.http.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400), answer.text
    assert isinstance(answer.json().get("translatedText", ""), str)


def test_very_long_words_are_translated_or_refused(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, char_limit=-1, beam=1) as server:
        found = server.translate("the " * 200 + "x" * 50_000)["translatedText"]
        assert isinstance(found, str)
    with serve_in_thread(fluent_run.folder) as server:
        error = server.error("/translate", 400, **{**REQUEST, "q": "x" * 1_000_000})
        assert error == "Invalid request: request (1000000) exceeds text limit (20000)"


def test_requests_with_thousands_of_parameters_are_answered(server: Client) -> None:
    many = {f"k{number}": "v" for number in range(20_000)}
    assert server.ask("/translate", **REQUEST, **many)["translatedText"]
    assert server.http.post("/translate", data={**REQUEST, **many}).status_code == 400
    assert server.http.post("/translate", params={**REQUEST, **dict(list(many.items())[:2000])}).status_code in (
        200,
        400,
        414,
    )
    assert_alive(server)


def test_path_traversal_is_refused(server: Client) -> None:
    for path in (
        "/page/../settings.py",
        "/page/..%2f..%2fsettings.py",
        "/page/%2e%2e/%2e%2e/etc/passwd",
        "/page//etc/passwd",
        "/v1/models/..%2f..%2fetc/curves",
        "/download_file/..%2f..%2fetc%2fpasswd",
    ):
        answer = send_raw(server, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(path=paths, fields=st.dictionaries(names, values, max_size=8), likely=st.booleans(), how=st.integers(0, 3))
def test_random_parameters_never_cause_a_server_error(
    server: Client, path: str, fields: dict[str, Any], likely: bool, how: int
) -> None:
    given = {**(REQUEST if likely else {}), **fields}
    body = json.dumps(given)
    written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    flat = {key: value.encode("utf-8", "replace").decode() for key, value in written.items()}
    if how == 0:
        headers = {"Content-Type": "application/json"}
        answer = server.http.post(path, content=body, headers=headers)
    elif how == 1:
        answer = server.http.post(path, data=flat)
    elif how == 2:
        answer = server.http.post(path, params=flat)
    else:
        answer = server.http.post(path, data=flat, files={"file": ("x.txt", body.encode())})
    assert answer.status_code in (200, 400, 403, 404, 413), (given, answer.text)
    if answer.status_code == 400:
        assert set(answer.json()) == {"error"}


@pytest.mark.slow
def test_random_bodies_are_refused(server: Client) -> None:
    dice = random.Random(1)
    form, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
    kinds = ["application/json", form, parts, "text/plain", ""]
    for _ in range(300):
        body = bytes(dice.choices(range(256), k=dice.randrange(200)))
        letters = "".join(dice.choices(string.printable, k=dice.randrange(60))).encode()
        headers = {"Content-Type": dice.choice(kinds)}
        answer = server.http.post("/translate", content=dice.choice([body, letters]), headers=headers)
        assert answer.status_code == 400
        assert set(answer.json()) == {"error"}


@pytest.mark.slow
@pytest.mark.hypothesis
def test_answers_conform_to_the_openapi_description(server: Client) -> None:
    """Make requests from the OpenAPI description; no answer may be a 500 or one that is not described."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    quick = settings(
        settings(),
        max_examples=max(10, settings().max_examples // 4),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]

        @quick
        @given(case=operation.as_strategy())
        def check_answer(case: Any) -> None:
            answer = case.call(base_url=server.url, timeout=TIMEOUT)
            case.validate_response(answer, checks=checks)

        check_answer()
