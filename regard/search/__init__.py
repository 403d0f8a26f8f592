"""Beam search, sampling and forced decoding over anything that has `start`, `step` and `select`."""

from regard.models.hypothesis import Hypothesis, SearchOptions
from regard.search.beam import BeamSearch, search, search_restricted
from regard.search.sampling import sample
from regard.search.scoring import score_targets

__all__ = ["BeamSearch", "Hypothesis", "SearchOptions", "sample", "score_targets", "search", "search_restricted"]
