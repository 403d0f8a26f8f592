"""The service under a URL prefix, behind a proxy."""

from __future__ import annotations

import logging
import re

import pytest
from support.server import serve_in_thread

from regard.errors import UserError
from regard.runs import Run
from regard.serve.settings import Settings

REQUEST = {"q": "the old house", "source": "en", "target": "de"}


def test_all_routes_are_served_under_the_url_prefix_only(fluent_run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "regard.serve")
    with serve_in_thread(fluent_run.folder, url_prefix="/words/of/") as server:
        http, url = server.http, f"{server.url}/words/of"
        assert http.post(f"{url}/translate", json=REQUEST).json()["translatedText"]
        assert http.post(f"{url}/v1/trace", json=REQUEST).json()["steps"]
        for path in ("/languages", "/health", "/ready", "/metrics", "/frontend/settings", "/docs", "/v1/models"):
            assert http.get(f"{url}{path}").status_code == 200, path
        for path in ("", "/", "/translate", "/health", "/page/main.js", "/words", "/words/offer", "/words/of//health"):
            assert http.get(f"{server.url}{path}").status_code == 404, path
        description = http.get(f"{url}/openapi.json").json()
        assert description["servers"] == [{"url": "/words/of"}]
        assert "/translate" in description["paths"]
        assert http.get(f"{url}/spec").json() == description
        page = http.get(url, follow_redirects=True)
        assert str(page.url) == f"{url}/"
        links = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
        assert any(link.endswith("main.js") for link in links)
        for link in links:
            assert http.get(page.url.join(link)).status_code == 200, link
        document = http.post(f"{url}/translate_file", data=REQUEST, files={"file": ("a.txt", b"the old house")})
        download = document.json()["translatedFileUrl"]
        assert download.startswith(f"{url}/download_file/")
        assert http.get(download).status_code == 200
        assert http.post(f"{url}/translate", content=b"x" * 4_000_001).status_code == 413
    logged = {vars(record)["fields"].get("path"): record.getMessage() for record in caplog.records}
    for path in ("/translate", "/v1/trace", "/health", "/words/offer"):
        assert logged[path] == "request", "the log has paths without the prefix"


def test_url_prefix_must_be_a_path() -> None:
    assert [Settings(url_prefix=given).url_prefix for given in ("", "/", "a", "/a", "a/b/", "/a/b")] == [
        "",
        "",
        "/a",
        "/a",
        "/a/b",
        "/a/b",
    ]
    for wrong in ("/a b", "/{x}", "/a//b", "/a?b", "http://x"):
        with pytest.raises(UserError, match="--url-prefix is a path like /translate, not"):
            Settings(url_prefix=wrong)
