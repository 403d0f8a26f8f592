"""A search that a model does by itself, on its device, where nothing is asked for but the best."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.decoding.board import Wish
from regard.search.ensemble import Ensemble
from regard.search.hypothesis import Hypothesis
from regard.search.ranking import Ranking
from regard.search.sentence import limits


@torch.inference_mode()
def shortcut(
    models: Ensemble,
    ranking: Ranking,
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int,
    n_best: int,
    max_length: int | None,
    min_length: int,
    attention: bool,
) -> list[list[Hypothesis]] | None:
    """What `search` finds; None where there is no such way, or several models search together."""
    way = getattr(models.models[0], "shortcut", None)
    if way is None or len(models.models) > 1 or not len(lengths):
        return None
    most = limits(lengths.tolist(), max_length, min_length, [0] * len(lengths))
    penalties = [1.0, *map(ranking.divisor, range(1, max(most) + 1))]
    with models.resting():
        found = way(models.models[0], source, lengths, Wish(beam, n_best, min_length, most, penalties, attention))
    if found is None:
        return None
    return [
        [Hypothesis(tokens, chance, chance / penalties[len(tokens)], look) for tokens, chance, look in some]
        for some in found
    ]
