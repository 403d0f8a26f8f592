"""Experiment: source reversal, depth and beam size without attention (Sutskever 2014, table 1)."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_training
from regard.reproduce.significance import SAME_MODEL_MARGIN, expect_higher, expect_lower, expect_most_of_gain

CORPUS, LAYERS_BY_SCALE = {"small": "simple", "full": "multi30k"}, {"small": 1, "full": 4}


def _build_sutskever_rows(scale: str) -> list[ExperimentRow]:
    """Return the rows: both source orders, one to four layers, and beam sizes of the reversed model."""
    corpus, default_layers = CORPUS[scale], LAYERS_BY_SCALE[scale]
    deep = {n: make_translation_training("sutskever2014", corpus, {"model.layers": n}) for n in (1, 2, 3, 4)}
    reverse = [deep[default_layers]]
    forward = [
        make_translation_training("sutskever2014", corpus, {"model.reverse": False, "model.layers": default_layers})
    ]
    return [
        ExperimentRow("forward", forward, {"beam": 12}, {"perplexity": 5.8, "bleu": 26.17}),
        ExperimentRow("reversed", reverse, {"beam": 12}, {"perplexity": 4.7, "bleu": 30.59}),
        *(ExperimentRow(f"{n} layer{'s' * (n > 1)}", [training], {"beam": 12}) for n, training in deep.items()),
        ExperimentRow("beam 1", reverse, {"beam": 1}, {"bleu": 33.00}),  # published: an ensemble of five
        ExperimentRow("beam 2", reverse, {"beam": 2}, {"bleu": 34.50}),
        ExperimentRow("beam 4", reverse, {"beam": 4}),
        ExperimentRow("beam 12", reverse, {"beam": 12}, {"bleu": 34.81}),
    ]


SUTSKEVER = Experiment(
    name="sutskever",
    title="Reversal, depth, beam",
    source="Sutskever, Vinyals & Le 2014, sections 3.3 and 3.4, table 1: WMT'14 English–French; the figures beside "
    "the beams are those of an ensemble of five",
    description="An LSTM that encodes the source in one vector. Forward and reversed have 4 layers at the full scale, "
    "as in the paper, and 1 at the small scale.",
    rows=_build_sutskever_rows,
    measure=measure_translation,
    columns=("perplexity", "bleu"),
    claims=(
        Claim("reversing the source lowers perplexity", expect_lower("perplexity", "reversed", than="forward")),
        Claim("reversing the source raises BLEU", expect_higher("bleu", "reversed", than="forward")),
        Claim("a second layer lowers perplexity", expect_lower("perplexity", "2 layers", than="1 layer")),
        Claim("a third layer lowers perplexity", expect_lower("perplexity", "3 layers", than="2 layers")),
        Claim("a fourth layer lowers perplexity", expect_lower("perplexity", "4 layers", than="3 layers")),
        Claim("a beam of 2 is better than greedy", expect_higher("bleu", "beam 2", "beam 1", SAME_MODEL_MARGIN)),
        Claim("a beam of 12 is better than greedy", expect_higher("bleu", "beam 12", "beam 1", SAME_MODEL_MARGIN)),
        Claim(
            "a beam of 2 has most of what a beam of 12 has beyond greedy search",
            expect_most_of_gain("bleu", "beam 2", ("beam 1", "beam 12"), SAME_MODEL_MARGIN),
        ),
    ),
    charts=(BarChart("bleu", "BLEU"), BarChart("perplexity", "perplexity")),
    cpu_minutes=3,
)
