"""Beam search that also returns the beam after each step, for inspection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from regard.models.hypothesis import Hypothesis, SearchOptions
from regard.search.beam import BeamSearch
from regard.search.ensemble import SearchModel


class PartialHypothesis(NamedTuple):
    """A hypothesis of the beam after a step; it has ended if its last token is EOS."""

    tokens: list[int]
    log_prob: float


def search_with_trace(
    model_or_models: SearchModel | Sequence[SearchModel], source: Tensor, lengths: Tensor, *, beam: int = 5
) -> tuple[list[Hypothesis], list[list[PartialHypothesis]]]:
    """Return the hypotheses of one source (1, S), best first, and the beam after each step, most probable first."""
    searcher = BeamSearch(model_or_models, SearchOptions(beam=beam))
    searcher.add(source, lengths)
    (sentence,) = searcher.active
    searcher.finish()
    beams: list[list[PartialHypothesis]] = []
    rows: list[list[int]] = [[] for _ in range(beam)]  # tokens of each row
    for step in sentence.steps:
        rows = [[*rows[parent], token] for parent, token in zip(step.parents, step.tokens, strict=True)]
        hypotheses = [PartialHypothesis(*pair) for pair in zip(rows, step.log_probs, strict=True)]
        used = [hypothesis for hypothesis in hypotheses if hypothesis.log_prob > -math.inf]
        beams.append(sorted(used, key=lambda hypothesis: -hypothesis.log_prob))
    return sentence.rank_hypotheses(), beams
