"""What tests of searches share: sources, the readable search, and whether two searches have found the same."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.fast.room import CHUNK
from regard.search import BeamSearch, Hypothesis

Found = list[list[Hypothesis]]
# What may be asked of the targets of three sources, beside a beam of 4.
WISHES: list[dict[str, Any]] = [
    {"attention": False, "length_penalty": 0.0},
    {"prefix": [[5, 9], [], [7]], "no_repeat": 2},
    {"force": [[[5, 9]], [], [[7], [8]]], "forbid": [[4, 5]]},
    {"coverage_penalty": 0.3, "n_best": 3, "min_length": 6},
    {"min_length": 2 * CHUNK, "max_length": 2 * CHUNK},
]


def batch(*lengths: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Sources of the given lengths."""
    torch.manual_seed(seed)
    sizes = torch.tensor(lengths)
    source = torch.randint(4, 20, (len(lengths), max(lengths)))
    return source * (torch.arange(max(lengths)) < sizes[:, None]), sizes


def step_by_step(models: Any, source: Tensor, lengths: Tensor, **options: Any) -> Found:
    """What the readable search finds."""
    searching, found = BeamSearch(models, **options), dict[int, list[Hypothesis]]()
    searching.join(source, lengths)
    while searching.open:
        found.update(searching.step())
    return [found[number] for number in range(len(lengths))]


def agree(readable: Found, quick: Found, close: float = 1e-5) -> None:
    """That both have found the same, in the same order."""
    assert [[one.tokens for one in some] for some in quick] == [[one.tokens for one in some] for some in readable]
    for one, other in zip(chain(*quick), chain(*readable), strict=True):
        assert [one.log_prob, one.score] == pytest.approx([other.log_prob, other.score], rel=1e-5, abs=close)
        assert (one.attention is None) == (other.attention is None)
        if one.attention is not None and other.attention is not None:
            np.testing.assert_allclose(one.attention, other.attention, atol=close)
