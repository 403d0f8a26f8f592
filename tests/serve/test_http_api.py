"""The HTTP API of `regard serve`, in a real process."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from support.commands import Command
from support.files import write_jsonl
from support.server import TIMEOUT, Client, Server, serve_in_thread, start_server
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import UserError
from regard.runs import Run
from regard.serve.engine.models import RunSpec, name_runs, parse_language_pair
from regard.serve.routes.libretranslate import make_response
from regard.serve.routes.models import describe_model
from regard.serve.schemas import TranslateRequest
from regard.serve.service import compose_translations
from regard.serve.settings import Settings
from regard.translate import Translation, Translator, load
from regard.translate.translation import Alignment, describe_problems


@pytest.fixture(scope="module")
def server(fluent_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve English-German and German-French, which is the same model under another name; each has a worker."""
    second = tmp_path_factory.mktemp("served") / "second"
    shutil.copytree(fluent_run.folder, second)
    with start_server(fluent_run.folder, f"{second}=de-fr", "--beam", 2, "--processes", 1) as process:
        yield process


@pytest.fixture(scope="module")
def translator(fluent_run: Run) -> Translator:
    return load(fluent_run.folder)


@pytest.fixture(scope="module")
def texts(corpus: Path) -> list[str]:
    return (corpus / "test.en").read_text(encoding="utf-8").splitlines()[:40]


def best_translation(translator: Translator, text: str, **options: Any) -> str:
    return translator.translate([text], beam=2, **options)[0].text


def test_translations_equal_those_of_the_translator(server: Server, translator: Translator, texts: list[str]) -> None:
    for text in texts[:5]:
        assert server.translate(text) == {"translatedText": best_translation(translator, text)}
    assert server.translate(texts) == {"translatedText": [best_translation(translator, text) for text in texts]}


def test_json_form_multipart_and_query_are_equivalent(server: Server, texts: list[str]) -> None:
    fields = {"q": texts[0], "source": "en", "target": "de"}
    found = [
        server.http.post("/translate", json=fields),
        server.http.post("/translate", data=fields),
        server.http.post("/translate", params=fields),
        server.http.post("/translate", data=fields, files={"nothing": b""}),
        server.http.post("/translate", params={"q": texts[0]}, data={"source": "en", "target": "de"}),
    ]
    assert [answer.status_code for answer in found] == [200] * 5, [answer.text for answer in found]
    assert len({answer.text for answer in found}) == 1


def test_repeated_parameter_is_refused(server: Server) -> None:
    rest = {"source": "en", "target": "de"}
    for sent in (
        {"data": {"q": ["a", "b"], **rest}},
        {"params": {"q": ["a", "b"], **rest}},
        {"data": {"q": ["a", "b"], **rest}, "files": {"nothing": b""}},
        {"params": {"q": "a"}, "data": {"q": "b", **rest}},
    ):
        answer = server.http.post("/translate", **sent)
        message = "Invalid request: q parameter is given more than once; several texts are a list in JSON"
        assert (answer.status_code, answer.json()) == (400, {"error": message}), sent


def test_form_may_contain_unescaped_utf8(server: Server) -> None:
    for body in ("q=Grüße&source=de&target=de", "q=Gr%C3%BC%C3%9Fe&source=de&target=de"):
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = server.http.post("/translate", content=body.encode(), headers=headers)
        assert answer.json()["translatedText"] == "Grüße"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_json_with_a_wrong_content_type_gets_a_hint(server: Server, kind: str) -> None:
    body, headers = b' {"q": "a", "source": "en", "target": "de"}', {"Content-Type": kind} if kind else {}
    answer = server.http.post("/translate", content=body, headers=headers)
    message = "Invalid request: the body looks like JSON; send Content-Type: application/json"
    assert (answer.status_code, answer.json()) == (400, {"error": message})
    answer = server.http.post("/translate", content=b"", headers=headers)
    assert answer.json() == {"error": "Invalid request: missing q parameter"}


