"""Admission of a request before its body is read, and parsing of bodies without blocking other requests."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.server import TIMEOUT, ask_in_process, serve_in_thread

from regard.runs import Run
from regard.serve import language_detection
from regard.serve import request as http_request
from regard.serve.access import ApiKeyStore
from regard.serve.errors import HTTPError
from regard.serve.routes import models
from regard.serve.schemas import encode_json
from regard.serve.settings import Settings
from regard.tokenizers.markup import remove_urls

REQUEST = {"q": "the old house", "source": "en", "target": "de"}
JSON = {"Content-Type": "application/json"}


class Gate:
    """A function that waits to be opened; times out where the event loop is blocked and nothing can open it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.entered, self.open = threading.Event(), threading.Event()
        self.opened: bool | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.entered.set()
        self.opened = self.open.wait(TIMEOUT)
        return self.function(*arguments)


async def answer_another_at(
    gate: Gate, client: httpx.AsyncClient, request: Awaitable[httpx.Response]
) -> httpx.Response:
    """Check that another request is answered while `request` is held at the gate; return the answer to `request`."""
    waiting = asyncio.ensure_future(request)
    while not gate.entered.is_set():
        await asyncio.sleep(0)
    assert (await client.get("/health")).status_code == 200
    gate.open.set()
    return await waiting


