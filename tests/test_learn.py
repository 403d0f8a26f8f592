"""Models that are trained until they have learnt: minutes each, run apart from the others.

Each leaves its run in `runs/learn`, from which `docs/draw.py` makes the table and the pictures of the documentation.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard import load, train
from regard.demo import answer, run_demo
from regard.recipes import read
from regard.runs import Run
from regard.tasks import classification

pytestmark = pytest.mark.learn

RUNS = Path(__file__).parent.parent / "runs" / "learn"
FIGURES: dict[str, tuple[str, dict[str, Any], float, float | None]] = {
    # recipe, what is changed in it; BLEU at least and AER at most on held-out sentences of the embedded corpus
    "vaswani2017-base": ("vaswani2017-base", {}, 90.0, 0.12),
    "default": ("default", {}, 90.0, 0.20),
    "bahdanau2015": ("bahdanau2015", {}, 88.0, 0.25),
    "bahdanau2015-linguistic": ("bahdanau2015", {"model.coverage": "linguistic"}, 88.0, 0.25),
    "bahdanau2015-neural": ("bahdanau2015", {"model.coverage": "neural"}, 88.0, 0.25),
    "luong2015-global": ("luong2015-global", {}, 80.0, 0.20),
    "luong2015-global-dot": ("luong2015-global", {"model.score": "dot"}, 80.0, 0.20),
    "luong2015-global-concat": ("luong2015-global", {"model.score": "concat"}, 88.0, 0.25),
    "luong2015-global-location": ("luong2015-global", {"model.score": "location"}, 75.0, 0.45),
    "luong2015-local-m": ("luong2015-local-m", {}, 80.0, 0.20),
    "luong2015-local-p": ("luong2015-local-p", {}, 80.0, 0.25),
    "mino2017": ("mino2017", {}, 85.0, 0.30),
    "xu2015-soft": ("xu2015-soft", {}, 88.0, 0.15),
    "xu2015-hard": ("xu2015-hard", {}, 65.0, 0.50),
    "xu2015-hard-soft-baseline": ("xu2015-hard", {"model.estimator": "soft-baseline"}, 55.0, 0.80),
    "xu2015-hard-marginal": (
        "xu2015-hard",
        {"model.estimator": "marginal", "model.decode": "marginal", "training.steps": 1000},
        50.0,
        0.50,
    ),
    "sutskever2014": ("sutskever2014", {}, 35.0, None),
    "cho2014": ("cho2014", {}, 25.0, None),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_demo_of_each_model_reaches_its_figures(name: str) -> None:
    recipe, changes, bleu, aer = FIGURES[name]
    shutil.rmtree(RUNS / name, ignore_errors=True)
    run_demo(recipe, RUNS / name, **changes)
    results = json.loads((RUNS / name / "results.json").read_text(encoding="utf-8"))
    assert results["bleu"] >= bleu
    assert results["aer"] is None if aer is None else results["aer"] <= aer


@pytest.mark.parametrize("name", ["lin2017", "yang2016"])
def test_a_classifier_finds_the_sentence_that_tells(name: str, tmp_path: Path) -> None:
    """At least 97 % of the labels, and of the weight at least 60 % on a sentence that is a quarter of the text."""
    corpus = classification.embedded(tmp_path)
    shutil.rmtree(RUNS / name, ignore_errors=True)
    train(name, corpus.train, RUNS / name, dev=corpus.dev, **corpus.fitting(read(name)))
    classifier = load(RUNS / name)
    assert classifier.evaluate(corpus.test)["accuracy"] >= 97.0
    rows = [line.split("\t") for line in corpus.test[0].read_text(encoding="utf-8").splitlines()]
    looks = [prediction.document() for prediction in classifier.predict([text for _, text, _ in rows])]
    tokenizer = classifier.encoding.tokenizer
    telling = [tokenizer.pieces(tokenizer.encode(told)) for _, _, told in rows]
    assert np.mean([on(look, told) for look, told in zip(looks, telling, strict=True)]) >= 0.6


def on(look: dict[str, Any], telling: list[str]) -> float:
    """How much of the weight is on the telling sentence."""
    if "sentence_weights" in look:
        return float(look["sentence_weights"][look["tokens"].index(telling)])
    tokens, width = look["tokens"], len(telling)
    start = next(place for place in range(len(tokens)) if tokens[place : place + width] == telling)
    return float(np.array(look["weights"])[:, start : start + width].sum(1).mean())


@pytest.mark.parametrize(
    ("name", "exact", "looked"), [("xu2015-soft-caption", 95.0, 85.0), ("xu2015-hard-caption", 85.0, 85.0)]
)
def test_a_caption_is_right_and_looks_at_what_it_names(name: str, exact: float, looked: float, tmp_path: Path) -> None:
    """On scenes whose objects were never together; and what hard attention draws from becomes surer and surer."""
    results = answer(name, tmp_path / name).results
    assert results["images"] >= 500
    assert results["exact"] >= exact
    assert results["on_object"] >= looked
    unsure = [row["entropy"] for row in Run(tmp_path / name).metrics() if row["kind"] == "dev"]
    assert unsure[-1] < (unsure[0] / 2 if "hard" in name else unsure[0])
