"""Experiment: the ladder of Luong 2015 (table 1), in which each row adds one technique."""

from __future__ import annotations

from typing import Any

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_row, make_translation_training
from regard.reproduce.significance import SAME_MODEL_MARGIN, expect_higher, expect_lower

ENSEMBLE_SIZE = 3  # models of the ensemble
DROPOUT_BY_SCALE = {"small": 0.1, "full": 0.2}
CORPUS = {"small": "simple", "full": "mixed-ende"}


def _build_ladder_rows(scale: str) -> list[ExperimentRow]:
    """Return the rows from a plain LSTM to an ensemble of the best model."""
    corpus, dropout = CORPUS[scale], {"model.dropout": DROPOUT_BY_SCALE[scale]}
    location: dict[str, Any] = {"model.score": "location", **dropout}
    base, no_dropout = {"model.reverse": False, "model.dropout": 0.0}, {"model.dropout": 0.0}
    no_feeding = {**location, "model.input_feeding": False}
    best = [
        make_translation_training("luong2015-local-p", corpus, {**dropout, "training.seed": n + 1})
        for n in range(ENSEMBLE_SIZE)
    ]
    replacing = {"replace_unknown": True}
    return [
        make_translation_row("base", "sutskever2014", corpus, base, perplexity=10.6, bleu=11.3),
        make_translation_row("+ reverse", "sutskever2014", corpus, no_dropout, perplexity=9.9, bleu=12.6),
        make_translation_row("+ dropout", "sutskever2014", corpus, dropout, perplexity=8.1, bleu=14.0),
        make_translation_row("+ global (location)", "luong2015-global", corpus, no_feeding, perplexity=7.3, bleu=16.8),
        make_translation_row("+ input feeding", "luong2015-global", corpus, location, perplexity=6.4, bleu=18.1),
        ExperimentRow("local-p (general) + feeding", best[:1], {}, {"perplexity": 5.9, "bleu": 19.0}),
        ExperimentRow("+ unk replacement", best[:1], replacing, {"bleu": 20.9}),
        ExperimentRow("+ ensemble", best, replacing, {"bleu": 23.0}),
    ]


def _make_bleu_claim(description: str, row: str, baseline: str, margin: float | None = None) -> Claim:
    """Build the claim that a step of the ladder raises BLEU."""
    return Claim(f"{description}: better BLEU than {baseline}", expect_higher("bleu", row, baseline, margin))


LADDER = Experiment(
    name="ladder",
    title="Luong's ladder",
    source="Luong, Pham & Manning 2015, table 1: WMT'14 English–German, newstest2014, tokenised BLEU",
    description="Each row has what the row above it has, and one idea more; the last is an ensemble of 3 seeds (the "
    "paper: 8 models).",
    rows=_build_ladder_rows,
    measure=measure_translation,
    columns=("perplexity", "bleu"),
    claims=(
        _make_bleu_claim("the source read from its end", "+ reverse", "base"),
        _make_bleu_claim("dropout", "+ dropout", "+ reverse"),
        _make_bleu_claim("global attention by location", "+ global (location)", "+ dropout"),
        _make_bleu_claim("input feeding", "+ input feeding", "+ global (location)"),
        _make_bleu_claim(
            "local-p, general, in the place of global, location", "local-p (general) + feeding", "+ input feeding"
        ),
        _make_bleu_claim(
            "unknown words replaced", "+ unk replacement", "local-p (general) + feeding", SAME_MODEL_MARGIN
        ),
        _make_bleu_claim("an ensemble of it with two other seeds", "+ ensemble", "+ unk replacement"),
        Claim(
            "the best single model has less perplexity than the base",
            expect_lower("perplexity", "local-p (general) + feeding", than="base"),
        ),
    ),
    charts=(BarChart("bleu", "BLEU"), BarChart("perplexity", "perplexity")),
    cpu_minutes=4.5,
)
