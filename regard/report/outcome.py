"""What a training run leaves for people to look at, beside its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config import parse
from regard.data.corpus import Pair
from regard.data.settings import DataSettings
from regard.data.survey import survey
from regard.evaluate import Group, by_length
from regard.plot import heatmap, save
from regard.report.page import Shown, page
from regard.runs import Run
from regard.search import Floats
from regard.symbols import EOS, NAMES
from regard.translate import Translation, Translator, all_heads, load

SAMPLES = 5
MEASURED = 200  # dev sentences that BLEU by length is of


def write_outcome(run: Run) -> Path:
    """`report.html`, and under `samples/` a heat map for each sentence in it; gives back the report's path."""
    dev = [pair for pair in dev_pairs(run) if pair.source.strip()][:MEASURED]
    sources, references = [pair.source for pair in dev], [pair.target for pair in dev]
    translator = load(run.folder)
    translations = translator.translate(sources[:SAMPLES])
    for number, translation in enumerate(translations, 1):
        draw(translation, run.folder / "samples" / f"attention-{number}.png")
    both = zip(translations, references, strict=False)
    shown = [Shown(translation, reference, heads(translator, translation)) for translation, reference in both]
    quick = [made.text for made in translator.translate(sources, beam=1, alignments=False)]
    return write_page(run, best(run), shown, by_length(sources, quick, references))


def heads(translator: Translator, translation: Translation) -> dict[str, Floats]:
    """Every head's look, where there are several and the translation is of one piece, as the model would write it."""
    if translation.attention is None or translation.source_tokens.count(NAMES[EOS]) != 1:
        return {}
    looks = all_heads(translator, translation.source, translation.text)
    return looks if all(look.shape == translation.attention.shape for look in looks.values()) else {}


def write_page(run: Run, results: Mapping[str, Any], samples: Sequence[Shown], groups: Sequence[Group] = ()) -> Path:
    """The report of a run."""
    path = run.folder / "report.html"
    path.write_text(page(run, results, samples, groups), encoding="utf-8")
    return path


def draw(translation: Translation, path: Path) -> None:
    """The heat map of one translation, if its model has attention."""
    if translation.attention is not None:
        save(heatmap(translation.attention, translation.source_tokens, translation.tokens), path)


def dev_pairs(run: Run) -> list[Pair]:
    """The dev set that the run was validated on."""
    config = run.config()
    return survey(parse(DataSettings, config["data"], "data"), config["training"]["seed"]).dev


def best(run: Run) -> dict[str, Any]:
    """The figures of the best checkpoint."""
    return {f"dev {name}" if name != "step" else name: value for name, value in (run.state()["best"] or {}).items()}
