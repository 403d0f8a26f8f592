"""The service: a real process, asked over HTTP."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import Command
from support.server import Server, start_server

from regard.errors import UserError
from regard.runs import Run
from regard.serve.fleet import languages_of, names
from regard.translate import Translator, load


@pytest.fixture(scope="module")
def server(fluent_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """English to German, German to French (the same model under another name), and a second one for the first pair."""
    second, third = tmp_path_factory.mktemp("served") / "second", tmp_path_factory.mktemp("served") / "third"
    shutil.copytree(fluent_run.folder, second)
    shutil.copytree(fluent_run.folder, third)
    with start_server(fluent_run.folder, f"{second}=de-fr", third, "--beam", 2, "--processes", 1) as process:
        yield process


@pytest.fixture(scope="module")
def translator(fluent_run: Run) -> Translator:
    return load(fluent_run.folder)


@pytest.fixture(scope="module")
def texts(corpus: Path) -> list[str]:
    return (corpus / "test.en").read_text(encoding="utf-8").splitlines()[:40]


def best(translator: Translator, text: str, **options: Any) -> str:
    return translator.translate([text], beam=2, **options)[0].text


def test_text_is_translated_as_the_translator_does(server: Server, translator: Translator, texts: list[str]) -> None:
    for text in texts[:5]:
        assert server.translate(text) == {"translatedText": best(translator, text)}
    assert server.translate(texts) == {"translatedText": [best(translator, text) for text in texts]}


def test_json_form_and_query_say_the_same(server: Server, texts: list[str]) -> None:
    fields = {"q": texts[0], "source": "en", "target": "de"}
    found = [
        httpx.post(f"{server.url}/translate", json=fields),
        httpx.post(f"{server.url}/translate", data=fields),
        httpx.post(f"{server.url}/translate", params=fields),
        httpx.post(f"{server.url}/translate", data=fields, files={"nothing": b""}),
        httpx.post(f"{server.url}/translate", params={"q": texts[0]}, data={"source": "en", "target": "de"}),
    ]
    assert [answer.status_code for answer in found] == [200] * 5, [answer.text for answer in found]
    assert len({answer.text for answer in found}) == 1


def test_a_field_that_comes_twice_is_refused(server: Server) -> None:
    rest = {"source": "en", "target": "de"}
    for sent in (
        {"data": {"q": ["a", "b"], **rest}},
        {"params": {"q": ["a", "b"], **rest}},
        {"data": {"q": ["a", "b"], **rest}, "files": {"nothing": b""}},
        {"params": {"q": "a"}, "data": {"q": "b", **rest}},
    ):
        answer = httpx.post(f"{server.url}/translate", **sent)
        said = "Invalid request: q parameter is given more than once; several texts are a list in JSON"
        assert (answer.status_code, answer.json()) == (400, {"error": said}), sent


def test_a_form_may_have_letters_that_are_not_escaped(server: Server) -> None:
    for body in ("q=Grüße&source=de&target=de", "q=Gr%C3%BC%C3%9Fe&source=de&target=de"):
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = httpx.post(f"{server.url}/translate", content=body.encode(), headers=headers)
        assert answer.json()["translatedText"] == "Grüße"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_json_that_does_not_say_so_is_told_what_to_say(server: Server, kind: str) -> None:
    body, headers = b' {"q": "a", "source": "en", "target": "de"}', {"Content-Type": kind} if kind else {}
    answer = httpx.post(f"{server.url}/translate", content=body, headers=headers)
    said = "Invalid request: the body looks like JSON; send Content-Type: application/json"
    assert (answer.status_code, answer.json()) == (400, {"error": said})
    answer = httpx.post(f"{server.url}/translate", content=b"", headers=headers)
    assert answer.json() == {"error": "Invalid request: missing q parameter"}


def test_whatever_is_not_there_is_an_error_like_others(server: Server) -> None:
    for method, path, status, said in (
        ("GET", "/nowhere", 404, "Not Found"),
        ("GET", "/page/nowhere", 404, "Not Found"),
        ("GET", "/download_file/nothing", 404, "Not Found"),
        ("GET", "/translate", 405, "Method Not Allowed"),
        ("POST", "/languages", 405, "Method Not Allowed"),
        ("GET", "/v1/models/able/curves?after=x", 400, "Invalid request: after parameter cannot be read"),
    ):
        answer = httpx.request(method, f"{server.url}{path}")
        assert (answer.status_code, answer.json()) == (status, {"error": said}), path
    assert "POST" in httpx.get(f"{server.url}/translate").headers["Allow"]
    assert '"422"' not in httpx.get(f"{server.url}/openapi.json").text


def test_who_only_looks_whether_it_is_there_is_answered(server: Server) -> None:
    for path in ("/", "/docs", "/health"):
        answer = httpx.head(f"{server.url}{path}")
        assert (answer.status_code, answer.content) == (200, b"")


def test_the_log_has_the_path_that_leads_nowhere_and_the_figures_do_not(server: Server) -> None:
    httpx.get(f"{server.url}/wp-login.php")
    httpx.get(f"{server.url}/{'a' * 5000}")
    for path in ("/wp-login.php", "/" + "a" * 199):
        assert server.logged(path)["status"] == 404
    figures = httpx.get(f"{server.url}/metrics").text
    assert 'path="other"' in figures
    assert "wp-login" not in figures


def test_lines_are_kept_and_a_form_has_its_own_ends(server: Server, texts: list[str]) -> None:
    whole = server.translate(f"{texts[0]}\n\n  {texts[1]}\n")["translatedText"]
    first, empty, second, last = whole.split("\n")
    assert (empty, last) == ("", "")
    assert second.startswith("  ")
    for end in ("\r\n", "\r", "\n"):
        form = {"q": f"{texts[0]}{end}{texts[1]}", "source": "en", "target": "de"}
        for sent in ({"data": form}, {"params": form}, {"data": form, "files": {"nothing": b""}}):
            found = httpx.post(f"{server.url}/translate", **sent).json()["translatedText"]
            assert found == f"{first}\n{second.strip()}", (end, sent)
    kept = server.translate(f"{texts[0]}\r{texts[1]}")["translatedText"]
    assert kept.count("\r") == 1, "JSON says what it means"


def test_alternatives_are_others_and_come_where_they_are_asked_for(server: Server, texts: list[str]) -> None:
    found = server.translate(texts[0], alternatives=3)
    assert set(found) == {"translatedText", "alternatives"}
    assert 0 < len(found["alternatives"]) <= 3
    assert found["translatedText"] not in found["alternatives"]
    assert len(set(found["alternatives"])) == len(found["alternatives"])
    many = server.translate(texts[:2], alternatives=2)
    assert [len(some) <= 2 for some in many["alternatives"]] == [True, True]
    assert "alternatives" not in server.translate(texts[0], alternatives=-1)
    assert server.translate("<b>the</b> house", alternatives=2, format="html")["alternatives"] == []


def test_the_language_is_told_where_it_is_to_be_guessed(server: Server) -> None:
    found = server.translate("The old house is in the garden.", "auto")
    assert found["detectedLanguage"]["language"] == "en"
    assert 50 < found["detectedLanguage"]["confidence"] <= 100
    both = server.translate(["The old house.", "The young man sees the garden."], "auto")
    assert both["detectedLanguage"] == [both["detectedLanguage"][0]] * 2
    nothing = server.translate(" 🙂 …", "auto")
    assert nothing == {"translatedText": " 🙂 …", "detectedLanguage": {"confidence": 0.0, "language": "en"}}


def test_detect(server: Server) -> None:
    found = server.ask("/detect", q="Das alte Haus steht im Garten.")
    assert found[0]["language"] == "de"
    assert [guess["confidence"] for guess in found] == sorted((guess["confidence"] for guess in found), reverse=True)
    assert len(found) <= 3
    assert {guess["language"] for guess in found} <= {"de", "en", "fr"}
    assert server.ask("/detect", q="…") == [{"confidence": 0.0, "language": "en"}]
    assert server.error("/detect", 400) == "Invalid request: missing q parameter"


def test_languages_and_ways_between_them(server: Server) -> None:
    assert httpx.get(f"{server.url}/languages").json() == [
        {"code": "de", "name": "German", "targets": ["de", "fr"]},
        {"code": "en", "name": "English", "targets": ["de", "en", "fr"]},
        {"code": "fr", "name": "French", "targets": ["fr"]},
    ]


def test_two_models_are_gone_through_where_none_leads_straight(server: Server, translator: Translator) -> None:
    middle = best(translator, "the old house")
    assert server.translate("the old house", "en", "fr")["translatedText"] == best(translator, middle)
    look = server.translate("the old house", "en", "fr", alignment=True)["alignment"]
    first = server.translate("the old house", "en", "de", alignment=True)["alignment"]
    second = server.translate(middle, "de", "fr", alignment=True)["alignment"]
    product = [
        [sum(a * row[s] for a, row in zip(t, first["weights"], strict=True)) for s in range(3)]
        for t in second["weights"]
    ]
    for row, expected in zip(look["weights"], product, strict=True):
        assert row == pytest.approx(expected, abs=2e-3)
    assert look["source"] == ["the", "old", "house"]


def test_a_language_is_translated_to_itself_by_leaving_it(server: Server) -> None:
    assert server.translate("das Haus", "de", "de") == {"translatedText": "das Haus"}


def test_what_has_no_letter_stays_as_it_is(server: Server) -> None:
    assert server.translate(["12.50", "- 3 -", ""])["translatedText"] == ["12.50", "- 3 -", ""]


def test_tags_are_carried_over(server: Server, translator: Translator) -> None:
    text = "the <b>old</b> house &amp; <i>garden</i>"
    found = server.translate(text, format="html")["translatedText"]
    assert found == best(translator, text, tags=True)
    assert found.count("<b>") == found.count("</b>") == 1


@pytest.mark.parametrize("form", ["text", "html"])
def test_addresses_pass_through_and_are_in_no_language(server: Server, translator: Translator, form: str) -> None:
    text = "the old house www.example.org/a?b=c"
    found = server.translate(text, format=form)["translatedText"]
    assert found == best(translator, text, tags=form == "html")
    assert "www.example.org/a?b=c" in found
    alone = server.translate("https://example.org/das-alte-haus", "auto", format=form)
    assert alone["translatedText"] == "https://example.org/das-alte-haus"
    assert alone["detectedLanguage"]["confidence"] == 0


def test_alignments_say_where_the_model_looked(server: Server, translator: Translator) -> None:
    found = server.translate("the old house", alignment=True)["alignment"]
    expected = translator.translate(["the old house"], beam=2)[0]
    assert expected.alignment is not None
    assert expected.attention is not None
    assert (found["source"], found["target"]) == (expected.alignment.source, expected.alignment.target)
    assert [tuple(pair) for pair in found["pairs"]] == expected.alignment.pairs
    assert found["tokens"]["source"] == expected.source_tokens
    for rows, matrix in ((found["weights"], expected.alignment.soft), (found["tokens"]["weights"], expected.attention)):
        for row, numbers in zip(rows, matrix, strict=True):
            assert row == pytest.approx(numbers.tolist(), abs=1e-4)


def test_models_are_described_and_can_be_named(server: Server, fluent_run: Run) -> None:
    models = httpx.get(f"{server.url}/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["able", "second", "third"]
    first = models[0]
    assert first["recipe"] == "bahdanau2015"
    assert first["order"] == ["h_{t-1}", "a_t", "c_t", "h_t"]
    assert first["parameters"] == sum(
        tensor.numel() for tensor in fluent_run.model(fluent_run.tokenizers().sizes).parameters()
    )
    assert first["steps"] == 240
    assert first["finished"]
    assert first["scores"]["loss"] == [row["loss"] for row in fluent_run.metrics() if row["kind"] == "dev"][-1]
    assert server.translate("the house", model="third")["translatedText"]
    assert "there is no model 'other'" in server.error(
        "/translate", 400, q="a", source="en", target="de", model="other"
    )
    wrong = server.error("/translate", 400, q="a", source="en", target="de", model="second")
    assert wrong == "the model 'second' translates from de to fr"


def test_curves_are_those_of_the_run(server: Server, fluent_run: Run) -> None:
    found = httpx.get(f"{server.url}/v1/models/able/curves").json()
    assert found["rows"] == fluent_run.metrics()
    assert found["finished"] is True
    after = httpx.get(f"{server.url}/v1/models/able/curves", params={"after": 120}).json()["rows"]
    assert after == [row for row in fluent_run.metrics() if row["step"] > 120]


def events(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    parts = [dict(line.split(": ", 1) for line in part.split("\n")) for part in answer.text.strip().split("\n\n")]
    return [(part["event"], json.loads(part["data"])) for part in parts]


def test_words_are_streamed_with_their_attention(server: Server, translator: Translator) -> None:
    text = "  the old house\nthe young man sees the garden."
    answer = httpx.post(f"{server.url}/v1/translate/stream", json={"q": text})
    assert answer.headers["content-type"].startswith("text/event-stream")
    (start, first), *words, (end, last) = events(answer)
    assert (start, end) == ("start", "end")
    assert first["source"] == text.split()
    expected = translator.translate([text], beam=1)[0]
    assert last["translatedText"] == expected.text
    assert [word["word"] for _, word in words] == expected.text.split()
    assert expected.alignment is not None
    for (kind, word), row in zip(words, expected.alignment.soft, strict=True):
        assert kind == "word"
        assert len(word["weights"]) == len(text.split())
        assert sum(word["weights"]) == pytest.approx(float(row.sum()), abs=0.35), "punctuation counts here, not there"


def test_a_decoding_is_traced_step_by_step(server: Server, translator: Translator) -> None:
    found = server.ask("/v1/trace", q="the old house", beam=3)
    expected = translator.translate(["the old house"], beam=3)[0]
    assert found["text"] == expected.text
    assert [step["token"] for step in found["steps"]] == expected.tokens
    assert found["source"] == expected.source_tokens
    assert expected.attention is not None
    for step, row in zip(found["steps"], expected.attention, strict=True):
        assert step["weights"] == pytest.approx(row.tolist(), abs=1e-3)
        assert len(step["beam"]) <= 3
        chances = [one["log_prob"] for one in step["beam"]]
        assert chances == sorted(chances, reverse=True)
        assert step["candidates"][0]["probability"] >= step["candidates"][1]["probability"]
        assert len(step["state"]) == 40
        assert step["window"] is None
        assert step["heads"] == {}
    assert server.error("/v1/trace", 400, q="a", beam=99) == "Invalid request: beam parameter must be from 1 to 12"
    assert server.ask("/v1/trace", q=" ")["steps"] == []


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({}, "Invalid request: missing q parameter"),
    ({"q": ""}, "Invalid request: missing q parameter"),
    ({"q": []}, "Invalid request: missing q parameter"),
    ({"q": "a"}, "Invalid request: missing source parameter"),
    ({"q": "a", "source": "en"}, "Invalid request: missing target parameter"),
    (
        {"q": "a", "source": "en", "target": "de", "alternatives": "many"},
        "Invalid request: alternatives parameter is not a number",
    ),
    (
        {"q": "a", "source": "xx", "target": "de", "alternatives": 11},
        "Invalid request: alternatives parameter must be <= 10",
    ),
    ({"q": "a" * 20_001, "source": "xx", "target": "de"}, "request (20001) exceeds text limit (20000)"),
    (
        {"q": ["a"] * 1001, "source": "en", "target": "de"},
        "request (1001) exceeds text limit (1000) of texts in one request",
    ),
    ({"q": "a", "source": "XX", "target": "yy"}, "xx is not supported"),
    ({"q": "a", "source": "en", "target": "yy", "format": "pdf"}, "yy is not supported"),
    ({"q": "a", "source": "fr", "target": "en", "format": "pdf"}, "pdf format is not supported"),
    (
        {"q": "a", "source": "fr", "target": "en"},
        "English (en) is not available as a target language from French (fr)",
    ),
    ({"q": 5, "source": "en", "target": "de"}, "Invalid request: q parameter is neither text nor a list of texts"),
    ({"q": ["a", None], "source": "en", "target": "de"}, "q parameter is neither text nor a list of texts"),
    ({"q": {"a": 1}, "source": "en", "target": "de"}, "q parameter is neither text nor a list of texts"),
    ({"q": "a", "source": ["en"], "target": "de"}, "Invalid request: source parameter is not text"),
]


@pytest.mark.parametrize(("fields", "said"), ERRORS, ids=[said for _, said in ERRORS])
def test_what_cannot_be_done_is_said_in_this_order(server: Server, fields: dict[str, Any], said: str) -> None:
    assert said in server.error("/translate", 400, **fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"q":' * 9999])
def test_what_is_no_json_object_is_said_to_be_none(server: Server, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}/translate", content=body, headers=headers)
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid JSON format"})


def test_ways_that_are_not_there(server: Server) -> None:
    for method, path, status in (
        ("GET", "/detect", 405),
        ("GET", "/translate", 405),
        ("POST", "/languages", 405),
        ("POST", "/health", 405),
        ("POST", "/spec", 405),
        ("GET", "/nothing", 404),
    ):
        assert httpx.request(method, f"{server.url}{path}").status_code == status, (method, path)


def test_health_settings_and_description(server: Server) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}
    settings = httpx.get(f"{server.url}/frontend/settings").json()
    assert settings["charLimit"] == 20_000
    assert settings["apiKeys"] is settings["keyRequired"] is settings["suggestions"] is False
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    spec = httpx.get(f"{server.url}/openapi.json").json()
    assert {"/translate", "/detect", "/languages", "/health", "/v1/trace"} <= set(spec["paths"])
    assert httpx.get(f"{server.url}/spec").json() == spec


def test_every_answer_may_be_read_from_any_page(server: Server) -> None:
    asked = (("GET", "/health"), ("POST", "/translate"), ("GET", "/nothing"), ("OPTIONS", "/translate"))
    for method, path in asked:
        headers = httpx.request(method, f"{server.url}{path}").headers
        assert headers["access-control-allow-origin"] == "*"
        assert headers["access-control-allow-headers"] == "Authorization, Content-Type"
        assert headers["access-control-expose-headers"] == "Authorization"
        assert headers["access-control-allow-methods"] == "GET, POST"
        assert headers["access-control-allow-credentials"] == "true"
        assert headers["access-control-max-age"] == "1728000"
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]


def test_codes_have_other_names(fluent_run: Run, tmp_path: Path) -> None:
    with start_server(f"{fluent_run.folder}=en-pb") as server:
        for target in ("pb", "PT-BR", "pt_br"):
            assert server.translate("the house", "EN", target)["translatedText"]
        languages = httpx.get(f"{server.url}/languages").json()
        assert languages[1] == {"code": "pt-BR", "name": "Portuguese (Brazil)", "targets": ["pt-BR"]}


def test_thousands_at_once_are_never_mixed(server: Server, translator: Translator, corpus: Path) -> None:
    known = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
    words = sorted({word for text in known for word in text.split() if word.isalpha()})
    texts = [f"{words[n % len(words)]} {words[n * 7 % len(words)]} {n}" for n in range(2000)]
    expected = [made.text for made in translator.translate(texts, beam=2, alignments=False)]
    with httpx.Client(base_url=server.url, limits=httpx.Limits(max_connections=64), timeout=300) as client:

        def ask(numbers: range) -> list[str]:
            fields = {"q": [texts[n] for n in numbers] if len(numbers) > 1 else texts[numbers[0]]}
            found = client.post("/translate", json={**fields, "source": "en", "target": "de"}).json()["translatedText"]
            return found if isinstance(found, list) else [found]

        parts = [range(n, n + 1) for n in range(1000)] + [range(n, n + 20) for n in range(1000, 2000, 20)]
        with ThreadPoolExecutor(64) as together:
            answers = list(together.map(ask, parts))
    assert [text for some in answers for text in some] == expected


def test_figures_for_prometheus(server: Server) -> None:
    server.translate("the old house")
    page = httpx.get(f"{server.url}/metrics").text
    assert 'regard_requests_total{path="/translate",status="200"}' in page
    assert 'regard_batch_sentences_bucket{le="1.0",model="able"}' in page
    assert 'regard_characters_total{model="able"}' in page


def test_the_log_is_json_and_knows_no_text(server: Server) -> None:
    server.translate("a very secret house")
    last = server.logged("/translate")
    assert last["status"] == 200
    assert last["method"] == "POST"
    assert last["ms"] > 0
    assert "secret" not in json.dumps(server.log)


def test_what_was_accepted_is_finished_before_it_ends(fluent_run: Run, corpus: Path) -> None:
    texts = (corpus / "train.en").read_text(encoding="utf-8").splitlines()[:100]
    with start_server(fluent_run.folder, "--batch-pieces", 1) as server:
        found: list[httpx.Response] = []
        fields = {"q": texts, "source": "en", "target": "de"}
        asking = threading.Thread(
            target=lambda: found.append(httpx.post(f"{server.url}/translate", json=fields, timeout=300))
        )
        asking.start()
        while not any("regard_waiting_sentences{" in line and not line.endswith(" 0.0") for line in gauges(server)):
            pass
        server.process.send_signal(signal.SIGTERM)
        asking.join()
        assert server.process.wait() in (0, -signal.SIGTERM)
        assert len(found[0].json()["translatedText"]) == len(texts)
        with socket.socket() as free:
            assert free.connect_ex(("127.0.0.1", server.port)) != 0


def gauges(server: Server) -> list[str]:
    return httpx.get(f"{server.url}/metrics").text.splitlines()


def test_names_and_languages_of_runs() -> None:
    folders = [Path(name) for name in ("a/demo-2", "b/demo", "c/demo", "d/demo", "en-de", "en")]
    assert names(folders) == ["demo-2", "demo", "demo-3", "demo-4", "en-de", "en"]
    assert languages_of("en-de") == ("en", "de")
    assert languages_of("pt-BR-en") == ("pt-BR", "en")
    assert languages_of("en-zh-Hans") == ("en", "zh-Hans")
    assert languages_of("en-pt_BR") == ("en", "pt_BR")


@pytest.mark.parametrize("pair", ["xx", "", "english-german", "en-", "-de", "en-d", "en-de.txt", "en-de-", "12-34"])
def test_what_is_no_pair_of_languages_is_refused(pair: str) -> None:
    with pytest.raises(UserError, match="is not a pair of language codes like en-de"):
        languages_of(pair)


def test_a_run_named_with_no_pair_says_so(regard: Command, fluent_run: Run) -> None:
    done = regard("serve", f"{fluent_run.folder}=xx", "--port", 0)
    assert done.returncode == 2
    assert "regard: 'xx' is not a pair of language codes like en-de" in done.stderr


def test_alignments_are_given_for_so_many_words(server: Server) -> None:
    said = server.error("/translate", 400, q="a " * 501, source="en", target="de", alignment=True)
    assert said == "Invalid request: alignment is given for up to 500 words at a time"
    assert server.translate(["a " * 10] * 3, alignment=True)["alignment"]


def test_a_run_without_languages_must_be_told(regard: Command, fluent_run: Run, tmp_path: Path) -> None:
    nameless = tmp_path / "nameless"
    shutil.copytree(fluent_run.folder, nameless)
    config = nameless / "config.yaml"
    config.write_text(
        config.read_text(encoding="utf-8").replace("source: en", "source: null").replace("target: de", "target: null"),
        encoding="utf-8",
    )
    done = regard("serve", nameless)
    assert done.returncode == 2
    assert f"{nameless} does not say its languages; name them: regard serve {nameless}=en-de" in done.stderr
    done = regard("serve", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "is not a run" in done.stderr
    done = regard("serve", fluent_run.folder, "--require-key")
    assert "--require-key needs --keys" in done.stderr
