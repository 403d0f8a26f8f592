"""The report of a run: `report.html`, one self-contained page, and attention plots of dev examples under `samples/`.

The page has training curves, sample outputs with attention weights, and the configuration. Its markup is in
`report.html.j2`, one macro for each part; here are the values and the coordinates of the charts.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from markupsafe import Markup

from regard.console import log_message
from regard.data.languages import is_right_to_left
from regard.errors import UserError
from regard.evaluate.translation_metrics import LengthGroup, bleu_by_length, choose_tokenizer
from regard.models.hypothesis import Floats
from regard.paths import read_package_yaml
from regard.plot.attention_overlay import AttentionOverlay
from regard.plot.charts import PredictedSeries, plot_predicted_series
from regard.plot.heatmap import format_tokens, plot_heatmap, write_figure
from regard.recipes.recipe import RunConfig
from regard.runs import Run
from regard.runs.run import summarize_run
from regard.special_tokens import EOS, SPECIAL_TOKENS
from regard.tasks import get_task
from regard.tasks.base import DevExample, Prediction, Predictor
from regard.translate import Translation, Translator
from regard.translate.inspection import compute_attention_by_head

_TEXTS: dict[str, dict[str, str]] = read_package_yaml("regard.report", "texts.yaml")
CAPTIONS = _TEXTS["captions"]
MAX_CANDIDATES = 10
SAMPLES = 5
MAX_BLEU_SENTENCES = 200  # dev sentences translated for BLEU by length


def write_report(run: Run, device: torch.device | None = None) -> Path:
    """Write `report.html`, and a plot of each sample under `samples/`; return the path of the report.

    The model runs on the device, by default a GPU if there is one.
    """
    recipe = run.read_config()
    task = get_task(recipe)
    config = task.make_config(recipe)
    # Translations are shown with the attention of each head, and with a chart of BLEU.
    write_page = _write_translation_report if task.command == "translate" else _write_prediction_report
    return write_page(run, config, task.load(run.folder, device=device), task.load_dev_set(config))


def _write_prediction_report(run: Run, config: RunConfig, predictor: Predictor, dev: Sequence[DevExample]) -> Path:
    examples = dev[:SAMPLES]
    predictions = predictor.predict([example.input for example in examples])
    for number, prediction in enumerate(predictions, 1):
        if (figure := prediction.plot()) is not None:
            write_figure(figure, run.folder / "samples" / f"attention-{number}.png")
    pairs = zip(examples, predictions, strict=True)
    series = [prediction.make_series(example.reference) for example, prediction in pairs]
    if any(series):
        for number, one in enumerate(series, 1):
            write_figure(plot_predicted_series(one), run.folder / "samples" / f"series-{number}.png")
        heading, caption, sections = "Predictions", CAPTIONS["series"], list(map(format_series, series))
    else:
        has_images = any(prediction.make_image_overlay() for prediction in predictions)
        heading, caption = "Attention", CAPTIONS["overlay" if has_images else "word_weights"]
        sections = list(map(format_prediction, examples, predictions))
    return _write_html(run, format_run_page(run, _describe_best_checkpoint(run), sections, caption, heading=heading))


def _write_translation_report(run: Run, config: RunConfig, translator: Translator, dev: Sequence[DevExample]) -> Path:
    examples = [example for example in dev if example.input.strip()][:MAX_BLEU_SENTENCES]
    sources, references = [example.input for example in examples], [example.reference_text for example in examples]
    translations = translator.translate(sources[:SAMPLES])
    for number, translation in enumerate(translations, 1):
        write_heatmap(translation, run.folder / "samples" / f"attention-{number}.png")
    heads = [compute_head_attention(translator, translation) for translation in translations]
    samples = list(map(ReportSample, translations, references, heads))
    try:
        tokenize = choose_tokenizer(references, config.data.target, config.evaluation.tokenize)
    except UserError as error:  # trained where another one is installed
        log_message(f"{error}: the report uses the default one")
        tokenize = choose_tokenizer(references, config.data.target)
    greedy = [output.text for output in translator.translate(sources, beam=1, alignments=False)]
    groups = bleu_by_length(sources, greedy, references, tokenize=tokenize)
    return write_translation_page(run, _describe_best_checkpoint(run), samples, groups)


def compute_head_attention(translator: Translator, translation: Translation) -> dict[str, Floats]:
    """Return the attention of every head, forced-decoding the translation.

    The result is empty without attention, if the translation has several segments, or if retokenising the text does not
    give the tokens that were decoded.
    """
    if translation.attention is None or translation.source_tokens.count(SPECIAL_TOKENS[EOS]) != 1:
        return {}
    heads = compute_attention_by_head(translator, *translator.encode_pair(translation.source, translation.text))
    return heads if all(head.shape == translation.attention.shape for head in heads.values()) else {}


def write_translation_page(
    run: Run, results: Mapping[str, Any], samples: Sequence[ReportSample], groups: Sequence[LengthGroup] = ()
) -> Path:
    """Write the report of a translation model, `groups` being BLEU by sentence length; return its path."""
    charts, data = format_length_chart(groups), run.read_config()["data"]
    parts = [format_sample(sample, data.get("source"), data.get("target")) for sample in samples]
    return _write_html(run, format_run_page(run, results, parts, CAPTIONS["heatmap"], charts))


def _write_html(run: Run, html: str) -> Path:
    path = run.folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def write_heatmap(translation: Translation, path: Path) -> None:
    """Write the attention heat map of a translation; do nothing without attention."""
    if translation.attention is not None:
        write_figure(plot_heatmap(translation.attention, translation.source_tokens, translation.tokens), path)


def _describe_best_checkpoint(run: Run) -> dict[str, Any]:
    """Return step, dev loss and dev score of the best checkpoint; empty before the first validation."""
    best = summarize_run(run.folder).best
    return {} if best is None else {"step": best.step, "dev loss": best.loss, f"dev {best.measure}": best.score}


@cache
def load_macros(package: str = "regard.report", template: str = "report.html.j2") -> Any:
    """Return the macros of a template; those of HTML escape their arguments, and their results are safe."""
    from jinja2 import Environment, StrictUndefined

    is_html = template.endswith(".html.j2")
    environment = Environment(autoescape=is_html, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(number=_format_table_value, short=_format_tick, direction=_find_direction)
    return environment.from_string(_read_resource(package, template)).module


def _render(macro: str, *values: Any) -> Markup:
    """Return the HTML of a macro of the report's template."""
    return Markup(getattr(load_macros(), macro)(*values))


