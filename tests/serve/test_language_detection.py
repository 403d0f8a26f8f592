"""Language detection among the languages that are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from babel import Locale
from hypothesis import given
from hypothesis import strategies as st
from support.server import ask_in_process

from regard.runs import Run
from regard.serve.errors import HTTPError
from regard.serve.language_detection import URL_SEARCH_SIZE, Detection, LanguageDetector, has_letters
from regard.serve.service import Service
from regard.serve.settings import Settings
from regard.tokenizers.markup import remove_urls

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
    assert has_letters(text) == any(map(str.isalpha, remove_urls(text)))


def test_only_the_beginning_of_a_long_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "regard.serve.language_detection.remove_urls",
        lambda text: read.append(text) or remove_urls(text),  # type: ignore[func-returns-value]
    )
    assert LanguageDetector(["de", "en"])("12 www.x.org " * 500 + GERMAN * 20_000)[0].language == "de"
    assert list(map(len, read)) == [URL_SEARCH_SIZE], "of more than a million letters"


def test_undetectable_language_is_assumed_if_it_is_the_only_source(fluent_run: Run) -> None:
    with make_service(fluent_run, "tlh-de") as service:
        assert service.find_languages("auto", "de", [ENGLISH]) == ("tlh", "de", Detection("tlh", 0.0))
        assert service.find_languages("auto", "de", [GERMAN])[0] == "de", "the text is in the target language already"
        assert service.find_languages("auto", "de", ["…"]) == ("en", "de", Detection("en", 0.0))
    with make_service(fluent_run, "tlh-qya") as service:
        assert service.find_languages("auto", "qya", [ENGLISH])[0] == "tlh"
        with pytest.raises(HTTPError, match="cannot be detected; say which it is: qya, tlh"):
            service.find_languages("auto", "tlh", [ENGLISH])
    with make_service(fluent_run, "en-de", "tlh-de") as service:
        assert service.find_languages("auto", "de", [ENGLISH])[0] == "en"
    with make_service(fluent_run, "qya-de", "tlh-de") as service:
        with pytest.raises(HTTPError, match="The language of the text cannot be detected; say which it is: qya, tlh"):
            service.find_languages("auto", "de", [ENGLISH])
        assert service.find_languages("auto", "de", [GERMAN])[0] == "de"


def test_text_in_an_undetectable_language_is_translated(fluent_run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        fields = {"q": "the young man sees the garden.", "target": "de"}
        return [await client.post("/translate", json={**fields, "source": source}) for source in ("auto", "tlh")]

    detected, named = ask_in_process(f"{fluent_run.folder}=tlh-de", Settings(), ask)
    assert detected.json()["translatedText"] == named.json()["translatedText"]
    assert detected.json()["detectedLanguage"] == {"confidence": 0.0, "language": "tlh"}


SENTENCES = {  # "The old house is in the garden, and the young man sees it."
    "am": "አሮጌው ቤት በአትክልቱ ውስጥ ነው፤ ወጣቱም ያየዋል።",
    "ar": "البيت القديم في الحديقة، والشاب يراه.",
    "bn": "পুরনো বাড়িটি বাগানে আছে, আর যুবকটি সেটি দেখছে।",
    "el": "Το παλιό σπίτι είναι στον κήπο, και ο νεαρός άντρας το βλέπει.",
    "fa": "خانهٔ قدیمی در باغ است و مرد جوان آن را می‌بیند.",
    "he": "הבית הישן נמצא בגן, והאיש הצעיר רואה אותו.",
    "hi": "पुराना घर बगीचे में है, और युवक उसे देखता है।",
    "ja": "古い家は庭にあり、若い男がそれを見ています。",
    "ka": "ძველი სახლი ბაღშია და ახალგაზრდა კაცი მას ხედავს.",
    "km": "ផ្ទះចាស់នៅក្នុងសួន ហើយបុរសវ័យក្មេងមើលឃើញវា។",
    "ko": "오래된 집이 정원에 있고 젊은 남자가 그것을 봅니다.",
    "ru": "Старый дом стоит в саду, и молодой человек видит его.",
    "ta": "பழைய வீடு தோட்டத்தில் உள்ளது, இளைஞன் அதைப் பார்க்கிறான்.",
    "th": "บ้านเก่าอยู่ในสวน และชายหนุ่มมองเห็นมัน",
    "tr": "Eski ev bahçede ve genç adam onu görüyor.",
    "uk": "Старий будинок стоїть у саду, і молодий чоловік його бачить.",
    "ur": "پرانا گھر باغ میں ہے اور نوجوان اسے دیکھتا ہے۔",
    "vi": "Ngôi nhà cũ ở trong vườn, và chàng trai trẻ nhìn thấy nó.",
    "zh": "老房子在花园里，年轻人看见了它。",
}
# Names of countries in each language, from the Unicode Consortium, are texts of these.
NAMED = [
    *("af", "as", "az", "be", "bg", "br", "bs", "ca", "cs", "cy", "de", "et", "eu", "fi", "fo", "fr", "fy", "ga", "gd"),
    *("gl", "gu", "ha", "hu", "hy", "id", "is", "it", "jv", "kk", "kn", "ku", "ky", "la", "lb", "ln", "lo", "lt", "lv"),
    *("mg", "mk", "ml", "mn", "mr", "mt", "my", "ne", "nl", "nn", "om", "or", "pa", "pl", "ps", "pt", "ro", "se", "si"),
    *("sk", "sl", "so", "sq", "sr", "sv", "sw", "te", "tg", "tk", "ug", "uz", "yo"),
]


def test_languages_of_many_scripts_are_detected_among_all_that_are_served() -> None:
    names = {code: [name for key, name in Locale(code).territories.items() if len(key) == 2] for code in NAMED}
    texts = SENTENCES | {code: ", ".join(of_code) for code, of_code in names.items() if len(of_code) > 100}
    assert len(texts) >= 60
    detect = LanguageDetector(texts)
    assert detect.unknown == []
    assert {code: detect(text)[0].language for code, text in texts.items()} == {code: code for code in texts}


@pytest.mark.parametrize("others", [["th", "sw"], pytest.param([*SENTENCES, *NAMED], marks=pytest.mark.slow)])
def test_languages_are_served_by_the_codes_that_clients_use(fluent_run: Run, others: list[str]) -> None:
    codes = ["deu", "zh_CN", "zh-TW", "pt-BR", "iw", "nb", *others]
    pairs = [f"{fluent_run.folder}={code.replace('_', '-')}-en" for code in dict.fromkeys(codes)]

    async def ask(client: httpx.AsyncClient) -> tuple[Any, list[httpx.Response]]:
        listed = (await client.get("/languages")).json()
        sources = ["zh", "zh-Hans", "zt", "zh-Hant", "pb", "PT_br", "ger", "he", "nb"]
        requests = [{"q": "der junge Mann", "source": source} for source in sources]
        requests.append({"q": SENTENCES["th"], "source": "auto"})
        return listed, [await client.post("/translate", json={**fields, "target": "en"}) for fields in requests]

    listed, answers = ask_in_process(pairs, Settings(processes=0), ask)
    names = {language["code"]: language["name"] for language in listed}
    assert len(names) >= len(others)
    assert names["zh-Hant"] == "Chinese (Traditional)"
    assert names["pt-BR"] == "Portuguese (Brazil)"
    assert (names["he"], names["sw"]) == ("Hebrew", "Swahili")
    assert not {"iw", "deu", "zh_CN"} & set(names), "each language is listed once"
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert answers[-1].json()["detectedLanguage"]["language"] == "th"
