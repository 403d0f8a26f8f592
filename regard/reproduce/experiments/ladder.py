"""Luong's ladder: what each idea adds to the one before it."""

from __future__ import annotations

from typing import Any

from regard.reproduce.experiment import Bars, Claim, Experiment, Row
from regard.reproduce.measures import translation
from regard.reproduce.scales import translator
from regard.reproduce.verdict import SAME, less, more

SEEDS = 3  # models of the ensemble
DROPOUT = {"small": 0.1, "full": 0.2}
CORPUS = {"small": "simple", "full": "mixed-ende"}


def rows(scale: str) -> list[Row]:
    """From a plain LSTM to an ensemble of the best model."""
    corpus, dropout = CORPUS[scale], {"model.dropout": DROPOUT[scale]}
    location: dict[str, Any] = {"model.score": "location", **dropout}
    best = [translator("luong2015-local-p", corpus, {**dropout, "training.seed": n + 1}) for n in range(SEEDS)]
    replacing = {"replace_unknown": True}

    def row(name: str, recipe: str, changes: dict[str, Any], perplexity: float, bleu: float) -> Row:
        return Row(name, [translator(recipe, corpus, changes)], {}, {"perplexity": perplexity, "bleu": bleu})

    return [
        row("base", "sutskever2014", {"model.reverse": False, "model.dropout": 0.0}, 10.6, 11.3),
        row("+ reverse", "sutskever2014", {"model.dropout": 0.0}, 9.9, 12.6),
        row("+ dropout", "sutskever2014", dropout, 8.1, 14.0),
        row("+ global (location)", "luong2015-global", {**location, "model.input_feeding": False}, 7.3, 16.8),
        row("+ input feeding", "luong2015-global", location, 6.4, 18.1),
        Row("local-p (general) + feeding", best[:1], {}, {"perplexity": 5.9, "bleu": 19.0}),
        Row("+ unk replacement", best[:1], replacing, {"bleu": 20.9}),
        Row("+ ensemble", best, replacing, {"bleu": 23.0}),
    ]


def rung(what: str, row: str, below: str, spread: float | None = None) -> Claim:
    """A rung of the ladder, in BLEU."""
    return Claim(f"{what}: better BLEU than {below}", more("bleu", row, below, spread))


LADDER = Experiment(
    name="ladder",
    title="Luong's ladder",
    source="Luong, Pham & Manning 2015, table 1: WMT'14 English–German, newstest2014, tokenised BLEU",
    about="Each row has what the row above it has, and one idea more; the last is an ensemble of 3 seeds (the "
    "paper: 8 models).",
    rows=rows,
    measure=translation,
    columns=("perplexity", "bleu"),
    claims=(
        rung("the source read from its end", "+ reverse", "base"),
        rung("dropout", "+ dropout", "+ reverse"),
        rung("global attention by location", "+ global (location)", "+ dropout"),
        rung("input feeding", "+ input feeding", "+ global (location)"),
        rung("local-p, general, in the place of global, location", "local-p (general) + feeding", "+ input feeding"),
        rung("unknown words replaced", "+ unk replacement", "local-p (general) + feeding", SAME),
        rung("an ensemble of it with two other seeds", "+ ensemble", "+ unk replacement"),
        Claim(
            "the best single model has less perplexity than the base",
            less("perplexity", "local-p (general) + feeding", than="base"),
        ),
    ),
    charts=(Bars("bleu", "BLEU"), Bars("perplexity", "perplexity")),
    minutes=4.5,
)
