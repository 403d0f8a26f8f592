"""HTML report as one self-contained page: training curves, sample outputs, attention weights, configuration."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from regard.evaluate import LengthGroup
from regard.plot import AttentionOverlay, WeightedWords
from regard.report.svg_charts import plot_svg_bars, plot_svg_curve
from regard.runs import Run
from regard.search import Floats
from regard.tasks import DevExample, Prediction
from regard.translate import Translation

TRAINING_CURVES = (
    ("Training loss", "train", "loss"),
    ("Dev perplexity", "dev", "perplexity"),
    ("Dev BLEU", "dev", "bleu"),
    ("Dev chrF", "dev", "chrf"),
    ("Dev exact matches", "dev", "exact"),
    ("Dev weight on what a word names", "dev", "on_object"),
    ("Dev entropy of attention", "dev", "entropy"),
    ("Dev accuracy", "dev", "accuracy"),
    ("Dev F1", "dev", "f1"),
    ("Dev macro-F1", "dev", "macro_f1"),
    ("Dev RMSE", "dev", "rmse"),
    ("Dev R²", "dev", "r2"),
    ("Learning rate", "train", "learning_rate"),
    ("Tokens a second", "train", "tokens_per_second"),
)


HEATMAP_CAPTION = "Rows are what the model wrote, columns what it read; the darker, the more weight."


class ReportSample(NamedTuple):
    """A translation with its reference, and the attention of each head if there are several."""

    translation: Translation
    reference: str
    heads: Mapping[str, Floats] = MappingProxyType({})


def format_translation_page(
    run: Run, results: Mapping[str, Any], samples: Sequence[ReportSample], groups: Sequence[LengthGroup] = ()
) -> str:
    """Return the HTML report of a translation model; `groups` are BLEU by sentence length."""
    return format_run_page(
        run, results, format_length_chart(groups), HEATMAP_CAPTION, [format_sample(item) for item in samples]
    )


def format_run_page(
    run: Run,
    results: Mapping[str, Any],
    charts: str,
    caption: str,
    samples: Sequence[str],
    heading: str = "Attention",
) -> str:
    """Return the HTML report of a run.

    Args:
        run: The run, for its config and training curves.
        results: Names and values of the results table.
        charts: HTML of further charts.
        caption: Text that explains the samples.
        samples: HTML of each sample.
        heading: Heading of the samples.
    """
    config = run.read_config()
    title = _format_run_title(config)
    body = (
        f"<h1>{escape(title)}</h1><p class=paper>{escape(str(config.get('paper', '')))}</p>"
        f"<h2>Results</h2>{_format_values_table(results)}"
        f"{charts}"
        f"<h2>Training</h2><div class=charts>{format_training_curves(run.read_metrics())}</div>"
        f"<h2>{heading}</h2>"
        f"<p>{caption}</p>{''.join(samples)}"
        f"<h2>Configuration</h2>{_format_configuration(config)}"
    )
    return format_html_document(title, body)


def format_html_document(title: str, body: str) -> str:
    """Return a self-contained HTML document."""
    style = resources.files("regard.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )


def _format_run_title(config: Mapping[str, Any]) -> str:
    """Return the recipe's name, with the language pair if there is one."""
    sides = [config["data"].get(side) or side for side in ("source", "target") if side in config["data"]]
    return f"{config.get('recipe')}{', ' if sides else ''}{' → '.join(sides)}"


def format_length_chart(groups: Sequence[LengthGroup]) -> str:
    """Return a bar chart of BLEU by source length."""
    if not groups:
        return ""
    values = [(group.words, group.bleu, f"{group.pairs:,} pairs") for group in groups]
    return f"<div class=charts>{plot_svg_bars('BLEU by words of the source', values, 100.0)}</div>"


def _format_values_table(rows: Mapping[str, Any]) -> str:
    cells = (
        f"<tr><th scope=row>{escape(str(key))}</th><td>{escape(_format_table_value(value))}</td></tr>"
        for key, value in rows.items()
    )
    return f"<table class=values>{''.join(cells)}</table>"


