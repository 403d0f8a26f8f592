"""Models that do something else than translate, as they are served: over HTTP and on their page."""

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
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from support.commands import Command
from support.server import Server, ask_in_process, start_server

from regard.api import load
from regard.recipes import read
from regard.runs import Run
from regard.serve.settings import Settings
from regard.tasks import TASKS
from regard.training import train

CHROMIUM = shutil.which("chromium")
RECIPES = {
    "tag": "schuster1997",
    "classify": "yang2016",
    "read": "cui2017",
    "regress": "schuster1997-regression",
    "caption": "xu2015-soft-caption",
}
FEW: dict[str, Any] = {
    "training.steps": 12,
    "training.validate_every": 12,
    "training.checkpoint_every": 12,
    "training.warmup": 0,
    "training.device": "cpu",
}
REFUSED = "400 (Bad Request)"  # which a browser notes, too


def drawn(form: str) -> bytes:
    """A picture in bytes."""
    pixels = np.random.default_rng(1).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    if form == "npy":
        np.save(file, pixels)
    else:
        Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def address(content: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


STORY = "Anna sent lamps to Rome .\nBen took keys to Oslo ."
QUESTIONS: dict[str, Any] = {
    "tag": "the old dog sees a house",
    "classify": "A film that nobody should miss. The end is rather weak.",
    "read": {"document": STORY, "query": "Anna sent XXXXX to Rome .", "candidates": ["lamps", "keys"]},
    "regress": {"inputs": [[0.1], [0.5], [-0.3]]},
    "caption": {"image": address(drawn("PNG"), "image/png")},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run for each task, which has learnt next to nothing."""
    made = {}
    for task, recipe in RECIPES.items():
        folder = tmp_path_factory.mktemp(task)
        embedded = TASKS[task].embedded
        assert embedded is not None
        corpus = embedded(folder / "data")
        changes = {**corpus.fitting(read(recipe)), **FEW}
        made[task] = train(recipe, corpus.train, folder / task, dev=corpus.dev, **changes)
    return made


@pytest.fixture(scope="module")
def server(runs: dict[str, Run], fluent_run: Run) -> Iterator[Server]:
    with start_server(fluent_run.folder, *(run.folder for run in runs.values())) as server:
        yield server


def predicted(server: Server, q: Any, status: int = 200, **fields: Any) -> Any:
    return server.ask("/v1/predict", status, q=q, **fields)


def test_all_are_listed_beside_the_translators(server: Server) -> None:
    listed = httpx.get(f"{server.url}/v1/predictors").json()["predictors"]
    assert [(one["name"], one["task"], one["recipe"]) for one in listed] == [
        (task, task, recipe) for task, recipe in RECIPES.items()
    ]
    assert all(one["parameters"] > 0 and one["finished"] for one in listed)
    assert [one["name"] for one in httpx.get(f"{server.url}/v1/models").json()["models"]] == ["able"]


@pytest.mark.parametrize("task", RECIPES)
def test_the_answer_is_that_of_the_command_line(task: str, server: Server, runs: dict[str, Run]) -> None:
    asked = QUESTIONS[task]
    [found] = predicted(server, asked, model=task)["predictions"]
    predictor = TASKS[task].load(runs[task].folder)
    [made] = predictor.predict([predictor.asked(asked)])
    assert found["text"] == made.line()
    looks = found.pop("looks")
    assert [(line["label"], line["words"]) for line in looks] == [
        (line.label, list(line.words)) for line in made.looks()
    ]
    assert bool(looks) == (task in ("classify", "read", "caption")), "the others have no attention"
    for line, of in zip(looks, made.looks(), strict=True):
        assert line["weights"] == pytest.approx(list(of.weights), abs=1e-3)
    assert json.loads(json.dumps(made.document())).keys() <= found.keys()


def test_what_is_loaded_is_called_by_what_it_does(runs: dict[str, Run]) -> None:
    called = {task: type(load(run.folder)).__name__ for task, run in runs.items()}
    assert called == {
        "tag": "Tagger",
        "classify": "Classifier",
        "read": "Reader",
        "regress": "Follower",
        "caption": "Captioner",
    }


def test_several_are_answered_in_their_order(server: Server) -> None:
    texts = ["a good film .", "a bad film that nobody likes .", "the end"]
    several = predicted(server, texts, model="classify")
    assert (several["task"], len(several["predictions"])) == ("classify", 3)
    for text, found in zip(texts, several["predictions"], strict=True):
        [alone] = predicted(server, text, model="classify")["predictions"]
        assert alone["label"] == found["label"]
        assert alone["probability"] == pytest.approx(found["probability"], abs=1e-4)


@pytest.mark.parametrize(
    ("model", "q", "said"),
    [
        ("tag", 7, "a sentence is text or a list of words, not 7"),
        ("tag", [[3]], "of a word this model reads its text"),
        ("classify", {"text": "x"}, "what is classified is text, not "),
        ("read", "x", "a question is"),
        ("read", {"document": "a b", "query": "a"}, "there is no blank in the query"),
        ("read", {"document": 3, "query": "XXXXX"}, '"document" cannot be 3'),
        ("nobody", "x", "there is no model 'nobody' that predicts; there are tag, classify, read, regress, "),
        ("regress", {"inputs": [[1, "x"]]}, "a series is a list of steps"),
        ("regress", [[[1.0]]], "a series is "),
        ("caption", {"image": "/etc/passwd"}, "a picture is "),
        ("caption", {"image": "data:image/png,x"}, "a picture is "),
        ("caption", {"image": "data:image/png;base64,%"}, "no base64"),
        ("caption", {"image": address(b"GIF89a")}, "cannot be read as an image"),
        ("caption", {"image": address(b"Dear Sir,")}, "it is of no kind that is known"),
        ("caption", {"image": address(drawn("npy")[:-1])}, "is not the array of"),
        ("caption", {"image": address(b"\x93NUMPY\x01\x00\x00")}, "cannot be read as an array"),
        ("tag", None, "missing q parameter"),
        ("tag", "x" * 1_000_000, "exceeds text limit"),
        ("tag", [[[[[["x"]]]]]], "nested too deeply"),
    ],
)
def test_what_cannot_be_asked(model: str, q: Any, said: str, server: Server) -> None:
    assert said in predicted(server, q, 400, model=model)["error"]


def test_odd_text_is_answered(server: Server) -> None:
    for text in ("", " ", "\x00", "\ud800", "<b>x</b>", "ab " * 500, "\u202e x"):
        for model in ("classify", "tag"):
            body = json.dumps({"q": [text], "model": model})  # in ASCII: half a character has no other writing
            answer = httpx.post(f"{server.url}/v1/predict", content=body, headers={"Content-Type": "application/json"})
            assert len(answer.json()["predictions"]) == 1, answer.text


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["document", "query", "x"]), inner),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(q=anything, model=st.sampled_from([*RECIPES, ""]))
def test_whatever_is_asked_is_answered_or_refused(q: Any, model: str, server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/predict", json={"q": q, "model": model}, timeout=60)
    assert answer.status_code in (200, 400), answer.text


def test_without_translators_the_first_page_is_the_one_that_asks(runs: dict[str, Run]) -> None:
    async def look(client: httpx.AsyncClient) -> tuple[str, Any, Any, Any]:
        page = (await client.get("/")).text
        settings = (await client.get("/frontend/settings")).json()
        refused = await client.post("/translate", json={"q": "x", "source": "en", "target": "de"})
        return page, settings, refused, (await client.get("/languages")).json()

    page, settings, refused, languages = ask_in_process(runs["tag"].folder, Settings(), look)
    assert "regard: Ask" in page
    assert settings["language"]["source"]["code"] == "auto"
    assert (refused.status_code, languages) == (400, [])


def test_a_service_of_translators_says_that_it_does_nothing_else(fluent_run: Run) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/predict", json={"q": "x"})

    answer = ask_in_process(fluent_run.folder, Settings(), ask)
    assert (answer.status_code, answer.json()["error"][:24]) == (400, "nothing is served here t")


def test_a_task_that_nobody_knows_is_named(runs: dict[str, Run], regard: Command, tmp_path: Path) -> None:
    shutil.copytree(runs["tag"].folder, tmp_path / "odd")
    config = tmp_path / "odd" / "config.yaml"
    config.write_text(
        re.sub("^task: tag", "task: tagg", config.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8"
    )
    done = regard("serve", "odd", "--port", 0)
    assert (done.returncode, "there is no task 'tagg'" in done.stderr) == (2, True)


def test_a_glossary_needs_somebody_who_translates(runs: dict[str, Run], regard: Command, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("a\tb\n", encoding="utf-8")
    done = regard("serve", runs["tag"].folder, "--glossary", "terms.tsv", "--port", 0)
    assert done.returncode == 2
    assert "no run that is served translates" in done.stderr


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    expect.set_options(timeout=30_000)
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda told: faults.append(told.text) if told.type == "error" and REFUSED not in told.text else None,
        )
        page.goto(f"{server.url}/ask")
        yield page
        browser.close()
    assert not faults


def test_words_stand_above_their_tags(page: Page) -> None:
    page.locator("#model").select_option("tag")
    page.get_by_label("Sentence, its words").fill("the old dog")
    words = page.get_by_role("list", name="Words and their tags").get_by_role("listitem")
    expect(words).to_have_count(3)
    expect(words.nth(2)).to_have_text(re.compile(r"^dog\S+$"))


def test_sentences_and_words_are_shaded(page: Page) -> None:
    page.locator("#model").select_option("classify")
    page.get_by_label("Text").fill("<b>A good film.</b> The end is weak.")
    expect(page.get_by_role("list", name="How likely each is").get_by_role("listitem").first).to_contain_text("%")
    rows = page.locator(".looks dd")
    expect(rows).to_have_count(2)
    expect(page.locator(".looks dt").nth(1)).to_have_text("2")
    shades = page.locator(".looks .word").evaluate_all("each => each.map((one) => one.style.getPropertyValue('--w'))")
    assert max(map(float, shades)) == 1.0
    assert page.locator(".answer b").count() == 0, "what somebody typed is text, and nothing else"


def test_candidates_are_ranked(page: Page) -> None:
    page.locator("#model").select_option("read")
    page.get_by_label("Text", exact=True).fill(STORY)
    page.get_by_label("Sentence with a blank").fill("Anna sent XXXXX to Rome .")
    page.get_by_label("Candidates").fill("lamps, keys")
    expect(page.get_by_role("list", name="How likely each is").get_by_role("listitem")).to_have_count(2)
    expect(page.locator(".verdict")).to_have_text(re.compile("^(lamps|keys)$"))
    expect(page.locator(".looks dt").last).to_have_text("query")


def test_numbers_are_drawn_over_time(page: Page) -> None:
    page.locator("#model").select_option("regress")
    page.get_by_label("Numbers, a line for each step").fill("0.1\n0.5\n-0.3\n")
    expect(page.locator("#answer .curve")).to_have_count(1)


def test_the_picture_is_lit_where_the_model_looked(page: Page) -> None:
    page.locator("#model").select_option("caption")
    page.get_by_label("Picture").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": drawn("PNG")})
    pictures = page.get_by_role("list", name="The picture, word by word").get_by_role("img")
    expect(pictures.first).to_be_visible()
    cells = pictures.first.locator("rect").evaluate_all("each => each.map((one) => one.getAttribute('fill-opacity'))")
    assert min(map(float, cells)) == 0.0, "where it looked most nothing is dark"
    expect(pictures.first.locator("image")).to_have_attribute("href", re.compile("^data:image/png"))


def test_of_a_picture_that_is_not_seen_whole_the_part_is_lit_that_is(page: Page) -> None:
    def cut(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        told["predictions"][0]["seen"] = [0.25, 0.0, 0.75, 1.0]  # as of a wide photo, for a network that reads squares
        route.fulfill(response=answer, json=told)

    page.route("**/predict", cut)
    page.locator("#model").select_option("tag")
    page.locator("#model").select_option("caption")
    page.get_by_label("Picture").set_input_files({"name": "b.png", "mimeType": "image/png", "buffer": drawn("PNG")})
    picture = page.get_by_role("list", name="The picture, word by word").get_by_role("img").first
    expect(picture.locator("image")).to_have_attribute("x", re.compile("^-"))
    page.unroute("**/predict")
    _, _, across, down = map(float, str(picture.get_attribute("viewBox")).split())
    laid = {name: float(str(picture.locator("image").get_attribute(name))) for name in ("x", "y", "width", "height")}
    assert laid == {"x": -across / 2, "y": 0, "width": 2 * across, "height": down}


def test_a_small_model_has_its_parameters_counted(page: Page, server: Server) -> None:
    page.locator("#model").select_option("tag")
    listed = {one["name"]: one for one in httpx.get(f"{server.url}/v1/predictors").json()["predictors"]}
    expect(page.locator("#facts")).to_contain_text(f"{listed['tag']['parameters']:,} parameters")


def test_a_picture_may_be_an_array(server: Server) -> None:
    [array] = predicted(server, {"image": address(drawn("npy"))}, model="caption")["predictions"]
    [image] = predicted(server, QUESTIONS["caption"], model="caption")["predictions"]
    assert array["text"] == image["text"]


def test_a_mistake_is_said(page: Page) -> None:
    page.locator("#model").select_option("read")
    page.get_by_label("Text", exact=True).fill(STORY)
    page.get_by_label("Sentence with a blank").fill("Anna sent nothing")
    expect(page.get_by_role("alert")).to_contain_text("no blank in the query")
    page.get_by_label("Sentence with a blank").fill("Anna sent XXXXX")
    expect(page.get_by_role("alert")).to_be_empty()


def test_the_pages_lead_to_one_another(page: Page, server: Server) -> None:
    page.get_by_role("link", name="Translate").click()
    expect(page.get_by_label("Text to translate")).to_be_visible()
    page.get_by_role("link", name="Ask").click()
    expect(page.locator("#model")).to_be_visible()
    assert page.url == f"{server.url}/ask"
