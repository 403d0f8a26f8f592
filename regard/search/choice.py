"""Which hypotheses go on at a step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.fast.topk import topk


class SelectedCandidates(NamedTuple):
    """For each of A sentences the hypotheses that were chosen; −inf: none in this place."""

    log_probs: Tensor  # A,beam; the best first
    parents: Tensor  # A,beam; the row that each extends
    tokens: Tensor  # A,beam; the token it extends it by


def select_topk(beam_log_probs: Tensor, log_probs: Tensor) -> SelectedCandidates:
    """The `beam` best extensions of each sentence, of what was reached A,beam and the next tokens' A·beam,V."""
    sentences, beam = beam_log_probs.shape
    likeliest, tokens = topk(log_probs, min(beam, log_probs.shape[1]))  # no row gives more than these
    if beam == 1:
        return SelectedCandidates(
            beam_log_probs + likeliest, torch.arange(sentences, device=tokens.device)[:, None], tokens
        )
    candidate_log_probs, indices = (beam_log_probs.flatten()[:, None] + likeliest).view(sentences, -1).topk(beam, -1)
    first = beam * torch.arange(sentences, device=indices.device)[:, None]
    parents = indices // likeliest.shape[1] + first
    return SelectedCandidates(candidate_log_probs, parents, tokens.view(sentences, -1).gather(1, indices))
