"""Forced decoding, which scores given targets, and beam search that also returns the beam after each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.models.hypothesis import Hypothesis, LengthPenalty, Scorer, SearchOptions
from regard.search.beam import BeamSearch
from regard.search.ensemble import Ensemble, SearchModel
from regard.special_tokens import BOS, PAD


class ScoredTarget(NamedTuple):
    """A given target as a hypothesis, with the model's log-probability of each token."""

    hypothesis: Hypothesis
    log_probs: list[float]
    is_top: list[bool]  # whether the token is the model's most probable one


@torch.inference_mode()
def score_targets(
    model_or_models: SearchModel | Sequence[SearchModel],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    length_penalty: LengthPenalty = 0.6,
    coverage_penalty: float = 0.0,
) -> list[ScoredTarget]:
    """Score a target, EOS included, for each source (B, S) with lengths (B,)."""
    if len(targets) != len(lengths) or not all(targets):
        raise ValueError(f"{len(targets)} targets for {len(lengths)} sources; pass one non-empty target for each")
    models, scorer = Ensemble(model_or_models), Scorer(length_penalty, coverage_penalty)
    target_out = pad_sequence([torch.tensor(target, device=source.device) for target in targets], True, PAD)
    target_in = torch.cat((torch.full_like(target_out[:, :1], BOS), target_out[:, :-1]), 1)
    with models.eval_mode():
        log_probs, attention = models.forward(source, lengths, target_in)
    token_log_probs = log_probs.gather(2, target_out[..., None]).squeeze(2).cpu()
    is_top = (log_probs.argmax(-1) == target_out).tolist()
    weights = None if attention is None else attention.float().cpu().numpy()
    scored = []
    for row, target in enumerate(targets):
        row_log_probs = token_log_probs[row, : len(target)]
        row_weights = None if weights is None else weights[row, : len(target), : int(lengths[row])]
        hypothesis = scorer.score(list(target), float(row_log_probs.sum()), row_weights)
        scored.append(ScoredTarget(hypothesis, row_log_probs.tolist(), is_top[row][: len(target)]))
    return scored


class PartialHypothesis(NamedTuple):
    """A hypothesis of the beam after a step; it has ended if its last token is EOS."""

    tokens: list[int]
    log_prob: float


def search_with_trace(
    model_or_models: SearchModel | Sequence[SearchModel], source: Tensor, lengths: Tensor, *, beam: int = 5
) -> tuple[list[Hypothesis], list[list[PartialHypothesis]]]:
    """Return the hypotheses of one source (1, S), best first, and the beam after each step, most probable first."""
    searcher = BeamSearch(model_or_models, SearchOptions(beam=beam))
    searcher.add(source, lengths)
    (sentence,) = searcher.active
    searcher.finish()
    beams: list[list[PartialHypothesis]] = []
    rows: list[list[int]] = [[] for _ in range(beam)]  # tokens of each row
    for step in sentence.steps:
        rows = [[*rows[parent], token] for parent, token in zip(step.parents, step.tokens, strict=True)]
        hypotheses = [PartialHypothesis(*pair) for pair in zip(rows, step.log_probs, strict=True)]
        used = [hypothesis for hypothesis in hypotheses if hypothesis.log_prob > -math.inf]
        beams.append(sorted(used, key=lambda hypothesis: -hypothesis.log_prob))
    return sentence.rank_hypotheses(), beams
