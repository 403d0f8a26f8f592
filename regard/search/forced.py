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
from regard.search.ranking import LengthPenalty, Scorer
from regard.special_tokens import BOS, PAD


class ScoredTarget(NamedTuple):
    """A given target as the hypothesis that a search would have found it as, and what was thought of each token."""

    hypothesis: Hypothesis
    log_probs: list[float]
    is_top: list[bool]  # whether the model would have written this token next


@torch.inference_mode()
def score_targets(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    length_penalty: LengthPenalty = 0.6,
    coverage_penalty: float = 0.0,
) -> list[ScoredTarget]:
    """What is thought of each target; targets are given with their EOS."""
    if len(targets) != len(lengths) or not all(targets):
        raise ValueError(f"{len(targets)} targets for {len(lengths)} sources; there is one, not empty, for each")
    models, scorer = Ensemble(model_or_models), Scorer(length_penalty, coverage_penalty)
    out = pad_sequence([torch.tensor(target, device=source.device) for target in targets], True, PAD)
    target_in = torch.cat((torch.full_like(out[:, :1], BOS), out[:, :-1]), 1)
    with models.eval_mode():
        log_probs, attention = models.forward(source, lengths, target_in)
    token_log_probs = log_probs.gather(2, out[..., None]).squeeze(2).cpu()
    likeliest = (log_probs.argmax(-1) == out).tolist()
    attention_rows = None if attention is None else attention.float().cpu().numpy()
    scored = []
    for row, target in enumerate(targets):
        of_tokens = token_log_probs[row, : len(target)]
        attention_row = None if attention_rows is None else attention_rows[row, : len(target), : int(lengths[row])]
        hypothesis = scorer.score(list(target), float(of_tokens.sum()), attention_row)
        scored.append(ScoredTarget(hypothesis, of_tokens.tolist(), likeliest[row][: len(target)]))
    return scored
