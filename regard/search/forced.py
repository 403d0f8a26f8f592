"""What a model thinks of a given target, and where it looks for each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.models import Seq2Seq
from regard.search.ensemble import Ensemble
from regard.search.hypothesis import Hypothesis
from regard.search.ranking import LengthPenalty, Ranking
from regard.symbols import BOS, PAD


@torch.inference_mode()
def forced(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    length_penalty: LengthPenalty = 0.6,
    coverage_penalty: float = 0.0,
) -> list[Hypothesis]:
    """Each target, with its EOS, as the hypothesis that a search would have found it as."""
    if len(targets) != len(lengths) or not all(targets):
        raise ValueError(f"{len(targets)} targets for {len(lengths)} sources; there is one, not empty, for each")
    models, ranking = Ensemble(model_or_models), Ranking(length_penalty, coverage_penalty)
    out = pad_sequence([torch.tensor(target, device=source.device) for target in targets], True, PAD)
    target_in = torch.cat((torch.full_like(out[:, :1], BOS), out[:, :-1]), 1)
    with models.resting():
        log_probs, attention = models.forced(source, lengths, target_in)
    each = log_probs.gather(2, out[..., None]).squeeze(2).masked_fill(out == PAD, 0.0).sum(1).tolist()
    looks = None if attention is None else attention.float().cpu().numpy()
    return [
        ranking.hypothesis(
            list(target), each[row], None if looks is None else looks[row, : len(target), : int(lengths[row])]
        )
        for row, target in enumerate(targets)
    ]
