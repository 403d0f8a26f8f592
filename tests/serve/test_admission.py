"""API keys, rate limits, suggestions and overload of the service."""

from __future__ import annotations

import json
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.combinations import slow_after
from support.commands import Command
from support.server import FakeClock, ask_in_process, hold_decoding, serve_in_thread

from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.runs import Run
from regard.runs.run import RunSummary, summarize_run
from regard.serve.access import ApiKeyStore, FixedWindows, Quota, RateLimiter, client_network, hash_key
from regard.serve.engine.models import summarize_served_run
from regard.serve.errors import HTTPError
from regard.serve.routes.models import read_recent_metrics, read_training_curves, thin_out
from regard.serve.settings import Settings

REQUEST = {"q": "the old house", "source": "en", "target": "de"}


def test_keys_are_stored_as_hashes(tmp_path: Path) -> None:
    keys = ApiKeyStore.create(tmp_path / "keys.db")
    key = keys.add("the wiki", req_limit=120, hourly_req_limit=600, char_limit=5000)
    other = keys.add()
    assert key != other
    assert key.encode() not in (tmp_path / "keys.db").read_bytes()
    rows = sqlite3.connect(tmp_path / "keys.db").execute("select id, hash from keys").fetchall()
    assert dict(rows) == {key[:8]: hash_key(key), other[:8]: hash_key(other)}
    found = keys.find(key)
    assert found is not None
    assert (found.id, found.note, found.char_limit) == (key[:8], "the wiki", 5000)
    assert (found.req_limit, found.hourly_req_limit, found.daily_req_limit) == (120, 600, None)
    assert [one.id for one in keys.list()].count(key[:8]) == 1
    for wrong in ("", key[:8], key[:-1], key + "0", key[:8] + "0" * 32, "'; drop table keys; --", "\ud800", "é" * 40):
        assert keys.find(wrong) is None
    keys.revoke(key[:8])
    assert keys.find(key) is None
    assert keys.find(other) is not None
    with pytest.raises(UserError, match="has no key"):
        keys.revoke(key)


def test_requests_with_wrong_keys_count_against_the_limit(fluent_run: Run, tmp_path: Path) -> None:
    ApiKeyStore.create(tmp_path / "keys.db")
    with serve_in_thread(fluent_run.folder, keys=tmp_path / "keys.db", req_limit=2) as server:
        for status in (403, 403, 429):
            assert server.error("/translate", status, **REQUEST, api_key="guess")


def test_key_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "keys.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(UserError, match="cannot be used as a file of keys"):
        ApiKeyStore.create(tmp_path / "keys.db")


def test_keys_command_adds_lists_and_revokes(regard: Command, tmp_path: Path) -> None:
    key = regard("keys", "add", "the wiki", "--req-limit", 120, "--daily-req-limit", 900).stdout.strip()
    assert len(key) == 40
    assert (tmp_path / "keys.db").stat().st_mode & 0o777 == 0o600
    header, listed = regard("keys", "list").stdout.splitlines()
    assert header.split() == ["key", "made", "minute", "hour", "day", "text", "note"]
    assert listed.split()[::2] == [key[:8], "120", "900", "the"]
    assert [header.index(name) for name in ("minute", "note")] == [listed.index("120"), listed.index("the wiki")]
    revoked = regard("keys", "revoke", key[:8])
    assert revoked.stdout == f"{key[:8]} (the wiki) is revoked; the service refuses it from now on\n"
    assert regard("keys", "list").stdout.splitlines()[1:] == []
    done = regard("keys", "revoke", "nothing")
    assert done.returncode == 2
    assert "has no key 'nothing'" in done.stderr


