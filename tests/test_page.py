"""The page in a real browser, against a real server with small models."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, Route, expect, sync_playwright
from support.commands import environment, regard_command
from support.training import TINY, corpus_files

from regard.training import train

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SENTENCE = "At night our mother does not call a colleague ."
LIMIT = 300
# Long enough that they write something, and look at one word more than at another.
LONGER: dict[str, Any] = {"model.size": 32, "training.validate_every": 50, "training.checkpoint_every": 100}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bahdanau": ("bahdanau2015", {"model.size": 48, "training.steps": 150}),
    "transformer": (
        "vaswani2017-base",
        {"model.heads": 2, "model.layers": 2, "training.steps": 100, "training.learning_rate": 0.003},
    ),
    "plain": ("sutskever2014", {"training.steps": 100}),
}
VIEWS = {"attention": ".matrix", "steps": ".stages", "compare": ".differences", "training": ".curve"}
SETTLED = "#answer[aria-busy=false]:not(.stale) #translation:not(:empty)"
MARKUP = "<img src=x onerror=alert(1)>"
VIOLATIONS = "addEventListener('securitypolicyviolation', (event) => console.error(`CSP: ${event.violatedDirective}`))"
PAINT = "(cell, [ink, paper]) => { cell.style.color = `var(${ink})`; cell.style.background = `var(${paper})` }"
Visit = Callable[..., Page]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def address(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with a recurrent model, a Transformer, a model without attention, and one for the way back."""
    folder = tmp_path_factory.mktemp("served")
    for name, (recipe, changed) in MODELS.items():
        train(
            recipe,
            corpus_files(corpus, "train"),
            folder / name,
            dev=corpus_files(corpus, "dev"),
            **TINY | LONGER | changed,
        )
    runs = [*(folder / name for name in MODELS), f"{folder / 'bahdanau'}=de-en"]
    process = subprocess.Popen(
        regard_command(["serve", *runs, "--port", "0", "--char-limit", LIMIT]),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    told = (re.search(r"running on (http://[\d.:]+)", line) for line in process.stderr)
    found = next((match for match in told if match), None)
    assert found, "the server did not start"
    rest = threading.Thread(target=process.stderr.read)
    rest.start()
    yield found[1]
    process.terminate()
    process.wait()
    rest.join()
    process.stderr.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """Opens the page; whatever a test does, nothing is complained of and nobody else is asked."""
    complaints: list[str] = []
    asked: list[str] = []
    contexts = []

    def opened(
        view: str = "attention",
        prepare: Callable[[Page], object] = lambda page: None,
        shown: bool = True,
        **options: Any,
    ) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.add_init_script(VIOLATIONS)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        prepare(page)
        page.goto(f"{address}/#{view}")
        if shown:
            expect(page.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
        return page

    yield opened
    for context in contexts:
        context.close()
    # That an answer said no is what some tests are about, and the browser notes it.
    assert [text for text in complaints if not text.startswith("Failed to load resource")] == []
    assert {url for url in asked if not url.startswith(f"{address}/")} == set()


@pytest.fixture
def ask(address: str) -> Ask:
    """The API, asked past the page."""

    def asked(path: str, **body: Any) -> Any:
        if not body:
            return httpx.get(f"{address}/{path}", timeout=60).json()
        return httpx.post(f"{address}/{path}", json=body, timeout=60).json()

    return asked


def say(page: Page, text: str = SENTENCE, model: str = "bahdanau") -> None:
    """Types a text and waits for its translation."""
    page.select_option("#model", model)
    page.fill("#text", text)
    expect(page.locator(SETTLED)).to_be_visible()


def words(page: Page, side: str) -> Locator:
    return page.get_by_role("group", name=side, exact=True).locator(".word")


def shades(elements: Locator) -> list[float]:
    found: list[float] = elements.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--w') || 0))")
    return found


def patched(page: Page, path: str, patch: Callable[[Any], Any]) -> None:
    """Lets answers through, changed."""

    def handle(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=json.dumps(patch(answer.json())))

    page.route(path, handle)


def aligned(ask: Ask, model: str = "bahdanau") -> Any:
    """What the API says of the sentence."""
    return ask("translate", q=SENTENCE, source="en", target="de", alignment=True, alternatives=3, model=model)


def test_typing_gives_a_translation(visit: Visit, ask: Ask) -> None:
    page = visit()
    page.locator("#text").press_sequentially(SENTENCE)
    answer = aligned(ask)
    expect(page.locator(SETTLED)).to_have_text(answer["translatedText"])
    assert page.locator("#alternatives li").all_text_contents() == answer["alternatives"]
    expect(page.locator("#count")).to_have_text(f"{len(SENTENCE)} / {LIMIT} characters")
    page.click("#clear")
    expect(page.locator("#translation")).to_have_text("")


def test_pointing_at_a_target_word_shades_the_words_it_looked_at(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page)
    alignment = aligned(ask)["alignment"]
    assert words(page, "Source").all_text_contents() == alignment["source"]
    assert words(page, "Translation").all_text_contents() == alignment["target"]
    for index, weights in enumerate(alignment["weights"]):
        words(page, "Translation").nth(index).hover()
        assert shades(words(page, "Source")) == weights
        assert shades(words(page, "Translation")) == [0] * len(alignment["target"])
    strongest = max(range(len(weights)), key=weights.__getitem__)
    figure = words(page, "Source").nth(strongest).get_attribute("data-weight")
    assert figure == f"{100 * weights[strongest]:.0f}", "colour is not the only thing that tells"
    page.mouse.move(0, 0)
    assert not any(shades(words(page, "Source")))


def test_pointing_at_a_source_word_shades_the_words_that_looked_at_it(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page)
    weights = aligned(ask)["alignment"]["weights"]
    for index in range(len(weights[0])):
        words(page, "Source").nth(index).hover()
        assert shades(words(page, "Translation")) == [row[index] for row in weights]


def test_arrow_keys_move_from_word_to_word_and_to_the_other_line(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page)
    weights = aligned(ask)["alignment"]["weights"]
    line = words(page, "Translation")
    line.first.focus()
    page.keyboard.press("ArrowRight")
    expect(line.nth(1)).to_be_focused()
    assert shades(words(page, "Source")) == weights[1]
    page.keyboard.press("ArrowUp")
    strongest = max(range(len(weights[1])), key=weights[1].__getitem__)
    expect(words(page, "Source").nth(strongest)).to_be_focused()
    assert shades(line) == [row[strongest] for row in weights]
    page.keyboard.press("End")
    expect(words(page, "Source").last).to_be_focused()
    page.keyboard.press("Tab")
    expect(line.nth(1)).to_be_focused()


def test_the_matrix_has_a_cell_for_each_pair_of_words(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page)
    alignment = aligned(ask)["alignment"]
    matrix = page.locator("#attention table.matrix")
    assert matrix.locator("thead th").all_text_contents() == ["Translation", *alignment["source"]]
    assert matrix.locator("tbody th").all_text_contents() == alignment["target"]
    assert shades(matrix.locator("tbody td")) == [weight for row in alignment["weights"] for weight in row]
    cell = matrix.locator("tbody").get_by_role("gridcell").nth(2)
    weight = alignment["weights"][0][2]
    said = f"{alignment['target'][0]} looked at {alignment['source'][2]}: {int(100 * weight + 0.5)} %"
    expect(cell).to_have_accessible_name(said)


def test_the_matrix_shows_the_models_own_tokens_and_each_of_its_heads(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page, model="transformer")
    tokens = aligned(ask, "transformer")["alignment"]["tokens"]
    matrix = page.locator("#attention table.matrix")
    page.get_by_label("Rows and columns").select_option("tokens")
    assert matrix.locator("thead th").all_text_contents() == ["Translation", *tokens["source"]]
    assert shades(matrix.locator("tbody td")) == [weight for row in tokens["weights"] for weight in row]
    trace = ask("v1/trace", q=SENTENCE, model="transformer", beam=5)
    heads = page.get_by_label("Attention head").locator("option").all_text_contents()[1:]
    assert heads == list(trace["steps"][0]["heads"]) == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    for head in heads:
        page.get_by_label("Attention head").select_option(head)
        expect(matrix.locator("caption")).to_contain_text(head)
        assert shades(matrix.locator("tbody td")) == [
            weight for step in trace["steps"] for weight in step["heads"][head]
        ]


def test_a_cell_marks_both_of_its_words(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page)
    alignment = aligned(ask)["alignment"]
    cells = page.locator("#attention table.matrix tbody tr").first.locator("td")
    cells.nth(1).hover()
    expect(words(page, "Source").nth(1)).to_have_class("word pointed")
    expect(words(page, "Translation").nth(0)).to_have_class("word pointed")
    expect(page.locator(".readout")).to_contain_text(f"{alignment['target'][0]} looked at {alignment['source'][1]}")
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(cells.nth(2)).to_be_focused()
    expect(words(page, "Source").nth(2)).to_have_class("word pointed")


def test_stepping_forth_and_back_shows_what_each_step_did(visit: Visit, ask: Ask) -> None:
    page = visit("steps")
    say(page, model="bahdanau")
    trace = ask("v1/trace", q=SENTENCE, model="bahdanau", beam=5)
    steps = page.locator("#steps")

    def shown(number: int) -> None:
        step = trace["steps"][number]
        expect(steps.locator(".step-count")).to_have_text(
            f"Step {number + 1} of {len(trace['steps'])}: {step['token']}"
        )
        assert shades(steps.locator(".bars li")) == step["weights"]
        assert shades(steps.locator(".candidates .chance")) == [one["probability"] for one in step["candidates"]]
        hypotheses = steps.locator(".beam tbody tr td:nth-child(2)").all_text_contents()
        assert hypotheses == [one["text"] or "–" for one in step["beam"]]
        chances = steps.locator(".beam tbody tr td:nth-child(4)").all_text_contents()
        assert [float(text.replace("−", "-")) for text in chances] == pytest.approx(
            [one["log_prob"] for one in step["beam"]], abs=0.006
        )

    shown(0)
    steps.get_by_role("button", name="Next").click()
    shown(1)
    page.keyboard.press("ArrowRight")
    shown(2)
    page.keyboard.press("ArrowLeft")
    shown(1)
    steps.get_by_role("slider").press("End")
    shown(len(trace["steps"]) - 1)
    expect(steps.get_by_role("button", name="Next")).to_be_disabled()
    steps.get_by_role("button", name="Back").click()
    shown(len(trace["steps"]) - 2)
    steps.get_by_role("combobox", name="Beam").select_option("2")
    expect(steps.locator(".beam tbody tr")).to_have_count(2)


@pytest.mark.parametrize(
    ("model", "drawn", "order"),
    [
        ("bahdanau", ["ht−1", "at", "ct", "ht", "yt"], ["ht−1", "at", "ct", "ht", "yt"]),
        ("transformer", ["at", "ct", "yt"], ["qt", "at", "ct", "ht", "yt"]),
        ("plain", ["ht", "yt"], ["ht", "yt"]),
    ],
)
def test_a_step_is_drawn_in_the_models_own_order(visit: Visit, model: str, drawn: list[str], order: list[str]) -> None:
    page = visit("steps")
    say(page, model=model)
    steps = page.locator("#steps")
    expect(steps.locator(".step-count")).to_contain_text("Step 1 of")
    symbols = steps.locator(".stage .symbol")
    assert symbols.all_text_contents() == drawn, "what has no numbers to draw has no box"
    assert symbols.locator("sub").first.text_content() == drawn[0][1:]
    steps.get_by_text("What the symbols mean").click()
    assert steps.locator("dt .symbol").all_text_contents() == order
    assert all(text.strip() for text in steps.locator("dd").all_text_contents())
    if len(drawn) < len(order):
        steps.get_by_role("button", name="Next").click()
        expect(steps.locator("dt").first).to_be_visible()


def test_an_attentional_state_is_drawn_where_the_order_has_one(visit: Visit) -> None:
    def luong(trace: Any) -> Any:
        steps = [{**step, "attentional": [0.5, -0.5, 1.0]} for step in trace["steps"]]
        return {**trace, "order": ["h_t", "a_t", "c_t", "h̃_t"], "steps": steps}

    page = visit("steps", prepare=lambda page: patched(page, "**/v1/trace", luong))
    say(page, model="bahdanau")
    stage = page.locator("#steps .stage[data-stage='h̃_t']")
    expect(stage).to_contain_text("attentional state")
    expect(stage.locator(".strip")).to_have_count(1)


LINES = ["our mother does not see the old house", "At night our mother does not call a colleague .", "the old house"]


def test_each_line_of_a_text_can_be_stepped_through(visit: Visit, ask: Ask) -> None:
    page = visit("steps")
    say(page, f"{LINES[0]}\n\n {LINES[1]}\n{LINES[2]}\n")
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
    say(page, LINES[0])
    expect(line).to_be_hidden()
    expect(page.locator("#steps .bars li")).to_have_count(len(LINES[0].split()) + 1)


def test_a_line_that_the_model_takes_in_pieces_says_so(visit: Visit, ask: Ask) -> None:
    assert ask("v1/trace", q="\n".join(LINES), model="bahdanau")["pieces"] == 3
    page = visit("steps", lambda page: patched(page, "**/v1/trace", lambda trace: trace | {"pieces": 4}))
    say(page)
    expect(page.locator("#steps")).to_contain_text("The model takes this line in 4 pieces; this is the first.")


def test_a_line_that_is_too_long_to_step_through_is_not_sent(visit: Visit) -> None:
    sent: list[str] = []
    page = visit("steps", lambda page: patched(page, "**/frontend/settings", lambda found: found | {"charLimit": -1}))
    page.route("**/translate", lambda route: route.fulfill(json={"translatedText": "so long", "alignment": None}))
    page.on("request", lambda request: sent.append(request.url))
    page.fill("#text", f"{'a' * 401}\n{SENTENCE}")
    expect(page.locator("#steps .hint").first).to_have_text(
        "This line has more than 400 characters; that is too long to step through."
    )
    assert not [url for url in sent if url.endswith("/v1/trace")]
    page.get_by_label("Line").select_option(index=1)
    expect(page.locator("#steps .step-count")).to_contain_text("Step 1 of")


def test_a_head_is_shown_of_the_first_line_and_says_so(visit: Visit, ask: Ask) -> None:
    page = visit()
    say(page, "\n".join(LINES), model="transformer")
    page.get_by_label("Attention head").select_option("layer 1, head 2")
    matrix = page.locator("#attention table.matrix")
    expect(matrix.locator("caption")).to_contain_text("tokens, layer 1, head 2, first line only")
    assert matrix.locator("thead th").all_text_contents()[1:-1] == LINES[0].split()


def test_other_translations_keep_their_lines(visit: Visit) -> None:
    page = visit()
    say(page, "\n".join(LINES))
    page.get_by_text("Other translations").click()
    other = page.locator("#alternatives li").first
    assert (other.text_content() or "").count("\n") == 2
    assert other.inner_text().count("\n") == 2, "as they are seen"


def test_numbers_stand_beside_their_bars(visit: Visit) -> None:
    page = visit("steps")
    say(page)
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


def test_a_paragraphs_matrix_stays_on_the_screen_with_its_heads_in_sight(visit: Visit) -> None:
    page = visit(viewport={"width": 1280, "height": 800})
    say(page, " ".join([SENTENCE] * 6))
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


def test_a_model_without_attention_says_so(visit: Visit) -> None:
    page = visit()
    say(page, model="plain")
    expect(page.locator("#attention .hint")).to_contain_text("plain has no attention")
    page.click("#tab-steps")
    expect(page.locator("#steps")).to_contain_text("plain has no attention")
    expect(page.locator("#steps .strip")).to_have_count(1)


def test_a_window_is_marked_on_the_source(visit: Visit) -> None:
    def narrow(trace: Any) -> Any:
        return {**trace, "steps": [{**step, "window": [1, 3]} for step in trace["steps"]]}

    page = visit("steps", lambda page: patched(page, "**/v1/trace", narrow))
    say(page)
    expect(page.locator("#steps")).to_contain_text("a window: places 2 to 4")
    kinds = page.locator("#steps .bars li").evaluate_all("all => all.map(one => one.className)")
    assert kinds[:5] == ["outside", "inside", "inside", "inside", "outside"]


def test_two_models_are_compared(visit: Visit, ask: Ask) -> None:
    page = visit("compare")
    say(page, model="transformer")
    compare = page.locator("#compare")
    compare.get_by_label("Right").select_option("plain")
    plain = compare.get_by_role("region", name="plain", exact=True)
    expect(plain).to_contain_text("plain has no attention")
    compare.get_by_label("Right").select_option("bahdanau")
    right = compare.get_by_role("region", name="bahdanau", exact=True)
    left = compare.get_by_role("region", name="transformer", exact=True)
    found = {"transformer": aligned(ask, "transformer"), "bahdanau": aligned(ask, "bahdanau")}
    for side, name in ((right, "bahdanau"), (left, "transformer")):  # what was asked for last is there last
        expect(side.locator(".sentence")).to_have_text(" ".join(found[name]["translatedText"].split()) or "")
        weights = found[name]["alignment"]["weights"]
        assert shades(side.locator("tbody td")) == [weight for row in weights for weight in row]
        kept = set(found["transformer"]["translatedText"].split()) & set(found["bahdanau"]["translatedText"].split())
        marked = set(side.locator("mark").all_text_contents())
        assert marked >= set(found[name]["translatedText"].split()) - kept, "what only one of them writes is marked"
    expect(compare.locator(".differences")).to_contain_text("words are the same")


def lcs(left: str, right: str) -> int:
    """The length of a longest common subsequence, by trying everything."""
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + lcs(left[1:], right[1:])
    return max(lcs(left[1:], right), lcs(left, right[1:]))


def test_the_difference_of_two_sentences_is_the_least_there_is(visit: Visit) -> None:
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
            "async ([a, b]) => (await import('/page/difference.js')).common([...a], [...b])", [left, right]
        )
        assert len(pairs) == lcs(left, right)
        assert all(left[i] == right[j] for i, j in pairs)
        assert pairs == sorted(pairs)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    far = page.evaluate("async () => (await import('/page/difference.js')).apart([0.5, 0.5, 0], [0, 0.5, 0])")
    assert far == 0.5, "what is left for no word counts"


TOO_LONG = f"This text is too long: up to {LIMIT} characters are taken at a time."


def test_a_text_that_is_too_long_is_not_sent_and_said_to_be_so_once(visit: Visit) -> None:
    sent: list[str] = []
    page = visit()
    say(page)
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
    expect(page.locator(SETTLED)).to_be_visible()
    expect(alert).to_be_empty()
    page.fill("#text", "🦉" * LIMIT)
    expect(page.locator(SETTLED)).to_be_visible()
    expect(alert).to_be_empty()


def test_what_is_said_of_a_long_text_stays_while_one_types_on(visit: Visit) -> None:
    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.fill("#text", "a" * (LIMIT + 1))
    page.clock.run_for(2000)
    said = page.locator("#notice p")
    expect(said).to_have_text(TOO_LONG)
    said.evaluate("said => said.dataset.first = 'yes'")
    page.locator("#text").press_sequentially("b")
    page.clock.run_for(2000)
    expect(said).to_have_attribute("data-first", "yes")


def test_a_key_may_have_a_longer_limit(visit: Visit) -> None:
    def prepare(page: Page) -> None:
        patched(page, "**/frontend/settings", lambda settings: {**settings, "apiKeys": True})

    page = visit(prepare=prepare)
    page.get_by_label("API key").fill("a secret")
    page.get_by_role("button", name="Use key").click()
    with page.expect_response("**/translate") as info:
        page.fill("#text", "a" * (LIMIT + 1))
    assert info.value.json()["error"].startswith("Invalid request: request")
    expect(page.locator("#notice")).to_have_text(TOO_LONG)


def test_a_slow_server_is_seen_to_be_slow_and_the_newest_answer_wins(visit: Visit) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "slow" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.fulfill(json={"translatedText": "the newest", "alignment": None})

    page = visit()
    say(page)
    before = page.locator("#translation").text_content()
    page.route("**/translate", hold)
    page.fill("#text", "slow")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#answer")).to_have_class("pane stale")
    expect(page.locator(".progress")).to_be_visible()
    expect(page.locator("#translation")).to_have_text(before or "")
    expect(page.locator("#state")).to_have_text("Still translating: the server is slow")
    with page.expect_event("requestfailed", lambda request: "slow" in (request.post_data or "")):
        page.fill("#text", "quick")  # which breaks off the request before
    expect(page.locator(SETTLED)).to_have_text("the newest")
    expect(page.locator("#state")).to_have_text("")
    for route in held:
        route.fulfill(json={"translatedText": "the oldest", "alignment": None})
    expect(page.locator(SETTLED)).to_have_text("the newest")


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_wants_time_is_asked_again_when_it_said(visit: Visit, status: int) -> None:
    answers = [{"status": status, "headers": {"Retry-After": "2"}, "json": {"error": "Slowdown: 5 per 1 minute"}}]
    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.route("**/translate", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())
    page.fill("#text", SENTENCE)
    page.clock.run_for(500)
    expect(page.locator("#notice")).to_contain_text("Slowdown: 5 per 1 minute")
    expect(page.locator("#notice .wait")).to_have_text("2 s")
    page.clock.run_for(2000)
    expect(page.locator(SETTLED)).to_be_visible()
    expect(page.locator("#notice")).to_be_empty()


def test_a_server_that_is_away_is_asked_again_after_growing_pauses(visit: Visit) -> None:
    asked: list[str] = []

    def away(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    page = visit(prepare=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.route("**/translate", away)
    page.fill("#text", SENTENCE)
    page.clock.run_for(500)
    left = page.locator("#notice .wait")
    for number, pause in enumerate([2, 4, 8, 15, 30, 30], start=1):
        expect(left).to_have_text(f"{pause} s")
        assert len(asked) == number
        page.clock.run_for(1000 * (pause - 1))
        expect(left).to_have_text("1 s")
        assert len(asked) == number, "not before its time"
        with page.expect_event("requestfailed"):
            page.clock.run_for(1000)
    expect(left).to_have_text("30 s")
    page.unroute("**/translate")
    page.clock.run_for(30_000)
    expect(page.locator(SETTLED)).to_be_visible()
    expect(page.locator("#notice")).to_be_empty()
    page.route("**/translate", away)
    page.fill("#text", "our mother")
    page.clock.run_for(500)
    expect(left).to_have_text("2 s")


def test_the_page_begins_by_itself_once_the_server_is_back(visit: Visit) -> None:
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


def test_what_was_typed_outlives_a_reload(visit: Visit) -> None:
    page = visit()
    say(page, model="bahdanau-2", text="unsere Mutter")
    page.reload()
    expect(page.locator("#text")).to_have_value("unsere Mutter")
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#model")).to_have_value("bahdanau-2")
    expect(page.locator(SETTLED)).to_be_visible()
    page.click("#clear")
    page.reload()
    expect(page.locator("#facts")).not_to_be_empty()
    expect(page.locator("#text")).to_have_value("")
    assert page.evaluate("localStorage.length") == 0


def test_a_server_that_cannot_be_reached_is_asked_again_on_demand(visit: Visit) -> None:
    page = visit()
    page.route("**/translate", lambda route: route.abort())
    page.fill("#text", SENTENCE)
    expect(page.locator("#notice")).to_contain_text("The server cannot be reached.")
    page.unroute("**/translate")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(SETTLED)).to_be_visible()


def test_the_curves_of_a_run_are_drawn(visit: Visit, ask: Ask) -> None:
    page = visit("training")
    training = page.locator("#training")
    training.get_by_label("Run").select_option("transformer")
    rows = ask("v1/models/transformer/curves")["rows"]
    kinds = [row["kind"] for row in rows]
    expect(training.get_by_role("status")).to_contain_text("Finished: step 100")
    loss, bleu = training.locator("figure").all()
    assert path(loss.locator(".train")) == kinds.count("train")
    assert path(loss.locator(".dev")) == path(bleu.locator(".dev")) == kinds.count("dev") == 2
    expect(training.locator("tbody tr")).to_have_count(len(rows))
    last = [row for row in rows if row["kind"] == "dev"][-1]
    said = bleu.get_by_role("img").get_attribute("aria-label") or ""
    assert said.startswith("BLEU over 100 steps; at the end: dev ")
    assert float(said.split()[-1]) == pytest.approx(last["bleu"], abs=0.001)


@pytest.mark.parametrize("peak", [94.0, 51.0, 100.0, 0.3, 7.2, 0.0])
def test_the_axis_reaches_as_high_as_the_curve(visit: Visit, peak: float) -> None:
    rows = [{"kind": "dev", "step": step, "loss": 0.2, "bleu": peak * step / 1100} for step in (300, 1100)]
    answer = {"rows": rows, "finished": True}
    page = visit("training", lambda page: page.route("**/curves*", lambda route: route.fulfill(json=answer)))
    bleu = page.locator("#training figure").nth(1)
    expect(bleu.locator(".curve")).to_have_count(1)
    labels = [
        (float(text.text_content() or ""), text.bounding_box()) for text in bleu.locator("text[text-anchor=end]").all()
    ]
    assert len(labels) >= 2
    value, place = labels[-1]
    point = bleu.locator(".point").last.bounding_box()
    assert place
    assert point
    assert value >= peak
    assert place["y"] + place["height"] / 2 <= point["y"] + point["height"] / 2 + 1
    assert bleu.locator("text[text-anchor=middle]").last.text_content() == "1,100"


def test_the_two_losses_are_explained(visit: Visit) -> None:
    loss = visit("training").locator("#training figure").first
    expect(loss).to_contain_text("with dropout and label smoothing where the recipe has them")


def path(curve: Locator) -> int:
    """How many points a curve goes through."""
    return len(re.findall("[ML]", curve.get_attribute("d") or ""))


def test_the_curves_grow_while_a_run_is_trained(visit: Visit) -> None:
    train, dev = {"kind": "train", "step": 10, "loss": 5.0}, {"kind": "dev", "step": 10, "loss": None, "bleu": 1.5}
    first, then = {"rows": [train], "finished": False}, {"rows": [train, dev], "finished": True}
    asked: list[str] = []

    def handle(route: Route) -> None:
        asked.append(route.request.url.partition("after=")[2])
        route.fulfill(json=first if len(asked) == 1 else then)

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
    assert asked == ["-1", "9"]


def held(page: Page) -> None:
    """Time stands still on the page, until it is told to go on: however slow the machine, nothing is over too soon."""
    page.clock.install()
    page.clock.pause_at(datetime.now(tz=UTC) + timedelta(minutes=1))


def test_words_stream_in_with_their_attention(visit: Visit, ask: Ask, address: str) -> None:
    asked = {"q": SENTENCE, "model": "bahdanau"}
    lines = httpx.post(f"{address}/v1/translate/stream", json=asked, timeout=60).text.split("\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    written = [event for event in events if "word" in event]
    page = visit()
    say(page)
    held(page)
    page.get_by_role("button", name="Watch it write").click()
    expect(page.locator("#state")).to_have_text("Writing…")
    page.clock.resume()
    expect(page.locator("#state")).to_have_text("The likeliest word each time")
    expect(page.locator("#translation")).to_have_text(events[-1]["translatedText"])
    assert words(page, "Translation").all_text_contents() == [event["word"] for event in written]
    cells = page.locator("#attention table.matrix tbody td")
    assert shades(cells) == [weight for event in written for weight in event["weights"]]
    words(page, "Translation").first.hover()
    assert shades(words(page, "Source")) == written[0]["weights"]


def test_typing_ends_the_watching(visit: Visit) -> None:
    page = visit()
    say(page)
    held(page)
    page.get_by_role("button", name="Watch it write").click()
    expect(page.locator("#state")).to_have_text("Writing…")
    page.fill("#text", "our mother")
    page.clock.resume()
    expect(page.locator("#state")).to_have_text("")
    expect(page.locator(SETTLED)).to_be_visible()
    assert words(page, "Source").all_text_contents() == ["our", "mother"]


def test_what_looks_like_html_stays_text(visit: Visit) -> None:
    def spoilt(answer: Any) -> Any:
        """The same with markup in every text of it."""
        if isinstance(answer, dict):
            return {key: spoilt(value) for key, value in answer.items()}
        if isinstance(answer, list):
            return [spoilt(value) for value in answer]
        return f"{answer} {MARKUP}" if isinstance(answer, str) else answer

    def prepare(page: Page) -> None:
        for path in ("**/translate", "**/v1/trace", "**/v1/models/*/curves*"):
            patched(page, path, spoilt)

    page = visit(prepare=prepare)
    say(page, f"our {MARKUP} mother")
    assert MARKUP in words(page, "Source").all_text_contents()[0]
    for view, shown in {**VIEWS, "training": "figure"}.items():
        page.click(f"#tab-{view}")
        expect(page.locator(f"#{view} {shown}").first).to_be_visible()
        assert MARKUP in (page.locator(f"#{view}").text_content() or "")
        assert page.locator("img, [onerror]").count() == 0
    page.route("**/translate", lambda route: route.fulfill(status=400, json={"error": MARKUP}))
    page.fill("#text", "once more")
    expect(page.locator("#notice")).to_have_text(MARKUP)
    assert page.locator("img, [onerror]").count() == 0


def test_languages_are_swapped_and_detected(visit: Visit) -> None:
    page = visit()
    say(page, model="bahdanau")
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


def test_the_model_that_is_named_is_the_one_that_answers(visit: Visit) -> None:
    page = visit()
    say(page, model="")
    facts = page.locator("#facts")
    expect(facts).to_have_text(re.compile("^bahdanau · "))
    page.get_by_role("button", name="Swap the languages").click()
    expect(facts).to_have_text(re.compile("^bahdanau-2 · "))
    expect(page.locator("#model")).to_have_value("")
    page.select_option("#source", "auto")
    expect(page.locator(SETTLED)).to_be_visible()
    page.click("#clear")
    expect(facts).to_be_empty()  # nobody knows yet
    page.fill("#text", "Unsere Mutter sieht das alte Haus nicht.")
    expect(page.locator("#detected")).to_contain_text("German")
    expect(facts).to_have_text(re.compile("^bahdanau-2 · "))


def test_choosing_a_model_chooses_its_languages(visit: Visit, ask: Ask) -> None:
    page = visit()
    names = [model["name"] for model in ask("v1/models")["models"]]
    assert page.locator("#model option").evaluate_all("all => all.map(one => one.value)") == ["", *names]
    page.select_option("#model", names[-1])
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#facts")).to_contain_text(names[-1])
    page.select_option("#source", "en")
    expect(page.locator("#model")).to_have_value("")


def test_the_key_is_sent_and_kept_for_the_session(visit: Visit) -> None:
    def prepare(page: Page) -> None:
        patched(page, "**/frontend/settings", lambda settings: {**settings, "apiKeys": True})

    page = visit(prepare=prepare)
    page.fill("#text", SENTENCE)
    page.get_by_label("API key").fill("a secret")
    with page.expect_request(lambda request: "a secret" in (request.post_data or "")) as info:
        page.get_by_label("API key").blur()
    assert json.loads(info.value.post_data or "")["api_key"] == "a secret"
    page.reload()
    expect(page.get_by_label("API key")).to_have_value("a secret")
    assert page.evaluate("localStorage.length") == 0


def keyed(page: Page) -> None:
    """A service that tells nobody anything without the right key."""
    link = "https://example.org/keys"
    demands = {"apiKeys": True, "keyRequired": True, "keyLink": link}
    patched(page, "**/frontend/settings", lambda settings: settings | demands)

    def guarded(route: Route) -> None:
        sent = route.request
        told = (sent.post_data_json or {}).get("api_key") or sent.headers.get("authorization", "")
        if told.removeprefix("Bearer ") == "right":
            route.continue_()
        else:
            said = "Invalid API key" if told else f"Visit {link} to get an API key"
            route.fulfill(status=403 if told else 400, json={"error": said})

    page.route("**/v1/**", guarded)
    page.route("**/translate", guarded)


def test_a_key_that_is_needed_is_asked_for_and_used_with_a_button(visit: Visit) -> None:
    page = visit(prepare=keyed, shown=False)
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
    expect(page.locator(SETTLED)).to_be_visible()
    expect(page.get_by_text("Kept until this window is closed.")).to_be_visible()
    assert page.locator("#model option").count() == 1 + len(MODELS) + 1
    field.fill("wrong")
    field.press("Enter")
    expect(notice).to_have_text("Invalid API key")
    field.press_sequentially("er")
    expect(notice).to_be_empty()
    field.fill("")
    field.press("Enter")
    expect(notice).to_contain_text("This server asks for an API key")


@pytest.mark.parametrize("link", ["", "javascript:alert(1)", "keys"])
def test_what_is_no_address_of_a_page_is_no_link(visit: Visit, link: str) -> None:
    changed = {"apiKeys": True, "keyLink": link}
    page = visit(prepare=lambda page: patched(page, "**/frontend/settings", lambda settings: settings | changed))
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.get_by_role("link", name="Get a key").count() == 0


def test_the_key_is_not_asked_for_where_there_are_none(visit: Visit) -> None:
    expect(visit().get_by_label("API key")).to_be_hidden()


def test_the_translation_is_copied(visit: Visit) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("button", name="Copy")).to_be_disabled()
    say(page)
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#state")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#translation").text_content()


def luminance(page: Page) -> float:
    """How light the paper is."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 765


def test_light_and_dark_follow_the_system_until_the_switch_is_used(visit: Visit) -> None:
    page = visit(color_scheme="dark")
    switch = page.get_by_role("switch", name="Dark")
    expect(switch).to_have_attribute("aria-checked", "true")
    assert luminance(page) < 0.2
    page.emulate_media(color_scheme="light")
    expect(switch).to_have_attribute("aria-checked", "false")
    assert luminance(page) > 0.8
    switch.click()
    assert luminance(page) < 0.2
    page.reload()
    expect(switch).to_have_attribute("aria-checked", "true")
    assert luminance(page) < 0.2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_on_every_shade(visit: Visit, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    say(page)
    cell = page.locator("#attention td[data-row]").first
    for weight in range(0, 101, 5):
        cell.evaluate("(cell, weight) => cell.style.setProperty('--w', weight)", weight / 100)
        assert contrast(cell) >= 4.5
    for name in ("--dim", "--accent", "--bad", "--ink"):
        for paper in ("--paper", "--raised"):
            cell.evaluate(PAINT, [name, paper])
            assert contrast(cell) >= 4.5, (name, paper)


def contrast(element: Locator) -> float:
    """That of an element's text with what is behind it, as WCAG 2 has it."""
    ink, paper = element.evaluate("one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]")

    def light(colour: str) -> float:
        numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-\d+)?", colour.removeprefix("color(srgb"))[:3]]
        shares = numbers if colour.startswith("color(") else [number / 255 for number in numbers]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(ink), light(paper)])
    return (high + 0.05) / (low + 0.05)


