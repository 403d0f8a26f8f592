"""Sampling with temperature, top-k and top-p (nucleus) instead of beam search.

Every source has a random generator of its own, seeded by the seed and the source itself: its samples are the same alone
and in any batch, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.models.hypothesis import Hypothesis, Scorer, SearchOptions, check_sampling
from regard.search.beam import DEFAULTS, BeamSearch, Selection, SentenceState, sort_by_score
from regard.search.ensemble import SearchModel


def sample(
    model_or_models: SearchModel | Sequence[SearchModel],
    source: Tensor,
    lengths: Tensor,
    options: SearchOptions = DEFAULTS,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 1,
    **changes: Any,
) -> list[list[Hypothesis]]:
    """Sample `samples` targets for each source, most probable first; duplicates and truncated targets are included.

    Log-probabilities are divided by `temperature`; a token is drawn from the `top_k` most probable, and from the most
    probable that have `top_p` of the probability together. `log_prob` is the model's own, without these changes.
    `options` and `changes` are as for `search`; beam size, `n_best` and penalties have no effect.
    """
    rows = zip(source.tolist(), lengths.tolist(), strict=True)
    generators = [_make_generator(seed, row[:size]) for row, size in rows]
    options = replace(replace(options, **changes), length_penalty=0.0, coverage_penalty=0.0)
    sampler = Sampler(samples, generators, temperature, top_k, top_p)
    searcher = BeamSearch(model_or_models, options, selector=sampler)
    searcher.add(source, lengths)
    return searcher.finish()


def _make_generator(seed: int, source: Sequence[int]) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, len(source), *source])))


@dataclass
class Sampler:
    """Selects one random continuation of each row; a `Selector` for a `BeamSearch`."""

    width: int  # samples per source
    generators: Sequence[np.random.Generator]  # one for each source
    temperature: float
    top_k: int | None
    top_p: float

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"samples must be at least 1, not {self.width}")
        check_sampling(self.temperature, self.top_k, self.top_p)
        self.initial_width = self.width

    def select(self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]) -> Selection:
        """Draw one token for each row by inverting its cumulative distribution."""
        uniform = np.stack([self.generators[sentence.index].random(self.width) for sentence in active])
        probs, order = self._candidate_probs(log_probs)
        cumulative = probs.cumsum(-1)
        drawn = torch.from_numpy(uniform).to(cumulative).view(-1, 1) * cumulative[:, -1:]
        indices = torch.searchsorted(cumulative, drawn, right=True).clamp(max=cumulative.shape[1] - 1)
        tokens = order.gather(1, indices)
        totals = beam_log_probs + log_probs.gather(1, tokens).view_as(beam_log_probs)
        parents = torch.arange(beam_log_probs.numel(), device=beam_log_probs.device).view_as(beam_log_probs)
        return Selection(totals, parents, tokens.view_as(parents))

    def _candidate_probs(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities (R, k) to draw from, most probable first, and the tokens they belong to."""
        ranked, order = log_probs.topk(min(self.top_k or log_probs.shape[1], log_probs.shape[1]), -1)
        probs = (ranked.double() / self.temperature).softmax(-1)
        before = probs.cumsum(-1) - probs  # the most probable token always stays
        return probs.masked_fill(before >= self.top_p, 0.0), order

    def is_done(self, sentence: SentenceState, best_active: float, scorer: Scorer) -> bool:
        """Return False: every sample continues to its end."""
        return False

    def rank_results(self, sentence: SentenceState) -> list[Hypothesis]:
        """Return all samples, most probable first."""
        return sort_by_score([*sentence.finished, *sentence.truncated])
