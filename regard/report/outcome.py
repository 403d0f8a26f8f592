"""What a training run leaves for people to look at, beside its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.evaluate import Group, by_length
from regard.plot import Track, heatmap, overlaid, save, shaded, tracks
from regard.report import overlays
from regard.report.answers import READ, answered
from regard.report.page import Shown, page, whole
from regard.report.tracks import OVER_TIME, drawn
from regard.runs import Run
from regard.runs.summary import summary
from regard.search import Floats
from regard.symbols import EOS, NAMES
from regard.tasks import TASKS, Prediction, Task, task_of
from regard.tasks.text_scores import choose_measure
from regard.translate import Translation, Translator, all_heads, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5
MEASURED = 200  # dev sentences that BLEU by length is of


def write_outcome(run: Run) -> Path:
    """`report.html`, and under `samples/` a picture for each example in it; gives back the report's path."""
    task = task_of(run.config())
    return translated(run) if task is TASKS["translate"] else predicted(run, task)


def predicted(run: Run, task: Task) -> Path:
    """The report of a run whose model answers."""
    asked = task.dev(run)[:SAMPLES]
    made = task.load(run.folder).predict([one.input for one in asked])
    for number, prediction in enumerate(made, 1):
        if (picture := looked(prediction)) is not None:
            save(picture, run.folder / "samples" / f"attention-{number}.png")
    if task.tracks:
        return followed(run, [task.tracks(*both) for both in zip(asked, made, strict=True)])
    sections = [answered(one, prediction) for one, prediction in zip(asked, made, strict=True)]
    how_to_read = overlays.READ if any(prediction.overlay() for prediction in made) else READ
    return kept(run, whole(run, best(run), "", how_to_read, sections))


def looked(prediction: Prediction) -> Figure | None:
    """Where a model looked: in an image, or at words."""
    overlay, lines = prediction.overlay(), prediction.looks()
    if overlay is not None:
        return overlaid(overlay)
    return shaded(lines) if lines else None


def followed(run: Run, lots: Sequence[Sequence[Track]]) -> Path:
    """The report of a run whose model gives numbers over time."""
    for number, some in enumerate(lots, 1):
        save(tracks(some), run.folder / "samples" / f"series-{number}.png")
    return kept(run, whole(run, best(run), "", OVER_TIME, list(map(drawn, lots)), "What it gave"))


def translated(run: Run) -> Path:
    """The report of a run whose model translates."""
    dev = [asked for asked in TASKS["translate"].dev(run) if asked.input.strip()][:MEASURED]
    sources, references = [asked.input for asked in dev], [asked.answer for asked in dev]
    translator = load(run.folder)
    translations = translator.translate(sources[:SAMPLES])
    for number, translation in enumerate(translations, 1):
        draw(translation, run.folder / "samples" / f"attention-{number}.png")
    both = zip(translations, references, strict=False)
    shown = [Shown(translation, reference, heads(translator, translation)) for translation, reference in both]
    if choose_measure(references, run.config()["data"].get("target")) != "bleu":  # BLEU is meaningless, no chart of it
        return write_page(run, best(run), shown)
    quick = [made.text for made in translator.translate(sources, beam=1, alignments=False)]
    return write_page(run, best(run), shown, by_length(sources, quick, references))


def heads(translator: Translator, translation: Translation) -> dict[str, Floats]:
    """Every head's look, where there are several and the translation is of one piece, as the model would write it."""
    if translation.attention is None or translation.source_tokens.count(NAMES[EOS]) != 1:
        return {}
    looks = all_heads(translator, translation.source, translation.text)
    return looks if all(look.shape == translation.attention.shape for look in looks.values()) else {}


def write_page(run: Run, results: Mapping[str, Any], samples: Sequence[Shown], groups: Sequence[Group] = ()) -> Path:
    """The report of a run that translates."""
    return kept(run, page(run, results, samples, groups))


def kept(run: Run, written: str) -> Path:
    """Where a report is, written."""
    path = run.folder / "report.html"
    path.write_text(written, encoding="utf-8")
    return path


def draw(translation: Translation, path: Path) -> None:
    """The heat map of one translation, if its model has attention."""
    if translation.attention is not None:
        save(heatmap(translation.attention, translation.source_tokens, translation.tokens), path)


def best(run: Run) -> dict[str, Any]:
    """The figures of the best checkpoint."""
    found = summary(run.folder).best
    return {} if found is None else {"step": found.step, "dev loss": found.loss, f"dev {found.measure}": found.score}
