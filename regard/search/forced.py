"""What a model thinks of a given target, and where it looks for each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.ensemble import Ensemble
from regard.search.ranking import LengthPenalty, Ranking
from regard.symbols import BOS, PAD


class Judged(NamedTuple):
    """A given target as the hypothesis that a search would have found it as, and what was thought of each token."""

    hypothesis: Hypothesis
    log_probs: list[float]
    likeliest: list[bool]  # whether the model would have written this token next


@torch.inference_mode()
def forced(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    length_penalty: LengthPenalty = 0.6,
    coverage_penalty: float = 0.0,
) -> list[Judged]:
    """What is thought of each target; targets are given with their EOS."""
    if len(targets) != len(lengths) or not all(targets):
        raise ValueError(f"{len(targets)} targets for {len(lengths)} sources; there is one, not empty, for each")
    models, ranking = Ensemble(model_or_models), Ranking(length_penalty, coverage_penalty)
    out = pad_sequence([torch.tensor(target, device=source.device) for target in targets], True, PAD)
    target_in = torch.cat((torch.full_like(out[:, :1], BOS), out[:, :-1]), 1)
    with models.resting():
        log_probs, attention = models.forced(source, lengths, target_in)
    each = log_probs.gather(2, out[..., None]).squeeze(2).cpu()
    likeliest = (log_probs.argmax(-1) == out).tolist()
    looks = None if attention is None else attention.float().cpu().numpy()
    judged = []
    for row, target in enumerate(targets):
        of_tokens = each[row, : len(target)]
        look = None if looks is None else looks[row, : len(target), : int(lengths[row])]
        hypothesis = ranking.hypothesis(list(target), float(of_tokens.sum()), look)
        judged.append(Judged(hypothesis, of_tokens.tolist(), likeliest[row][: len(target)]))
    return judged
