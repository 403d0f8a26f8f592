"""Serving models of other tasks (tagging, classification, reading, regression, captioning): API and web page."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from playwright.sync_api import FilePayload, Page, Route, expect
from support.browser import TIMEOUT_MS, launch_browser
from support.commands import Command
from support.server import Client, ask_in_process, serve_in_thread

from regard.api import load
from regard.recipes.recipe import read_recipe
from regard.runs import Run
from regard.serve.settings import Settings
from regard.synthetic.corpora import CORPUS_WORDS
from regard.tasks import TASKS
from regard.training import train

RECIPES = {
    "tag": "schuster1997",
    "classify": "yang2016",
    "read": "cui2017",
    "regress": "schuster1997-regression",
    "caption": "xu2015-soft-caption",
}
CORPORA = {
    "tag": "tagging",
    "classify": "classification",
    "read": "cloze",
    "regress": "regression",
    "caption": "captioning",
}
SHORT_TRAINING: dict[str, Any] = {
    "training.steps": 12,
    "training.validate_every": 12,
    "training.checkpoint_every": 12,
    "training.warmup": 0,
    "training.device": "cpu",
}
BAD_REQUEST = "400 (Bad Request)"  # logged by the browser where a test expects it


def make_image(form: str) -> bytes:
    """Return a random image in a file format."""
    pixels = np.random.default_rng(1).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    if form == "npy":
        np.save(file, pixels)
    else:
        Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def data_url(content: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


STORY = "Anna sent lamps to Rome .\nBen took keys to Oslo ."
INPUTS: dict[str, Any] = {
    "tag": "the old dog sees a house",
    "classify": "A film that nobody should miss. The end is rather weak.",
    "read": {"document": STORY, "query": "Anna sent XXXXX to Rome .", "candidates": ["lamps", "keys"]},
    "regress": {"inputs": [[0.1], [0.5], [-0.3]]},
    "caption": {"image": data_url(make_image("PNG"), "image/png")},
}
IMAGE: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": make_image("PNG")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Train a run of every task for a few updates."""
    made = {}
    for task, recipe in RECIPES.items():
        folder = tmp_path_factory.mktemp(task)
        write_corpus = TASKS[task].write_synthetic_corpus
        assert write_corpus is not None
        with pytest.MonkeyPatch.context() as patch:
            for split, size in {"train": 300, "dev": 20, "test": 1}.items():
                patch.setitem(CORPUS_WORDS[CORPORA[task]]["sizes"], split, size)
            corpus = write_corpus(folder / "data")
        changes = {**corpus.select_overrides(read_recipe(recipe)), **SHORT_TRAINING}
        made[task] = train(recipe, corpus.train, folder / task, dev=corpus.dev, **changes)
    return made


@pytest.fixture(scope="module")
def server(runs: dict[str, Run], fluent_run: Run) -> Iterator[Client]:
    with serve_in_thread(fluent_run.folder, *(run.folder for run in runs.values())) as server:
        yield server


def predict(server: Client, q: Any, status: int = 200, **fields: Any) -> Any:
    return server.ask("/v1/predict", status, q=q, **fields)


def test_predictors_are_listed_apart_from_translation_models(server: Client, fluent_run: Run) -> None:
    listed = server.http.get("/v1/predictors").json()["predictors"]
    assert [(one["name"], one["task"], one["recipe"]) for one in listed] == [
        (task, task, recipe) for task, recipe in RECIPES.items()
    ]
    assert all(one["parameters"] > 0 and one["finished"] for one in listed)
    assert [one["name"] for one in server.http.get("/v1/models").json()["models"]] == [fluent_run.folder.name]


