"""What a training run leaves for people to look at, beside its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.evaluate import LengthGroup, bleu_by_length
from regard.plot import (
    PredictedSeries,
    plot_attention_overlay,
    plot_heatmap,
    plot_predicted_series,
    plot_weighted_words,
    write_figure,
)
from regard.report.html import (
    OVERLAY_CAPTION,
    WORD_WEIGHTS_CAPTION,
    ReportSample,
    format_prediction,
    format_run_page,
    format_translation_page,
)
from regard.report.svg_charts import SERIES_CAPTION, plot_svg_series
from regard.runs import Run
from regard.runs.summary import summarize_run
from regard.search import Floats
from regard.special_tokens import EOS, SPECIAL_TOKENS
from regard.tasks import TASKS, Prediction, Task, get_task
from regard.tasks.base import choose_selection_metric
from regard.translate import Translation, Translator, compute_attention_by_head, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5
MAX_BLEU_SENTENCES = 200  # dev sentences that BLEU by length is of


def write_report(run: Run) -> Path:
    """`report.html`, and under `samples/` a picture for each example in it; gives back the report's path."""
    task = get_task(run.read_config())
    return _write_translation_report(run) if task is TASKS["translate"] else _write_prediction_report(run, task)


def _write_prediction_report(run: Run, task: Task) -> Path:
    """The report of a run whose model answers."""
    asked = task.load_dev_set(run)[:SAMPLES]
    made = task.load(run.folder).predict([one.input for one in asked])
    for number, prediction in enumerate(made, 1):
        if (picture := _plot_attention(prediction)) is not None:
            write_figure(picture, run.folder / "samples" / f"attention-{number}.png")
    if task.make_predicted_series:
        return _write_series_report(run, [task.make_predicted_series(*both) for both in zip(asked, made, strict=True)])
    sections = [format_prediction(one, prediction) for one, prediction in zip(asked, made, strict=True)]
    how_to_read = (
        OVERLAY_CAPTION if any(prediction.make_image_overlay() for prediction in made) else WORD_WEIGHTS_CAPTION
    )
    return _write_html(run, format_run_page(run, _describe_best_checkpoint(run), "", how_to_read, sections))


def _plot_attention(prediction: Prediction) -> Figure | None:
    """Where a model looked: in an image, or at words."""
    overlay, lines = prediction.make_image_overlay(), prediction.make_attention_lines()
    if overlay is not None:
        return plot_attention_overlay(overlay)
    return plot_weighted_words(lines) if lines else None


def _write_series_report(run: Run, examples: Sequence[Sequence[PredictedSeries]]) -> Path:
    """The report of a run whose model gives numbers over time."""
    for number, some in enumerate(examples, 1):
        write_figure(plot_predicted_series(some), run.folder / "samples" / f"series-{number}.png")
    return _write_html(
        run,
        format_run_page(
            run,
            _describe_best_checkpoint(run),
            "",
            SERIES_CAPTION,
            list(map(plot_svg_series, examples)),
            "What it gave",
        ),
    )


def _write_translation_report(run: Run) -> Path:
    """The report of a run whose model translates."""
    dev = [asked for asked in TASKS["translate"].load_dev_set(run) if asked.input.strip()][:MAX_BLEU_SENTENCES]
    sources, references = [asked.input for asked in dev], [asked.reference_text for asked in dev]
    translator = load(run.folder)
    translations = translator.translate(sources[:SAMPLES])
    for number, translation in enumerate(translations, 1):
        write_heatmap(translation, run.folder / "samples" / f"attention-{number}.png")
    both = zip(translations, references, strict=False)
    shown = [
        ReportSample(translation, reference, compute_head_attention(translator, translation))
        for translation, reference in both
    ]
    if (
        choose_selection_metric(references, run.read_config()["data"].get("target")) != "bleu"
    ):  # BLEU is meaningless, no chart of it
        return write_translation_page(run, _describe_best_checkpoint(run), shown)
    quick = [made.text for made in translator.translate(sources, beam=1, alignments=False)]
    return write_translation_page(
        run, _describe_best_checkpoint(run), shown, bleu_by_length(sources, quick, references)
    )


def compute_head_attention(translator: Translator, translation: Translation) -> dict[str, Floats]:
    """Every head's look, where there are several and the translation is of one piece, as the model would write it."""
    if translation.attention is None or translation.source_tokens.count(SPECIAL_TOKENS[EOS]) != 1:
        return {}
    looks = compute_attention_by_head(translator, translation.source, translation.text)
    return looks if all(look.shape == translation.attention.shape for look in looks.values()) else {}


def write_translation_page(
    run: Run, results: Mapping[str, Any], samples: Sequence[ReportSample], groups: Sequence[LengthGroup] = ()
) -> Path:
    """The report of a run that translates."""
    return _write_html(run, format_translation_page(run, results, samples, groups))


def _write_html(run: Run, html: str) -> Path:
    """Where a report is, written."""
    path = run.folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def write_heatmap(translation: Translation, path: Path) -> None:
    """The heat map of one translation, if its model has attention."""
    if translation.attention is not None:
        write_figure(plot_heatmap(translation.attention, translation.source_tokens, translation.tokens), path)


def _describe_best_checkpoint(run: Run) -> dict[str, Any]:
    """The figures of the best checkpoint."""
    found = summarize_run(run.folder).best
    return {} if found is None else {"step": found.step, "dev loss": found.loss, f"dev {found.measure}": found.score}
