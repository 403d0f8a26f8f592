"""Demo of tagging, classification, cloze, captioning and regression: synthetic data, short training, evaluation."""

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
MAX_LISTED_WORDS = 5  # per line of attention weights
MIN_LISTED_WEIGHT = 0.005  # lower weights would be printed as 0.00
CLASSIFICATION_NOTE = """\
A word's weight is that of its state, which has read the whole sentence: a full stop can stand for all of it.
Weights in brackets are those of sentences. See docs/classify.md."""
# Default recipe of each task.
DEFAULT_RECIPES = {
    "caption": "xu2015-soft-caption",
    "classify": "yang2016",
    "read": "cui2017",
    "regress": "schuster1997-regression",
    "tag": "schuster1997",
    "translate": "vaswani2017-base",
}


class PredictionDemo(NamedTuple):
    """Result of a demo: metrics, sample predictions, and paths of the report and the test files."""

    results: dict[str, Any]
    samples: list[tuple[DevExample, Prediction]]
    report: Path
    test_files: Sequence[Path]  # files that the metrics are measured on


def run_prediction_demo(recipe: str, out: Path) -> PredictionDemo:
    """Write the corpus, train, evaluate and write the report; resume an interrupted demo."""
    began = time.monotonic() - (known_of(out).seconds or 0.0)  # includes the time before an interruption
    task, run = get_task(read_recipe(recipe)), Run(out)
    if task.write_synthetic_corpus is None:
        raise UserError(f"the recipe {recipe} has no demo")
    if run.exists and run.read_config().get("recipe") != recipe:
        raise UserError(f"{out} already holds a run of {run.read_config().get('recipe')}; choose another --out")
    corpus = task.write_synthetic_corpus(out / "corpus")
    _train_demo_model(recipe, corpus, run)
    predictor = task.load(out)
    metrics = predictor.evaluate(corpus.test)
    examples = list(task.load_dev_set(task.make_config(run.read_config())))[:SAMPLES]
    predictions = predictor.predict([example.input for example in examples])
    results = {"recipe": recipe, **metrics, "seconds": round(time.monotonic() - began, 1)}
    (out / "results.json").write_text(dumps(results, indent=1) + "\n", encoding="utf-8")
    return PredictionDemo(results, list(zip(examples, predictions, strict=True)), out / "report.html", corpus.test)


def _train_demo_model(recipe: str, corpus: SyntheticCorpus, run: Run) -> None:
    """Train from the beginning, or resume from the newest checkpoint."""
    if run.exists and run.list_steps():
        log_message(f"{run.folder}: resuming from step {run.find_newest_step()}")
        train(recipe, None, run.folder, resume=True)
    else:
        train(recipe, corpus.train, run.folder, dev=corpus.dev, **corpus.select_overrides(read_recipe(recipe)))


def format_prediction_demo(demo: PredictionDemo, out: Path) -> str:
    """Format samples, metrics and suggested commands for the end of a demo."""
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
    """Format reference, prediction, and the words with the highest attention weights."""
    lines = [line for line in prediction.make_attention_lines() if max(line.weights, default=0.0) >= MIN_LISTED_WEIGHT]
    return [
        f"reference    {example.reference_text}",
        f"model        {prediction.to_text()}",
        *map(_format_strongest_words, lines),
    ]


def _format_strongest_words(line: WeightedWords) -> str:
    """Format the words of a line that have the highest attention weights."""
    strongest = sorted(zip(line.weights, line.words, strict=True), key=lambda pair: -pair[0])[:MAX_LISTED_WORDS]
    strongest = [pair for pair in strongest if pair[0] >= MIN_LISTED_WEIGHT]
    line_weight = "" if line.weight is None else f" ({line.weight:.2f})"
    return f"  {line.label}{line_weight}: " + ", ".join(f"{word} {weight:.2f}" for weight, word in strongest)
