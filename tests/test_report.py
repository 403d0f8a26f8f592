"""The HTML report of a run that was never trained: every figure in it is known."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from regard.evaluate import Group
from regard.report import Shown, page
from regard.report.chart import HEIGHT, WIDTH, chart
from regard.report.page import by_length, sample
from regard.runs import Run
from regard.translate import Translation

VOID = {"meta", "br", "hr", "img", "link", "input"}
EVIL = "<script>alert('x')</script>"
TRAIN = [(10, 5.0, 0.001), (20, 4.0, 0.002), (30, 3.5, 0.003)]
DEV = [(15, 60.0, 1.5), (30, 40.0, 7.25)]


class Walk(HTMLParser):
    """Reads a page, and complains of every tag that is not closed in its place."""

    def __init__(self, written: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(written)
        self.close()
        assert self.open == [], "tags that were never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def rows() -> list[dict[str, Any]]:
    train = [
        {"kind": "train", "step": step, "loss": loss, "learning_rate": rate, "tokens_per_second": 1000 + step}
        for step, loss, rate in TRAIN
    ]
    dev = [{"kind": "dev", "step": step, "loss": 4.0, "perplexity": value, "bleu": bleu} for step, value, bleu in DEV]
    return [*train, *dev]


def fake_run(folder: Path, metrics: list[dict[str, Any]] | None = None, **top: Any) -> Run:
    config = {
        "recipe": "mine",
        "paper": "Somebody & Others 2015",
        "model": {"kind": "bahdanau", "size": 64, "dropout": 0.1},
        "loss": {"per": "token"},
        "text": {"kind": "word"},
        "data": {"source": "en", "target": "de"},
        "training": {"steps": 30},
    } | top
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    lines = (json.dumps(row) + "\n" for row in (rows() if metrics is None else metrics))
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    return Run(folder)


def translation(**changes: Any) -> Translation:
    values: dict[str, Any] = {
        "source": "the house",
        "text": "das Haus",
        "source_tokens": ["the", "house", "</s>"],
        "tokens": ["das", "Haus", "</s>"],
        "attention": np.array([[0.7, 0.2, 0.1], [0.004, 0.996, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32),
    }
    return Translation(**(values | changes))


def made(folder: Path, **changes: Any) -> str:
    return page(fake_run(folder), {"bleu": 12.3456, "pairs": 7}, [Shown(translation(**changes), "ein Haus")])


def points(attributes: dict[str, str | None]) -> list[tuple[float, float]]:
    written = attributes["points"] or ""
    return [(float(x), float(y)) for x, y in (point.split(",") for point in written.split())]


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    written = made(tmp_path)
    walk = Walk(written)
    assert written.startswith("<!doctype html>")
    assert [len(walk.all(tag)) for tag in ("html", "head", "body", "main", "h1", "title", "style")] == [1] * 7
    assert walk.all("html")[0]["lang"] == "en"
    assert {"charset": "utf-8"} in walk.all("meta")


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    written = made(tmp_path)
    walk = Walk(written)
    names = {tag for tag, _ in walk.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "video", "audio"}
    for tag, attributes in walk.tags:
        assert not {"src", "href", "srcset", "xlink:href", "action", "data"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not re.search(r"https?:|//|url\(|@import", written)


@pytest.mark.parametrize(
    "where", ["source", "text", "source_tokens", "tokens", "reference", "config", "results", "paper"]
)
def test_text_is_escaped_everywhere(where: str, tmp_path: Path) -> None:
    tokens = [EVIL, '"onclick="', "</s>"]
    changes: dict[str, Any] = {where: tokens if where.endswith("tokens") else EVIL}
    top: dict[str, Any] = {"config": {"data": {"source": EVIL, "target": "de"}}, "paper": {"paper": EVIL}}
    run = fake_run(tmp_path, **top.get(where, {}))
    shown = translation(**(changes if where in ("source", "text", "source_tokens", "tokens") else {}))
    results = {EVIL: EVIL} if where == "results" else {"bleu": 1.0}
    written = page(run, results, [Shown(shown, EVIL if where == "reference" else "ein Haus")])
    walk = Walk(written)
    assert walk.all("script") == []
    assert any(EVIL in text for text in walk.text), "it is there, as text"
    assert "<script" not in written


def test_each_chart_has_a_point_for_each_measurement(tmp_path: Path) -> None:
    walk = Walk(made(tmp_path))
    curves = [points(attributes) for attributes in walk.all("polyline")]
    titles = [str(attributes["aria-label"]).split(":")[0] for attributes in walk.all("svg")]
    counted = dict(zip(titles, map(len, curves), strict=True))
    assert counted == {
        "Training loss": 3,
        "Dev perplexity": 2,
        "Dev BLEU": 2,
        "Learning rate": 3,
        "Tokens a second": 3,
    }
    loss, bleu = curves[titles.index("Training loss")], curves[titles.index("Dev BLEU")]
    assert [y for _, y in loss] == sorted(y for _, y in loss), "a falling loss goes down, which is a growing y"
    assert bleu[0][1] > bleu[1][1], "a rising BLEU goes up"
    assert [x for x, _ in loss] == sorted(x for x, _ in loss)
    assert loss[1][0] - loss[0][0] == pytest.approx(loss[2][0] - loss[1][0], abs=0.11)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for curve in curves for x, y in curve)


def test_the_last_value_stands_beside_the_title(tmp_path: Path) -> None:
    written = " ".join(Walk(made(tmp_path)).text)
    assert re.search(r"Training loss\s+3\.5\b", written)
    assert re.search(r"Dev BLEU\s+7\.25\b", written)


def test_what_was_not_measured_has_no_chart(tmp_path: Path) -> None:
    walk = Walk(page(fake_run(tmp_path, []), {}, []))
    assert walk.all("svg") == []
    only = [{"kind": "train", "step": 1, "loss": 2.0}]
    walk = Walk(page(fake_run(tmp_path, only), {}, []))
    assert [str(svg["aria-label"]).split(":")[0] for svg in walk.all("svg")] == ["Training loss"]
    assert len(points(walk.all("polyline")[0])) == 1


def test_a_run_without_metrics_yet(tmp_path: Path) -> None:
    run = fake_run(tmp_path)
    run.metrics_path.unlink()
    assert Walk(page(run, {}, [])).all("polyline") == []


def test_a_value_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    values = [1.0, float("nan"), float("inf"), 2.0]
    metrics = [{"kind": "train", "step": step, "loss": value} for step, value in enumerate(values)]
    written = page(fake_run(tmp_path, metrics), {}, [])
    assert [len(points(attributes)) for attributes in Walk(written).all("polyline")] == [2]
    assert "nan" not in written.split("</style>")[1]


@pytest.mark.parametrize(
    "values",
    [
        [(0.0, 3.0)],
        [(0.0, 3.0), (5.0, 3.0)],
        [(0.0, 0.0), (1.0, 1e-12)],
        [(7.0, -1e9), (8.0, 1e9)],
        [(4.0, 2.7e43)],
        [(4.0, 0.0)],
    ],
)
def test_charts_stay_inside_their_frame(values: list[tuple[float, float]]) -> None:
    walk = Walk(chart("a < b", values))
    (curve,) = walk.all("polyline")
    assert len(points(curve)) == len(values)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points(curve))
    assert "a < b " in walk.text


def test_a_chart_of_nothing() -> None:
    assert chart("t", []) == ""


def test_the_attention_is_a_table_with_a_cell_a_weight(tmp_path: Path) -> None:
    walk = Walk(made(tmp_path))
    weights = [float(str(cell["title"])) for cell in walk.all("td") if "title" in cell]
    assert weights == [0.7, 0.2, 0.1, 0.004, 0.996, 0.0, 0.0, 0.0, 1.0]
    shades = [str(cell["style"]) for cell in walk.all("td") if "style" in cell]
    assert shades == [f"--w:{weight:.3f}" for weight in weights]
    assert {".70", ".20", ".10", "1.00"} <= set(walk.text)
    assert not {".00", "0.00"} & set(walk.text), "less than a hundredth is left blank"
    assert len([cell for cell in walk.all("th") if cell.get("scope") == "col"]) == 3


def test_a_model_without_attention(tmp_path: Path) -> None:
    walk = Walk(made(tmp_path, attention=None))
    assert "This model has no attention." in walk.text
    assert not [cell for cell in walk.all("td") if "style" in cell]


def test_results_samples_and_configuration_are_there(tmp_path: Path) -> None:
    walk = Walk(made(tmp_path))
    assert {"12.35", "7", "the house", "das Haus", "ein Haus", "mine, en → de", "Somebody & Others 2015"} <= set(
        walk.text
    )
    assert {"model", "data", "training", "bahdanau", "64", "30"} <= set(walk.text)
    assert len(walk.all("details")) == 5
    assert len(walk.all("section")) == 1


def test_there_are_light_and_dark_colours(tmp_path: Path) -> None:
    style = made(tmp_path).split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert "color-scheme: light dark" in light
    defined = [set(re.findall(r"(--[a-z-]+): ", part)) for part in (light, dark)]
    assert defined[0] >= defined[1] == {"--ink", "--dim", "--paper", "--line", "--hue", "--text-on"}
    used = set(re.findall(r"var\((--[a-z-]+)\)", style))
    assert used <= defined[0] | {"--w"}
    assert "#" not in re.sub(r":root \{[^}]*\}", "", style), "colours are named once, so that dark can change them all"


def test_bleu_by_length_is_drawn_and_told(tmp_path: Path) -> None:
    groups = [Group("1–10", 12, 40.0), Group("11–20", 3, 20.0)]
    drawn = by_length(groups)
    assert "1–10: 40.0, 12 pairs; 11–20: 20.0, 3 pairs" in drawn
    heights = [float(value) for value in re.findall(r'class="bar"[^>]* height="([\d.]+)"', drawn)]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert by_length([]) == ""


def test_every_head_is_there_to_be_unfolded() -> None:
    look = np.array([[0.25, 0.75]], dtype=np.float32)
    made = Translation("a", "b", 0.0, ["</s>"], ["a", "</s>"], look)
    plain, several = sample(Shown(made, "b")), sample(Shown(made, "b", {"layer 1, head 2": look * 2}))
    assert "<details>" not in plain
    assert "<h3>layer 1, head 2</h3>" in several
    assert several.count("<table class=attention>") == 2
