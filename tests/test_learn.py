"""Models trained to convergence: minutes each, run by `make learn`.

Each leaves its run in `runs/learn`, from which `docs/draw.py` makes the table of the documentation, and
`docs/examples.py` the pictures.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard import load, train
from regard.demo import run_demo
from regard.recipes.recipe import read_recipe
from regard.runs import Run
from regard.synthetic.corpora import write_classification_corpus

pytestmark = pytest.mark.learn

RUNS = Path(__file__).parent.parent / "runs" / "learn"
THRESHOLDS: dict[str, tuple[str, dict[str, Any], float, float | None]] = {
    # recipe, overrides, minimum BLEU and maximum AER on held-out sentences of the synthetic corpus
    "vaswani2017-base": ("vaswani2017-base", {}, 90.0, 0.10),
    "default": ("default", {}, 90.0, 0.10),
    "bahdanau2015": ("bahdanau2015", {}, 88.0, 0.25),
    "bahdanau2015-linguistic": ("bahdanau2015", {"model.coverage": "linguistic"}, 88.0, 0.25),
    "bahdanau2015-neural": ("bahdanau2015", {"model.coverage": "neural"}, 88.0, 0.25),
    "luong2015-global": ("luong2015-global", {}, 80.0, 0.20),
    "luong2015-global-dot": ("luong2015-global", {"model.score": "dot"}, 80.0, 0.20),
    "luong2015-global-concat": ("luong2015-global", {"model.score": "concat"}, 88.0, 0.25),
    "luong2015-global-location": ("luong2015-global", {"model.score": "location"}, 75.0, 0.45),
    "luong2015-local-m": ("luong2015-local-m", {"model.window": 3}, 80.0, 0.20),
    "luong2015-local-p": ("luong2015-local-p", {"model.window": 3}, 80.0, 0.25),
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


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_demo_of_each_model_reaches_its_bleu_and_aer(name: str) -> None:
    recipe, changes, bleu, aer = THRESHOLDS[name]
    shutil.rmtree(RUNS / name, ignore_errors=True)
    run_demo(recipe, RUNS / name, **changes)
    results = json.loads((RUNS / name / "results.json").read_text(encoding="utf-8"))
    assert results["bleu"] >= bleu
    assert results["aer"] is None if aer is None else results["aer"] <= aer


@pytest.mark.parametrize("name", ["lin2017", "yang2016"])
def test_a_classifier_attends_to_the_informative_sentence(name: str, tmp_path: Path) -> None:
    """Accuracy of 97 %, and 60 % of the attention on the informative sentence, a quarter of the text."""
    corpus = write_classification_corpus(tmp_path)
    shutil.rmtree(RUNS / name, ignore_errors=True)
    train(name, corpus.train, RUNS / name, dev=corpus.dev, **corpus.select_overrides(read_recipe(name)))
    classifier = load(RUNS / name)
    assert classifier.evaluate(corpus.test)["accuracy"] >= 97.0
    rows = [line.split("\t") for line in corpus.test[0].read_text(encoding="utf-8").splitlines()]
    documents = [prediction.to_dict() for prediction in classifier.predict([text for _, text, _ in rows])]
    tokenizer = classifier.vocabulary.encoder.tokenizer
    informative = [tokenizer.convert_ids_to_tokens(tokenizer.encode(sentence)) for _, _, sentence in rows]
    fractions = [_attention_on(document, tokens) for document, tokens in zip(documents, informative, strict=True)]
    assert np.mean(fractions) >= 0.6


def _attention_on(document: dict[str, Any], sentence: list[str]) -> float:
    """Return the fraction of the attention on a sentence of the text."""
    if "sentence_weights" in document:
        return float(document["sentence_weights"][document["tokens"].index(sentence)])
    tokens, width = document["tokens"], len(sentence)
    start = next(index for index in range(len(tokens)) if tokens[index : index + width] == sentence)
    return float(np.array(document["weights"])[:, start : start + width].sum(1).mean())


@pytest.mark.parametrize(
    ("name", "exact", "on_object"), [("xu2015-soft-caption", 95.0, 85.0), ("xu2015-hard-caption", 80.0, 85.0)]
)
def test_a_caption_is_right_and_attends_to_the_object_it_names(
    name: str, exact: float, on_object: float, tmp_path: Path
) -> None:
    """Scenes combine objects that never occurred together in training; the entropy of the attention falls."""
    results = run_demo(name, tmp_path / name).results
    assert results["images"] >= 500
    assert results["exact"] >= exact
    assert results["on_object"] >= on_object
    entropies = [row["entropy"] for row in Run(tmp_path / name).read_metrics() if row["kind"] == "dev"]
    assert entropies[-1] < (entropies[0] / 2 if "hard" in name else entropies[0])
