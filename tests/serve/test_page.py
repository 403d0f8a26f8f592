"""The web page in Chromium, against a server with small models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, Route, expect
from support.browser import TIMEOUT_MS, launch_browser
from support.server import Client, serve_in_thread
from support.training import train_tiny

from regard.runs import Run
from regard.tokenizers.segmentation import needs_space, split_words

SENTENCE = "At night our mother does not call a colleague ."
LIMIT = 300
# Trained until they produce words and prefer one source word to another.
LONGER: dict[str, Any] = {"model.size": 32, "training.validate_every": 50, "training.checkpoint_every": 100}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": (
        "vaswani2017-base",
        {"model.heads": 2, "model.layers": 2, "training.steps": 100, "training.learning_rate": 0.003},
    ),
    "plain": ("sutskever2014", {"training.steps": 100}),
}
VIEWS = {"attention": ".matrix", "steps": ".stages", "compare": ".differences", "training": ".curve"}
TRANSLATED = "#answer[aria-busy=false]:not(.stale) #translation:not(:empty)"
MARKUP = "<img src=x onerror=alert(1)>"
VIOLATIONS = "addEventListener('securitypolicyviolation', (event) => console.error(`CSP: ${event.violatedDirective}`))"
PAINT = "(cell, [ink, paper]) => { cell.style.color = `var(${ink})`; cell.style.background = `var(${paper})` }"
Visit = Callable[..., Page]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def bahdanau(fluent_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(fluent_run.folder, tmp_path_factory.mktemp("served") / "bahdanau")


@pytest.fixture(scope="module")
def server(bahdanau: Path) -> Iterator[Client]:
    """Serve a recurrent model, the same under a second name, and the same for the reverse direction."""
    twin = shutil.copytree(bahdanau, bahdanau.parent / "twin")
    with serve_in_thread(bahdanau, twin, f"{bahdanau}=de-en", char_limit=LIMIT) as server:
        yield server


@pytest.fixture(scope="module")
def server_of_all(bahdanau: Path, corpus: Path) -> Iterator[Client]:
    """Serve a recurrent model with attention, a Transformer, a model without attention, and the reverse direction."""
    runs = [
        train_tiny(recipe, corpus, bahdanau.parent / name, **{**LONGER, **changes}).folder
        for name, (recipe, changes) in MODELS.items()
    ]
    with serve_in_thread(bahdanau, *runs, f"{bahdanau}=de-en", char_limit=LIMIT) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, server: Client) -> Iterator[Visit]:
    with collect_errors(browser, server.url) as visit:
        yield visit


@pytest.fixture
def visit_all(browser: Browser, server_of_all: Client) -> Iterator[Visit]:
    with collect_errors(browser, server_of_all.url) as visit:
        yield visit


@contextmanager
def collect_errors(browser: Browser, address: str) -> Iterator[Visit]:
    """Give a function that opens the page; afterwards check that there were no errors and no requests elsewhere."""
    errors: list[str] = []
    requested: list[str] = []
    contexts = []

    def visit(
        view: str = "attention",
        prepare: Callable[[Page], object] = lambda page: None,
        shown: bool = True,
        **options: Any,
    ) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.add_init_script(VIOLATIONS)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requested.append(request.url))
        prepare(page)
        page.goto(f"{address}/#{view}")
        if shown:
            expect(page.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
        return page

    yield visit
    for context in contexts:
        context.close()
    # Chromium logs every answer with an error status, which some tests expect.
    assert [text for text in errors if not text.startswith("Failed to load resource")] == []
    assert {url for url in requested if not url.startswith(f"{address}/")} == set()


@pytest.fixture
def ask(server: Client) -> Ask:
    return partial(ask_api, server)


@pytest.fixture
def ask_all(server_of_all: Client) -> Ask:
    return partial(ask_api, server_of_all)


def ask_api(server: Client, path: str, **body: Any) -> Any:
    """Ask the API directly: GET without fields, else POST."""
    return server.ask(f"/{path}", **body) if body else server.http.get(f"/{path}").json()


def translate_on(page: Page, text: str = SENTENCE, model: str = "bahdanau") -> None:
    """Type a text and wait for its translation."""
    page.select_option("#model", model)
    page.fill("#text", text)
    expect(page.locator(TRANSLATED)).to_be_visible()


def locate_words(page: Page, side: str) -> Locator:
    return page.get_by_role("group", name=side, exact=True).locator(".word")


def read_weights(elements: Locator) -> list[float]:
    found: list[float] = elements.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--w') || 0))")
    return found


def patch_answers(page: Page, path: str, patch: Callable[[Any], Any]) -> None:
    """Change the JSON answers of a path."""

    def handle(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=json.dumps(patch(answer.json())))

    page.route(path, handle)


def change_settings(page: Page, changes: dict[str, Any]) -> None:
    """Change the settings that the page gets from the server."""
    patch_answers(page, "**/frontend/settings", lambda settings: settings | changes)


def ask_with_alignment(ask: Ask, model: str = "bahdanau") -> Any:
    """Ask the API for the translation of the sentence, its alternatives and alignment."""
    return ask("translate", q=SENTENCE, source="en", target="de", alignment=True, alternatives=3, model=model)


def test_typed_text_is_translated(visit: Visit, ask: Ask) -> None:
    page = visit()
    page.locator("#text").press_sequentially(SENTENCE)
    answer = ask_with_alignment(ask)
    expect(page.locator(TRANSLATED)).to_have_text(answer["translatedText"])
    assert page.locator("#alternatives li").all_text_contents() == answer["alternatives"]
    expect(page.locator("#count")).to_have_text(f"{len(SENTENCE)} / {LIMIT} characters")
    page.click("#clear")
    expect(page.locator("#translation")).to_have_text("")


def test_hovering_a_target_word_shades_attended_source_words(visit: Visit, ask: Ask) -> None:
    page = visit()
    translate_on(page)
    alignment = ask_with_alignment(ask)["alignment"]
    assert locate_words(page, "Source").all_text_contents() == alignment["source"]
    assert locate_words(page, "Translation").all_text_contents() == alignment["target"]
    for index, weights in enumerate(alignment["weights"]):
        locate_words(page, "Translation").nth(index).hover()
        assert read_weights(locate_words(page, "Source")) == weights
        assert read_weights(locate_words(page, "Translation")) == [0] * len(alignment["target"])
    strongest = max(range(len(weights)), key=weights.__getitem__)
    figure = locate_words(page, "Source").nth(strongest).get_attribute("data-weight")
    assert figure == f"{100 * weights[strongest]:.0f}", "the weight is not shown by colour alone"
    page.mouse.move(0, 0)
    assert not any(read_weights(locate_words(page, "Source")))


@pytest.mark.slow
def test_hovering_a_source_word_shades_attending_target_words(visit: Visit, ask: Ask) -> None:
    page = visit()
    translate_on(page)
    weights = ask_with_alignment(ask)["alignment"]["weights"]
    for index in range(len(weights[0])):
        locate_words(page, "Source").nth(index).hover()
        assert read_weights(locate_words(page, "Translation")) == [row[index] for row in weights]


@pytest.mark.slow
def test_arrow_keys_move_between_words_and_lines(visit: Visit, ask: Ask) -> None:
    page = visit()
    translate_on(page)
    weights = ask_with_alignment(ask)["alignment"]["weights"]
    line = locate_words(page, "Translation")
    line.first.focus()
    page.keyboard.press("ArrowRight")
    expect(line.nth(1)).to_be_focused()
    assert read_weights(locate_words(page, "Source")) == weights[1]
    page.keyboard.press("ArrowUp")
    strongest = max(range(len(weights[1])), key=weights[1].__getitem__)
    expect(locate_words(page, "Source").nth(strongest)).to_be_focused()
    assert read_weights(line) == [row[strongest] for row in weights]
    page.keyboard.press("End")
    expect(locate_words(page, "Source").last).to_be_focused()
    page.keyboard.press("Tab")
    expect(line.nth(1)).to_be_focused()


def test_attention_matrix_has_a_cell_for_each_word_pair(visit: Visit, ask: Ask) -> None:
    page = visit()
    translate_on(page)
    alignment = ask_with_alignment(ask)["alignment"]
    matrix = page.locator("#attention table.matrix")
    assert matrix.locator("thead th").all_text_contents() == ["Translation", *alignment["source"]]
    assert matrix.locator("tbody th").all_text_contents() == alignment["target"]
    assert read_weights(matrix.locator("tbody td")) == [weight for row in alignment["weights"] for weight in row]
    cell = matrix.locator("tbody").get_by_role("gridcell").nth(2)
    weight = alignment["weights"][0][2]
    name = f"{alignment['target'][0]} attends to {alignment['source'][2]}: {int(100 * weight + 0.5)} %"
    expect(cell).to_have_accessible_name(name)


@pytest.mark.slow
def test_attention_matrix_shows_tokens_and_single_heads(visit_all: Visit, ask_all: Ask) -> None:
    page = visit_all()
    translate_on(page, model="transformer")
    tokens = ask_with_alignment(ask_all, "transformer")["alignment"]["tokens"]
    matrix = page.locator("#attention table.matrix")
    page.get_by_label("Rows and columns").select_option("tokens")
    assert matrix.locator("thead th").all_text_contents() == ["Translation", *tokens["source"]]
    assert read_weights(matrix.locator("tbody td")) == [weight for row in tokens["weights"] for weight in row]
    trace = ask_all("v1/trace", q=SENTENCE, model="transformer", beam=5)
    heads = page.get_by_label("Attention head").locator("option").all_text_contents()[1:]
    assert heads == list(trace["steps"][0]["heads"]) == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    for head in heads:
        page.get_by_label("Attention head").select_option(head)
        expect(matrix.locator("caption")).to_contain_text(head)
        assert read_weights(matrix.locator("tbody td")) == [
            weight for step in trace["steps"] for weight in step["heads"][head]
        ]


@pytest.mark.slow
def test_arabic_runs_from_right_to_left_and_japanese_heads_are_upright(browser: Browser, bahdanau: Path) -> None:
    def left_edges(elements: Locator) -> list[float]:
        edges: list[float] = elements.evaluate_all("all => all.map(one => one.getBoundingClientRect().x)")
        assert len(edges) > 2
        return edges

    models = (f"{bahdanau}=ar-en", f"{bahdanau}=ja-en")
    with serve_in_thread(*models) as server, collect_errors(browser, server.url) as visit:
        page = visit()
        page.select_option("#source", "ar")
        page.fill("#text", "البيت القديم في الحديقة الجميلة .")
        expect(page.locator(TRANSLATED)).to_be_visible()
        expect(page.locator("#text")).to_have_css("direction", "rtl")
        expect(page.locator("#translation")).to_have_css("direction", "ltr")
        expect(page.locator("#text")).to_have_attribute("lang", "ar")
        words, matrix = locate_words(page, "Source"), page.locator("#attention table.matrix")
        for elements in (words, matrix.locator("thead th"), matrix.locator("tbody tr").first.locator("td")):
            assert left_edges(elements) == sorted(left_edges(elements), reverse=True)
        target = left_edges(locate_words(page, "Translation"))
        assert target == sorted(target)
        words.first.focus()
        page.keyboard.press("ArrowLeft")
        expect(words.nth(1)).to_be_focused()
        matrix.locator("td").first.focus()
        page.keyboard.press("ArrowLeft")
        expect(matrix.locator("td").nth(1)).to_be_focused()
        expect(page.locator(".readout")).to_contain_text("attends to \u2068القديم\u2069")
        # The small model has no Arabic tokens of its own.
        patch_answers(page, "**/v1/trace", lambda trace: {**trace, "source": ["▁بيت"] * len(trace["source"])})
        page.click("#tab-steps")
        bars = page.locator("#steps .bars li")
        expect(bars.first).to_be_visible()
        assert left_edges(bars) == sorted(left_edges(bars), reverse=True)

        page.select_option("#source", "ja")
        page.fill("#text", "古い家は美しい庭にあります。")
        page.click("#tab-attention")
        expect(matrix.locator("thead th[lang=ja]").first).to_be_visible()
        expect(page.get_by_role("group", name="Source", exact=True)).to_have_attribute("dir", "ltr")
        head = matrix.locator("thead th[lang=ja] span").first
        expect(head).to_have_css("rotate", "none")
        expect(head).to_have_css("text-orientation", "mixed")


@pytest.mark.slow
def test_matrix_cell_highlights_both_words(visit: Visit, ask: Ask) -> None:
    page = visit()
    translate_on(page)
    alignment = ask_with_alignment(ask)["alignment"]
    cells = page.locator("#attention table.matrix tbody tr").first.locator("td")
    cells.nth(1).hover()
    expect(locate_words(page, "Source").nth(1)).to_have_class("word pointed")
    expect(locate_words(page, "Translation").nth(0)).to_have_class("word pointed")
    expect(page.locator(".readout")).to_contain_text(f"{alignment['target'][0]} attends to {alignment['source'][1]}")
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(cells.nth(2)).to_be_focused()
    expect(locate_words(page, "Source").nth(2)).to_have_class("word pointed")


def test_steps_view_shows_attention_candidates_and_beam(visit: Visit, ask: Ask) -> None:
    page = visit("steps")
    translate_on(page, model="bahdanau")
    trace = ask("v1/trace", q=SENTENCE, model="bahdanau", beam=5)
    steps = page.locator("#steps")

    def check_step(number: int) -> None:
        step = trace["steps"][number]
        expect(steps.locator(".step-count")).to_have_text(
            f"Step {number + 1} of {len(trace['steps'])}: {step['token']}"
        )
        assert read_weights(steps.locator(".bars li")) == step["weights"]
        assert read_weights(steps.locator(".candidates .chance")) == [one["probability"] for one in step["candidates"]]
        hypotheses = steps.locator(".beam tbody tr td:nth-child(2)").all_text_contents()
        assert hypotheses == [one["text"] or "–" for one in step["beam"]]
        chances = steps.locator(".beam tbody tr td:nth-child(4)").all_text_contents()
        assert [float(text.replace("−", "-")) for text in chances] == pytest.approx(
            [one["log_prob"] for one in step["beam"]], abs=0.006
        )

    check_step(0)
    steps.get_by_role("button", name="Next").click()
    check_step(1)
    page.keyboard.press("ArrowRight")
    check_step(2)
    page.keyboard.press("ArrowLeft")
    check_step(1)
    steps.get_by_role("slider").press("End")
    check_step(len(trace["steps"]) - 1)
    expect(steps.get_by_role("button", name="Next")).to_be_disabled()
    steps.get_by_role("button", name="Back").click()
    check_step(len(trace["steps"]) - 2)
    steps.get_by_role("combobox", name="Beam").select_option("2")
    expect(steps.locator(".beam tbody tr")).to_have_count(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "drawn", "order"),
    [
        ("bahdanau", ["ht−1", "at", "ct", "ht", "yt"], ["ht−1", "at", "ct", "ht", "yt"]),
        ("transformer", ["at", "ct", "yt"], ["qt", "at", "ct", "ht", "yt"]),
        ("plain", ["ht", "yt"], ["ht", "yt"]),
    ],
)
def test_steps_view_draws_the_computation_order_of_the_model(
    visit_all: Visit, model: str, drawn: list[str], order: list[str]
) -> None:
    page = visit_all("steps")
    translate_on(page, model=model)
    steps = page.locator("#steps")
    expect(steps.locator(".step-count")).to_contain_text("Step 1 of")
    symbols = steps.locator(".stage .symbol")
    assert symbols.all_text_contents() == drawn, "stages without values are not drawn"
    assert symbols.locator("sub").first.text_content() == drawn[0][1:]
    steps.get_by_text("What the symbols mean").click()
    assert steps.locator("dt .symbol").all_text_contents() == order
    assert all(text.strip() for text in steps.locator("dd").all_text_contents())
    if len(drawn) < len(order):
        steps.get_by_role("button", name="Next").click()
        expect(steps.locator("dt").first).to_be_visible()


@pytest.mark.slow
def test_steps_view_draws_the_attentional_state(visit: Visit) -> None:
    def luong(trace: Any) -> Any:
        steps = [{**step, "attentional": [0.5, -0.5, 1.0]} for step in trace["steps"]]
        return {**trace, "order": ["h_t", "a_t", "c_t", "h̃_t"], "steps": steps}

    page = visit("steps", prepare=lambda page: patch_answers(page, "**/v1/trace", luong))
    translate_on(page, model="bahdanau")
    stage = page.locator("#steps .stage[data-stage='h̃_t']")
    expect(stage).to_contain_text("attentional state")
    expect(stage.locator(".strip")).to_have_count(1)


LINES = ["our mother does not see the old house", "At night our mother does not call a colleague .", "the old house"]


@pytest.mark.slow
def test_steps_view_offers_every_line_of_a_text(visit: Visit, ask: Ask) -> None:
    page = visit("steps")
    translate_on(page, f"{LINES[0]}\n\n {LINES[1]}\n{LINES[2]}\n")
    line, count = page.get_by_label("Line"), page.locator("#steps .step-count")
    assert line.locator("option").all_text_contents() == [
        "1: our mother does not see the old house",
        "2: At night our mother does not call a coll…",
        "3: the old house",
    ]
    for number, text in enumerate(LINES):
        line.select_option(index=number)
        trace = ask("v1/trace", q=text, model="bahdanau", beam=5)
        assert trace["pieces"] == 1
        expect(page.locator("#steps .bars li")).to_have_count(len(trace["source"]))
        tokens = page.locator("#steps .bars .token").all_text_contents()
        assert tokens == trace["source"]
        expect(count).to_contain_text(f"of {len(trace['steps'])}:")
    translate_on(page, LINES[0])
    expect(line).to_be_hidden()
    expect(page.locator("#steps .bars li")).to_have_count(len(LINES[0].split()) + 1)


@pytest.mark.slow
def test_steps_view_notes_a_line_translated_in_segments(visit: Visit, ask: Ask) -> None:
    assert ask("v1/trace", q="\n".join(LINES), model="bahdanau")["pieces"] == 3
    page = visit("steps", lambda page: patch_answers(page, "**/v1/trace", lambda trace: trace | {"pieces": 4}))
    translate_on(page)
    expect(page.locator("#steps")).to_contain_text("The model takes this line in 4 pieces; this is the first.")


@pytest.mark.slow
def test_steps_view_does_not_send_a_line_that_is_too_long(visit: Visit) -> None:
    sent: list[str] = []
    page = visit("steps", lambda page: change_settings(page, {"charLimit": -1}))
    page.route("**/translate", lambda route: route.fulfill(json={"translatedText": "so long", "alignment": None}))
    page.on("request", lambda request: sent.append(request.url))
    page.fill("#text", f"{'a' * 401}\n{SENTENCE}")
    expect(page.locator("#steps .hint").first).to_have_text(
        "This line has more than 400 characters; that is too long to step through."
    )
    assert not [url for url in sent if url.endswith("/v1/trace")]
    page.get_by_label("Line").select_option(index=1)
    expect(page.locator("#steps .step-count")).to_contain_text("Step 1 of")


@pytest.mark.slow
def test_attention_head_is_shown_for_the_first_line(visit_all: Visit, ask_all: Ask) -> None:
    page = visit_all()
    translate_on(page, "\n".join(LINES), model="transformer")
    page.get_by_label("Attention head").select_option("layer 1, head 2")
    matrix = page.locator("#attention table.matrix")
    expect(matrix.locator("caption")).to_contain_text("tokens, layer 1, head 2, first line only")
    assert matrix.locator("thead th").all_text_contents()[1:-1] == LINES[0].split()


@pytest.mark.slow
def test_alternatives_keep_their_line_breaks(visit: Visit) -> None:
    page = visit()
    translate_on(page, "\n".join(LINES))
    page.get_by_text("Other translations").click()
    other = page.locator("#alternatives li").first
    assert (other.text_content() or "").count("\n") == 2
    assert other.inner_text().count("\n") == 2, "as rendered"


@pytest.mark.slow
def test_figures_do_not_overlap_their_bars(visit: Visit) -> None:
    page = visit("steps")
    translate_on(page)
    expect(page.locator("#steps .stages")).to_be_visible()
    page.click("#tab-compare")
    expect(page.locator("#compare .differences .chance").first).to_be_visible()
    for view in ("compare", "steps"):
        page.click(f"#tab-{view}")
        for cell in page.locator(f"#{view} .chance").all():
            figure, bar = (cell.locator(name).bounding_box() for name in (".figure", ".bar"))
            assert figure
            assert bar
            assert figure["x"] + figure["width"] <= bar["x"]
            text = cell.locator(".figure").evaluate(
                "one => { const range = new Range(); range.selectNodeContents(one); "
                "return range.getBoundingClientRect().right }"
            )
            assert text <= bar["x"]


@pytest.mark.slow
def test_large_matrix_scrolls_under_sticky_headers(visit: Visit) -> None:
    page = visit(viewport={"width": 1280, "height": 800})
    translate_on(page, " ".join([SENTENCE] * 6))
    box = page.locator("#attention .matrix-box .scroll")
    around = box.bounding_box()
    assert around
    assert around["height"] <= 0.86 * 800
    assert box.evaluate("box => box.scrollHeight > box.clientHeight")
    cells = page.locator("#attention .matrix td")
    cells.first.focus()
    for _ in range(200):
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    last = page.locator(":focus").bounding_box()
    top, side = (page.locator(f"#attention .matrix {one} th").last.bounding_box() for one in ("thead", "tbody"))
    around = box.bounding_box()
    assert around
    assert last
    assert top
    assert side
    assert around["y"] <= top["y"] < top["y"] + top["height"] <= last["y"] + 2
    assert around["x"] <= side["x"] < side["x"] + side["width"] <= last["x"] + 2


@pytest.mark.slow
def test_model_without_attention_shows_a_hint(visit_all: Visit) -> None:
    page = visit_all()
    translate_on(page, model="plain")
    expect(page.locator("#attention .hint")).to_contain_text("plain has no attention")
    page.click("#tab-steps")
    expect(page.locator("#steps")).to_contain_text("plain has no attention")
    expect(page.locator("#steps .strip")).to_have_count(1)


@pytest.mark.slow
def test_local_attention_window_is_marked_on_the_source(visit: Visit) -> None:
    def narrow(trace: Any) -> Any:
        return {**trace, "steps": [{**step, "window": [1, 3]} for step in trace["steps"]]}

    page = visit("steps", lambda page: patch_answers(page, "**/v1/trace", narrow))
    translate_on(page)
    expect(page.locator("#steps")).to_contain_text("a window: positions 2 to 4")
    kinds = page.locator("#steps .bars li").evaluate_all("all => all.map(one => one.className)")
    assert kinds[:5] == ["outside", "inside", "inside", "inside", "outside"]


@pytest.mark.slow
def test_compare_view_shows_both_models_and_their_differences(visit_all: Visit, ask_all: Ask) -> None:
    page = visit_all("compare")
    translate_on(page, model="transformer")
    compare = page.locator("#compare")
    compare.get_by_label("Right").select_option("plain")
    plain = compare.get_by_role("region", name="plain", exact=True)
    expect(plain).to_contain_text("plain has no attention")
    compare.get_by_label("Right").select_option("bahdanau")
    right = compare.get_by_role("region", name="bahdanau", exact=True)
    left = compare.get_by_role("region", name="transformer", exact=True)
    found = {name: ask_with_alignment(ask_all, name) for name in ("transformer", "bahdanau")}
    for side, name in ((right, "bahdanau"), (left, "transformer")):  # the model selected last is answered last
        expect(side.locator(".sentence")).to_have_text(" ".join(found[name]["translatedText"].split()) or "")
        weights = found[name]["alignment"]["weights"]
        assert read_weights(side.locator("tbody td")) == [weight for row in weights for weight in row]
        kept = set(found["transformer"]["translatedText"].split()) & set(found["bahdanau"]["translatedText"].split())
        marked = set(side.locator("mark").all_text_contents())
        assert marked >= set(found[name]["translatedText"].split()) - kept, "words of one translation only are marked"
    expect(compare.locator(".differences")).to_contain_text("words are the same")


def lcs_length(left: str, right: str) -> int:
    """Return the length of a longest common subsequence, by exhaustive search."""
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + lcs_length(left[1:], right[1:])
    return max(lcs_length(left[1:], right), lcs_length(left, right[1:]))


@pytest.mark.slow
def test_word_difference_is_a_longest_common_subsequence(visit: Visit) -> None:
    page = visit()
    for left, right in [
        ("", "a"),
        ("abc", "abc"),
        ("abcab", "bcaab"),
        ("xaybzc", "abcxyz"),
        ("aab", "ab"),
        ("ab", "cd"),
    ]:
        pairs = page.evaluate(
            "async ([a, b]) => (await import('/page/text_diff.js')).common([...a], [...b])", [left, right]
        )
        assert len(pairs) == lcs_length(left, right)
        assert all(left[i] == right[j] for i, j in pairs)
        assert pairs == sorted(pairs)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    far = page.evaluate("async () => (await import('/page/text_diff.js')).weightDistance([0.5, 0.5, 0], [0, 0.5, 0])")
    assert far == 0.5, "missing probability mass counts"


@pytest.mark.slow
def test_words_of_scripts_without_spaces_are_divided_and_joined_as_in_python(visit: Visit) -> None:
    page = visit()
    texts = ["AIは大きな家、です。", "我们喜欢新房子。", "ฉันรักบ้านหลังใหญ่", "the old house .", "بيت كبير", "नमस्ते दुनिया"]
    for language, text in zip(("ja", "zh", "th", "en", "ar", "hi"), texts, strict=True):
        module = "(await import('/page/dom.js'))"
        words = page.evaluate(f"async ([a, b]) => {module}.splitWords(a, b)", [text, language])
        assert words == split_words(text, with_icu=True)
        gaps = page.evaluate(
            f"async (words) => {{const m = {module}; return words.map((a, i) => i ? m.gap(words[i - 1], a) : '')}}",
            words,
        )
        assert gaps == ["", *(" " * needs_space(*pair) for pair in pairwise(words))]


TOO_LONG = f"This text is too long: up to {LIMIT} characters are taken at a time."


@pytest.mark.slow
def test_text_over_the_limit_is_reported_and_not_sent(visit: Visit) -> None:
    sent: list[str] = []
    page = visit()
    translate_on(page)
    page.on("request", lambda request: sent.append(request.url))
    page.fill("#text", "🦉" * LIMIT + "a")
    alert = page.locator("#notice")
    expect(alert).to_have_text(TOO_LONG)
    expect(alert).to_have_attribute("role", "alert")
    page.locator("#text").press_sequentially("bc")
    expect(page.locator("#count")).to_have_text(f"{LIMIT + 3} / {LIMIT} characters")
    expect(page.locator("#text")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#answer")).to_have_class("pane stale")
    assert sent == []
    page.fill("#text", SENTENCE)
    expect(page.locator(TRANSLATED)).to_be_visible()
    expect(alert).to_be_empty()
    page.fill("#text", "🦉" * LIMIT)
    expect(page.locator(TRANSLATED)).to_be_visible()
    expect(alert).to_be_empty()


@pytest.mark.slow
def test_length_notice_is_not_repeated_while_typing(visit: Visit) -> None:
    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.fill("#text", "a" * (LIMIT + 1))
    page.clock.run_for(2000)
    notice = page.locator("#notice p")
    expect(notice).to_have_text(TOO_LONG)
    notice.evaluate("notice => notice.dataset.first = 'yes'")
    page.locator("#text").press_sequentially("b")
    page.clock.run_for(2000)
    expect(notice).to_have_attribute("data-first", "yes")


@pytest.mark.slow
def test_text_over_the_limit_is_sent_if_a_key_is_used(visit: Visit) -> None:
    def prepare(page: Page) -> None:
        change_settings(page, {"apiKeys": True})

    page = visit(prepare=prepare)
    page.get_by_label("API key").fill("a secret")
    page.get_by_role("button", name="Use key").click()
    with page.expect_response("**/translate") as info:
        page.fill("#text", "a" * (LIMIT + 1))
    assert info.value.json()["error"].startswith("Invalid request: request")
    expect(page.locator("#notice")).to_have_text(TOO_LONG)


@pytest.mark.slow
def test_slow_answer_is_marked_stale_and_superseded(visit: Visit) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "slow" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.fulfill(json={"translatedText": "the newest", "alignment": None})

    page = visit()
    translate_on(page)
    before = page.locator("#translation").text_content()
    page.route("**/translate", hold)
    page.fill("#text", "slow")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#answer")).to_have_class("pane stale")
    expect(page.locator(".progress")).to_be_visible()
    expect(page.locator("#translation")).to_have_text(before or "")
    expect(page.locator("#state")).to_have_text("Still translating: the server is slow")
    with page.expect_event("requestfailed", lambda request: "slow" in (request.post_data or "")):
        page.fill("#text", "quick")  # aborts the request before
    expect(page.locator(TRANSLATED)).to_have_text("the newest")
    expect(page.locator("#state")).to_have_text("")
    for route in held:
        route.fulfill(json={"translatedText": "the oldest", "alignment": None})
    expect(page.locator(TRANSLATED)).to_have_text("the newest")


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_request_is_repeated_after_retry_after(visit: Visit, status: int) -> None:
    answers = [{"status": status, "headers": {"Retry-After": "2"}, "json": {"error": "Slowdown: 5 per 1 minute"}}]
    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.route("**/translate", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())
    page.fill("#text", SENTENCE)
    page.clock.run_for(500)
    expect(page.locator("#notice")).to_contain_text("Slowdown: 5 per 1 minute")
    expect(page.locator("#notice .wait")).to_have_text("2 s")
    page.clock.run_for(2000)
    expect(page.locator(TRANSLATED)).to_be_visible()
    expect(page.locator("#notice")).to_be_empty()


@pytest.mark.slow
def test_unreachable_server_is_retried_with_backoff(visit: Visit) -> None:
    requests: list[str] = []

    def away(route: Route) -> None:
        requests.append(route.request.url)
        route.abort()

    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.route("**/translate", away)
    page.fill("#text", SENTENCE)
    page.clock.run_for(500)
    left = page.locator("#notice .wait")
    for number, pause in enumerate([2, 4, 8, 15, 30, 30], start=1):
        expect(left).to_have_text(f"{pause} s")
        assert len(requests) == number
        page.clock.run_for(1000 * (pause - 1))
        expect(left).to_have_text("1 s")
        assert len(requests) == number, "not before the pause is over"
        with page.expect_event("requestfailed"):
            page.clock.run_for(1000)
    expect(left).to_have_text("30 s")
    page.unroute("**/translate")
    page.clock.run_for(30_000)
    expect(page.locator(TRANSLATED)).to_be_visible()
    expect(page.locator("#notice")).to_be_empty()
    page.route("**/translate", away)
    page.fill("#text", "our mother")
    page.clock.run_for(500)
    expect(left).to_have_text("2 s")


@pytest.mark.slow
def test_page_loads_once_the_server_is_back(visit: Visit) -> None:
    answers = [{"status": 502, "body": "<html>Bad gateway</html>"}] * 2

    def prepare(page: Page) -> None:
        page.clock.install(time=0)
        page.clock.pause_at(60_000)
        page.route("**/languages", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())

    page = visit(prepare=prepare, shown=False)
    expect(page.locator("#notice")).to_contain_text("The server answered 502.")
    page.clock.run_for(2000)
    expect(page.locator("#notice .wait")).to_have_text("4 s")
    page.clock.run_for(4000)
    expect(page.locator("#facts")).not_to_be_empty()
    expect(page.locator("#notice")).to_be_empty()


@pytest.mark.slow
def test_input_survives_a_reload(visit: Visit) -> None:
    page = visit()
    translate_on(page, model="bahdanau-2", text="unsere Mutter")
    page.reload()
    expect(page.locator("#text")).to_have_value("unsere Mutter")
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#model")).to_have_value("bahdanau-2")
    expect(page.locator(TRANSLATED)).to_be_visible()
    page.click("#clear")
    page.reload()
    expect(page.locator("#facts")).not_to_be_empty()
    expect(page.locator("#text")).to_have_value("")
    assert page.evaluate("localStorage.length") == 0


@pytest.mark.slow
def test_try_again_button_repeats_the_request(visit: Visit) -> None:
    page = visit()
    page.route("**/translate", lambda route: route.abort())
    page.fill("#text", SENTENCE)
    expect(page.locator("#notice")).to_contain_text("The server cannot be reached.")
    page.unroute("**/translate")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(TRANSLATED)).to_be_visible()


@pytest.mark.slow
def test_training_view_draws_loss_and_bleu(visit_all: Visit, ask_all: Ask) -> None:
    page = visit_all("training")
    training = page.locator("#training")
    training.get_by_label("Run").select_option("transformer")
    rows = ask_all("v1/models/transformer/curves")["rows"]
    kinds = [row["kind"] for row in rows]
    expect(training.get_by_role("status")).to_contain_text("Finished: step 100")
    loss, bleu = training.locator("figure").all()
    assert count_points(loss.locator(".train")) == kinds.count("train")
    assert count_points(loss.locator(".dev")) == count_points(bleu.locator(".dev")) == kinds.count("dev") == 2
    expect(training.locator("tbody tr")).to_have_count(len(rows))
    last = [row for row in rows if row["kind"] == "dev"][-1]
    label = bleu.get_by_role("img").get_attribute("aria-label") or ""
    assert label.startswith("BLEU over 100 steps; at the end: dev ")
    assert float(label.split()[-1]) == pytest.approx(last["bleu"], abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("peak", [94.0, 51.0, 100.0, 0.3, 7.2, 0.0])
def test_axis_reaches_the_top_of_the_curve(visit: Visit, peak: float) -> None:
    rows = [{"kind": "dev", "step": step, "loss": 0.2, "bleu": peak * step / 1100} for step in (300, 1100)]
    answer = {"rows": rows, "finished": True}
    page = visit("training", lambda page: page.route("**/curves*", lambda route: route.fulfill(json=answer)))
    bleu = page.locator("#training figure").nth(1)
    expect(bleu.locator(".curve")).to_have_count(1)
    labels = [
        (float(text.text_content() or ""), text.bounding_box()) for text in bleu.locator("text[text-anchor=end]").all()
    ]
    assert len(labels) >= 2
    value, label_box = labels[-1]
    point = bleu.locator(".point").last.bounding_box()
    assert label_box
    assert point
    assert value >= peak
    assert label_box["y"] + label_box["height"] / 2 <= point["y"] + point["height"] / 2 + 1
    assert bleu.locator("text[text-anchor=middle]").last.text_content() == "1,100"


@pytest.mark.slow
def test_training_view_names_the_score_that_chooses(visit: Visit) -> None:
    row = {"kind": "dev", "step": 10, "loss": 1.0, "bleu": 0.1, "chrf": 12.5, "measure": "chrf"}
    answer = {"rows": [row], "finished": True}
    page = visit("training", lambda page: page.route("**/curves*", lambda route: route.fulfill(json=answer)))
    training = page.locator("#training")
    expect(training.get_by_role("status")).to_have_text("Finished: step 10; best chrF 12.5")
    expect(training.locator("tbody tr")).to_contain_text("12.5")
    expect(training.locator("thead")).to_contain_text("chrF")


@pytest.mark.slow
def test_training_view_explains_the_two_losses(visit: Visit) -> None:
    loss = visit("training").locator("#training figure").first
    expect(loss).to_contain_text("with dropout and label smoothing where the recipe has them")


def count_points(curve: Locator) -> int:
    """Return the number of points of a curve."""
    return len(re.findall("[ML]", curve.get_attribute("d") or ""))


def test_training_view_follows_a_running_training(visit: Visit) -> None:
    train, dev = {"kind": "train", "step": 10, "loss": 5.0}, {"kind": "dev", "step": 10, "loss": None, "bleu": 1.5}
    first, then = {"rows": [train], "finished": False}, {"rows": [train, dev], "finished": True}
    requests: list[str] = []

    def handle(route: Route) -> None:
        requests.append(route.request.url.partition("after=")[2])
        route.fulfill(json=first if len(requests) == 1 else then)

    def prepare(page: Page) -> None:
        page.clock.install(time=0)
        page.clock.pause_at(60_000)
        page.route("**/curves*", handle)

    page = visit("training", prepare)
    state = page.locator("#training").get_by_role("status")
    expect(state).to_have_text("In training: step 10")
    page.clock.run_for(2000)
    expect(state).to_have_text("Finished: step 10; best BLEU 1.5")
    expect(page.locator("#training tbody tr")).to_have_count(2)
    assert requests == ["", "9"]


def hold_clock(page: Page) -> None:
    """Stop the clock of the page until the test resumes it, so that a slow machine misses nothing."""
    page.clock.install()
    page.clock.pause_at(datetime.now(tz=UTC) + timedelta(minutes=1))


@pytest.mark.slow
def test_streamed_words_appear_with_their_attention(visit: Visit, server: Client) -> None:
    request = {"q": SENTENCE, "model": "bahdanau"}
    lines = server.http.post("/v1/translate/stream", json=request).text.split("\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    written = [event for event in events if "word" in event]
    page = visit()
    translate_on(page)
    hold_clock(page)
    page.get_by_role("button", name="Watch it write").click()
    expect(page.locator("#state")).to_have_text("Writing…")
    page.clock.resume()
    expect(page.locator("#state")).to_have_text("The likeliest word each time")
    expect(page.locator("#translation")).to_have_text(events[-1]["translatedText"])
    assert locate_words(page, "Translation").all_text_contents() == [event["word"] for event in written]
    cells = page.locator("#attention table.matrix tbody td")
    assert read_weights(cells) == [weight for event in written for weight in event["weights"]]
    locate_words(page, "Translation").first.hover()
    assert read_weights(locate_words(page, "Source")) == written[0]["weights"]


@pytest.mark.slow
def test_typing_stops_the_stream(visit: Visit) -> None:
    page = visit()
    translate_on(page)
    hold_clock(page)
    page.get_by_role("button", name="Watch it write").click()
    expect(page.locator("#state")).to_have_text("Writing…")
    page.fill("#text", "our mother")
    page.clock.resume()
    expect(page.locator("#state")).to_have_text("")
    expect(page.locator(TRANSLATED)).to_be_visible()
    assert locate_words(page, "Source").all_text_contents() == ["our", "mother"]


@pytest.mark.slow
def test_markup_in_any_answer_is_shown_as_text(visit: Visit) -> None:
    def add_markup(answer: Any) -> Any:
        """Append markup to every string."""
        if isinstance(answer, dict):
            return {key: add_markup(value) for key, value in answer.items()}
        if isinstance(answer, list):
            return [add_markup(value) for value in answer]
        return f"{answer} {MARKUP}" if isinstance(answer, str) else answer

    def prepare(page: Page) -> None:
        for path in ("**/translate", "**/v1/trace", "**/v1/models/*/curves*"):
            patch_answers(page, path, add_markup)

    page = visit(prepare=prepare)
    translate_on(page, f"our {MARKUP} mother")
    assert MARKUP in locate_words(page, "Source").all_text_contents()[0]
    for view, shown in {**VIEWS, "training": "figure"}.items():
        page.click(f"#tab-{view}")
        expect(page.locator(f"#{view} {shown}").first).to_be_visible()
        assert MARKUP in (page.locator(f"#{view}").text_content() or "")
        assert page.locator("img, [onerror]").count() == 0
    page.route("**/translate", lambda route: route.fulfill(status=400, json={"error": MARKUP}))
    page.fill("#text", "once more")
    expect(page.locator("#notice")).to_have_text(MARKUP)
    assert page.locator("img, [onerror]").count() == 0


@pytest.mark.slow
def test_languages_can_be_swapped_and_detected(visit: Visit) -> None:
    page = visit()
    translate_on(page, model="bahdanau")
    made = page.locator("#translation").text_content()
    page.get_by_role("button", name="Swap the languages").click()
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#target")).to_have_value("en")
    expect(page.locator("#text")).to_have_value(made or "")
    page.select_option("#source", "auto")
    page.select_option("#target", "de")
    page.fill("#text", "our mother does not see the old house")
    expect(page.locator("#detected")).to_contain_text("English")
    expect(page.locator("#model")).to_have_value("")


@pytest.mark.slow
def test_model_facts_name_the_model_that_answered(visit: Visit) -> None:
    page = visit()
    translate_on(page, model="")
    facts = page.locator("#facts")
    expect(facts).to_have_text(re.compile("^bahdanau · "))
    page.get_by_role("button", name="Swap the languages").click()
    expect(facts).to_have_text(re.compile("^bahdanau-2 · "))
    expect(page.locator("#model")).to_have_value("")
    page.select_option("#source", "auto")
    expect(page.locator(TRANSLATED)).to_be_visible()
    page.click("#clear")
    expect(facts).to_be_empty()  # not known before the language is detected
    page.fill("#text", "Unsere Mutter sieht das alte Haus nicht.")
    expect(page.locator("#detected")).to_contain_text("German")
    expect(facts).to_have_text(re.compile("^bahdanau-2 · "))


@pytest.mark.slow
def test_selecting_a_model_selects_its_languages(visit: Visit, ask: Ask) -> None:
    page = visit()
    names = [model["name"] for model in ask("v1/models")["models"]]
    assert page.locator("#model option").evaluate_all("all => all.map(one => one.value)") == ["", *names]
    page.select_option("#model", names[-1])
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#facts")).to_contain_text(names[-1])
    page.select_option("#source", "en")
    expect(page.locator("#model")).to_have_value("")


@pytest.mark.slow
def test_api_key_is_sent_and_kept_for_the_session(visit: Visit) -> None:
    def prepare(page: Page) -> None:
        change_settings(page, {"apiKeys": True})

    page = visit(prepare=prepare)
    page.fill("#text", SENTENCE)
    page.get_by_label("API key").fill("a secret")
    with page.expect_request(lambda request: "a secret" in (request.post_data or "")) as info:
        page.get_by_label("API key").blur()
    assert json.loads(info.value.post_data or "")["api_key"] == "a secret"
    page.reload()
    expect(page.get_by_label("API key")).to_have_value("a secret")
    assert page.evaluate("localStorage.length") == 0


def require_key(page: Page) -> None:
    """Make the service require the key `right`."""
    link = "https://example.org/keys"
    demands = {"apiKeys": True, "keyRequired": True, "keyLink": link}
    change_settings(page, demands)

    def guarded(route: Route) -> None:
        sent = route.request
        key = (sent.post_data_json or {}).get("api_key") or sent.headers.get("authorization", "")
        if key.removeprefix("Bearer ") == "right":
            route.continue_()
        else:
            error = "Invalid API key" if key else f"Visit {link} to get an API key"
            route.fulfill(status=403 if key else 400, json={"error": error})

    page.route("**/v1/**", guarded)
    page.route("**/translate", guarded)


@pytest.mark.slow
def test_required_api_key_is_requested_and_checked(visit: Visit) -> None:
    page = visit(prepare=require_key, shown=False)
    notice, field = page.locator("#notice"), page.get_by_label("API key")
    expect(notice).to_have_text("This server asks for an API key: type it above and press “Use key”.")
    expect(page.get_by_role("link", name="Get a key")).to_have_attribute("href", "https://example.org/keys")
    expect(page.locator("#model, #watch, #tab-attention").filter(visible=True)).to_have_count(0)
    page.fill("#text", SENTENCE)
    field.press_sequentially("w")
    expect(notice).to_be_empty()
    field.press_sequentially("rong")
    page.get_by_role("button", name="Use key").click()
    expect(notice).to_have_text("Invalid API key")
    field.fill("right")
    expect(notice).to_be_empty()
    page.get_by_role("button", name="Use key").click()
    expect(page.locator(TRANSLATED)).to_be_visible()
    expect(page.get_by_text("Kept until this window is closed.")).to_be_visible()
    assert page.locator("#model option").count() == 1 + 3
    field.fill("wrong")
    field.press("Enter")
    expect(notice).to_have_text("Invalid API key")
    field.press_sequentially("er")
    expect(notice).to_be_empty()
    field.fill("")
    field.press("Enter")
    expect(notice).to_contain_text("This server asks for an API key")


@pytest.mark.slow
@pytest.mark.parametrize("link", ["", "javascript:alert(1)", "keys"])
def test_key_link_must_be_a_web_address(visit: Visit, link: str) -> None:
    changed = {"apiKeys": True, "keyLink": link}
    page = visit(prepare=lambda page: change_settings(page, changed))
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.get_by_role("link", name="Get a key").count() == 0


@pytest.mark.slow
def test_api_key_field_is_hidden_without_keys(visit: Visit) -> None:
    expect(visit().get_by_label("API key")).to_be_hidden()


@pytest.mark.slow
def test_copy_button_copies_the_translation(visit: Visit) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("button", name="Copy")).to_be_disabled()
    translate_on(page)
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#state")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#translation").text_content()


def measure_luminance(page: Page) -> float:
    """Return the luminance of the background, from 0 to 1."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 765


