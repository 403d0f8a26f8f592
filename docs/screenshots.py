"""Takes the documentation's pictures of the page, from the runs of `regard demo`, of its tasks, and of `make learn`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

DOCS = Path(__file__).parent
RUNS = ("demo", "learn/bahdanau2015", "learn/luong2015-local-p", "learn/sutskever2014")
OTHERS = ("demo-classify", "demo-tag", "demo-read", "demo-caption")  # regard demo --task classify …
MARGIN = 20  # around a part of the page
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SENTENCE = "At night our mother does not call a colleague ."
REVIEW = (
    "The old man found the chapel boring. We took the early train. "
    "The driver did not find the chapel charming at all. I found the chapel splendid."
)
STORY = (
    "Jonas made keys . Clara found lamps . Jonas lost lamps . David found keys . Jonas sold keys . Clara bought lamps ."
)
LONG = "The student , whom my sister knows , falls asleep in the room ."
SETTLED = "#answer[aria-busy=false]:not(.stale) #translation:not(:empty)"
DESK: dict[str, Any] = {"viewport": {"width": 1200, "height": 1800}}  # so high that nothing needs to be scrolled
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 2400},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 1.5,
}


def main(runs: Path) -> None:
    """All of them, into `screenshots`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        with served(runs, RUNS) as address:
            translators(browser, address)
        with served(runs, OTHERS) as address:
            others(browser.new_context(reduced_motion="reduce", **DESK).new_page(), address, runs)
        report(browser.new_context(viewport={"width": 1000, "height": 1800}).new_page(), runs / RUNS[0])
        browser.close()


def translators(browser: Browser, address: str) -> None:
    """The page of models that translate."""
    translate(opened(browser, address, "attention", **DESK), "translate")
    files(opened(browser, address, "attention", **DESK))
    matrix(opened(browser, address, "attention", **DESK))
    steps(opened(browser, address, "steps", **DESK))
    compare(opened(browser, address, "compare", **DESK))
    training(opened(browser, address, "training", **DESK))
    translate(opened(browser, address, "attention", **DESK, color_scheme="dark"), "dark")
    phone(opened(browser, address, "attention", **PHONE))
    documentation(opened(browser, address, "attention", **DESK), address)