def _format_table_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_training_curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return a chart for each metric that was logged."""
    charts = []
    for title, kind, key in TRAINING_CURVES:
        known = (row for row in metrics if row["kind"] == kind and row.get(key) is not None)
        points = [(float(row["step"]), float(row[key])) for row in known]
        charts.append(plot_svg_curve(title, [point for point in points if math.isfinite(point[1])]))
    return "".join(charts)


def format_sample(sample: ReportSample) -> str:
    """Return one translation with its attention heat map."""
    translation = sample.translation
    lines = _format_values_table(
        {"source": translation.source, "reference": sample.reference, "translation": translation.text}
    )
    if translation.attention is None:
        return f"<section>{lines}<p>This model has no attention.</p></section>"
    source_tokens, target_tokens = translation.source_tokens, translation.tokens
    head_tables = "".join(
        f"<h3>{escape(name)}</h3>{_format_attention_matrix(attention, source_tokens, target_tokens)}"
        for name, attention in sample.heads.items()
    )
    heads = f"<details><summary>every layer and head</summary>{head_tables}</details>" if head_tables else ""
    heatmap = _format_attention_matrix(translation.attention, source_tokens, target_tokens)
    return f"<section>{lines}{heatmap}{heads}</section>"


def _format_attention_matrix(attention: Floats, source: Sequence[str], target: Sequence[str]) -> str:
    """Return an attention matrix (T, S) as a table of shaded cells."""
    head = "".join(f"<th scope=col><span>{escape(word)}</span></th>" for word in source)
    rows = "".join(
        f"<tr><th scope=row>{escape(word)}</th>{''.join(map(_format_weight_cell, weights.tolist()))}</tr>"
        for word, weights in zip(target, attention, strict=True)
    )
    table = f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody>"
    return f"<div class=scroll><table class=attention>{table}</table></div>"


def _format_weight_cell(weight: float) -> str:
    """Return one weight; weights below 0.01 have no text, so that screen readers skip them."""
    label = f"{weight:.2f}" if weight >= 0.01 else ""
    shade = " class=dark" if weight >= 0.5 else ""
    return f'<td{shade} style="--w:{weight:.3f}" title="{weight:.3f}">{label.removeprefix("0")}</td>'


def _format_configuration(config: Mapping[str, Any]) -> str:
    sections = ((name, values) for name, values in config.items() if isinstance(values, dict))
    return "".join(
        f"<details><summary>{escape(name)}</summary>{_format_values_table(values)}</details>"
        for name, values in sections
    )


OVERLAY_CAPTION = (
    "The image once for each word: the clearer a region, the higher its attention weight; the number is the maximum."
)


def format_image_attention(overlay: AttentionOverlay) -> str:
    """Return the image once for each word, darkened by attention; the image data are embedded once."""
    png = overlay.encode_png()
    rows, columns = overlay.weights.shape[1:]
    name = "" if png is None else f"image-{hashlib.sha256(png).hexdigest()[:16]}"
    image = "" if png is None else _format_image_definition(png, name, rows, columns)
    panels = "".join(_format_word_overlay(overlay, word, name) for word in range(len(overlay.words)))
    return f"{image}<div class=overlays>{panels}</div>"


def _format_image_definition(png: bytes, name: str, rows: int, columns: int) -> str:
    """Return the image as an SVG definition that other elements refer to by its name."""
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<svg class=hidden aria-hidden="true"><defs><image id="{name}" width="{columns}" height="{rows}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/></defs></svg>'
    )


def _format_word_overlay(overlay: AttentionOverlay, word: int, name: str) -> str:
    rows, columns = overlay.weights.shape[1:]
    weights, opacity = overlay.weights[word], overlay.compute_opacity(word)
    cells = "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="{opacity[y, x]:.3f}">'
        f"<title>{weights[y, x]:.3f}</title></rect>"
        for y, x in np.ndindex(rows, columns)
    )
    image = f'<use href="#{name}"/>' if name else f'<rect class=blank width="{columns}" height="{rows}"/>'
    label, highest = escape(overlay.words[word]), float(weights.max(initial=0.0))
    return (
        f'<figure><svg viewBox="0 0 {columns} {rows}" role="img" aria-label="{label}">{image}{cells}</svg>'
        f"<figcaption><b>{label}</b> {highest:.2f}</figcaption></figure>"
    )


MAX_CANDIDATES = 10
WORD_WEIGHTS_CAPTION = (
    "The darker a word, the higher its attention weight; the number before a line is the weight of the whole line."
)


def format_prediction(example: DevExample, prediction: Prediction) -> str:
    """Return one prediction beside its reference, with the attention weights."""
    table = _format_values_table(
        {"reference": example.reference_text, "model": prediction.to_text(), **_list_candidates(prediction)}
    )
    return f"<section>{table}{_format_attention(prediction)}</section>"


def _format_attention(prediction: Prediction) -> str:
    overlay = prediction.make_image_overlay()
    if overlay is not None:
        return format_image_attention(overlay)
    return (
        "".join(map(_format_weighted_words, prediction.make_attention_lines())) or "<p>This model has no attention.</p>"
    )


def _list_candidates(prediction: Prediction) -> dict[str, str]:
    """Return the most probable candidates with their probabilities; an empty dictionary if there are none."""
    ranked = prediction.to_dict().get("candidates", [])[:MAX_CANDIDATES]
    listed = ", ".join(f"{candidate['word']} {candidate['probability']:.3f}" for candidate in ranked)
    return {"candidates": listed} if listed else {}


def _format_weighted_words(line: WeightedWords) -> str:
    pairs = zip(line.words, line.weights, strict=True)
    words = " ".join(_format_weighted_word(word, weight, line.compute_darkness(weight)) for word, weight in pairs)
    line_weight = "" if line.weight is None else _format_weighted_word(f"{line.weight:.2f}", line.weight, line.weight)
    return f"<p class=looked><b>{escape(line.label)}</b> {line_weight} {words}</p>"


def _format_weighted_word(text: str, weight: float, darkness: float) -> str:
    dark = " class=dark" if darkness >= 0.5 else ""
    return f'<span{dark} style="--w:{darkness:.3f}" title="{weight:.3f}">{escape(text)}</span>'
