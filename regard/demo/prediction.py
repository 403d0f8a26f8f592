"""A model that tags, classifies, reads, captions or regresses: embedded data, a short training, and what came of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.api import train
from regard.console import log_message
from regard.demo.next_steps import format_next_steps
from regard.errors import UserError
from regard.plot import WeightedWords
from regard.recipes import read_recipe
from regard.runs import Run
from regard.runs.summary import summarize_run as known_of
from regard.strict_json import dumps
from regard.tasks import DevExample, Prediction, SyntheticCorpus, get_task

SAMPLES = 3
MAX_LISTED_WORDS = 5  # words of a line that are named
MIN_LISTED_WEIGHT = 0.005  # lower weights would be printed as 0.00
CLASSIFICATION_NOTE = """\
A word's weight is that of its state, which has read the whole sentence: a full stop can stand for all of it.
Weights in brackets are those of sentences. See docs/classify.md."""
# What each task is shown with, where no recipe is named.
DEFAULT_RECIPES = {
    "caption": "xu2015-soft-caption",
    "classify": "yang2016",
    "read": "cui2017",
    "regress": "schuster1997-regression",
    "tag": "schuster1997",
    "translate": "vaswani2017-base",
}


class PredictionDemo(NamedTuple):
    """What the demo leaves."""

    results: dict[str, Any]
    samples: list[tuple[DevExample, Prediction]]
    report: Path
    test_files: Sequence[Path]  # what the figures are of


def run_prediction_demo(recipe: str, out: Path) -> PredictionDemo:
    """Data, training, evaluation, report; a demo that was interrupted goes on where it was."""
    began = time.monotonic() - (known_of(out).seconds or 0.0)  # which was spent before an interruption
    task, run = get_task(read_recipe(recipe)), Run(out)
    if task.write_synthetic_corpus is None:
        raise UserError(f"there is no demo of the recipe {recipe}")
    if run.exists and run.read_config().get("recipe") != recipe:
        raise UserError(f"{out} already holds a run of {run.read_config().get('recipe')}; choose another --out")
    corpus = task.write_synthetic_corpus(out / "corpus")
    _train_demo_model(recipe, corpus, run)
    predictor = task.load(out)
    figures = predictor.evaluate(corpus.test)
    asked = list(task.load_dev_set(run))[:SAMPLES]
    made = predictor.predict([one.input for one in asked])
    results = {"recipe": recipe, **figures, "seconds": round(time.monotonic() - began, 1)}
    (out / "results.json").write_text(dumps(results, indent=1) + "\n", encoding="utf-8")
    return PredictionDemo(results, list(zip(asked, made, strict=True)), out / "report.html", corpus.test)


def _train_demo_model(recipe: str, corpus: SyntheticCorpus, run: Run) -> None:
    """Trains, from the beginning or from where it was."""
    if run.exists and run.list_steps():
        log_message(f"{run.folder} goes on from step {run.find_newest_step()}")
        train(recipe, None, run.folder, resume=True)
    else:
        train(recipe, corpus.train, run.folder, dev=corpus.dev, **corpus.select_overrides(read_recipe(recipe)))


def format_prediction_demo(demo: PredictionDemo, out: Path) -> str:
    """What the demo prints at its end."""
    samples = ["\n".join(_format_prediction_sample(*sample)) for sample in demo.samples]
    values = {name: value for name, value in demo.results.items() if isinstance(value, float)}
    numbers = [f"{name:<12} {value:.{2 if abs(value) >= 1 else 4}f}" for name, value in values.items()]
    results = "\n".join([*numbers, f"report       {demo.report}"])
    run, *test = (shlex.quote(str(path)) for path in (out, *demo.test_files))
    commands = format_next_steps(
        f"{{regard}} evaluate {run} {' '.join(test)}", f"{{regard}} predict {run} {test[0]}", f"{{regard}} serve {run}"
    )
    notes = [CLASSIFICATION_NOTE] if read_recipe(demo.results["recipe"]).get("task") == "classify" else []
    return "\n\n".join([*samples, *notes, results, commands])


def _format_prediction_sample(example: DevExample, prediction: Prediction) -> list[str]:
    """An answer, the right one, and the words that had the most weight; lines without any are left out."""
    lines = [line for line in prediction.make_attention_lines() if max(line.weights, default=0.0) >= MIN_LISTED_WEIGHT]
    return [
        f"right        {example.reference_text}",
        f"model        {prediction.to_text()}",
        *map(_format_strongest_words, lines),
    ]


def _format_strongest_words(line: WeightedWords) -> str:
    """The words of a line that had the most weight."""
    best = sorted(zip(line.weights, line.words, strict=True), key=lambda pair: -pair[0])[:MAX_LISTED_WORDS]
    best = [pair for pair in best if pair[0] >= MIN_LISTED_WEIGHT]
    own = "" if line.weight is None else f" ({line.weight:.2f})"
    return f"  {line.label}{own}: " + ", ".join(f"{word} {weight:.2f}" for weight, word in best)
