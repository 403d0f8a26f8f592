"""Models that are trained until they have learnt: minutes each, run apart from the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.demo import run_demo

pytestmark = pytest.mark.learn

FIGURES = {  # BLEU at least, AER at most, on held-out sentences of the embedded corpus
    "vaswani2017-base": (90.0, 0.10),
    "default": (90.0, 0.20),
    "bahdanau2015": (88.0, 0.25),
    "luong2015-global": (80.0, 0.20),
    "luong2015-local-m": (80.0, 0.20),
    "luong2015-local-p": (80.0, 0.25),
    "mino2017": (85.0, 0.30),
    "xu2015-soft": (88.0, 0.15),
    "xu2015-hard": (65.0, 0.50),
    "sutskever2014": (35.0, None),
    "cho2014": (25.0, None),
}


@pytest.mark.parametrize("recipe", FIGURES)
def test_the_demo_of_each_recipe_reaches_its_figures(recipe: str, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    run_demo(recipe, tmp_path / "demo")
    results = json.loads((tmp_path / "demo" / "results.json").read_text(encoding="utf-8"))
    bleu, aer = FIGURES[recipe]
    assert results["bleu"] >= bleu
    assert results["aer"] is None if aer is None else results["aer"] <= aer