def test_unknown_paths_and_methods_are_json_errors(server: Server) -> None:
    for method, path, status, error in (
        ("GET", "/nowhere", 404, "Not Found"),
        ("GET", "/page/nowhere", 404, "Not Found"),
        ("GET", "/download_file/nothing", 404, "Not Found"),
        ("GET", "/translate", 405, "Method Not Allowed"),
        ("GET", "/detect", 405, "Method Not Allowed"),
        ("POST", "/languages", 405, "Method Not Allowed"),
        ("POST", "/health", 405, "Method Not Allowed"),
        ("POST", "/spec", 405, "Method Not Allowed"),
        ("GET", "/v1/models/fluent/curves?after=x", 400, "Invalid request: after parameter cannot be read"),
    ):
        answer = server.http.request(method, path)
        assert (answer.status_code, answer.json()) == (status, {"error": error}), path
    assert "POST" in server.http.get("/translate").headers["Allow"]
    assert '"422"' not in server.http.get("/openapi.json").text


def test_errors_of_static_files_are_json(server: Server) -> None:
    for method, path, status, error in (
        ("GET", "/page/", 404, "Not Found"),
        ("GET", "/page/%00", 404, "Not Found"),
        ("GET", f"/page/{'a' * 300}", 404, "Not Found"),
        ("POST", "/page/base.css", 405, "Method Not Allowed"),
    ):
        answer = server.http.request(method, path)
        assert (answer.status_code, answer.json()) == (status, {"error": error}), path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_head_requests_are_answered(server: Server) -> None:
    models = ("/v1/models", "/v1/models/fluent/curves")
    for path in (
        "/",
        "/docs",
        "/health",
        "/ready",
        "/metrics",
        "/languages",
        "/openapi.json",
        "/page/base.css",
        *models,
    ):
        answer = server.http.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert int(answer.headers["content-length"]) > 0
    assert server.logged("/ready")["method"] == "HEAD"
    assert server.http.head("/translate").status_code == 405


def test_unknown_paths_are_logged_but_not_metric_labels(server: Server) -> None:
    server.http.get("/wp-login.php")
    server.http.get(f"/{'a' * 5000}")
    for path in ("/wp-login.php", "/" + "a" * 199):
        assert server.logged(path)["status"] == 404
    metrics = server.http.get("/metrics").text
    assert 'path="other"' in metrics
    assert "wp-login" not in metrics


def test_line_breaks_are_kept_and_normalised_in_forms(server: Server, texts: list[str]) -> None:
    whole = server.translate(f"{texts[0]}\n\n  {texts[1]}\n")["translatedText"]
    first, empty, second, last = whole.split("\n")
    assert (empty, last) == ("", "")
    assert second.startswith("  ")
    for end in ("\r\n", "\r", "\n"):
        form = {"q": f"{texts[0]}{end}{texts[1]}", "source": "en", "target": "de"}
        for sent in ({"data": form}, {"params": form}, {"data": form, "files": {"nothing": b""}}):
            found = server.http.post("/translate", **sent).json()["translatedText"]
            assert found == f"{first}\n{second.strip()}", (end, sent)
    kept = server.translate(f"{texts[0]}\r{texts[1]}")["translatedText"]
    assert kept.count("\r") == 1, "line breaks in JSON are not normalised"


def test_alternatives_are_distinct_and_optional(server: Server, texts: list[str]) -> None:
    found = server.translate(texts[0], alternatives=3)
    assert set(found) == {"translatedText", "alternatives"}
    assert 0 < len(found["alternatives"]) <= 3
    assert found["translatedText"] not in found["alternatives"]
    assert len(set(found["alternatives"])) == len(found["alternatives"])
    many = server.translate(texts[:2], alternatives=2)
    assert [len(some) <= 2 for some in many["alternatives"]] == [True, True]
    assert "alternatives" not in server.translate(texts[0], alternatives=-1)
    assert server.translate("<b>the</b> house", alternatives=2, format="html")["alternatives"] == []


def test_source_auto_reports_the_detected_language(server: Server) -> None:
    found = server.translate("The old house is in the garden.", "auto")
    assert found["detectedLanguage"]["language"] == "en"
    assert 50 < found["detectedLanguage"]["confidence"] <= 100
    both = server.translate(["The old house.", "The young man sees the garden."], "auto")
    assert both["detectedLanguage"] == [both["detectedLanguage"][0]] * 2
    nothing = server.translate(" 🙂 …", "auto")
    assert nothing == {"translatedText": " 🙂 …", "detectedLanguage": {"confidence": 0.0, "language": "en"}}


