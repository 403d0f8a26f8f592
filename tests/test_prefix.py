"""The service under a path of a proxy's."""

from __future__ import annotations

import re

import httpx
import pytest
from support.server import start_server

from regard.errors import UserError
from regard.runs import Run
from regard.serve.prefix import prefix

ASKED = {"q": "the old house", "source": "en", "target": "de"}


def test_everything_is_under_the_prefix_and_nothing_beside_it(fluent_run: Run) -> None:
    with start_server(fluent_run.folder, "--url-prefix", "/words/of/") as server:
        url = f"{server.url}/words/of"
        assert httpx.post(f"{url}/translate", json=ASKED).json()["translatedText"]
        assert httpx.post(f"{url}/v1/trace", json=ASKED).json()["steps"]
        for path in ("/languages", "/health", "/ready", "/metrics", "/frontend/settings", "/docs", "/v1/models"):
            assert httpx.get(f"{url}{path}").status_code == 200, path
        for path in ("", "/", "/translate", "/health", "/page/main.js", "/words", "/words/offer", "/words/of//health"):
            assert httpx.get(f"{server.url}{path}").status_code == 404, path
        description = httpx.get(f"{url}/openapi.json").json()
        assert description["servers"] == [{"url": "/words/of"}]
        assert "/translate" in description["paths"]
        assert httpx.get(f"{url}/spec").json() == description
        page = httpx.get(url, follow_redirects=True)
        assert str(page.url) == f"{url}/"
        links = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
        assert any(link.endswith("main.js") for link in links)
        for link in links:
            assert httpx.get(page.url.join(link)).status_code == 200, link
        sent = httpx.post(f"{url}/translate_file", data=ASKED, files={"file": ("a.txt", b"the old house")})
        place = sent.json()["translatedFileUrl"]
        assert place.startswith(f"{url}/download_file/")
        assert httpx.get(place).status_code == 200
        assert httpx.post(f"{url}/translate", content=b"x" * 4_000_001).status_code == 413
        for path in ("/translate", "/v1/trace", "/health", "/words/offer"):
            assert server.logged(path)["event"] == "request"


def test_a_prefix_is_a_path() -> None:
    assert [prefix(given) for given in ("", "/", "a", "/a", "a/b/", "/a/b")] == ["", "", "/a", "/a", "/a/b", "/a/b"]
    for wrong in ("/a b", "/{x}", "/a//b", "/a?b", "http://x"):
        with pytest.raises(UserError, match="--url-prefix is a path like /translate, not"):
            prefix(wrong)