def test_a_phone_shows_everything_without_scrolling_sideways(visit: Visit, address: str) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    say(page, " ".join([SENTENCE] * 3))
    for view, shown in VIEWS.items():
        page.click(f"#tab-{view}")
        expect(page.locator(f"#{view} {shown}").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    page.goto(f"{address}/docs")
    expect(page.locator(".route").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    meanings = page.locator("#post-translate dd").all()
    assert meanings
    assert all(inside(meaning, 360) for meaning in meanings)


def inside(element: Locator, width: int) -> bool:
    """Whether all of an element is between the edges of the screen."""
    box = element.bounding_box()
    assert box
    return box["x"] >= 0 and box["x"] + box["width"] <= width


def test_what_is_wider_than_a_phone_shows_that_there_is_more(visit: Visit) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    say(page, " ".join([SENTENCE] * 3))
    frame = page.locator("#attention .frame")
    sign = "frame => getComputedStyle(frame, '::after').content"
    expect(frame).to_have_class(re.compile("more-right"))
    assert "›" in frame.evaluate(sign)
    frame.locator(".scroll").evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    expect(frame).not_to_have_class(re.compile("more-right"))
    assert frame.evaluate(sign) == "none"
    assert inside(frame.locator("tbody th").first, 360), "the names of the rows stay"


def test_a_sentence_fits_on_a_phone_and_captions_always_do(visit: Visit) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    say(page)
    assert inside(page.locator("#attention .matrix"), 360)
    say(page, " ".join([SENTENCE] * 3))
    for view, captions in {"attention": 1, "compare": 3}.items():
        page.click(f"#tab-{view}")
        found = page.locator(f"#{view} caption span")
        expect(found).to_have_count(captions)
        for caption in found.all():
            assert inside(caption, 360)
            clipped = caption.evaluate("one => one.scrollWidth > one.clientWidth")
            assert not clipped


NAMELESS = re.compile(
    r"- (button|combobox|textbox|link|tab|tabpanel|slider|switch|grid|gridcell|region|img|table)(?!\w| \")"
)


def test_everything_has_a_name_in_every_view(visit: Visit, address: str) -> None:
    page = visit()
    say(page)
    for view, shown in VIEWS.items():
        page.click(f"#tab-{view}")
        expect(page.locator(f"#{view} {shown}").first).to_be_visible()
        tree = page.locator("body").aria_snapshot()
        assert NAMELESS.search(tree) is None, tree
        for landmark in ("banner", "main", "navigation"):
            assert f"- {landmark}" in tree
    page.goto(f"{address}/docs")
    expect(page.locator(".route").first).to_be_visible()
    assert NAMELESS.search(page.locator("body").aria_snapshot()) is None


def test_the_focus_goes_through_the_page_in_the_order_it_is_read_in(visit: Visit) -> None:
    page = visit()
    say(page)
    page.locator(".skip").focus()
    seen = []
    for _ in range(18):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.classList[0]"))
    controls = ["theme", "model", "source", "text", "clear", "target", "watch", "copy", "tab-attention", "word", "word"]
    assert [name for name in seen if name in controls] == controls
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus is seen"


def test_tabs_are_moved_through_with_arrow_keys(visit: Visit) -> None:
    page = visit()
    page.locator("#tab-attention").focus()
    for view in ("steps", "compare", "training", "attention"):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{view}")).to_be_focused()
        expect(page.get_by_role("tabpanel")).to_have_id(view)
        assert page.url.endswith(f"#{view}")


def test_nothing_moves_for_those_who_want_no_motion(visit: Visit) -> None:
    style = "getComputedStyle(document.querySelector('.progress'), '::after').animationName"
    assert visit().evaluate(style) == "run"
    assert visit(reduced_motion="reduce").evaluate(style) == "none"


def test_the_documentation_shows_every_route(visit: Visit, ask: Ask, address: str) -> None:
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
    expect(translate.locator("pre").first).to_contain_text(f"curl {address}/translate")
    expect(translate.locator("pre").first).to_contain_text('{"q":"the old house","source":"en","target":"de"}')
    expect(translate.locator("pre").last).to_contain_text('"translatedText"')


LETTER: FilePayload = {"name": "letter.txt", "mimeType": "text/plain", "buffer": "\n".join(LINES).encode()}


def test_a_file_is_translated_and_can_be_fetched(visit: Visit, ask: Ask) -> None:
    page = visit()
    choose = page.get_by_role("button", name="Translate files")
    expect(choose).to_have_accessible_description(re.compile(r"\.txt, .*\.docx"))
    with page.expect_file_chooser() as info:
        choose.focus()  # by when the browser knows that somebody waits for the chooser
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


def dragged(page: Page, kind: str) -> Any:
    """What a mouse carries: a file, or a text."""
    put = {"file": "d.items.add(new File(['the old house'], 'note.txt'))", "text": "d.setData('text/plain', 'a')"}
    return page.evaluate_handle(f"() => {{ const d = new DataTransfer(); {put[kind]}; return d }}")


def test_a_file_can_be_dropped_anywhere(visit: Visit) -> None:
    page = visit()
    target, sign, data = page.locator("#text"), page.locator("#drop"), dragged(page, "file")
    target.dispatch_event("dragover", {"dataTransfer": data})
    expect(sign).to_be_visible()
    page.locator("body").dispatch_event("dragleave")
    expect(sign).to_be_hidden()
    target.dispatch_event("dragover", {"dataTransfer": data})
    target.dispatch_event("drop", {"dataTransfer": data})
    expect(sign).to_be_hidden()
    expect(page.get_by_role("link", name="Download note.txt in German")).to_be_visible()
    target.dispatch_event("dragover", {"dataTransfer": dragged(page, "text")})
    expect(sign).to_be_hidden()


def test_a_file_that_takes_long_shows_it_and_can_be_stopped(visit: Visit) -> None:
    held: list[Route] = []
    page = visit(prepare=lambda page: page.clock.install(time=0))
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


def test_a_file_that_cannot_be_translated_says_why_in_words(visit: Visit) -> None:
    sent: list[str] = []
    page = visit(prepare=lambda page: patched(page, "**/frontend/settings", lambda found: found | {"fileLimit": 2000}))
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
    expect(refused).to_have_text(re.compile("^broken.docx is "))
    page.route(
        "**/translate_file", lambda route: route.fulfill(status=400, json={"error": "Invalid request: no words"})
    )
    page.set_input_files("#file", [LETTER])
    expect(rows.nth(5).get_by_role("alert")).to_have_text("No words")


def test_a_file_is_sent_again_when_the_server_said(visit: Visit) -> None:
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


def test_the_key_goes_with_a_file(visit: Visit) -> None:
    sent: list[bytes] = []

    def taken(route: Route) -> None:
        sent.append(route.request.post_data_buffer or b"")
        route.fulfill(json={"translatedFileUrl": "http://here/download_file/1.letter.txt"})

    page = visit(prepare=lambda page: patched(page, "**/frontend/settings", lambda found: found | {"apiKeys": True}))
    page.get_by_label("API key").fill("a secret")
    page.get_by_role("button", name="Use key").click()
    page.route("**/translate_file", taken)
    page.set_input_files("#file", [LETTER])
    expect(page.get_by_role("link", name="Download letter.txt in German")).to_be_visible()
    assert b'name="api_key"\r\n\r\na secret\r\n' in sent[0]


def test_files_are_not_offered_where_none_are_translated(visit: Visit) -> None:
    shut = {"filesTranslation": False}
    page = visit(prepare=lambda page: patched(page, "**/frontend/settings", lambda found: found | shut))
    expect(page.get_by_role("button", name="Translate files")).to_be_hidden()
    page.locator("#text").dispatch_event("dragover", {"dataTransfer": dragged(page, "file")})
    expect(page.locator("#drop")).to_be_hidden()