def test_detect_ranks_the_served_languages(server: Server) -> None:
    found = server.ask("/detect", q="Das alte Haus steht im Garten.")
    assert found[0]["language"] == "de"
    assert [guess["confidence"] for guess in found] == sorted((guess["confidence"] for guess in found), reverse=True)
    assert len(found) <= 3
    assert {guess["language"] for guess in found} <= {"de", "en", "fr"}
    assert server.ask("/detect", q="…") == [{"confidence": 0.0, "language": "en"}]
    assert server.error("/detect", 400) == "Invalid request: missing q parameter"


def test_languages_list_their_reachable_targets(server: Server) -> None:
    assert server.http.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["de", "fr"]},
        {"code": "en", "name": "English", "targets": ["de", "en", "fr"]},
        {"code": "fr", "name": "French", "targets": ["fr"]},
    ]


def test_pivot_translation_multiplies_the_alignments(server: Server, translator: Translator) -> None:
    pivot = best_translation(translator, "the old house")
    assert server.translate("the old house", "en", "fr")["translatedText"] == best_translation(translator, pivot)
    found = server.translate("the old house", "en", "fr", alignment=True)["alignment"]
    first = server.translate("the old house", "en", "de", alignment=True)["alignment"]
    second = server.translate(pivot, "de", "fr", alignment=True)["alignment"]
    product = [
        [sum(a * row[s] for a, row in zip(t, first["weights"], strict=True)) for s in range(3)]
        for t in second["weights"]
    ]
    for row, expected in zip(found["weights"], product, strict=True):
        assert row == pytest.approx(expected, abs=2e-3)
    assert found["source"] == ["the", "old", "house"]


def test_same_source_and_target_return_the_text(server: Server) -> None:
    assert server.translate("das Haus", "de", "de") == {"translatedText": "das Haus"}


def test_text_without_letters_is_returned_unchanged(server: Server) -> None:
    assert server.translate(["12.50", "- 3 -", ""])["translatedText"] == ["12.50", "- 3 -", ""]


def test_html_tags_are_transferred(server: Server, translator: Translator) -> None:
    text = "the <b>old</b> house &amp; <i>garden</i>"
    found = server.translate(text, format="html")["translatedText"]
    assert found == best_translation(translator, text, tags=True)
    assert found.count("<b>") == found.count("</b>") == 1


def test_pivot_translation_follows_the_links_of_both_translations() -> None:
    soft = np.array([[0.3, 0.6], [0.1, 0.8]], dtype=np.float32)  # the word and the mark attend to the mark
    links = [(0, 0), (1, 1)]
    first = Translation("book .", "Buch .", alignment=Alignment(["book", "."], ["Buch", "."], soft, links))
    second = Translation("Buch .", "livre .", alignment=Alignment(["Buch", "."], ["livre", "."], soft, links))
    alignment = compose_translations(first, second).alignment
    assert alignment is not None
    assert (alignment.source, alignment.target, alignment.pairs) == (["book", "."], ["livre", "."], links)
    np.testing.assert_allclose(alignment.soft, soft @ soft)


def test_html_tags_without_alignment_are_reported(server: Server, translator: Translator) -> None:
    made = [Translation("an <b>old</b> dog", "<b>x</b>", unaligned_tags=2), Translation("a<br>b", "x<br>y")]
    parameters = TranslateRequest.model_validate({"q": ["a", "b"], "source": "en", "target": "de"})
    assert make_response(made, parameters) == {
        "translatedText": ["<b>x</b>", "x<br>y"],
        "warnings": describe_problems(2, 1, 0),
    }
    parameters.q = "a"
    assert make_response(made[1:], parameters) == {"translatedText": "x<br>y"}
    assert compose_translations(*made).unaligned_tags == 2
    text = "the <i>old</i><br><b>house</b>"
    found = server.translate(text, format="html")
    assert ("warnings" in found) == bool(translator.translate([text], tags=True)[0].unaligned_tags)


@pytest.mark.parametrize("form", ["text", "html"])
def test_urls_are_kept_and_ignored_by_detection(server: Server, translator: Translator, form: str) -> None:
    text = "the old house www.example.org/a?b=c"
    found = server.translate(text, format=form)["translatedText"]
    assert found == best_translation(translator, text, tags=form == "html")
    assert "www.example.org/a?b=c" in found
    alone = server.translate("https://example.org/das-alte-haus", "auto", format=form)
    assert alone["translatedText"] == "https://example.org/das-alte-haus"
    assert alone["detectedLanguage"]["confidence"] == 0


