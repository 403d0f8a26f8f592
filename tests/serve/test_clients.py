"""Client libraries for LibreTranslate, against the service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslatepy import LibreTranslateAPI
from support.server import Client, serve_in_thread

from regard.runs import Run
from regard.serve.access.api_keys import ApiKeyStore
from regard.translate import load

NODE = Path(__file__).parent / "clients"
UNREACHABLE = re.compile(r" code (ENOTFOUND|EAI_\w+|ECONN\w+|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)\n")


@pytest.fixture(scope="module")
def server(fluent_run: Run) -> Iterator[Client]:
    with serve_in_thread(fluent_run.folder) as process:
        yield process


@pytest.fixture(scope="module")
def expected(fluent_run: Run) -> str:
    """Translation of `the old house`."""
    return load(fluent_run.folder).translate(["the old house"])[0].text


def test_libretranslatepy_translates_detects_and_lists_languages(server: Client, expected: str) -> None:
    client = LibreTranslateAPI(f"{server.url}/")
    assert client.translate("the old house", "en", "de") == expected
    assert client.detect("the old house in the garden")[0]["language"] == "en"
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["de"]},
        {"code": "en", "name": "English", "targets": ["de", "en"]},
    ]


def test_deep_translator_translates_texts_and_batches(server: Client, expected: str) -> None:
    client = LibreTranslator(source="en", target="de", api_key="any", custom_url=f"{server.url}/")
    assert client.translate("the old house") == expected
    assert client.translate_batch(["the old house", "the old house"]) == [expected] * 2
    auto = LibreTranslator(source="auto", target="de", api_key="any", custom_url=f"{server.url}/")
    assert auto.translate("the old house") == expected


def test_deep_translator_reports_a_wrong_key(fluent_run: Run, tmp_path: Path, expected: str) -> None:
    file = tmp_path / "keys.db"
    key = ApiKeyStore.create(file).add()
    with serve_in_thread(fluent_run.folder, keys=file, require_key=True) as server:
        client = LibreTranslator(source="en", target="de", api_key="wrong", custom_url=f"{server.url}/")
        with pytest.raises(AuthorizationException):
            client.translate("the old house")
        client = LibreTranslator(source="en", target="de", api_key=key, custom_url=f"{server.url}/")
        assert client.translate("the old house") == expected


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the Node packages of the lock file."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so the JavaScript client cannot be run")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "client.mjs"):
        shutil.copy(NODE / name, folder)
    command = ["npm", "ci", "--loglevel=error", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if found := UNREACHABLE.search(done.stderr):
        pytest.skip(f"the npm registry cannot be reached: {found[1]}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_npm_translate_package_translates_and_reports_errors(server: Client, packages: Path, expected: str) -> None:
    done = subprocess.run(
        ["node", "client.mjs", f"{server.url}/translate", "the old house"],
        cwd=packages,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == {"translated": expected, "error": "fr is not supported"}, done.stderr


def test_mastodon_requests_are_answered(server: Client) -> None:
    """Mastodon sends HTML as JSON, and reads the languages to know what to offer."""
    languages = server.http.get("/languages").json()
    offered = {one["code"]: [target for target in one["targets"] if target != one["code"]] for one in languages}
    assert offered == {"de": [], "en": ["de"]}
    fields = {"q": ["<p>the old house</p>", "the <em>old</em> house"], "source": "auto", "target": "de"}
    answer = server.http.post("/translate", json={**fields, "format": "html", "api_key": ""})
    assert answer.status_code == 200
    found = answer.json()
    assert len(found["translatedText"]) == 2
    assert found["translatedText"][0].startswith("<p>")
    assert found["translatedText"][1].count("<em>") == 1
    assert found["detectedLanguage"][0]["language"] == "en"
    one = server.http.post("/translate", json={**fields, "q": "<p>the old house</p>", "format": "html"}).json()
    assert isinstance(one["translatedText"], str)


def test_weblate_requests_are_answered(server: Client, expected: str) -> None:
    """Weblate reads the languages, then posts a form."""
    assert {one["code"] for one in server.http.get("/languages").json()} == {"de", "en"}
    fields = {"api_key": "", "q": "the old house", "source": "en", "target": "de"}
    assert server.http.post("/translate", data=fields).json() == {"translatedText": expected}


def test_weblate_5_requests_are_answered(server: Client, expected: str) -> None:
    """Weblate 5 posts lists as JSON, with an empty key if none is set."""
    fields = {"api_key": "", "q": ["the old house", "the old house"], "source": "en", "target": "de"}
    assert server.http.post("/translate", json=fields).json()["translatedText"] == [expected, expected]


def test_languages_ignores_a_request_body(server: Client) -> None:
    answer = server.http.request("GET", "/languages", content=b"api_key=x")
    assert answer.status_code == 200
