"""Client libraries for LibreTranslate, against the service."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslatepy import LibreTranslateAPI
from support.server import Client, serve_in_thread

from regard.runs import Run
from regard.serve.access import ApiKeyStore
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


WEBLATE = "weblate==5.14.3"
NEEDS_C_LIBRARIES = re.compile(r"(aeidon|borgbackup|pycairo|pygobject|tesserocr)\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def weblate() -> Path:
    """Return the Python of the environment REGARD_TEST_WEBLATE; Weblate is installed there if it does not exist.

    It is half a gigabyte, so the test needs that variable. What needs C libraries is left out.
    """
    if not (name := os.environ.get("REGARD_TEST_WEBLATE")):
        pytest.skip("REGARD_TEST_WEBLATE names no environment for Weblate")
    folder = Path(name).absolute()
    python = folder / "bin" / "python"
    if folder.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)

    def install(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--prefer-binary", *arguments], check=True)

    install("--no-deps", WEBLATE)
    (metadata,) = folder.glob("lib/python*/site-packages/weblate-*.dist-info/METADATA")
    required = re.findall("^Requires-Dist: ([^;\n]+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    install("Django[argon2]>=5.2,<6", *(name for name in required if not NEEDS_C_LIBRARIES.match(name)))
    return python


def save_in_weblate(python: Path, *arguments: str) -> dict[str, Any]:
    """Save URL and key in the form of Weblate's settings, and return its errors, or what it translates."""
    command = [str(python), str(NODE / "weblate_settings.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_weblate_saves_its_settings_and_translates(
    weblate: Path, fluent_run: Run, tmp_path: Path, expected: str
) -> None:
    file = tmp_path / "keys.db"
    key = ApiKeyStore.create(file).add()
    with serve_in_thread(fluent_run.folder, keys=file, require_key=True) as server:
        saved = save_in_weblate(weblate, f"{server.url}/", key, "the old house", "[X7X]")
        assert saved == {"errors": [], "languages": ["de", "en"], "translations": [expected, "[X7X]"]}
        (error,) = save_in_weblate(weblate, f"{server.url}/", "wrong")["errors"]
        assert "Could not fetch translation" in error


def test_mastodon_client_gets_what_it_reads(fluent_run: Run, tmp_path: Path) -> None:
    """Replay the requests of Mastodon's client, with its headers: a post with emoji, a content warning, a poll option.

    Its `translate` reads `translatedText` as a list and the detected language of each text, and its `Request` sends
    these headers. An emoji is in an element of its own, which stays as it is.
    """
    file = tmp_path / "keys.db"
    key = ApiKeyStore.create(file).add()
    texts = [
        '<p>the old house <span translate="no">:blobcat:</span></p>',
        "the house",
        "the old house &amp; the garden",
    ]
    headers = {
        "User-Agent": "Mastodon/4.5.0 (http.rb/5.3.1; +https://social.example.org/)",
        "Accept-Encoding": "gzip",
        "Date": "Thu, 19 Nov 2026 12:00:00 GMT",
        "Content-Type": "application/json",
    }
    with serve_in_thread(fluent_run.folder, keys=file, require_key=True) as server:
        languages = server.http.get("/languages", headers=headers).json()
        assert {one["code"]: set(one["targets"]) - {one["code"]} for one in languages} == {"de": set(), "en": {"de"}}
        for source, api_key, status in (("en", key, 200), ("auto", key, 200), ("en", "wrong", 403)):
            fields = {"q": texts, "source": source, "target": "de", "format": "html", "api_key": api_key}
            body = json.dumps(fields, separators=(",", ":")).encode()
            digest = f"SHA-256={base64.b64encode(hashlib.sha256(body).digest()).decode()}"
            answer = server.http.post("/translate", content=body, headers={**headers, "Digest": digest})
            assert answer.status_code == status
            if status == 200:
                post, *others = answer.json()["translatedText"]
                assert len(others) == 2
                assert post.startswith("<p>")
                assert post.count('<span translate="no">:blobcat:</span>') == 1
                detected = answer.json().get("detectedLanguage")
                assert source == "en" or [one["language"] for one in detected] == ["en"] * 3


def test_languages_ignores_a_request_body(server: Client) -> None:
    answer = server.http.request("GET", "/languages", content=b"api_key=x")
    assert answer.status_code == 200