@pytest.mark.slow
def test_theme_follows_the_system_until_switched(visit: Visit) -> None:
    page = visit(color_scheme="dark")
    switch = page.get_by_role("switch", name="Dark")
    expect(switch).to_have_attribute("aria-checked", "true")
    assert measure_luminance(page) < 0.2
    page.emulate_media(color_scheme="light")
    expect(switch).to_have_attribute("aria-checked", "false")
    assert measure_luminance(page) > 0.8
    switch.click()
    assert measure_luminance(page) < 0.2
    page.reload()
    expect(switch).to_have_attribute("aria-checked", "true")
    assert measure_luminance(page) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_sufficient_on_every_shade(visit: Visit, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    translate_on(page)
    cell = page.locator("#attention td[data-row]").first
    for weight in range(0, 101, 5):
        cell.evaluate("(cell, weight) => cell.style.setProperty('--w', weight)", weight / 100)
        assert measure_contrast(cell) >= 4.5
    for name in ("--dim", "--accent", "--bad", "--ink"):
        for paper in ("--paper", "--raised"):
            cell.evaluate(PAINT, [name, paper])
            assert measure_contrast(cell) >= 4.5, (name, paper)


def measure_contrast(element: Locator) -> float:
    """Return the contrast ratio of text and background according to WCAG 2."""
    ink, paper = element.evaluate("one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]")

    def light(colour: str) -> float:
        numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-\d+)?", colour.removeprefix("color(srgb"))[:3]]
        shares = numbers if colour.startswith("color(") else [number / 255 for number in numbers]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(ink), light(paper)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_phone_needs_no_horizontal_scrolling(visit: Visit, server: Client) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    translate_on(page, " ".join([SENTENCE] * 3))
    for view, shown in VIEWS.items():
        page.click(f"#tab-{view}")
        expect(page.locator(f"#{view} {shown}").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    page.goto(f"{server.url}/docs")
    expect(page.locator(".route").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    meanings = page.locator("#post-translate dd").all()
    assert meanings
    assert all(is_within(meaning, 360) for meaning in meanings)


def is_within(element: Locator, width: int) -> bool:
    """Return True if an element lies between the edges of the screen."""
    box = element.bounding_box()
    assert box
    return box["x"] >= 0 and box["x"] + box["width"] <= width


@pytest.mark.slow
def test_wide_matrix_indicates_that_it_scrolls_on_a_phone(visit: Visit) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    translate_on(page, " ".join([SENTENCE] * 3))
    frame = page.locator("#attention .frame")
    sign = "frame => getComputedStyle(frame, '::after').content"
    expect(frame).to_have_class(re.compile("more-right"))
    assert "›" in frame.evaluate(sign)
    frame.locator(".scroll").evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    expect(frame).not_to_have_class(re.compile("more-right"))
    assert frame.evaluate(sign) == "none"
    assert is_within(frame.locator("tbody th").first, 360), "row headers stay visible"


@pytest.mark.slow
def test_sentence_matrix_and_captions_fit_on_a_phone(visit: Visit) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    translate_on(page)
    assert is_within(page.locator("#attention .matrix"), 360)
    translate_on(page, " ".join([SENTENCE] * 3))
    for view, captions in {"attention": 1, "compare": 3}.items():
        page.click(f"#tab-{view}")
        found = page.locator(f"#{view} caption span")
        expect(found).to_have_count(captions)
        for caption in found.all():
            assert is_within(caption, 360)
            clipped = caption.evaluate("one => one.scrollWidth > one.clientWidth")
            assert not clipped


UNNAMED_CONTROL = re.compile(
    r"- (button|combobox|textbox|link|tab|tabpanel|slider|switch|grid|gridcell|region|img|table)(?!\w| \")"
)


@pytest.mark.slow
def test_every_control_has_an_accessible_name(visit: Visit, server: Client) -> None:
    page = visit()
    translate_on(page)
    for view, shown in VIEWS.items():
        page.click(f"#tab-{view}")
        expect(page.locator(f"#{view} {shown}").first).to_be_visible()
        tree = page.locator("body").aria_snapshot()
        assert UNNAMED_CONTROL.search(tree) is None, tree
        for landmark in ("banner", "main", "navigation"):
            assert f"- {landmark}" in tree
    page.goto(f"{server.url}/docs")
    expect(page.locator(".route").first).to_be_visible()
    assert UNNAMED_CONTROL.search(page.locator("body").aria_snapshot()) is None


@pytest.mark.slow
def test_tab_order_follows_the_reading_order(visit: Visit) -> None:
    page = visit()
    translate_on(page)
    page.locator(".skip").focus()
    seen = []
    for _ in range(18):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.classList[0]"))
    controls = ["theme", "model", "source", "text", "clear", "target", "watch", "copy", "tab-attention", "word", "word"]
    assert [name for name in seen if name in controls] == controls
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus is visible"


@pytest.mark.slow
def test_arrow_keys_switch_tabs(visit: Visit) -> None:
    page = visit()
    page.locator("#tab-attention").focus()
    for view in ("steps", "compare", "training", "attention"):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{view}")).to_be_focused()
        expect(page.get_by_role("tabpanel")).to_have_id(view)
        assert page.url.endswith(f"#{view}")


@pytest.mark.slow
def test_reduced_motion_disables_animations(visit: Visit) -> None:
    style = "getComputedStyle(document.querySelector('.progress'), '::after').animationName"
    assert visit().evaluate(style) == "run"
    assert visit(reduced_motion="reduce").evaluate(style) == "none"


@pytest.mark.slow
def test_api_documentation_lists_every_route(visit: Visit, ask: Ask, server: Client) -> None:
    page = visit()
    page.get_by_role("link", name="API").click()
    routes = page.locator(".route h3")
    expect(routes.first).to_be_visible()
    described = [
        f"{method.upper()}{path}" for path, methods in ask("openapi.json")["paths"].items() for method in methods
    ]
    assert sorted(routes.all_text_contents()) == sorted(described)
    translate = page.locator("#post-translate")
    expect(translate.locator("dt")).to_contain_text(["q", "source", "target"])
    expect(translate.locator("pre").first).to_contain_text(f"curl {server.url}/translate")
    expect(translate.locator("pre").first).to_contain_text('{"q":"the old house","source":"en","target":"de"}')
    expect(translate.locator("pre").last).to_contain_text('"translatedText"')


LETTER: FilePayload = {"name": "letter.txt", "mimeType": "text/plain", "buffer": "\n".join(LINES).encode()}


def test_file_is_translated_and_downloaded(visit: Visit, ask: Ask) -> None:
    page = visit()
    choose = page.get_by_role("button", name="Translate files")
    expect(choose).to_have_accessible_description(re.compile(r"\.txt, .*\.docx"))
    with page.expect_file_chooser() as info:
        choose.focus()  # gives Playwright time to intercept the file chooser
        choose.press("Enter")
    assert info.value.is_multiple()
    info.value.set_files([LETTER])
    row = page.get_by_role("list", name="Files").get_by_role("listitem")
    expect(row).to_contain_text("letter.txt")
    link = row.get_by_role("link", name="Download letter.txt in German")
    with page.expect_download() as fetched:
        link.click()
    made = fetched.value.path().read_text()
    assert made.split("\n") == [ask("translate", q=line, source="en", target="de")["translatedText"] for line in LINES]
    assert fetched.value.suggested_filename == "letter.de.txt"
    row.get_by_role("button", name="Remove: letter.txt").click()
    expect(page.locator("#files")).to_be_hidden()
    expect(choose).to_be_focused()


def make_drag_data(page: Page, kind: str) -> Any:
    """Return the data of a drag of a file or a text."""
    put = {"file": "d.items.add(new File(['the old house'], 'note.txt'))", "text": "d.setData('text/plain', 'a')"}
    return page.evaluate_handle(f"() => {{ const d = new DataTransfer(); {put[kind]}; return d }}")


@pytest.mark.slow
def test_file_can_be_dropped_on_the_page(visit: Visit) -> None:
    page = visit()
    target, sign, data = page.locator("#text"), page.locator("#drop"), make_drag_data(page, "file")
    target.dispatch_event("dragover", {"dataTransfer": data})
    expect(sign).to_be_visible()
    page.locator("body").dispatch_event("dragleave")
    expect(sign).to_be_hidden()
    target.dispatch_event("dragover", {"dataTransfer": data})
    target.dispatch_event("drop", {"dataTransfer": data})
    expect(sign).to_be_hidden()
    expect(page.get_by_role("link", name="Download note.txt in German")).to_be_visible()
    target.dispatch_event("dragover", {"dataTransfer": make_drag_data(page, "text")})
    expect(sign).to_be_hidden()


@pytest.mark.slow
def test_file_translation_shows_progress_and_can_be_stopped(visit_all: Visit) -> None:
    held: list[Route] = []
    page = visit_all(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.route("**/translate_file", lambda route: held.append(route))
    page.select_option("#model", "transformer")
    with page.expect_request("**/translate_file"):
        page.set_input_files("#file", [LETTER, LETTER | {"name": "second.html"}])
    first, second = page.locator("#files li").all()
    expect(first).to_have_attribute("aria-busy", "true")
    expect(first.get_by_role("status")).to_have_text("Translating from English to German with bahdanau …")
    expect(first.locator(".progress")).to_be_visible()
    page.clock.run_for(3000)
    expect(first.locator(".wait")).to_have_text("3 s")
    expect(second.get_by_role("status")).to_have_text("Waiting for the files before it")
    assert len(held) == 1
    with page.expect_request("**/translate_file"), page.expect_event("requestfailed"):
        first.get_by_role("button", name="Stop: letter.txt").click()
    expect(page.locator("#files li")).to_have_count(1)
    expect(page.locator("#files li").get_by_role("status")).to_contain_text("Translating")
    held[1].fulfill(json={"translatedFileUrl": "https://elsewhere.example/x/download_file/7.second.html"})
    link = page.get_by_role("link", name="Download second.html in German")
    expect(link).to_have_attribute("href", "download_file/7.second.html")
    expect(page.locator("#files li")).to_have_attribute("aria-busy", "false")


@pytest.mark.slow
def test_unsuitable_files_are_refused_with_a_reason(visit: Visit) -> None:
    sent: list[str] = []
    page = visit(prepare=lambda page: change_settings(page, {"fileLimit": 2000}))
    page.on("request", lambda request: sent.append(request.url))
    given = [("photo.jpg", b"x"), ("none.txt", b""), ("large.TXT", b"x" * 2001), ("letter", b"x")]
    page.set_input_files("#file", [LETTER | {"name": name, "buffer": content} for name, content in given])
    rows = page.locator("#files li")
    expect(rows.nth(0).get_by_role("alert")).to_contain_text(
        "Files of this kind are not translated. Those that are: .txt"
    )
    expect(rows.nth(1).get_by_role("alert")).to_have_text("This file is empty.")
    expect(rows.nth(2).get_by_role("alert")).to_contain_text("up to 0.002 MB are taken")
    expect(rows.nth(3).get_by_role("alert")).to_contain_text("Files of this kind")
    assert not [url for url in sent if "translate_file" in url]
    page.set_input_files("#file", [LETTER | {"name": "broken.docx", "buffer": b"no zip file"}])
    refused = rows.nth(4).get_by_role("alert")
    expect(refused).to_have_text(re.compile("^broken.docx does not match its extension"))
    page.route(
        "**/translate_file", lambda route: route.fulfill(status=400, json={"error": "Invalid request: no words"})
    )
    page.set_input_files("#file", [LETTER])
    expect(rows.nth(5).get_by_role("alert")).to_have_text("No words")


@pytest.mark.slow
def test_file_is_sent_again_after_retry_after(visit: Visit) -> None:
    answers = [{"status": 503, "headers": {"Retry-After": "7"}, "json": {"error": "Too much is waiting"}}]
    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.route("**/translate_file", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())
    page.set_input_files("#file", [LETTER])
    alert = page.locator("#files li").get_by_role("alert")
    expect(alert).to_contain_text("Too much is waiting")
    expect(alert.locator(".wait")).to_have_text("7 s")
    page.clock.run_for(7000)
    expect(page.get_by_role("link", name="Download letter.txt in German")).to_be_visible()
    expect(alert).to_be_empty()


@pytest.mark.slow
def test_api_key_is_sent_with_a_file(visit: Visit) -> None:
    sent: list[bytes] = []

    def taken(route: Route) -> None:
        sent.append(route.request.post_data_buffer or b"")
        route.fulfill(json={"translatedFileUrl": "http://here/download_file/1.letter.txt"})

    page = visit(prepare=lambda page: change_settings(page, {"apiKeys": True}))
    page.get_by_label("API key").fill("a secret")
    page.get_by_role("button", name="Use key").click()
    page.route("**/translate_file", taken)
    page.set_input_files("#file", [LETTER])
    expect(page.get_by_role("link", name="Download letter.txt in German")).to_be_visible()
    assert b'name="api_key"\r\n\r\na secret\r\n' in sent[0]


@pytest.mark.slow
def test_file_upload_is_hidden_where_disabled(visit: Visit) -> None:
    shut = {"filesTranslation": False}
    page = visit(prepare=lambda page: change_settings(page, shut))
    expect(page.get_by_role("button", name="Translate files")).to_be_hidden()
    page.locator("#text").dispatch_event("dragover", {"dataTransfer": make_drag_data(page, "file")})
    expect(page.locator("#drop")).to_be_hidden()