def test_alignment_equals_that_of_the_translator(server: Server, translator: Translator) -> None:
    found = server.translate("the old house", alignment=True)["alignment"]
    expected = translator.translate(["the old house"], beam=2)[0]
    assert expected.alignment is not None
    assert expected.attention is not None
    assert (found["source"], found["target"]) == (expected.alignment.source, expected.alignment.target)
    assert found["source_offsets"] == [[0, 3], [4, 7], [8, 13]]
    assert [expected.text[start:end] for start, end in found["target_offsets"]] == found["target"]
    assert [tuple(pair) for pair in found["pairs"]] == expected.alignment.pairs
    assert found["tokens"]["source"] == expected.source_tokens
    for rows, matrix in ((found["weights"], expected.alignment.soft), (found["tokens"]["weights"], expected.attention)):
        for row, numbers in zip(rows, matrix, strict=True):
            assert row == pytest.approx(numbers.tolist(), abs=1e-4)


def test_models_are_listed(server: Server, fluent_run: Run) -> None:
    models = server.http.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["fluent", "second"]
    first = models[0]
    assert first["recipe"] == "bahdanau2015"
    assert first["order"] == ["h_{t-1}", "a_t", "c_t", "h_t"]
    assert first["parameters"] == sum(
        tensor.numel() for tensor in fluent_run.load_model(fluent_run.load_tokenizers().vocab_sizes).parameters()
    )
    assert first["steps"] == 80
    assert first["finished"]
    assert first["scores"]["loss"] == [row["loss"] for row in fluent_run.read_metrics() if row["kind"] == "dev"][-1]


def test_model_list_names_the_score_that_chose(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "zh")
    rows = [{**row, "chrf": 12.5, "measure": "chrf"} if row["kind"] == "dev" else row for row in run.read_metrics()]
    write_jsonl(copy / "metrics.jsonl", rows)
    served: Any = SimpleNamespace(name="zh", folder=copy, translator=load(copy), source="en", target="zh")
    scores = describe_model(served)["scores"]
    assert (scores["chrf"], scores["bleu"]) == (12.5, None)


def test_model_is_selected_by_name(fluent_run: Run, tmp_path: Path) -> None:
    shutil.copytree(fluent_run.folder, tmp_path / "second")
    with serve_in_thread(fluent_run.folder, tmp_path / "second") as server:
        server.translate("the house")
        server.translate("the old house", model="second")
        metrics = server.http.get("/metrics").text
        assert f'regard_characters_total{{model="fluent"}} {len("the house")}.0\n' in metrics
        assert f'regard_characters_total{{model="second"}} {len("the old house")}.0\n' in metrics


def test_unsuitable_model_is_refused(server: Server) -> None:
    assert "there is no model 'other'" in server.error(
        "/translate", 400, q="a", source="en", target="de", model="other"
    )
    wrong = server.error("/translate", 400, q="a", source="en", target="de", model="second")
    assert wrong == "the model 'second' translates from de to fr"


def test_curves_equal_the_metrics_of_the_run(server: Server, fluent_run: Run) -> None:
    found = server.http.get("/v1/models/fluent/curves").json()
    assert found["rows"] == fluent_run.read_metrics()
    assert found["finished"] is True
    after = server.http.get("/v1/models/fluent/curves", params={"after": 40}).json()["rows"]
    assert after == [row for row in fluent_run.read_metrics() if row["step"] > 40]


