"""Faster ways to search where nothing is asked for but the best: on a CPU, and on a model's own device by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.decoding.board import LONGEST, Wish
from regard.fast.switch import wanted
from regard.models.hypothesis import Hypothesis
from regard.search.bare import searched
from regard.search.ensemble import Ensemble
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
    """What `search` finds; None where there is no such way."""
    if not len(lengths) or not wanted():
        return None
    sizes = lengths.tolist()
    most = limits(sizes, max_length, min_length, [0] * len(sizes))
    if max(most) > LONGEST:
        return None
    penalties = [1.0, *map(ranking.divisor, range(1, max(most) + 1))]
    wish = Wish(beam, n_best, min_length, most, penalties, attention, sizes)
    found = by_itself(models, source, lengths, wish)
    if found is None and source.device.type == "cpu":
        found = searched(models, source, lengths, wish)
    return found


def by_itself(models: Ensemble, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Hypothesis]] | None:
    """What a model finds that has a way of its own; None where it has none, or several search together."""
    way = getattr(models.models[0], "shortcut", None)
    if way is None or len(models.models) > 1:
        return None
    with models.resting():
        found: list[list[Hypothesis]] | None = way(models.models[0], source, lengths, wish)
    return found
