"""Reversal, depth and beam: what a model without attention makes of them."""

from __future__ import annotations

from regard.reproduce.experiment import Bars, Claim, Experiment, Row
from regard.reproduce.measures import translation
from regard.reproduce.scales import translator
from regard.reproduce.verdict import SAME, less, more, most

CORPUS, DEPTH = {"small": "simple", "full": "multi30k"}, {"small": 1, "full": 4}
ENSEMBLES = {1: 33.00, 2: 34.50, 12: 34.81}  # the paper's, of five models, by beam


def rows(scale: str) -> list[Row]:
    """Both orders, one to four layers, and beams of the reversed model."""
    deep = {layers: translator("sutskever2014", CORPUS[scale], of(layers)) for layers in (1, 2, 3, 4)}
    usual = DEPTH[scale]
    forward = translator("sutskever2014", CORPUS[scale], {"model.reverse": False, **of(usual)})
    wide = {"beam": 12}
    return [
        Row("forward", [forward], wide, {"perplexity": 5.8, "bleu": 26.17}),
        Row("reversed", [deep[usual]], wide, {"perplexity": 4.7, "bleu": 30.59}),
        *(Row(f"{n} layer{'s' * (n > 1)}", [training], wide) for n, training in deep.items()),
        *(
            Row(f"beam {beam}", [deep[usual]], {"beam": beam}, {"bleu": ENSEMBLES[beam]} if beam in ENSEMBLES else {})
            for beam in (1, 2, 4, 12)
        ),
    ]


def of(layers: int) -> dict[str, int]:
    """The change that makes a model so deep; one layer is what the small scale has anyway."""
    return {"model.layers": layers}


SUTSKEVER = Experiment(
    name="sutskever",
    title="Reversal, depth, beam",
    source="Sutskever, Vinyals & Le 2014, sections 3.3 and 3.4, table 1: WMT'14 English–French; the figures beside "
    "the beams are those of an ensemble of five",
    about="An LSTM that has one vector of the source. Forward and reversed have 4 layers at the full scale, as in the "
    "paper, and 1 at the small one.",
    rows=rows,
    measure=translation,
    columns=("perplexity", "bleu"),
    claims=(
        Claim("reversing the source lowers perplexity", less("perplexity", "reversed", than="forward")),
        Claim("reversing the source raises BLEU", more("bleu", "reversed", than="forward")),
        Claim("a second layer lowers perplexity", less("perplexity", "2 layers", than="1 layer")),
        Claim("a third layer lowers perplexity", less("perplexity", "3 layers", than="2 layers")),
        Claim("a fourth layer lowers perplexity", less("perplexity", "4 layers", than="3 layers")),
        Claim("a beam of 2 is better than greedy", more("bleu", "beam 2", "beam 1", SAME)),
        Claim("a beam of 12 is better than greedy", more("bleu", "beam 12", "beam 1", SAME)),
        Claim(
            "a beam of 2 has most of what a beam of 12 has beyond greedy search",
            most("bleu", "beam 2", ("beam 1", "beam 12"), SAME),
        ),
    ),
    charts=(Bars("bleu", "BLEU"), Bars("perplexity", "perplexity")),
    minutes=3,
)
