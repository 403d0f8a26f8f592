"""The HTML report of a run, with metrics and attention written by the tests."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from regard.evaluate.translation_metrics import LengthGroup
from regard.report.html import (
    FRAME,
    ReportSample,
    format_curve,
    format_length_chart,
    format_sample,
    write_translation_page,
)
from regard.runs import Run
from regard.translate import Translation

VOID = {"meta", "br", "hr", "img", "link", "input"}
SCRIPT = "<script>alert('x')</script>"
TRAIN = [(10, 5.0, 0.001), (20, 4.0, 0.002), (30, 3.5, 0.003)]
DEV = [(15, 60.0, 1.5), (30, 40.0, 7.25)]


class ParsedPage(HTMLParser):
    """Parses a page and checks that its tags are nested correctly."""

    def __init__(self, written: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(written)
        self.close()
        assert self.open == [], "unclosed tags"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"duplicate attribute in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start tag"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def make_metrics() -> list[dict[str, Any]]:
    train = [
        {"kind": "train", "step": step, "loss": loss, "learning_rate": rate, "tokens_per_second": 1000 + step}
        for step, loss, rate in TRAIN
    ]
    dev = [{"kind": "dev", "step": step, "loss": 4.0, "perplexity": value, "bleu": bleu} for step, value, bleu in DEV]
    return [*train, *dev]


def write_run(folder: Path, metrics: list[dict[str, Any]] | None = None, **top: Any) -> Run:
    config = {
        "recipe": "mine",
        "paper": "Author & Others 2015",
        "model": {"kind": "bahdanau", "size": 64, "dropout": 0.1},
        "loss": {"per": "token"},
        "text": {"kind": "word"},
        "data": {"source": "en", "target": "de"},
        "training": {"steps": 30},
    } | top
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    lines = (json.dumps(row) + "\n" for row in (make_metrics() if metrics is None else metrics))
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    return Run(folder)


def make_translation(**changes: Any) -> Translation:
    values: dict[str, Any] = {
        "source": "the house",
        "text": "das Haus",
        "source_tokens": ["the", "house", "</s>"],
        "tokens": ["das", "Haus", "</s>"],
        "attention": np.array([[0.7, 0.2, 0.1], [0.004, 0.996, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32),
    }
    return Translation(**(values | changes))


def format_page(run: Run, results: dict[str, Any], samples: list[ReportSample]) -> str:
    return write_translation_page(run, results, samples).read_text(encoding="utf-8")


def make_page(folder: Path, **changes: Any) -> str:
    return format_page(
        write_run(folder), {"bleu": 12.3456, "pairs": 7}, [ReportSample(make_translation(**changes), "ein Haus")]
    )


def parse_points(attributes: dict[str, str | None]) -> list[tuple[float, float]]:
    written = attributes["points"] or ""
    return [(float(x), float(y)) for x, y in (point.split(",") for point in written.split())]


def test_report_is_well_formed_html(tmp_path: Path) -> None:
    written = make_page(tmp_path)
    walk = ParsedPage(written)
    assert written.startswith("<!doctype html>")
    assert [len(walk.all(tag)) for tag in ("html", "head", "body", "main", "h1", "title", "style")] == [1] * 7
    assert walk.all("html")[0]["lang"] == "en"
    assert {"charset": "utf-8"} in walk.all("meta")


def test_report_loads_and_executes_nothing(tmp_path: Path) -> None:
    written = make_page(tmp_path)
    walk = ParsedPage(written)
    names = {tag for tag, _ in walk.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "video", "audio"}
    for tag, attributes in walk.tags:
        assert not {"src", "href", "srcset", "xlink:href", "action", "data"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not re.search(r"https?:|//|url\(|@import", written)


@pytest.mark.parametrize(
    "where", ["source", "text", "source_tokens", "tokens", "reference", "config", "results", "paper"]
)
def test_report_escapes_text(where: str, tmp_path: Path) -> None:
    tokens = [SCRIPT, '"onclick="', "</s>"]
    changes: dict[str, Any] = {where: tokens if where.endswith("tokens") else SCRIPT}
    top: dict[str, Any] = {"config": {"data": {"source": SCRIPT, "target": "de"}}, "paper": {"paper": SCRIPT}}
    run = write_run(tmp_path, **top.get(where, {}))
    shown = make_translation(**(changes if where in ("source", "text", "source_tokens", "tokens") else {}))
    results = {SCRIPT: SCRIPT} if where == "results" else {"bleu": 1.0}
    written = format_page(run, results, [ReportSample(shown, SCRIPT if where == "reference" else "ein Haus")])
    walk = ParsedPage(written)
    assert walk.all("script") == []
    assert any(SCRIPT in text for text in walk.text), "shown as text"
    assert "<script" not in written


def test_chart_has_a_point_per_measurement(tmp_path: Path) -> None:
    walk = ParsedPage(make_page(tmp_path))
    curves = [parse_points(attributes) for attributes in walk.all("polyline")]
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
    assert [y for _, y in loss] == sorted(y for _, y in loss), "y grows downwards"
    assert bleu[0][1] > bleu[1][1], "y grows downwards"
    assert [x for x, _ in loss] == sorted(x for x, _ in loss)
    assert loss[1][0] - loss[0][0] == pytest.approx(loss[2][0] - loss[1][0], abs=0.11)
    assert all(0 <= x <= FRAME.width and 0 <= y <= FRAME.height for curve in curves for x, y in curve)


def test_chart_title_shows_the_last_value(tmp_path: Path) -> None:
    written = " ".join(ParsedPage(make_page(tmp_path)).text)
    assert re.search(r"Training loss\s+3\.5\b", written)
    assert re.search(r"Dev BLEU\s+7\.25\b", written)


def test_missing_metrics_have_no_chart(tmp_path: Path) -> None:
    walk = ParsedPage(format_page(write_run(tmp_path, []), {}, []))
    assert walk.all("svg") == []
    only = [{"kind": "train", "step": 1, "loss": 2.0}]
    walk = ParsedPage(format_page(write_run(tmp_path, only), {}, []))
    assert [str(svg["aria-label"]).split(":")[0] for svg in walk.all("svg")] == ["Training loss"]
    assert len(parse_points(walk.all("polyline")[0])) == 1


def test_report_of_a_run_without_metrics_has_no_charts(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    run.metrics_path.unlink()
    assert ParsedPage(format_page(run, {}, [])).all("polyline") == []


def test_charts_leave_out_nan_and_infinity(tmp_path: Path) -> None:
    values = [1.0, float("nan"), float("inf"), 2.0]
    metrics = [{"kind": "train", "step": step, "loss": value} for step, value in enumerate(values)]
    written = format_page(write_run(tmp_path, metrics), {}, [])
    assert [len(parse_points(attributes)) for attributes in ParsedPage(written).all("polyline")] == [2]
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
    ids=str,
)
def test_chart_points_stay_inside_the_frame(values: list[tuple[float, float]]) -> None:
    walk = ParsedPage(format_curve("a < b", values))
    (curve,) = walk.all("polyline")
    assert len(parse_points(curve)) == len(values)
    assert all(0 <= x <= FRAME.width and 0 <= y <= FRAME.height for x, y in parse_points(curve))
    assert "a < b " in walk.text


def test_chart_without_values_is_empty() -> None:
    assert format_curve("t", []) == ""


def test_attention_table_has_a_cell_per_weight(tmp_path: Path) -> None:
    walk = ParsedPage(make_page(tmp_path))
    weights = [float(str(cell["title"])) for cell in walk.all("td") if "title" in cell]
    assert weights == [0.7, 0.2, 0.1, 0.004, 0.996, 0.0, 0.0, 0.0, 1.0]
    shades = [str(cell["style"]) for cell in walk.all("td") if "style" in cell]
    assert shades == [f"--w:{weight:.3f}" for weight in weights]
    assert {".70", ".20", ".10", "1.00"} <= set(walk.text)
    assert not {".00", "0.00"} & set(walk.text), "weights below 0.01 are blank"
    assert len([cell for cell in walk.all("th") if cell.get("scope") == "col"]) == 3


def test_report_states_that_a_model_has_no_attention(tmp_path: Path) -> None:
    walk = ParsedPage(make_page(tmp_path, attention=None))
    assert "This model has no attention." in walk.text
    assert not [cell for cell in walk.all("td") if "style" in cell]


def test_report_contains_results_samples_and_configuration(tmp_path: Path) -> None:
    walk = ParsedPage(make_page(tmp_path))
    assert {"12.35", "7", "the house", "das Haus", "ein Haus", "mine, en → de", "Author & Others 2015"} <= set(
        walk.text
    )
    assert {"model", "data", "training", "bahdanau", "64", "30"} <= set(walk.text)
    assert len(walk.all("details")) == 5
    assert len(walk.all("section")) == 1


def test_report_has_light_and_dark_colours(tmp_path: Path) -> None:
    style = make_page(tmp_path).split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert "color-scheme: light dark" in light
    defined = [set(re.findall(r"(--[a-z-]+): ", part)) for part in (light, dark)]
    assert defined[0] >= defined[1] == {"--ink", "--dim", "--paper", "--line", "--hue", "--text-on"}
    used = set(re.findall(r"var\((--[a-z-]+)\)", style))
    assert used <= defined[0] | {"--w"}
    assert "#" not in re.sub(r":root \{[^}]*\}", "", style), (
        "colours are defined as variables, so that dark mode can replace them"
    )


def test_bleu_by_length_is_a_bar_chart_with_a_description(tmp_path: Path) -> None:
    groups = [LengthGroup("1–10", 12, 40.0), LengthGroup("11–20", 3, 20.0)]
    drawn = format_length_chart(groups)
    assert "1–10: 40.0, 12 pairs; 11–20: 20.0, 3 pairs" in drawn
    heights = [float(value) for value in re.findall(r'class="bar"[^>]* height="([\d.]+)"', drawn)]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert format_length_chart([]) == ""


def test_attention_heads_are_in_a_collapsed_section() -> None:
    weights = np.array([[0.25, 0.75]], dtype=np.float32)
    found = Translation("a", "b", 0.0, ["</s>"], ["a", "</s>"], weights)
    plain, several = (
        format_sample(ReportSample(found, "b")),
        format_sample(ReportSample(found, "b", {"layer 1, head 2": weights * 2})),
    )
    assert "<details>" not in plain
    assert "<h3>layer 1, head 2</h3>" in several
    assert several.count("<table class=attention>") == 2


def test_report_of_arabic_and_japanese_has_their_directions_and_languages() -> None:
    weights = np.full((2, 3), 0.3, dtype=np.float32)
    made = Translation("بيت صغير", "小さな家", 0.0, ["小さな", "家"], ["بيت", "صغير", "</s>"], weights)
    page = ParsedPage(format_sample(ReportSample(made, "家"), "ar", "ja"))
    assert [box["dir"] for box in page.all("div")] == ["rtl"], "columns run from right to left"
    assert [cell.get("lang") for cell in page.all("td") if cell.get("dir") == "auto"] == ["ar", "ja", "ja"]
    assert [row.get("lang") for row in page.all("tr") if "lang" in row] == ["ar"]
    assert [cell.get("lang") for cell in page.all("th") if "lang" in cell] == ["ja", "ja"]
    back = Translation("小さな家", "بيت", 0.0, ["بيت", "</s>"], ["小さな", "家", "</s>"], weights)
    unnamed = ParsedPage(format_sample(ReportSample(back, "بيت")))
    assert [box["dir"] for box in unnamed.all("div")] == ["ltr"]
    assert not [attributes for _, attributes in unnamed.tags if "lang" in attributes]