@pytest.mark.slow
def test_missing_key_file_is_an_error_and_not_created(regard: Command, fluent_run: Run, tmp_path: Path) -> None:
    for arguments in (
        ("keys", "list", "--keys", "typo.db"),
        ("keys", "revoke", "3f9a0c12", "--file", "typo.db"),
        ("serve", fluent_run.folder, "--port", 0, "--keys", "typo.db", "--require-key"),
    ):
        done = regard(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        message = "regard: there is no file of keys typo.db; make one with: regard keys add NOTE --keys typo.db\n"
        assert done.stderr == message
    assert list(tmp_path.iterdir()) == []


def test_key_file_deleted_while_serving_is_not_created_again(tmp_path: Path) -> None:
    keys = ApiKeyStore.create(tmp_path / "keys.db")
    (tmp_path / "keys.db").unlink()
    with pytest.raises(UserError, match="cannot be used as a file of keys"):
        keys.find("any")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", slow_after(1, ["req-limit", "hourly-req-limit", "daily-req-limit", "char-limit"]))
def test_limits_below_minus_one_are_refused(regard: Command, limit: str, tmp_path: Path) -> None:
    for command in (("keys", "add"), ("serve", "runs/x")):
        done = regard(*command, f"--{limit}", -5)
        assert done.returncode == 2
        assert f"--{limit}" in done.stderr
        assert "-1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_service_requires_and_checks_keys(fluent_run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.db"
    keys = ApiKeyStore.create(file)
    key, tight = keys.add(), keys.add(req_limit=1, char_limit=5)
    with serve_in_thread(fluent_run.folder, keys=file, require_key=True, key_link="https://example.org/keys") as server:
        assert server.error("/translate", 400, **REQUEST) == "Visit https://example.org/keys to get an API key"
        assert server.error("/translate", 403, **REQUEST, api_key="wrong") == "Invalid API key"
        assert server.error("/v1/trace", 403, **REQUEST, api_key="wrong") == "Invalid API key"
        assert server.ask("/translate", **REQUEST, api_key=key)["translatedText"]
        assert server.http.get("/languages").status_code == 200
        assert server.http.get("/frontend/settings").json()["keyRequired"] is True
        too_long = server.error("/translate", 400, **REQUEST, api_key=tight)
        assert too_long == "Invalid request: request (13) exceeds text limit (5)"
        assert server.error("/translate", 429, **REQUEST, api_key=tight) == "Slowdown: 1 per 1 minute"
        for path in ("/v1/models", f"/v1/models/{fluent_run.folder.name}/curves"):
            assert server.http.get(path).json() == {"error": "Visit https://example.org/keys to get an API key"}
            assert server.http.get(path, params={"api_key": "wrong"}).status_code == 403
            assert server.http.get(path, params={"api_key": key}).status_code == 200
            assert server.http.get(path, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        for path in ("/detect", "/suggest", "/translate_file", "/v1/trace", "/v1/translate/stream"):
            assert server.error(path, 400, **REQUEST) == "Visit https://example.org/keys to get an API key"
        for path in ("/health", "/ready", "/metrics", "/openapi.json", "/"):
            assert server.http.get(path).status_code == 200
        for authorization, status in (
            (f"Bearer {key}", 200),
            (f"bearer {key}", 200),
            ("Bearer wrong", 403),
            (f"Basic {key}", 400),
        ):
            answer = server.http.post("/translate", json=REQUEST, headers={"Authorization": authorization})
            assert answer.status_code == status, authorization
        late = keys.add()
        assert server.ask("/translate", **REQUEST, api_key=late)["translatedText"], "a key added while the service runs"
        keys.revoke(late)
        assert server.error("/translate", 403, **REQUEST, api_key=late) == "Invalid API key"


def test_limits_of_a_key_override_those_of_the_service(fluent_run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.db"
    keys = ApiKeyStore.create(file)
    hourly, daily = keys.add(hourly_req_limit=1), keys.add(hourly_req_limit=-1, daily_req_limit=3)
    usual, free = keys.add(), keys.add(hourly_req_limit=-1, daily_req_limit=-1)
    with serve_in_thread(fluent_run.folder, keys=file, hourly_req_limit=2, daily_req_limit=0) as server:

        def ask_repeatedly(key: str, times: int) -> list[str]:
            answers = [server.http.post("/detect", json={"q": "a", "api_key": key}) for _ in range(times)]
            return [answer.json()["error"] if answer.status_code == 429 else "" for answer in answers]

        assert ask_repeatedly("", 1) == ["Slowdown: 0 per 1 day"], "without a key"
        assert ask_repeatedly(hourly, 2) == ["", "Slowdown: 1 per 1 hour"]
        assert ask_repeatedly(daily, 4) == ["", "", "", "Slowdown: 3 per 1 day"]
        assert ask_repeatedly(usual, 3) == ["", "", "Slowdown: 2 per 1 hour"]
        assert ask_repeatedly(free, 5) == [""] * 5


def test_bearer_key_is_checked_before_the_body_is_parsed(fluent_run: Run, tmp_path: Path) -> None:
    key = ApiKeyStore.create(tmp_path / "keys.db").add(req_limit=1)
    with serve_in_thread(fluent_run.folder, keys=tmp_path / "keys.db") as server:

        def post(key: str, body: bytes) -> int:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            return server.http.post("/detect", content=body, headers=headers).status_code

        assert post("wrong", b"{") == 403
        assert post(key, b"{") == 400
        assert [post(key, b'{"q": "a"}'), post(key, b"{")] == [200, 429]


def test_service_limits_requests_and_bans_offenders(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, req_limit=3, ban_after=2) as server:
        assert server.translate(["the house", "the garden"])["translatedText"]
        assert server.translate("the house")["translatedText"]
        answer = server.http.post("/translate", json=REQUEST)
        assert (answer.status_code, answer.json()) == (429, {"error": "Slowdown: 3 per 1 minute"})
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert server.error("/detect", 429, q="the house") == "Slowdown: 3 per 1 minute"
        assert server.error("/translate", 403, **REQUEST) == "Too many request limits violations"
        for path in ("/languages", "/health", "/frontend/settings", "/openapi.json", "/ready"):
            assert server.http.get(path).status_code == 200


def test_training_curves_count_as_requests(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, req_limit=2) as server:
        path = f"/v1/models/{fluent_run.folder.name}/curves"
        answers = [server.http.get(f"{path}{query}") for query in ("", "", "?after=4", "")]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert server.http.get("/v1/models").status_code == 200


def test_long_training_curves_are_read_in_part(
    fluent_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(fluent_run.config_path, tmp_path)
    rows = [{"kind": "train" if step % 100 else "dev", "step": step, "loss": 1.5} for step in range(1, 30_001)]
    content = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(content, encoding="utf-8")
    summarize_served_run(tmp_path)  # reads all rows, once for each checkpoint
    parse, parsed = Run.parse_metrics_line, list[int]()

    def count_parsed(run: Run, line: bytes, number: int) -> dict[str, Any]:
        parsed.append(number)
        return parse(run, line, number)

    monkeypatch.setattr(Run, "parse_metrics_line", count_parsed)
    assert read_training_curves(tmp_path, 29_990)["rows"] == rows[29_990:]
    thinned = read_training_curves(tmp_path)["rows"]
    assert (len(thinned), thinned[0], thinned[-1]) == (1300, rows[0], rows[-1])
    assert len(parsed) == 1300 + 10, "no other row is parsed"


def test_following_a_run_reads_only_the_end_of_long_curves_for_free(
    fluent_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read_all = Run(shutil.copytree(fluent_run.folder, tmp_path / "run")), list[Path]()
    rows = [{"kind": "train", "step": step, "loss": 1.5} for step in range(1, 30_001)]
    run.metrics_path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    summarize_served_run(run.folder)
    read_bytes = Path.read_bytes

    def record_read(path: Path) -> bytes:
        read_all.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", record_read)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        queries = ["?after=29990", "?after=-1", "?after=0", "?after=0", "?after=1", "", "?after=29999", "?after=30000"]
        return [await client.get(f"/v1/models/run/curves{query}") for query in queries]

    answers = ask_in_process(run.folder, Settings(req_limit=1), ask)
    assert [answer.status_code for answer in answers] == [200, 400, 200, 429, 429, 429, 200, 200]
    followed = [answers[number].json()["rows"] for number in (0, 6, 7)]
    assert followed == [rows[29_990:], rows[29_999:], []]
    assert read_all.count(run.metrics_path) == 1
    with run.metrics_path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "train"}\n')
    recent = read_recent_metrics(run, 29_990)
    assert recent is not None
    with pytest.raises(UserError, match=r"metrics\.jsonl:30001: not a JSON object"):
        read_training_curves(run.folder, 29_990, recent)


def test_run_is_summarized_again_after_a_checkpoint_only(
    fluent_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = tmp_path / "run", list[Path]()
    shutil.copytree(fluent_run.folder, folder)

    def summarize(path: Path) -> RunSummary:
        read.append(path)
        return summarize_run(path)

    monkeypatch.setattr("regard.serve.engine.models.summarize_run", summarize)

    async def ask(client: httpx.AsyncClient) -> list[int]:
        steps = []
        for step in (80, 80, 90, 90):
            checkpoint = folder / "checkpoints" / f"step-{step}"
            if not checkpoint.exists():
                shutil.copytree(checkpoint.with_name("step-80"), checkpoint)
            with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write('{"kind": "train", "step": 81}\n')
            (model,) = (await client.get("/v1/models")).json()["models"]
            await client.get(f"/v1/models/{folder.name}/curves?after=0")
            steps.append(model["steps"])
        return steps

    assert ask_in_process(folder, Settings(), ask) == [80, 80, 90, 90]
    assert read == [folder] * 2


def test_long_training_curves_are_thinned_out() -> None:
    kinds = ["train" if step % 10 else "dev" for step in range(100_000)]
    rows: list[dict[str, Any]] = [{"kind": kind, "step": step} for step, kind in enumerate(kinds)]
    found = thin_out(rows, 2000)
    for kind in ("dev", "train"):
        all_steps, steps = ([row["step"] for row in some if row["kind"] == kind] for some in (rows, found))
        assert (len(steps), steps[0], steps[-1]) == (1000, all_steps[0], all_steps[-1])
        gaps = [second - first for first, second in pairwise(steps)]
        assert max(gaps) - min(gaps) <= 10
    assert found == sorted(found, key=lambda row: row["step"])
    assert thin_out(rows[:1500], 2000) == rows[:1500]
    assert thin_out([], 2000) == []


def test_pages_of_other_origins_are_refused_where_there_are_keys(fluent_run: Run, tmp_path: Path) -> None:
    ApiKeyStore.create(tmp_path / "keys.db")
    own, other = "https://own.example", "https://other.example"

    def origins(settings: dict[str, Any]) -> list[str | None]:
        async def ask(client: httpx.AsyncClient) -> list[str | None]:
            asked = [await client.options("/translate", headers={"Origin": origin}) for origin in (own, other)]
            return [answer.headers.get("access-control-allow-origin") for answer in asked]

        return ask_in_process(fluent_run.folder, Settings(**settings), ask)

    keys = {"keys": tmp_path / "keys.db"}
    assert origins({}) == ["*", "*"]
    assert origins(keys) == [None, None]
    assert origins({**keys, "cors": (own,)}) == [own, None]
    assert origins({**keys, "cors": ("*",)}) == ["*", "*"]
    with pytest.raises(UserError, match=r"--cors is an origin like https://example\.org, .*; not 'own\.example'"):
        origins({"cors": ("own.example",)})


def test_log_names_the_client_behind_a_trusted_proxy(fluent_run: Run) -> None:
    headers = {"X-Forwarded-For": "203.0.113.7, 198.51.100.9"}
    for trusted, client in ((True, "198.51.100.9"), (False, "127.0.0.1")):
        with serve_in_thread(fluent_run.folder, trust_proxy=trusted) as server:
            server.http.get("/languages", headers=headers)
            assert server.logged("/languages", client)["status"] == 200


def test_service_without_a_decoder_is_not_ready(fluent_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_in_thread(fluent_run.folder) as server:
        monkeypatch.setattr("regard.serve.engine.workers.LocalDecoder.is_available", False)
        answer = server.http.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"error": "The decoder restarts"})
        assert answer.headers["Retry-After"]
        monkeypatch.undo()
        assert server.http.get("/ready").status_code == 200


def test_rate_limits_are_per_client_and_period() -> None:
    clock = FakeClock()
    limits, two = RateLimiter(clock=clock), Quota(minute=2)
    clock.now = 5.0
    limits.consume("a", 1, two)  # a minute begins
    limits.consume("b", 2, two)
    with pytest.raises(HTTPError, match="Slowdown: 2 per 1 minute"):
        limits.consume("a", 2, two)
    clock.now = 35.0
    limits.consume("a", 1, two)
    with pytest.raises(HTTPError, match="Slowdown: 2 per 1 minute") as refused:
        limits.consume("a", 1, two)
    assert refused.value.headers == {"Retry-After": "30"}
    with pytest.raises(HTTPError, match="Slowdown: 2 per 1 minute") as refused:
        limits.consume("c", 3, two)
    assert refused.value.headers == {"Retry-After": "60"}
    clock.now = 65.0
    limits.consume("a", 2, two)
    with pytest.raises(HTTPError, match="Slowdown: 2 per 1 minute"):
        limits.consume("a", 1, two)
    for _ in range(3):
        limits.consume("d", 1, Quota(hour=3))
    with pytest.raises(HTTPError, match="Slowdown: 3 per 1 hour"):
        limits.consume("d", 1, Quota(hour=3))
    for _ in range(1000):
        limits.consume("e", 1, Quota())
    with pytest.raises(HTTPError, match="Slowdown: 0 per 1 minute"):
        limits.consume("e", 1, Quota(minute=0))


def test_document_is_accepted_after_the_time_that_its_refusal_names() -> None:
    clock = FakeClock()
    limits, two = RateLimiter(clock=clock), Quota(minute=2)
    limits.consume("a", 1, two)
    clock.now = 30.0
    limits.consume("a", 1, two)  # counted when the document comes
    with pytest.raises(HTTPError) as refused:
        limits.consume("a", 1, two, counted=1)
    clock.now += float(refused.value.headers["Retry-After"])
    limits.consume("a", 1, two)
    limits.consume("a", 1, two, counted=1)


def test_long_text_costs_at_most_the_limit_of_each_period() -> None:
    clock = FakeClock()
    limits, allowed = RateLimiter(clock=clock), Quota(minute=5, hour=30)
    limits.consume("a", 1, allowed, by_length=20)
    with pytest.raises(HTTPError, match="Slowdown: 5 per 1 minute"):
        limits.consume("a", 1, allowed)
    clock.now = 61.0
    with pytest.raises(HTTPError, match="Slowdown: 30 per 1 hour"):
        limits.consume("a", 1, allowed, by_length=11)
    limits.consume("a", 1, allowed)
    limits.consume("a", 0, allowed, by_length=4, counted=1)
    clock.now = 122.0
    limits.consume("a", 5, allowed)
    clock.now = 183.0
    with pytest.raises(HTTPError, match="Slowdown: 30 per 1 hour"):
        limits.consume("a", 1, allowed)
    with pytest.raises(HTTPError, match="Slowdown: 5 per 1 minute"):
        limits.consume("b", 6, allowed)  # a list of six texts


@pytest.mark.parametrize(
    ("q", "cost"), [("a" * 1000, 1), ("a" * 1001, 2), ("a" * 19_900, 20), (["a"] * 3, 3), (["a" * 1900] * 2, 4)]
)
def test_text_costs_a_request_for_each_thousand_characters(fluent_run: Run, q: Any, cost: int) -> None:
    async def ask(client: httpx.AsyncClient) -> list[int]:
        bodies = [{"q": "a"}] * (20 - cost) + [{"q": q}, {"q": "a"}]
        return [(await client.post("/detect", json=body)).status_code for body in bodies]

    statuses = ask_in_process(fluent_run.folder, Settings(req_limit=20), ask)
    assert statuses == [200] * (21 - cost) + [429]


def test_clients_are_forgotten_after_their_window() -> None:
    clock = FakeClock()
    limits = RateLimiter(ban_after=1, clock=clock)
    for number in range(5000):
        clock.now += 0.1
        limits.consume(f"client {number}", 1, Quota(1, 1, 1))
        with pytest.raises(HTTPError, match="Slowdown"):
            limits.consume(f"client {number}", 1, Quota(1, 1, 1))
    assert len(limits.windows["minute"].clients) <= 601
    assert len(limits.windows["day"].clients) == len(limits.violations.clients) == 5000
    clock.now += 86_400.0
    limits.consume("another", 1, Quota(1, 1, 1))
    assert [len(window.clients) for window in limits.windows.values()] == [1, 1, 1]
    with pytest.raises(HTTPError, match="Slowdown"):
        limits.consume("another", 1, Quota(1, 1, 1))
    assert list(limits.violations.clients) == ["another"]


def test_memory_of_the_rate_limiter_is_bounded() -> None:
    windows = FixedWindows(86_400.0, max_clients=10)
    for number in range(1000):
        windows.add(f"client {number % 20}", 1, float(number))
    assert list(windows.clients) == [f"client {number}" for number in range(10, 20)]


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    assert client_network("2001:db8:1:2:3:4:5:6") == client_network("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert client_network("2001:db8:1:3::1") != client_network("2001:db8:1:2::1")
    assert client_network("fe80::1%eth0") == "fe80::/64"
    assert client_network("::1") == "::/64"
    assert client_network("::ffff:10.0.0.1") == client_network("10.0.0.1") == "10.0.0.1"
    assert client_network("10.0.0.2") != client_network("10.0.0.1")
    assert client_network("unknown") == "unknown"


def test_metrics_require_their_token(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder, metrics_token="secret") as server:
        assert server.http.get("/metrics").status_code == 401
        headers = {"Bearer wrong": 401, "secret": 401, "Basic secret": 401, "Bearersecret": 401, "Bearer": 401}
        for header, status in {**headers, "Bearer secret": 200, "bearer secret": 200}.items():
            answer = server.http.get("/metrics", headers={"Authorization": header})
            assert answer.status_code == status, header


@pytest.mark.parametrize("trusted", [False, True])
def test_forwarded_address_counts_only_behind_a_trusted_proxy(fluent_run: Run, trusted: bool) -> None:
    with serve_in_thread(fluent_run.folder, req_limit=1, trust_proxy=trusted) as server:
        found = [
            server.http.post("/translate", json=REQUEST, headers={"X-Forwarded-For": address}).status_code
            for address in ("10.0.0.1", "9.9.9.9, 10.0.0.2", "8.8.8.8, 10.0.0.2", "2001:db8::1", "2001:db8::2")
        ]
        assert found == ([200, 200, 429, 200, 429] if trusted else [200, *[429] * 4]), (
            "only the entry that the trusted proxy wrote counts"
        )


def test_suggestions_are_appended_to_their_file(fluent_run: Run, tmp_path: Path) -> None:
    suggestion = {"q": "the old house", "s": "das alte Haus", "source": "en", "target": "de"}
    with serve_in_thread(fluent_run.folder, suggestions=tmp_path / "better.jsonl") as server:
        assert server.ask("/suggest", **suggestion) == {"success": True}
        assert server.error("/suggest", 400, q="a", source="en", target="de") == "Invalid request: missing s parameter"
        assert server.error("/suggest", 400, **{**suggestion, "source": "x" * 99}) == f"{'x' * 99} is not supported"
    kept = (tmp_path / "better.jsonl").read_text(encoding="utf-8")
    assert kept == '{"en": "the old house", "de": "das alte Haus"}\n'
    assert read_all_pairs([tmp_path / "better.jsonl"], "en", "de") == [("the old house", "das alte Haus")]


def test_suggestions_are_refused_by_default(fluent_run: Run) -> None:
    with serve_in_thread(fluent_run.folder) as server:
        assert server.error("/suggest", 403, q="a", s="b") == "Suggestions are disabled on this server."


def test_full_queue_is_a_503_with_retry_after(fluent_run: Run) -> None:
    texts = ["the old house"] * 4
    with serve_in_thread(fluent_run.folder, queue=6, batch_pieces=1) as server, ThreadPoolExecutor(1) as thread:
        with hold_decoding(server) as started:
            waiting = thread.submit(server.translate, texts)
            started.wait()
            assert server.http.get("/ready").status_code == 200
            answer = server.http.post("/translate", json={**REQUEST, "q": texts})
            assert answer.status_code == 503, "3 sentences wait, 4 more would be over the limit of 6"
            assert answer.headers["retry-after"] == "2"
            assert answer.json() == {"error": "Too much is waiting; try again in a moment"}
        assert len(waiting.result()["translatedText"]) == 4