@pytest.mark.parametrize("task", RECIPES)
def test_predictions_equal_those_of_the_python_api(task: str, server: Client, runs: dict[str, Run]) -> None:
    question = INPUTS[task]
    [found] = predict(server, question, model=task)["predictions"]
    predictor = TASKS[task].load(runs[task].folder)
    [made] = predictor.predict([predictor.parse_json_input(question)])
    assert found["text"] == made.to_text()
    lines = found.pop("attention_lines")
    assert [(line["label"], line["words"]) for line in lines] == [
        (line.label, list(line.words)) for line in made.make_attention_lines()
    ]
    assert bool(lines) == (task in ("classify", "read", "caption")), "the other tasks have no attention"
    for line, of in zip(lines, made.make_attention_lines(), strict=True):
        assert line["weights"] == pytest.approx(list(of.weights), abs=1e-3)
    assert json.loads(json.dumps(made.to_dict())).keys() <= found.keys()


def test_load_returns_the_predictor_class_of_the_task(runs: dict[str, Run]) -> None:
    classes = {task: type(load(run.folder)).__name__ for task, run in runs.items()}
    assert classes == {
        "tag": "TaggingPredictor",
        "classify": "ClassificationPredictor",
        "read": "ClozePredictor",
        "regress": "RegressionPredictor",
        "caption": "CaptioningPredictor",
    }


def test_several_inputs_are_answered_in_order(server: Client) -> None:
    texts = ["a good film .", "a bad film that nobody likes .", "the end"]
    several = predict(server, texts, model="classify")
    assert (several["task"], len(several["predictions"])) == ("classify", 3)
    for text, found in zip(texts, several["predictions"], strict=True):
        [alone] = predict(server, text, model="classify")["predictions"]
        assert alone["label"] == found["label"]
        assert alone["probability"] == pytest.approx(found["probability"], abs=1e-4)


@pytest.mark.parametrize(
    ("model", "q", "message"),
    [
        ("tag", 7, "a sentence must be text or a list of words, not 7"),
        ("tag", [[3]], "for each word this model reads its text"),
        ("classify", {"text": "x"}, "the input must be text, not "),
        ("read", "x", "a question must be"),
        ("read", {"document": "a b", "query": "a"}, "there is no blank in the query"),
        ("read", {"document": 3, "query": "XXXXX"}, '"document" cannot be 3'),
        ("nobody", "x", "there is no model 'nobody' that predicts; there are tag, classify, read, regress, "),
        ("regress", {"inputs": [[1, "x"]]}, "a series must be a list of steps"),
        ("regress", [[[1.0]]], "a series must be "),
        ("caption", {"image": "/etc/passwd"}, "an image must be "),
        ("caption", {"image": "data:image/png,x"}, "an image must be "),
        ("caption", {"image": "data:image/png;base64,%"}, "not valid base64"),
        ("caption", {"image": data_url(b"GIF89a")}, "cannot be read as an image"),
        ("caption", {"image": data_url(b"Dear Sir,")}, "unknown format"),
        ("caption", {"image": data_url(make_image("npy")[:-1])}, "cannot be read as an array of numbers"),
        ("caption", {"image": data_url(make_image("npy") + b"12")}, "the image has 2 bytes behind the array"),
        ("caption", {"image": data_url(b"\x93NUMPY\x01\x00\x00")}, "cannot be read as an array"),
        ("tag", None, "missing q parameter"),
        ("tag", "x" * 1_000_000, "exceeds text limit"),
        ("tag", [[[[[["x"]]]]]], "for each word this model reads its text"),
    ],
)
def test_invalid_inputs_are_refused_with_a_reason(model: str, q: Any, message: str, server: Client) -> None:
    assert message in predict(server, q, 400, model=model)["error"]


def test_unusual_texts_are_answered(server: Client) -> None:
    for text in ("", " ", "\x00", "\ud800", "<b>x</b>", "ab " * 500, "\u202e x"):
        for model in ("classify", "tag"):
            body = json.dumps({"q": [text], "model": model})  # escaped, because a lone surrogate cannot be encoded
            answer = server.http.post("/v1/predict", content=body, headers={"Content-Type": "application/json"})
            assert len(answer.json()["predictions"]) == 1, answer.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["document", "query", "x"]), inner),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(q=json_values, model=st.sampled_from([*RECIPES, ""]))
