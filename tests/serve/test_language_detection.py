"""Language detection among the languages that are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.server import ask_in_process

from regard.runs import Run
from regard.serve.http.errors import HTTPError
from regard.serve.language_detection import URL_SEARCH_SIZE, Detection, LanguageDetector, has_letters
from regard.serve.service import Service
from regard.serve.settings import Settings
from regard.tokenizers.urls import remove_urls

ENGLISH = "The old house is in the garden, and the young man sees it."
GERMAN = "Das alte Haus steht im Garten, und der junge Mann sieht es."
PORTUGUESE = "A casa velha está no jardim, e o homem jovem não a vê."


@contextmanager
def make_service(run: Run, *pairs: str) -> Iterator[Service]:
    """Serve one run under several pairs of languages."""
    service = Service([f"{run.folder}={pair}" for pair in pairs], Settings(processes=0))
    try:
        yield service
    finally:
        service.close()


def test_variant_of_a_language_is_detected_under_its_served_code() -> None:
    assert LanguageDetector(["en", "pb"])(PORTUGUESE)[0].language == "pb"
    assert LanguageDetector(["en", "pb", "pt"])(PORTUGUESE)[0].language == "pt"
    assert LanguageDetector(["en", "zt"])("这座老房子在花园里。")[0].language == "zt"


PARTS = ["the", "http://a.de", "www.x.org", "a@b.de", "(a@b.de)", "[X7X]", "12", "½", "²", "_", "…", "家", "a", "&lt;"]


@given(st.lists(st.sampled_from([*PARTS, " ", "\n", "\u3000"])).map("".join) | st.text())
def test_text_has_words_if_a_letter_is_left_without_its_addresses(text: str) -> None:
    expected = any(map(str.isalpha, remove_urls(text)))
    assert has_letters(text) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.serve.language_detection.WINDOW", 2)
        assert has_letters(text) == expected


def test_only_the_beginning_of_a_long_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "regard.serve.language_detection.remove_urls",
        lambda text: read.append(text) or remove_urls(text),  # type: ignore[func-returns-value]
    )
    assert LanguageDetector(["de", "en"])("12 www.x.org " * 5000 + GERMAN * 20_000)[0].language == "de"
    assert max(map(len, read)) == URL_SEARCH_SIZE
    assert sum(map(len, read)) < 10 * URL_SEARCH_SIZE, "of more than a million letters"


def test_undetectable_language_is_assumed_if_it_is_the_only_source(fluent_run: Run) -> None:
    with make_service(fluent_run, "tlh-de") as service:
        assert service.find_languages("auto", "de", [ENGLISH]) == ("tlh", "de", Detection("tlh", 0.0))
        assert service.find_languages("auto", "de", [GERMAN])[0] == "de", "the text is in the target language already"
        assert service.find_languages("auto", "de", ["…"]) == ("en", "de", Detection("en", 0.0))
    with make_service(fluent_run, "tlh-qya") as service:
        assert service.find_languages("auto", "qya", [ENGLISH])[0] == "tlh"
        with pytest.raises(HTTPError, match="cannot be told; say which it is: qya, tlh"):
            service.find_languages("auto", "tlh", [ENGLISH])
    with make_service(fluent_run, "en-de", "tlh-de") as service:
        assert service.find_languages("auto", "de", [ENGLISH])[0] == "en"
    with make_service(fluent_run, "qya-de", "tlh-de") as service:
        with pytest.raises(HTTPError, match="The language of the text cannot be told; say which it is: qya, tlh"):
            service.find_languages("auto", "de", [ENGLISH])
        assert service.find_languages("auto", "de", [GERMAN])[0] == "de"


def test_text_in_an_undetectable_language_is_translated(fluent_run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        fields = {"q": "the young man sees the garden.", "target": "de"}
        return [await client.post("/translate", json={**fields, "source": source}) for source in ("auto", "tlh")]

    detected, named = ask_in_process(f"{fluent_run.folder}=tlh-de", Settings(), ask)
    assert detected.json()["translatedText"] == named.json()["translatedText"]
    assert detected.json()["detectedLanguage"] == {"confidence": 0.0, "language": "tlh"}