def test_key_lookup_does_not_block_other_requests(
    fluent_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ApiKeyStore.create(tmp_path / "keys.db").add()
    gate = Gate(ApiKeyStore.create(tmp_path / "keys.db").find)
    monkeypatch.setattr(ApiKeyStore, "find", lambda self, key: gate(key))

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await answer_another_at(gate, client, client.post("/translate", json={**REQUEST, "api_key": key}))

    answer = ask_in_process(fluent_run.folder, Settings(keys=tmp_path / "keys.db"), ask)
    assert (answer.status_code, gate.opened) == (200, True)


@pytest.mark.parametrize("kind", ["json", "form"])
def test_parsing_a_large_body_does_not_block_other_requests(
    fluent_run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(getattr(http_request, f"parse_{kind}"))
    monkeypatch.setattr(http_request, f"parse_{kind}", gate)
    large = {**REQUEST, "more": "x" * http_request.SMALL_BODY}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        body: dict[str, Any] = {"json": large} if kind == "json" else {"data": large}
        return await answer_another_at(gate, client, client.post("/translate", **body))

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert (answer.status_code, gate.opened) == (200, True)


@pytest.mark.parametrize("path", ["/detect", "/translate"])
def test_detecting_the_language_of_a_long_text_does_not_block_other_requests(
    fluent_run: Run, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(remove_urls)
    monkeypatch.setattr(language_detection, "remove_urls", gate)
    texts = ["1 " * 1000, "the old house"]

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await answer_another_at(
            gate, client, client.post(path, json={"q": texts, "source": "auto", "target": "de"})
        )

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert (answer.status_code, gate.opened) == (200, True)


def test_reading_training_curves_does_not_block_other_requests(
    fluent_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(models.read_training_curves)
    monkeypatch.setattr(models, "read_training_curves", gate)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await answer_another_at(gate, client, client.get(f"/v1/models/{fluent_run.folder.name}/curves"))

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert (answer.status_code, gate.opened) == (200, True)


def test_numbers_that_json_lacks_are_null_in_answers() -> None:
    value = {"ä": [1.5, math.nan, -math.inf], "weights": np.array([[0.123456, 1], [math.nan, 0]], np.float32)}
    assert encode_json(value) == '{"ä":[1.5,null,null],"weights":[[0.1235,1.0],[null,0.0]]}'.encode()


def test_forms_may_have_broken_escapes_but_not_thousands_of_fields() -> None:
    assert http_request.parse_form("a=%C3%A4+ä%&b&=%ff".encode()) == [("a", "ä ä%"), ("b", ""), ("", "\ufffd")]
    with pytest.raises(HTTPError, match="Invalid form"):
        http_request.parse_form(b"a&" * 1000)


def test_client_over_its_limit_is_refused_before_the_body_is_read(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, req_limit=1) as server:
        assert server.translate("the house")["translatedText"]
        for path in ("/translate", "/translate_file", "/v1/trace"):
            answer = server.http.post(path, content=b"{", headers=JSON)
            assert (answer.status_code, answer.json()) == (429, {"error": "Slowdown: 1 per 1 minute"})


def test_key_in_the_query_is_checked_before_the_body_is_read(fluent_run: Run, tmp_path: Path) -> None:
    key = ApiKeyStore.create(tmp_path / "keys.db").add()
    with serve_in_thread(fluent_run.folder, keys=tmp_path / "keys.db", require_key=True) as server:

        def post(key: str, body: bytes) -> int:
            return server.http.post("/detect", params={"api_key": key}, content=body, headers=JSON).status_code

        assert [post("wrong", b"{"), post(key, b"{"), post(key, b'{"q": "a"}')] == [403, 400, 200]


def test_banned_client_is_refused_before_the_body_is_read(fluent_run: Run, tmp_path: Path) -> None:
    key = ApiKeyStore.create(tmp_path / "keys.db").add(req_limit=5)
    with serve_in_thread(fluent_run.folder, req_limit=1, ban_after=1, keys=tmp_path / "keys.db") as server:
        for expected in (200, 429):
            assert server.ask("/translate", expected, **REQUEST)
        answer = server.http.post("/translate", content=b"{", headers=JSON)
        assert answer.status_code == 403, "although the body might hold a key"
        with_key = {"Authorization": f"Bearer {key}"}
        assert server.http.post("/translate", json=REQUEST, headers=with_key).status_code == 200, "a client of its own"
        assert server.http.get("/languages", headers=with_key).status_code == 200


def wait_for_answer_without_a_body(port: int) -> bytes:
    """Announce a body, send none of it, and return the beginning of the answer."""
    head = b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
        client.sendall(head + b"Expect: 100-continue\r\n\r\n")
        return client.recv(12)


def test_bodies_without_a_required_key_are_read_up_to_the_limit_of_their_address(
    fluent_run: Run, tmp_path: Path
) -> None:
    key = ApiKeyStore.create(tmp_path / "keys.db").add()
    with serve_in_thread(fluent_run.folder, req_limit=4, keys=tmp_path / "keys.db", require_key=True) as server:
        assert server.ask("/detect", q="a", api_key=key)
        bodies = (b'{"q": "a"}', b'{"q": ["a", "a", "a", "a", "a"]}', b"{", b'{"api_key": {}}')
        answers = [server.http.post("/detect", content=body, headers=JSON).status_code for body in bodies]
        assert answers == [400] * 4
        assert wait_for_answer_without_a_body(server.port) == b"HTTP/1.1 429"
        bearer = {"Authorization": f"Bearer {key}"}
        assert server.http.post("/detect", json={"q": "a"}, headers=bearer).status_code == 200


@pytest.mark.parametrize("required", [True, False])
def test_keys_in_bodies_are_found_where_requests_without_one_are_forbidden(
    fluent_run: Run, tmp_path: Path, required: bool
) -> None:
    key = ApiKeyStore.create(tmp_path / "keys.db").add()
    with serve_in_thread(fluent_run.folder, req_limit=0, keys=tmp_path / "keys.db", require_key=required) as server:
        assert server.error("/detect", 429, q="a")
        assert server.ask("/detect", q="a", api_key=key)


def test_body_with_too_many_json_values_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (b"[]", b'""', b"{}", b"1", b"null"):
        few, many = (
            b'{"q":[' + b",".join([value] * count) + b"]}" for count in (40_000, http_request.MAX_JSON_PARTS + 2)
        )
        assert len(http_request.parse_json(few)["q"]) == 40_000
        monkeypatch.setattr(json, "loads", lambda body: pytest.fail("the body was parsed"))
        with pytest.raises(HTTPError, match="has more than 100000 parts"):
            http_request.parse_json(many)
        monkeypatch.undo()
    text = '[{,"\\' * http_request.MAX_JSON_PARTS
    assert http_request.parse_json(json.dumps({"q": text}).encode()) == {"q": text}, (
        "brackets inside a string do not count"
    )
    with pytest.raises(HTTPError, match="Invalid JSON"):
        http_request.parse_json(b'"' + b'\\"' * 1_000_000)


def count_parts(value: Any) -> int:
    """Count the texts, arrays, objects and commas of a JSON value."""
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(count_parts, value))
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + len(value) + sum(map(count_parts, value.values()))
    return 0


JSON_TEXT = st.text(st.sampled_from('\\"[{,aä\n'), max_size=6)


@given(
    st.recursive(
        st.none() | st.integers() | JSON_TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=3),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_parts_of_json_are_counted_exactly(value: Any, ascii_only: bool) -> None:
    body, count = json.dumps(value, ensure_ascii=ascii_only).encode(), count_parts(value)
    assert not http_request._has_more_parts(body, count)
    assert http_request._has_more_parts(body, count - 1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_json_in_utf_16_is_refused(encoding: str) -> None:
    with pytest.raises(HTTPError, match="Invalid JSON format"):
        http_request.parse_json('{"a": "\\"", "q": [1]}'.encode(encoding))


@pytest.mark.parametrize("escaped", [r"\ud83d", r"\uDE00", r"\ude00\ud83d"])
def test_lone_surrogates_in_json_are_replaced(escaped: str) -> None:
    body = b'{"q": "a \\ud83d\\ude00 %s"}' % escaped.encode()
    assert http_request.parse_json(body) == {"q": "a 😀 " + "\ufffd" * escaped.count("u")}
