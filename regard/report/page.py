"""A run on one page: its curves, some translations, and where the model looked. Nothing is fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

from regard.evaluate import Group
from regard.report.chart import bars, chart
from regard.runs import Run
from regard.search import Floats
from regard.translate import Translation

CURVES = (
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


READ = "Rows are what the model wrote, columns what it read; the darker, the more weight."


class Shown(NamedTuple):
    """A translation beside the reference, and what each head looked at, where there are several."""

    translation: Translation
    reference: str
    heads: Mapping[str, Floats] = MappingProxyType({})


def page(run: Run, results: Mapping[str, Any], samples: Sequence[Shown], groups: Sequence[Group] = ()) -> str:
    """The page of a model that translates, as HTML; `groups` are BLEU by sentence length."""
    return whole(run, results, by_length(groups), READ, [sample(item) for item in samples])


def whole(
    run: Run,
    results: Mapping[str, Any],
    charts: str,
    how_to_read: str,
    samples: Sequence[str],
    heading: str = "Where it looked",
) -> str:
    """A page with some charts beside those of training, and under a heading a section for each sample."""
    config = run.config()
    title = titled(config)
    body = (
        f"<h1>{escape(title)}</h1><p class=paper>{escape(str(config.get('paper', '')))}</p>"
        f"<h2>Results</h2>{table(results)}"
        f"{charts}"
        f"<h2>Training</h2><div class=charts>{curves(run.metrics())}</div>"
        f"<h2>{heading}</h2>"
        f"<p>{how_to_read}</p>{''.join(samples)}"
        f"<h2>Configuration</h2>{configuration(config)}"
    )
    return document(title, body)


def document(title: str, body: str) -> str:
    """A page that needs nothing from outside."""
    style = resources.files("regard.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )


def titled(config: Mapping[str, Any]) -> str:
    """What a run is called: its recipe, and the languages where there are two."""
    sides = [config["data"].get(side) or side for side in ("source", "target") if side in config["data"]]
    return f"{config.get('recipe')}{', ' if sides else ''}{' → '.join(sides)}"


def by_length(groups: Sequence[Group]) -> str:
    """BLEU of short and of long sentences."""
    if not groups:
        return ""
    values = [(group.words, group.bleu, f"{group.pairs:,} pairs") for group in groups]
    return f"<div class=charts>{bars('BLEU by words of the source', values, 100.0)}</div>"


def table(rows: Mapping[str, Any]) -> str:
    """Names and values."""
    cells = (
        f"<tr><th scope=row>{escape(str(key))}</th><td>{escape(shown(value))}</td></tr>" for key, value in rows.items()
    )
    return f"<table class=values>{''.join(cells)}</table>"


def shown(value: Any) -> str:
    """A number with as many places as make sense."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """A chart for each thing that was measured."""
    charts = []
    for title, kind, key in CURVES:
        known = (row for row in metrics if row["kind"] == kind and row.get(key) is not None)
        points = [(float(row["step"]), float(row[key])) for row in known]
        charts.append(chart(title, [point for point in points if math.isfinite(point[1])]))
    return "".join(charts)


def sample(item: Shown) -> str:
    """One translation with its heat map."""
    translation = item.translation
    lines = table({"source": translation.source, "reference": item.reference, "translation": translation.text})
    if translation.attention is None:
        return f"<section>{lines}<p>This model has no attention.</p></section>"
    read, wrote = translation.source_tokens, translation.tokens
    each = "".join(f"<h3>{escape(name)}</h3>{matrix(look, read, wrote)}" for name, look in item.heads.items())
    heads = f"<details><summary>every layer and head</summary>{each}</details>" if each else ""
    return f"<section>{lines}{matrix(translation.attention, read, wrote)}{heads}</section>"


def matrix(attention: Floats, source: Sequence[str], target: Sequence[str]) -> str:
    """Attention as a table of shaded cells."""
    head = "".join(f"<th scope=col><span>{escape(word)}</span></th>" for word in source)
    rows = "".join(
        f"<tr><th scope=row>{escape(word)}</th>{''.join(map(cell, weights.tolist()))}</tr>"
        for word, weights in zip(target, attention, strict=True)
    )
    whole = f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody>"
    return f"<div class=scroll><table class=attention>{whole}</table></div>"


def cell(weight: float) -> str:
    """One weight; what is below a hundredth is left blank to the ear as to the eye."""
    label = f"{weight:.2f}" if weight >= 0.01 else ""
    shade = " class=dark" if weight >= 0.5 else ""
    return f'<td{shade} style="--w:{weight:.3f}" title="{weight:.3f}">{label.removeprefix("0")}</td>'


def configuration(config: Mapping[str, Any]) -> str:
    """The resolved recipe, section by section."""
    sections = ((name, values) for name, values in config.items() if isinstance(values, dict))
    return "".join(f"<details><summary>{escape(name)}</summary>{table(values)}</details>" for name, values in sections)
