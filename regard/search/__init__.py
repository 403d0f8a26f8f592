"""Beam search, sampling and forced decoding over anything that has `start`, `step` and `select`."""

from regard.models.hypothesis import Floats, Hypothesis, LengthPenalty, Scorer, SearchOptions
from regard.search.beam import BeamSearch, search, search_restricted
from regard.search.constraints import Constraint, Phrase, UnsatisfiableConstraintError
from regard.search.ensemble import SearchModel
from regard.search.sampling import sample
from regard.search.scoring import ScoredTarget, score_targets
from regard.search.trace import PartialHypothesis, search_with_trace

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
    "SearchModel",
    "SearchOptions",
    "UnsatisfiableConstraintError",
    "sample",
    "score_targets",
    "search",
    "search_restricted",
    "search_with_trace",
]
