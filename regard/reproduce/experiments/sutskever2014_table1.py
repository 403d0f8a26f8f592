"""Experiment: source reversal, depth and beam size without attention (Sutskever 2014, table 1)."""

from __future__ import annotations

from regard.reproduce.experiment import BarChart, Claim, Experiment, ExperimentRow
from regard.reproduce.metrics import measure_translation
from regard.reproduce.presets import make_translation_training
from regard.reproduce.significance import SAME_MODEL_MARGIN, expect_higher, expect_lower, expect_most_of_gain

CORPUS, LAYERS_BY_SCALE = {"small": "simple", "full": "multi30k"}, {"small": 1, "full": 4}
PUBLISHED_ENSEMBLE_BLEU = {1: 33.00, 2: 34.50, 12: 34.81}  # by beam size, of an ensemble of five


def _build_sutskever_rows(scale: str) -> list[ExperimentRow]:
    """Return the rows: both source orders, one to four layers, and beam sizes of the reversed model."""
    deep = {
        layers: make_translation_training("sutskever2014", CORPUS[scale], _make_depth_override(layers))
        for layers in (1, 2, 3, 4)
    }
    default_layers = LAYERS_BY_SCALE[scale]
    forward = make_translation_training(
        "sutskever2014", CORPUS[scale], {"model.reverse": False, **_make_depth_override(default_layers)}
    )
    search_options = {"beam": 12}
    return [
        ExperimentRow("forward", [forward], search_options, {"perplexity": 5.8, "bleu": 26.17}),
        ExperimentRow("reversed", [deep[default_layers]], search_options, {"perplexity": 4.7, "bleu": 30.59}),
        *(ExperimentRow(f"{n} layer{'s' * (n > 1)}", [training], search_options) for n, training in deep.items()),
        *(
            ExperimentRow(
                f"beam {beam}",
                [deep[default_layers]],
                {"beam": beam},
                {"bleu": PUBLISHED_ENSEMBLE_BLEU[beam]} if beam in PUBLISHED_ENSEMBLE_BLEU else {},
            )
            for beam in (1, 2, 4, 12)
        ),
    ]


def _make_depth_override(layers: int) -> dict[str, int]:
    return {"model.layers": layers}


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
