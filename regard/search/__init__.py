"""Search knows `start`, `step` and `select`, and nothing of what is behind them."""

from regard.models.hypothesis import Floats, Hypothesis
from regard.search.among import search_restricted
from regard.search.beam import BeamSearch, search
from regard.search.forced import ScoredTarget, score_targets
from regard.search.phrases import Phrase
from regard.search.ranking import LengthPenalty, Scorer
from regard.search.rules import Constraint, UnsatisfiableConstraintError
from regard.search.sampling import sample
from regard.search.watching import PartialHypothesis, search_with_trace

__all__ = [
    "BeamSearch",
    "Constraint",
    "Floats",
    "Hypothesis",
    "LengthPenalty",
    "PartialHypothesis",
    "Phrase",
    "ScoredTarget",
    "Scorer",
    "UnsatisfiableConstraintError",
    "sample",
    "score_targets",
    "search",
    "search_restricted",
    "search_with_trace",
]