@contextmanager
def served(runs: Path, names: Sequence[str]) -> Iterator[str]:
    """The address of a service."""
    places = [str(runs / name) for name in names]
    command = [sys.executable, "-m", "regard", "serve", *places, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = (re.search(r"running on (http://[\d.:]+)", line) for line in process.stderr)
        address = next(match[1] for match in told if match)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield address
        process.terminate()


def opened(browser: Browser, address: str, view: str, **options: Any) -> Page:
    """The page, at one of its views."""
    page = browser.new_context(reduced_motion="reduce", **options).new_page()
    page.goto(f"{address}/#{view}")
    page.wait_for_selector(f"#tab-{view}[aria-selected=true]")
    return page


def say(page: Page, text: str, model: str = "") -> None:
    """Types a text and waits for its translation."""
    page.select_option("#model", model)
    page.fill("#text", text)
    page.wait_for_selector(SETTLED)
    page.locator("#text").blur()


def save(page: Page, name: str, **options: Any) -> None:
    """A picture of what is seen now."""
    page.screenshot(path=DOCS / "screenshots" / f"{name}.png", **options)


def save_part(page: Page, name: str, last: str, first: str = "body") -> None:
    """A picture of the page from the top of one element to the bottom of another, cut between elements."""
    top = page.locator(first).first.evaluate("element => Math.floor(element.getBoundingClientRect().top)")
    bottom = page.locator(last).last.evaluate("element => Math.ceil(element.getBoundingClientRect().bottom)")
    width = page.evaluate("document.documentElement.clientWidth")
    top = max(0, top - MARGIN)
    save(page, name, full_page=True, clip={"x": 0, "y": top, "width": width, "height": bottom + MARGIN - top})


def translate(page: Page, name: str) -> None:
    """A word pointed at, and what the model attended to for it."""
    say(page, SENTENCE)
    page.get_by_role("group", name="Translation").get_by_text("keinen").hover()
    save_part(page, name, "#attention .matrix")


def files(page: Page) -> None:
    """Documents: one is translated, one is not what it seems, one is of a kind that nobody knows."""
    say(page, SENTENCE)
    letter: Any = {"name": "letter.txt", "mimeType": "text/plain", "buffer": SENTENCE.encode()}
    others = [{"name": name, "mimeType": "", "buffer": b"-"} for name in ("report.docx", "photo.jpg")]
    page.set_input_files("#file", [letter, *others])
    page.get_by_role("link", name="Download letter.txt").wait_for()
    page.locator(".file .notice p").nth(1).wait_for()
    save_part(page, "files", "#files")


def matrix(page: Page) -> None:
    """The whole matrix, a cell pointed at."""
    say(page, LONG)
    page.locator("#attention .matrix tbody tr").nth(8).locator("td").nth(8).hover()
    save_part(page, "matrix", "#attention .matrix", "#attention .tools")


def steps(page: Page) -> None:
    """One step of a model with local attention."""
    say(page, LONG, "luong2015-local-p")
    page.locator("#steps .stages").wait_for()
    for _ in range(4):
        page.get_by_role("button", name="Next").click()
    save_part(page, "steps", "#steps table", ".tabs")


def compare(page: Page) -> None:
    """Two models at work."""
    say(page, "A nurse believes that a girl looked at him .")
    page.get_by_label("Right").select_option("luong2015-local-p")
    page.get_by_role("region", name="luong2015-local-p", exact=True).wait_for()
    save_part(page, "compare", "#compare .matrix", ".tabs")


def training(page: Page) -> None:
    """A run's curves."""
    page.locator("#training .curve").first.wait_for()
    save_part(page, "training", "#training", ".tabs")


def phone(page: Page) -> None:
    """The same on a phone."""
    say(page, SENTENCE)
    page.get_by_role("group", name="Translation").get_by_text("keinen").tap()
    save_part(page, "phone", "#attention .matrix", ".panes")


def others(page: Page, address: str, runs: Path) -> None:
    """Models that do something else than translate, each with an answer."""
    page.goto(f"{address}/ask")
    page.locator("#form textarea").wait_for()
    page.get_by_label("Text").fill(REVIEW)
    answered(page, ".attended", "ask")
    page.select_option("#model", "demo-tag")
    page.get_by_label("Sentence").fill("now they spread the heavy door and friends let the net .")
    answered(page, ".tagged", "ask-tag")
    page.select_option("#model", "demo-read")
    page.get_by_label("Text", exact=True).fill(STORY)
    page.get_by_label("Sentence").fill("now that the rain is over we know that most of all XXXXX bought keys .")
    page.get_by_label("Candidates").fill("David, Jonas, Clara")
    answered(page, ".attended", "ask-read")
    page.select_option("#model", "demo-caption")
    picture = BytesIO()
    Image.fromarray(np.load(runs / "demo-caption" / "corpus" / "test.npy")[0]).save(picture, "png")
    page.set_input_files("#form input", {"name": "shapes.png", "mimeType": "image/png", "buffer": picture.getvalue()})
    answered(page, ".grids", "ask-caption")


def answered(page: Page, part: str, name: str) -> None:
    """A picture as high as there is something to see, once a part of the answer is there."""
    page.locator(f"#answer[aria-busy=false] {part}").wait_for()
    page.locator("#form").evaluate("() => document.activeElement.blur()")
    end = page.locator("#answer").evaluate("answer => Math.ceil(answer.getBoundingClientRect().bottom) + 24")
    save(page, name, full_page=True, clip={"x": 0, "y": 0, "width": 1200, "height": end})


def report(page: Page, run: Path) -> None:
    """The report of a run, as far as its first heat map."""
    page.goto((run / "report.html").as_uri())
    end = page.locator("summary", has_text="every layer and head").first
    height = end.evaluate("element => Math.ceil(element.getBoundingClientRect().bottom)")
    save(page, "report", full_page=True, clip={"x": 0, "y": 0, "width": 1000, "height": height + MARGIN})


def documentation(page: Page, address: str) -> None:
    """How to ask."""
    page.goto(f"{address}/docs")
    page.locator(".route").first.wait_for()
    save(page, "docs", clip={"x": 0, "y": 0, "width": 1200, "height": 860})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS.parent / "runs")
