"""Write the report of a run: `report.html`, and attention plots of dev examples under `samples/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.evaluate import LengthGroup, bleu_by_length
from regard.evaluate.translation_metrics import choose_selection_metric
from regard.models.hypothesis import Floats
from regard.plot.charts import plot_predicted_series
from regard.plot.heatmap import plot_heatmap, write_figure
from regard.recipes.recipe import RunConfig
from regard.report.html import (
    HEATMAP_CAPTION,
    OVERLAY_CAPTION,
    SERIES_CAPTION,
    WORD_WEIGHTS_CAPTION,
    ReportSample,
    format_length_chart,
    format_prediction,
    format_run_page,
    format_sample,
    format_series,
)
from regard.runs import Run
from regard.runs.run import summarize_run
from regard.special_tokens import EOS, SPECIAL_TOKENS
from regard.tasks import get_task
from regard.tasks.base import DevExample, Predictor
from regard.translate import Translation, Translator
from regard.translate.inspection import compute_attention_by_head

SAMPLES = 5
MAX_BLEU_SENTENCES = 200  # dev sentences translated for BLEU by length


def write_report(run: Run) -> Path:
    """Write `report.html`, and a plot of each sample under `samples/`; return the path of the report."""
    recipe = run.read_config()
    task = get_task(recipe)
    config = task.make_config(recipe)
    # Translations are shown with the attention of each head, and with a chart of BLEU.
    write_page = _write_translation_report if task.command == "translate" else _write_prediction_report
    return write_page(run, config, task.load(run.folder), task.load_dev_set(config))


def _write_prediction_report(run: Run, config: RunConfig, predictor: Predictor, dev: Sequence[DevExample]) -> Path:
    examples = dev[:SAMPLES]
    predictions = predictor.predict([example.input for example in examples])
    for number, prediction in enumerate(predictions, 1):
        if (figure := prediction.plot()) is not None:
            write_figure(figure, run.folder / "samples" / f"attention-{number}.png")
    series = [
        prediction.make_series(example.reference) for example, prediction in zip(examples, predictions, strict=True)
    ]
    if any(series):
        for number, one in enumerate(series, 1):
            write_figure(plot_predicted_series(one), run.folder / "samples" / f"series-{number}.png")
        heading, caption, sections = "Predictions", SERIES_CAPTION, list(map(format_series, series))
    else:
        has_images = any(prediction.make_image_overlay() for prediction in predictions)
        heading, caption = "Attention", OVERLAY_CAPTION if has_images else WORD_WEIGHTS_CAPTION
        sections = list(map(format_prediction, examples, predictions))
    return _write_html(run, format_run_page(run, _describe_best_checkpoint(run), sections, caption, heading=heading))


def _write_translation_report(run: Run, config: RunConfig, translator: Translator, dev: Sequence[DevExample]) -> Path:
    examples = [example for example in dev if example.input.strip()][:MAX_BLEU_SENTENCES]
    sources, references = [example.input for example in examples], [example.reference_text for example in examples]
    translations = translator.translate(sources[:SAMPLES])
    for number, translation in enumerate(translations, 1):
        write_heatmap(translation, run.folder / "samples" / f"attention-{number}.png")
    samples = [
        ReportSample(translation, reference, compute_head_attention(translator, translation))
        for translation, reference in zip(translations, references, strict=False)
    ]
    groups: Sequence[LengthGroup] = ()
    if choose_selection_metric(references, config.data.target) == "bleu":  # it means nothing without spaces
        greedy = [output.text for output in translator.translate(sources, beam=1, alignments=False)]
        groups = bleu_by_length(sources, greedy, references)
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
    charts = format_length_chart(groups)
    return _write_html(run, format_run_page(run, results, map(format_sample, samples), HEATMAP_CAPTION, charts))


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
