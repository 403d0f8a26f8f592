"""Search knows `start`, `step` and `select`, and nothing of what is behind them."""

from regard.models.hypothesis import Floats, Hypothesis
from regard.search.among import search_among
from regard.search.beam import BeamSearch, search
from regard.search.forced import Judged, forced
from regard.search.phrases import Phrase
from regard.search.ranking import LengthPenalty, Ranking
from regard.search.rules import ImpossibleError, Rule
from regard.search.sampling import sample
from regard.search.watching import Open, watch

__all__ = [
    "BeamSearch",
    "Floats",
    "Hypothesis",
    "ImpossibleError",
    "Judged",
    "LengthPenalty",
    "Open",
    "Phrase",
    "Ranking",
    "Rule",
    "forced",
    "sample",
    "search",
    "search_among",
    "watch",
]
