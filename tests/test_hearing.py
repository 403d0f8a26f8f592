"""How a request is heard: who is refused before it is read, and that nobody waits meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import ask_in_process, start_server

from regard.runs import Run
from regard.serve import fields
from regard.serve.keys import Keys
from regard.serve.refusal import Refusal
from regard.serve.settings import Settings

ASKED = {"q": "the old house", "source": "en", "target": "de"}
JSON = {"Content-Type": "application/json"}


class Gate:
    """Work that waits until somebody else was answered; where nobody can be, it gives up."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.begun, self.open = threading.Event(), threading.Event()
        self.passed: bool | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        self.passed = self.open.wait(timeout=20)
        return self.work(*arguments)


async def meanwhile(client: httpx.AsyncClient, gate: Gate, asking: Awaitable[httpx.Response]) -> httpx.Response:
    """What is answered to a request that stands at the gate while another one is answered."""
    waiting = asyncio.ensure_future(asking)
    while not gate.begun.is_set():
        await asyncio.sleep(0)
    assert (await client.get("/health")).status_code == 200
    gate.open.set()
    return await waiting


def test_others_are_answered_while_a_key_is_looked_up(
    fluent_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Keys.made(tmp_path / "keys.db").add()
    gate = Gate(Keys.made(tmp_path / "keys.db").find)
    monkeypatch.setattr(Keys, "find", lambda self, key: gate(key))

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await meanwhile(client, gate, client.post("/translate", json={**ASKED, "api_key": key}))

    answer = ask_in_process(fluent_run.folder, Settings(keys=tmp_path / "keys.db"), ask)
    assert (answer.status_code, gate.passed) == (200, True)


@pytest.mark.parametrize("kind", ["json", "form"])
def test_others_are_answered_while_a_large_body_is_taken_apart(
    fluent_run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(getattr(fields, f"from_{kind}"))
    monkeypatch.setattr(fields, f"from_{kind}", gate)
    large = {**ASKED, "more": "x" * fields.SMALL}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        sent: dict[str, Any] = {"json": large} if kind == "json" else {"data": large}
        return await meanwhile(client, gate, client.post("/translate", **sent))

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert (answer.status_code, gate.passed) == (200, True)


def test_who_has_nothing_left_is_refused_before_the_body_is_read(fluent_run: Run, tmp_path: Path) -> None:
    Keys.made(tmp_path / "keys.db")
    with start_server(fluent_run.folder, "--req-limit", 1) as server:
        assert server.translate("the house")["translatedText"]
        for path in ("/translate", "/translate_file", "/v1/trace"):
            answer = httpx.post(f"{server.url}{path}", content=b"{", headers=JSON)
            assert (answer.status_code, answer.json()) == (429, {"error": "Slowdown: 1 per 1 minute"})
    with start_server(fluent_run.folder, "--req-limit", 1, "--ban-after", 1, "--keys", tmp_path / "keys.db") as server:
        for expected in (200, 429):
            assert server.ask("/translate", expected, **ASKED)
        answer = httpx.post(f"{server.url}/translate", content=b"{", headers=JSON)
        assert answer.status_code == 403, "the banned are not listened to, whatever key they may have"


def test_a_body_of_a_million_values_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (b"[]", b'""', b"{}", b"1", b"null"):
        few, many = (b'{"q":[' + b",".join([value] * count) + b"]}" for count in (100_000, fields.PARTS + 2))
        assert len(fields.from_json(few)["q"]) == 100_000
        monkeypatch.setattr(json, "loads", lambda body: pytest.fail("it is not even tried"))
        with pytest.raises(Refusal, match="has more than 250000 parts"):
            fields.from_json(many)
        monkeypatch.undo()
    text = '[{,"\\' * fields.PARTS
    assert fields.from_json(json.dumps({"q": text}).encode()) == {"q": text}, "in a text they mean nothing"
    with pytest.raises(Refusal, match="Invalid JSON"):
        fields.from_json(b'"' + b'\\"' * 1_000_000)
