"""Sources, the reference beam search, and the comparison of two searches."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.fast.decoding.kv_cache import MIN_FREE_POSITIONS
from regard.models import Seq2Seq
from regard.search import BeamSearch, Hypothesis, SearchOptions, score_targets

Hypotheses = list[list[Hypothesis]]
# Search options for three sources and a beam of 4; the first two matter most to a decoder with a KV cache.
SEARCH_OPTIONS: list[dict[str, Any]] = [
    {"min_length": 2 * MIN_FREE_POSITIONS, "max_length": 2 * MIN_FREE_POSITIONS},
    {"coverage_penalty": 0.3, "n_best": 3, "min_length": 6},
    {"attention": False, "length_penalty": 0.0},
    {"prefix": [[5, 9], [], [7]], "no_repeat": 2},
    {"force": [[[5, 9]], [], [[7], [8]]], "forbid": [[4, 5]]},
]
# Length penalties and limits for a beam of 4, which every implementation of beam search supports.
LENGTH_OPTIONS: list[dict[str, Any]] = [
    {"length_penalty": 0.0, "attention": False},
    {"length_penalty": "average", "n_best": 4},
    {"length_penalty": -1.0, "n_best": 3},
    {"length_penalty": 2.0, "min_length": 7},
    {"max_length": 1, "n_best": 2},
    {"max_length": 6, "min_length": 6},
    {},
]


def make_sources(*lengths: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return random sources of the given lengths: ids (B, S) and lengths (B,)."""
    torch.manual_seed(seed)
    sizes = torch.tensor(lengths)
    source = torch.randint(4, 20, (len(lengths), max(lengths)))
    return source * (torch.arange(max(lengths)) < sizes[:, None]), sizes


def reference_search(models: Any, source: Tensor, lengths: Tensor, **options: Any) -> Hypotheses:
    """Return the hypotheses of the reference beam search."""
    searching, found = BeamSearch(models, SearchOptions(**options)), dict[int, list[Hypothesis]]()
    searching.add(source, lengths)
    while searching.num_active:
        found.update(searching.step())
    return [found[number] for number in range(len(lengths))]


def assert_same_hypotheses(expected: Hypotheses, found: Hypotheses, tolerance: float = 1e-5) -> None:
    """Check that two searches returned the same hypotheses in the same order."""
    assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert [one.log_prob, one.score] == pytest.approx([other.log_prob, other.score], rel=1e-5, abs=tolerance)
        assert (one.attention is None) == (other.attention is None)
        if one.attention is not None and other.attention is not None:
            np.testing.assert_allclose(one.attention, other.attention, atol=tolerance)


def assert_same_search_but_for_ties(
    model: Seq2Seq, source: Tensor, lengths: Tensor, expected: Hypotheses, found: Hypotheses
) -> None:
    """Check that two searches returned the same hypotheses, where rounding did not decide between them.

    Where the tokens differ, a hypothesis that was dropped for one with the same log-probability may have been the
    beginning of others. Then the best scores are close, and forced decoding gives the log-probability that was found.
    """
    for row, (some, others) in enumerate(zip(expected, found, strict=True)):
        if [one.tokens for one in some] == [one.tokens for one in others]:
            assert_same_hypotheses([some], [others])
        else:
            assert others[0].score == pytest.approx(some[0].score, abs=0.01)
            for one in others:
                size = lengths[row : row + 1]
                (scored,) = score_targets(model, source[row : row + 1, : int(size)], size, [one.tokens])
                assert one.log_prob == pytest.approx(scored.hypothesis.log_prob, abs=1e-3)