def parse_events(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    parts = [dict(line.split(": ", 1) for line in part.split("\n")) for part in answer.text.strip().split("\n\n")]
    return [(part["event"], json.loads(part["data"])) for part in parts]


def test_stream_sends_words_with_their_attention(server: Server, translator: Translator) -> None:
    text = "  the old house\nthe young man sees the garden."
    answer = server.http.post("/v1/translate/stream", json={"q": text})
    assert answer.headers["content-type"].startswith("text/event-stream")
    (start, first), *words, (end, last) = parse_events(answer)
    assert (start, end) == ("start", "end")
    assert first["source"] == text.split()
    expected = translator.translate([text], beam=1)[0]
    assert last["translatedText"] == expected.text
    assert [word["word"] for _, word in words] == expected.text.split()
    assert expected.alignment is not None
    for (kind, word), row in zip(words, expected.alignment.soft, strict=True):
        assert kind == "word"
        assert len(word["weights"]) == len(text.split())
        assert sum(word["weights"]) == pytest.approx(float(row.sum()), abs=0.35), (
            "the stream counts the attention to punctuation, the alignment does not"
        )


def test_trace_reports_every_decoding_step(server: Server, translator: Translator) -> None:
    found = server.ask("/v1/trace", q="the old house", beam=3)
    expected = translator.translate(["the old house"], beam=3)[0]
    assert found["text"] == expected.text
    assert [step["token"] for step in found["steps"]] == expected.tokens
    assert found["source"] == expected.source_tokens
    assert expected.attention is not None
    for step, row in zip(found["steps"], expected.attention, strict=True):
        assert step["weights"] == pytest.approx(row.tolist(), abs=1e-3)
        assert len(step["beam"]) <= 3
        log_probs = [one["log_prob"] for one in step["beam"]]
        assert log_probs == sorted(log_probs, reverse=True)
        assert step["candidates"][0]["probability"] >= step["candidates"][1]["probability"]
        assert len(step["state"]) == 40
        assert step["window"] is None
        assert step["heads"] == {}
    assert server.error("/v1/trace", 400, q="a", beam=99) == "Invalid request: beam parameter must be from 1 to 12"
    assert server.ask("/v1/trace", q=" ")["steps"] == []


@pytest.mark.parametrize("beam", [{}, {"beam": None}, {"beam": ""}])
def test_trace_without_a_beam_size_uses_that_of_the_service(server: Server, beam: dict[str, Any]) -> None:
    found = server.ask("/v1/trace", q="the old house", **beam)
    assert max(len(step["beam"]) for step in found["steps"]) == 2


INVALID_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({}, "Invalid request: missing q parameter"),
    ({"q": ""}, "Invalid request: missing q parameter"),
    ({"q": []}, "Invalid request: missing q parameter"),
    ({"q": "a"}, "Invalid request: missing source parameter"),
    ({"q": "a", "source": "en"}, "Invalid request: missing target parameter"),
    (
        {"q": "a", "source": "en", "target": "de", "alternatives": "many"},
        "Invalid request: alternatives parameter: Input should be a valid integer",
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
    ({"q": 5, "source": "en", "target": "de"}, "Invalid request: q parameter: Input should be a valid string"),
    ({"q": ["a", None], "source": "en", "target": "de"}, "q parameter: Input should be a valid string"),
    ({"q": {"a": 1}, "source": "en", "target": "de"}, "q parameter: Input should be a valid string"),
    ({"q": "a", "source": ["en"], "target": "de"}, "Invalid request: source parameter: Input should be a valid string"),
    ({"q": "a", "source": "en", "target": "de", "format": {}}, "format parameter: Input should be a valid string"),
    (
        {"q": "a", "source": "en", "target": "de", "alternatives": "x"},
        "alternatives parameter: Input should be a valid integer",
    ),
]


@pytest.mark.parametrize(("fields", "message"), INVALID_REQUESTS, ids=[message for _, message in INVALID_REQUESTS])
def test_invalid_parameters_are_refused_in_a_fixed_order(server: Server, fields: dict[str, Any], message: str) -> None:
    assert message in server.error("/translate", 400, **fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"q":' * 9999])
def test_body_that_is_no_json_object_is_refused(server: Server, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = server.http.post("/translate", content=body, headers=headers)
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid JSON format"})


def test_health_settings_and_openapi_description(server: Server) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    assert server.http.get("/ready").json() == {"status": "ready"}
    settings = server.http.get("/frontend/settings").json()
    assert settings["charLimit"] == 20_000
    assert settings["apiKeys"] is settings["keyRequired"] is settings["suggestions"] is False
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    spec = server.http.get("/openapi.json").json()
    assert {"/translate", "/detect", "/languages", "/health", "/v1/trace"} <= set(spec["paths"])
    assert server.http.get("/spec").json() == spec


def test_every_answer_has_cors_and_security_headers(server: Server) -> None:
    origin = {"Origin": "https://example.org"}
    for method, path in (("GET", "/health"), ("POST", "/translate"), ("GET", "/nothing")):
        headers = server.http.request(method, path, headers=origin).headers
        assert headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]


def test_web_pages_may_send_json_and_keys(server: Server) -> None:
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization, Content-Type"}
    answer = server.http.options("/translate", headers={"Origin": "https://example.org", **wanted})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert {"Authorization", "Content-Type"} <= set(answer.headers["access-control-allow-headers"].split(", "))
    assert "POST" in answer.headers["access-control-allow-methods"]


def test_language_codes_have_aliases(fluent_run: Run) -> None:
    with serve_in_thread(f"{fluent_run.folder}=en-pb") as server:
        for target in ("pb", "PT-BR", "pt_br"):
            assert server.translate("the house", "EN", target)["translatedText"]
        languages = server.http.get("/languages").json()
        assert languages[1] == {"code": "pt-BR", "name": "Portuguese (Brazil)", "targets": ["pt-BR"]}


def check_concurrent_requests(server: Client, translator: Translator, corpus: Path, count: int, threads: int) -> None:
    """Check the translations of `count` texts: half in requests of one text, half in requests of twenty."""
    known = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
    words = sorted({word for text in known for word in text.split() if word.isalpha()})
    texts = [f"{words[n % len(words)]} {words[n * 7 % len(words)]} {n}" for n in range(count)]
    expected = [made.text for made in translator.translate(texts, beam=2, alignments=False)]
    limits = httpx.Limits(max_connections=threads)
    with httpx.Client(base_url=server.url, limits=limits, timeout=TIMEOUT, verify=False) as client:

        def translate(numbers: range) -> list[str]:
            fields = {"q": [texts[n] for n in numbers] if len(numbers) > 1 else texts[numbers[0]]}
            found = client.post("/translate", json={**fields, "source": "en", "target": "de"}).json()["translatedText"]
            return found if isinstance(found, list) else [found]

        half = count // 2
        requests = [range(n, n + 1) for n in range(half)] + [range(n, n + 20) for n in range(half, count, 20)]
        with ThreadPoolExecutor(threads) as pool:
            answers = list(pool.map(translate, requests))
    assert [text for some in answers for text in some] == expected


def test_concurrent_requests_get_their_own_translations(server: Server, translator: Translator, corpus: Path) -> None:
    check_concurrent_requests(server, translator, corpus, count=80, threads=16)


@pytest.mark.slow
def test_thousands_of_requests_on_two_workers_are_not_mixed_up(
    fluent_run: Run, translator: Translator, corpus: Path
) -> None:
    with start_server(fluent_run.folder, "--beam", 2, "--processes", 2) as server:
        check_concurrent_requests(server, translator, corpus, count=2000, threads=64)


def test_metrics_are_in_prometheus_format(server: Server) -> None:
    server.translate("the old house")
    page = server.http.get("/metrics").text
    assert 'regard_requests_total{path="/translate",status="200"}' in page
    assert 'regard_batch_sentences_bucket{le="1.0",model="fluent"}' in page
    assert 'regard_characters_total{model="fluent"}' in page


def test_log_is_json_without_the_translated_text(server: Server) -> None:
    own = "127.0.0.2"  # tells the log line of this request from those of other tests
    with httpx.Client(transport=httpx.HTTPTransport(local_address=own), timeout=TIMEOUT) as client:
        client.post(f"{server.url}/translate", json={"q": "a very secret house", "source": "en", "target": "de"})
    last = server.logged("/translate", own)
    assert last["status"] == 200
    assert last["method"] == "POST"
    assert last["ms"] > 0
    assert "secret" not in json.dumps(server.log)


def test_greeting_names_the_models_and_the_url(server: Server) -> None:
    assert server.greeting == f"regard serves fluent (en-de), second (de-fr) at {server.url}\n"
    assert server.http.get("/health").status_code == 200


OPTIONS: dict[str, Any] = {
    "host": "localhost",
    "port": 7000,
    "beam": 3,
    "precision": "int8",
    "processes": 2,
    "batch_tokens": 100,
    "batch_pieces": 5,
    "queue": 6,
    "char_limit": -1,
    "batch_limit": 7,
    "alternatives_limit": 8,
    "body_limit": 9,
    "file_limit": 10,
    "kept_limit": 11,
    "connection_limit": 16,
    "patience": 1.5,
    "req_limit": 12,
    "hourly_req_limit": 13,
    "daily_req_limit": 14,
    "ban_after": 15,
    "keys": Path("keys.db"),
    "key_link": "https://example.org/keys",
    "suggestions": Path("better.jsonl"),
    "metrics_token": "secret",
    "public_url": "https://example.org/words",
    "url_prefix": "/words",
    "device": "cpu",
}
FLAGS: dict[str, tuple[str, bool]] = {
    "require_key": ("--require-key", True),
    "trust_proxy": ("--trust-proxy", True),
    "files": ("--no-files", False),
    "page": ("--no-page", False),
}


def test_every_option_of_the_command_reaches_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[tuple[list[str], Settings]] = []
    monkeypatch.setattr("regard.serve.server.serve", lambda runs, settings: served.append((runs, settings)))
    (tmp_path / "terms.tsv").write_text("house\tHaus\n", encoding="utf-8")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    flags = [flag for flag, _ in FLAGS.values()]
    cors = ["--cors=https://a.example", "--cors=https://b.example"]
    glossary = f"--glossary=en-de={tmp_path / 'terms.tsv'}"
    done = CliRunner().invoke(app, ["serve", "runs/a", "runs/b=en-de", *options, *flags, glossary, *cors])
    assert done.exit_code == 0, done.output
    values = {
        **OPTIONS,
        **{name: value for name, (_, value) in FLAGS.items()},
        "glossary": {"en-de": {"house": "Haus"}},
        "cors": ("https://a.example", "https://b.example"),
    }
    assert values.keys() == {field.name for field in dataclasses.fields(Settings)}, "an option is not tested"
    assert served == [(["runs/a", "runs/b=en-de"], Settings(**values))]


def test_folder_of_a_run_may_contain_an_equals_sign(fluent_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "lr=0.1"
    run.symlink_to(fluent_run.folder)
    assert RunSpec.parse(str(run)) == RunSpec(run, "translate", "en", "de")
    assert RunSpec.parse(f"{run}=pt-BR-en") == RunSpec(run, "translate", "pb", "en")
    assert (RunSpec.parse(str(run)).folder, RunSpec.parse(f"{run}=en-de").folder) == (run, run)
    with pytest.raises(UserError, match="is not a run"):
        RunSpec.parse(str(tmp_path / "nowhere=en-de"))


def test_public_url_without_a_scheme_is_refused() -> None:
    done = CliRunner().invoke(app, ["serve", "runs/a", "--public-url", "example.org"])
    assert str(done.exception) == "--public-url must be a URL like https://example.org, not 'example.org'"


def test_models_get_unique_names_and_language_pairs() -> None:
    folders = [Path(name) for name in ("a/demo-2", "b/demo", "c/demo", "d/demo", "en-de", "en")]
    assert name_runs(folders) == ["demo-2", "demo", "demo-3", "demo-4", "en-de", "en"]
    assert parse_language_pair("en-de") == ("en", "de")
    assert parse_language_pair("pt-BR-en") == ("pt-BR", "en")
    assert parse_language_pair("en-zh-Hans") == ("en", "zh-Hans")
    assert parse_language_pair("en-pt_BR") == ("en", "pt_BR")


@pytest.mark.parametrize("pair", ["xx", "", "english-german", "en-", "-de", "en-d", "en-de.txt", "en-de-", "12-34"])
def test_invalid_language_pair_is_refused(pair: str) -> None:
    with pytest.raises(UserError, match="is not a pair of language codes like en-de"):
        parse_language_pair(pair)


def test_invalid_language_pair_is_reported_by_the_command(regard: Command, fluent_run: Run) -> None:
    done = regard("serve", f"{fluent_run.folder}=xx", "--port", 0)
    assert done.returncode == 2
    assert "regard: 'xx' is not a pair of language codes like en-de" in done.stderr


@pytest.mark.parametrize("text", ["a " * 501, "私は" * 251], ids=["spaced", "unspaced"])
def test_alignment_is_refused_beyond_500_words(server: Server, text: str) -> None:
    message = server.error("/translate", 400, q=text, source="en", target="de", alignment=True)
    assert message == "Invalid request: alignment is given for up to 500 words at a time"
    assert server.translate(["a " * 10] * 3, alignment=True)["alignment"]


def test_unusable_runs_and_options_are_reported(regard: Command, fluent_run: Run, tmp_path: Path) -> None:
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
