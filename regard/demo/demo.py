"""Run a demo: write a synthetic corpus, train a small model, evaluate it, and write the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from regard.console import log_message
from regard.demo.prediction import PredictionDemo
from regard.demo.translation import TranslationDemo
from regard.errors import UserError
from regard.paths import format_json
from regard.recipes import get_task_name, read_recipe
from regard.runs import Run
from regard.runs.summary import summarize_run
from regard.tasks import get_task
from regard.training import train

_DEMOS = {"translate": TranslationDemo}  # those that show more than the predictions and metrics of the task


class Demo(NamedTuple):
    """Results of a demo by name, and what `regard demo` prints."""

    results: dict[str, Any]
    text: str


def run_demo(recipe: str, out: Path, **changes: Any) -> Demo:
    """Write the corpus, train, evaluate and write the report; resume an interrupted demo.

    Args:
        recipe: Name or path of a recipe.
        out: Folder of the run.
        changes: Config overrides with dotted keys, applied after those that make the recipe small.
    """
    start = time.monotonic() - (summarize_run(out).seconds or 0.0)  # includes the time before an interruption
    run, values = Run(out), read_recipe(recipe)
    if run.exists and run.read_config().get("recipe") != recipe:
        raise UserError(f"{out} already holds a run of {run.read_config().get('recipe')}; choose another --out")
    corpus = get_task(values).write_synthetic_corpus(out / "corpus")
    overrides = {**corpus.select_overrides(values), **changes}
    if run.exists and run.list_steps():
        log_message(f"{out}: resuming from step {run.find_newest_step()}")
        train(recipe, None, out, resume=True)
    else:
        train(recipe, corpus.train, out, dev=corpus.dev, **overrides)
    demo = _DEMOS.get(get_task_name(values), PredictionDemo).evaluate(run, corpus)
    results = {"recipe": recipe, **demo.metrics, "seconds": round(time.monotonic() - start, 1)}
    demo.write_report(results)
    document = {**results, "changes": changes, "overrides": overrides}
    (out / "results.json").write_text(format_json(document, indent=1) + "\n", encoding="utf-8")
    return Demo(document, demo.format(results))
