"""Which hypotheses go on at a step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.fast.topk import topk


class Choice(NamedTuple):
    """For each of A sentences the hypotheses that were chosen; −inf: none in this place."""

    log_probs: Tensor  # A,beam; the best first
    parents: Tensor  # A,beam; the row that each extends
    tokens: Tensor  # A,beam; the token it extends it by


def best(reached: Tensor, log_probs: Tensor) -> Choice:
    """The `beam` best extensions of each sentence, of what was reached A,beam and the next tokens' A·beam,V."""
    sentences, beam = reached.shape
    likeliest, tokens = topk(log_probs, min(beam, log_probs.shape[1]))  # no row gives more than these
    if beam == 1:
        return Choice(reached + likeliest, torch.arange(sentences, device=tokens.device)[:, None], tokens)
    reach, places = (reached.flatten()[:, None] + likeliest).view(sentences, -1).topk(beam, -1)
    first = beam * torch.arange(sentences, device=places.device)[:, None]
    parents = places // likeliest.shape[1] + first
    return Choice(reach, parents, tokens.view(sentences, -1).gather(1, places))