def test_random_inputs_are_answered_or_refused(q: Any, model: str, server: Client) -> None:
    answer = server.http.post("/v1/predict", json={"q": q, "model": model})
    assert answer.status_code in (200, 400), answer.text


def test_prediction_page_comes_first_without_translation_models(runs: dict[str, Run]) -> None:
    async def ask(client: httpx.AsyncClient) -> tuple[str, Any, Any, Any]:
        page = (await client.get("/")).text
        settings = (await client.get("/frontend/settings")).json()
        refused = await client.post("/translate", json={"q": "x", "source": "en", "target": "de"})
        return page, settings, refused, (await client.get("/languages")).json()

    page, settings, refused, languages = ask_in_process(runs["tag"].folder, Settings(), ask)
    assert "regard: Ask" in page
    assert settings["language"]["source"]["code"] == "auto"
    assert (refused.status_code, languages) == (400, [])


def test_predict_is_refused_without_predictors(fluent_run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/predict", json={"q": "x"})

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert (answer.status_code, answer.json()["error"][:24]) == (400, "nothing is served here t")


def test_unknown_task_of_a_run_is_reported(runs: dict[str, Run], regard: Command, tmp_path: Path) -> None:
    shutil.copytree(runs["tag"].folder, tmp_path / "odd")
    config = tmp_path / "odd" / "config.yaml"
    config.write_text(
        re.sub("^task: tag", "task: tagg", config.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8"
    )
    done = regard("serve", "odd", "--port", 0)
    assert (done.returncode, "there is no task 'tagg'" in done.stderr) == (2, True)


def test_glossary_is_refused_without_translation_models(runs: dict[str, Run], regard: Command, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("a\tb\n", encoding="utf-8")
    done = regard("serve", runs["tag"].folder, "--glossary", "terms.tsv", "--port", 0)
    assert done.returncode == 2
    assert "no run that is served translates" in done.stderr


@pytest.fixture(scope="module")
def browser_page(server: Client) -> Iterator[Page]:
    """Open the prediction page once; every test selects a model, which clears the page."""
    with launch_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: (
                errors.append(message.text) if message.type == "error" and BAD_REQUEST not in message.text else None
            ),
        )
        page.goto(f"{server.url}/ask")
        yield page
    assert not errors


@pytest.fixture
def page(browser_page: Page, server: Client) -> Page:
    """Return the prediction page, whichever page the test before has left open."""
    if browser_page.url != f"{server.url}/ask":
        browser_page.goto(f"{server.url}/ask")
    return browser_page


def test_page_shows_tags_under_their_words(page: Page) -> None:
    page.locator("#model").select_option("tag")
    page.get_by_label("Sentence, its words").fill("the old dog")
    words = page.get_by_role("list", name="Words and their tags").get_by_role("listitem")
    expect(words).to_have_count(3)
    expect(words.nth(2)).to_have_text(re.compile(r"^dog\S+$"))


def test_page_shades_sentences_and_words_by_attention(page: Page) -> None:
    page.locator("#model").select_option("classify")
    page.get_by_label("Text").fill("<b>A good film.</b> The end is weak.")
    expect(page.get_by_role("list", name="How likely each is").get_by_role("listitem").first).to_contain_text("%")
    rows = page.locator(".attended dd")
    expect(rows).to_have_count(2)
    expect(page.locator(".attended dt").nth(1)).to_have_text("2")
    shades = page.locator(".attended .word").evaluate_all(
        "each => each.map((one) => one.style.getPropertyValue('--w'))"
    )
    assert max(map(float, shades)) == 1.0
    assert page.locator(".answer b").count() == 0, "input is shown as text, not as HTML"


def test_page_ranks_the_candidates(page: Page) -> None:
    page.locator("#model").select_option("read")
    page.get_by_label("Text", exact=True).fill(STORY)
    page.get_by_label("Sentence with a blank").fill("Anna sent XXXXX to Rome .")
    page.get_by_label("Candidates").fill("lamps, keys")
    expect(page.get_by_role("list", name="How likely each is").get_by_role("listitem")).to_have_count(2)
    expect(page.locator(".verdict")).to_have_text(re.compile("^(lamps|keys)$"))
    expect(page.locator(".attended dt").last).to_have_text("query")


def test_page_draws_a_regression_over_time(page: Page) -> None:
    page.locator("#model").select_option("regress")
    page.get_by_label("Numbers, a line for each step").fill("0.1\n0.5\n-0.3\n")
    expect(page.locator("#answer .curve")).to_have_count(1)


def test_page_lights_attended_image_regions(page: Page) -> None:
    page.locator("#model").select_option("caption")
    page.get_by_label("Picture").set_input_files(IMAGE)
    pictures = page.get_by_role("list", name="The picture, word by word").get_by_role("img")
    expect(pictures.first).to_be_visible()
    cells = pictures.first.locator("rect").evaluate_all("each => each.map((one) => one.getAttribute('fill-opacity'))")
    assert min(map(float, cells)) == 0.0, "the most attended region is not darkened"
    expect(pictures.first.locator("image")).to_have_attribute("href", re.compile("^data:image/png"))


def test_page_places_attention_on_a_cropped_image(page: Page) -> None:
    def crop(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        body["predictions"][0]["seen"] = [0.25, 0.0, 0.75, 1.0]  # the middle of a wide photo
        route.fulfill(response=answer, json=body)

    page.route("**/predict", crop)
    page.locator("#model").select_option("tag")
    page.locator("#model").select_option("caption")
    page.get_by_label("Picture").set_input_files(IMAGE | {"name": "b.png"})
    picture = page.get_by_role("list", name="The picture, word by word").get_by_role("img").first
    expect(picture.locator("image")).to_have_attribute("x", re.compile("^-"))
    page.unroute("**/predict")
    _, _, across, down = map(float, str(picture.get_attribute("viewBox")).split())
    laid = {name: float(str(picture.locator("image").get_attribute(name))) for name in ("x", "y", "width", "height")}
    assert laid == {"x": -across / 2, "y": 0, "width": 2 * across, "height": down}


def test_page_shows_the_parameter_count(page: Page, server: Client) -> None:
    page.locator("#model").select_option("tag")
    listed = {one["name"]: one for one in server.http.get("/v1/predictors").json()["predictors"]}
    expect(page.locator("#facts")).to_contain_text(f"{listed['tag']['parameters']:,} parameters")


def test_image_may_be_a_numpy_array(server: Client) -> None:
    [array] = predict(server, {"image": data_url(make_image("npy"))}, model="caption")["predictions"]
    [image] = predict(server, INPUTS["caption"], model="caption")["predictions"]
    assert array["text"] == image["text"]


def test_page_reports_invalid_input(page: Page) -> None:
    page.locator("#model").select_option("read")
    page.get_by_label("Text", exact=True).fill(STORY)
    page.get_by_label("Sentence with a blank").fill("Anna sent nothing")
    expect(page.get_by_role("alert")).to_contain_text("no blank in the query")
    page.get_by_label("Sentence with a blank").fill("Anna sent XXXXX")
    expect(page.get_by_role("alert")).to_be_empty()


@pytest.mark.slow
def test_pages_link_to_each_other(page: Page, server: Client) -> None:
    page.get_by_role("link", name="Translate").click()
    expect(page.get_by_label("Text to translate")).to_be_visible()
    page.get_by_role("link", name="Ask").click()
    expect(page.locator("#model")).to_be_visible()
    assert page.url == f"{server.url}/ask"