def _read_resource(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _format_table_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _format_tick(value: float) -> str:
    """Return a number in a few characters: 0.0012, 41.3, 18.2k."""
    return f"{value / 1000:.3g}k" if abs(value) >= 1000 else f"{value:.3g}"


def _find_direction(words: Iterable[str]) -> str:
    return "rtl" if is_right_to_left("".join(words)) else "ltr"


class ReportSample(NamedTuple):
    """A translation with its reference, and the attention of each head if there are several."""

    translation: Translation
    reference: str
    heads: Mapping[str, Floats] = MappingProxyType({})


def format_html_document(title: str, body: str) -> str:
    """Return a self-contained HTML document; `body` is HTML."""
    return str(_render("document", title, Markup(_read_resource("regard.report", "style.css")), Markup(body)))


def format_run_page(
    run: Run,
    results: Mapping[str, Any],
    samples: Iterable[str],
    caption: str,
    charts: str = "",
    heading: str = "Attention",
) -> str:
    """Return the HTML report of a run.

    Args:
        run: The run, for its config and training curves.
        results: Names and values of the results table.
        samples: HTML of each sample.
        caption: Text that explains the samples.
        charts: HTML of further charts.
        heading: Heading of the samples.
    """
    config = run.read_config()
    title = _format_run_title(config)
    sections = {name: values for name, values in config.items() if isinstance(values, dict)}
    metrics = run.read_metrics()
    measure = next((row.get("measure") for row in reversed(metrics) if row["kind"] == "dev"), None)
    curves = format_training_curves(metrics, "perplexity" if config["training"].get("best") == "loss" else measure)
    paper = config.get("paper", "")
    body = _render("run", title, paper, results, charts, curves, heading, caption, samples, sections)
    return format_html_document(title, body)


def _format_run_title(config: Mapping[str, Any]) -> str:
    """Return the recipe's name, with the language pair if there is one."""
    sides = [config["data"].get(side) or side for side in ("source", "target") if side in config["data"]]
    return f"{config.get('recipe')}{', ' if sides else ''}{' → '.join(sides)}"


class ChartFrame(NamedTuple):
    """Size of a chart and its margins, in units of its SVG view box."""

    width: int = 420
    height: int = 220
    left: int = 64
    bottom: int = 30
    top: int = 12

    @property
    def right(self) -> int:
        """Right end of the plotted area."""
        return self.width - 12

    @property
    def plot_height(self) -> int:
        """Height of the plotted area."""
        return self.height - self.top - self.bottom

    def scale_x(self, fraction: float) -> float:
        """Return the x of a fraction of the width."""
        return self.left + fraction * (self.right - self.left)

    def make_y_scale(self, values: Sequence[float]) -> tuple[list[tuple[float, float]], Callable[[float], float]]:
        """Return four ticks (value, y) that span the values, and the function from a value to its y."""
        low, high = min(values), max(values)
        margin = 0.0 if high > low else abs(low) or 1.0  # for a flat curve; proportional, because 1e43 − 1 is 1e43
        low, high = low - margin, high + margin

        def scale_y(value: float) -> float:
            return self.top + (high - value) / (high - low) * self.plot_height

        return [(value, scale_y(value)) for value in (low + (high - low) * tick / 3 for tick in range(4))], scale_y


FRAME, SERIES_FRAME = ChartFrame(), ChartFrame(width=860)


def format_training_curves(metrics: Sequence[Mapping[str, Any]], chosen_by: str | None = None) -> Markup:
    """Return a chart for each metric that was logged, with a note on that which chooses the best checkpoint.

    NaN and inf are left out.
    """
    charts = []
    for title, lines in _TEXTS["training_curves"].items():
        kind, key = lines.split()
        title += ", which chooses the best checkpoint" if (kind, key) == ("dev", chosen_by) else ""
        known = (row for row in metrics if row["kind"] == kind and row.get(key) is not None)
        points = [(float(row["step"]), float(row[key])) for row in known]
        charts.append(format_curve(title, [point for point in points if math.isfinite(point[1])]))
    return Markup("").join(charts)


def format_curve(title: str, points: Sequence[tuple[float, float]]) -> Markup:
    """Return a line chart over the training steps, with title, axes and the last value; empty without points."""
    if not points:
        return Markup("")
    xs, ys = zip(*points, strict=True)
    ticks, scale_y = FRAME.make_y_scale(ys)
    first, last = min(xs), max(xs)
    scaled = [FRAME.scale_x((x - first) / (last - first) if last > first else 0.5) for x in xs]
    label = f"{title}: {ys[0]:.4g} at step {xs[0]:.0f}, {ys[-1]:.4g} at step {xs[-1]:.0f}"
    polyline = [f"{x:.1f},{scale_y(y):.1f}" for x, y in zip(scaled, ys, strict=True)]
    return _render("curve", title, ys[-1], label, FRAME, ticks, polyline, f"step {first:.0f}", f"{last:.0f}")


def format_length_chart(groups: Sequence[LengthGroup]) -> Markup:
    """Return a bar chart of BLEU by source length; empty without groups."""
    if not groups:
        return Markup("")
    title = "BLEU by words of the source"
    ticks = [(value, FRAME.top + (1 - value / 100) * FRAME.plot_height) for value in (0.0, 25.0, 50.0, 75.0, 100.0)]
    centers = [FRAME.scale_x((index + 0.5) / len(groups)) for index in range(len(groups))]
    columns = [
        (group.words, f"{group.pairs:,} pairs", center, group.bleu / 100 * FRAME.plot_height)
        for group, center in zip(groups, centers, strict=True)
    ]
    width = 0.7 * (FRAME.right - FRAME.left) / len(groups)
    label = f"{title}: " + "; ".join(f"{group.words}: {group.bleu:.1f}, {group.pairs:,} pairs" for group in groups)
    return _render("bars", title, label, FRAME, ticks, columns, width)


def format_series(series: Sequence[PredictedSeries]) -> Markup:
    """Return reference and prediction of one example over time, a chart for each output column."""
    panels = []
    for one in series:
        ticks, scale_y = SERIES_FRAME.make_y_scale([*one.reference, *one.prediction])
        last = max(1, len(one.reference) - 1)
        curves = (
            [f"{SERIES_FRAME.scale_x(x / last):.1f},{scale_y(y):.1f}" for x, y in enumerate(values)]
            for values in (one.reference, one.prediction)
        )
        panels.append((SERIES_FRAME, ticks, *curves))
    return _render("series", panels)


def format_sample(sample: ReportSample, source_language: str | None = None, language: str | None = None) -> Markup:
    """Return one translation with its attention heat map, and those of all heads if there are several."""
    languages = {"source": source_language, "reference": language, "translation": language}
    translation = sample.translation
    lines = {"source": translation.source, "reference": sample.reference, "translation": translation.text}
    source, target = format_tokens(translation.source_tokens), format_tokens(translation.tokens)
    return _render("translation", lines, source, target, translation.attention, sample.heads, languages)


def format_prediction(example: DevExample, prediction: Prediction) -> Markup:
    """Return one prediction beside its reference, with the attention weights."""
    lines = {"reference": example.reference_text, "model": prediction.to_text()}
    candidates = prediction.to_dict().get("candidates", [])[:MAX_CANDIDATES]
    if candidates:
        lines["candidates"] = ", ".join(f"{one['word']} {one['probability']:.3f}" for one in candidates)
    if (overlay := prediction.make_image_overlay()) is not None:
        weights = format_overlay(overlay)
    else:
        weights = _render("weighted_lines", prediction.make_attention_lines())
    return _render("prediction", lines, weights)


def format_overlay(overlay: AttentionOverlay) -> Markup:
    """Return the image once for each word, darkened by attention; the image data are embedded once."""
    png = overlay.encode_png() or b""
    rows, columns = overlay.weights.shape[1:]
    panels = [
        (word, weights.tolist(), overlay.compute_opacity(index).tolist(), float(weights.max(initial=0.0)))
        for index, (word, weights) in enumerate(zip(overlay.words, overlay.weights, strict=True))
    ]
    name = f"image-{hashlib.sha256(png).hexdigest()[:16]}"
    return _render("overlays", panels, rows, columns, name, base64.b64encode(png).decode("ascii"))
