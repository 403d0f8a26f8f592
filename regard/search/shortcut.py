"""Faster ways to search where nothing is asked for but the best: on a CPU, and on a model's own device by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.decoding.board import LONGEST, Wish
from regard.fast.switch import wanted
from regard.models.hypothesis import Hypothesis
from regard.search.bare import beam_search_numpy
from regard.search.ensemble import Ensemble
from regard.search.ranking import Scorer
from regard.search.sentence import max_target_lengths


@torch.inference_mode()
def try_fast_search(
    ensemble: Ensemble,
    scorer: Scorer,
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
    max_lengths = max_target_lengths(sizes, max_length, min_length, [0] * len(sizes))
    if max(max_lengths) > LONGEST:
        return None
    penalties = [1.0, *map(scorer.length_divisor, range(1, max(max_lengths) + 1))]
    request = Wish(beam, n_best, min_length, max_lengths, penalties, attention, sizes)
    found = _search_on_device(ensemble, source, lengths, request)
    if found is None and source.device.type == "cpu":
        found = beam_search_numpy(ensemble, source, lengths, request)
    return found


def _search_on_device(
    ensemble: Ensemble, source: Tensor, lengths: Tensor, request: Wish
) -> list[list[Hypothesis]] | None:
    """What a model finds that has a way of its own; None where it has none, or several search together."""
    device_search = getattr(ensemble.models[0], "device_search", None)
    if device_search is None or len(ensemble.models) > 1:
        return None
    with ensemble.eval_mode():
        found: list[list[Hypothesis]] | None = device_search(ensemble.models[0], source, lengths, request)
    return found
