"""Targets drawn from the model instead of searched for.

Every source has a generator of its own, made of the seed and the source itself: what is drawn for it is the same alone
and in any batch, on one machine and on the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.choice import SelectedCandidates
from regard.search.ensemble import Ensemble
from regard.search.frontier import DecodingLoop
from regard.search.ranking import Scorer
from regard.search.rules import Constraint, PrefixConstraint, build_constraints
from regard.search.sentence import SentenceState, make_sentence_states, sort_by_score


@torch.inference_mode()
def sample(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 1,
    max_length: int | None = None,
    min_length: int = 1,
    no_repeat: int | None = None,
    forbid: Sequence[Sequence[int]] = (),
    constraints: Sequence[Constraint] = (),
    attention: bool = True,
) -> list[list[Hypothesis]]:
    """`samples` targets drawn for each source, the most likely first; the same one may be drawn twice, and one that was
    cut off at its limit counts, too.

    Log-probabilities are divided by `temperature`; a token is drawn among the `top_k` likeliest, and among the
    likeliest that have `top_p` of the probability together. `log_prob` is the model's own, whatever was drawn from.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    sentences = make_sentence_states(lengths, max_length, min_length, [0] * len(lengths))
    generators = [
        _make_generator(seed, row[:length]) for row, length in zip(source.tolist(), lengths.tolist(), strict=True)
    ]
    decoding_loop = DecodingLoop(
        Ensemble(model_or_models),
        SamplingSelector(samples, temperature, top_k, top_p, generators),
        Scorer(length_penalty=0.0),
        build_constraints(min_length, forbid, no_repeat, constraints),
        attention,
    )
    no_prefix = PrefixConstraint([()] * len(sentences), [sentence.max_length for sentence in sentences], source.device)
    decoding_loop.add_sentences(source, lengths, sentences, no_prefix)
    while decoding_loop.groups:
        decoding_loop.step()
    return [sort_by_score([*sentence.completed, *sentence.truncated]) for sentence in sentences]


def _make_generator(seed: int, source: Sequence[int]) -> np.random.Generator:
    """The random numbers of one source."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, len(source), *source])))


class SamplingSelector:
    """Each row goes its own way, by one random number a step; a chooser for a `Frontier`."""

    def __init__(
        self,
        samples: int,
        temperature: float,
        top_k: int | None,
        top_p: float,
        generators: Sequence[np.random.Generator],
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be more than 0, not {temperature}; a beam of 1 takes the likeliest")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must be more than 0 and at most 1, not {top_p}")
        self.rows_per_sentence = self.num_initial_rows = samples
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.generators = generators

    def select_candidates(
        self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]
    ) -> SelectedCandidates:
        """One token for each row, by the inverse of its cumulative distribution."""
        uniform = np.stack([self.generators[sentence.index].random(self.rows_per_sentence) for sentence in active])
        probabilities, order = self.candidate_probabilities(log_probs)
        cumulative = probabilities.cumsum(-1)
        at = torch.from_numpy(uniform).to(cumulative).view(-1, 1) * cumulative[:, -1:]
        indices = torch.searchsorted(cumulative, at, right=True).clamp(max=cumulative.shape[1] - 1)
        tokens = order.gather(1, indices)
        grown = beam_log_probs + log_probs.gather(1, tokens).view_as(beam_log_probs)
        parents = torch.arange(beam_log_probs.numel(), device=beam_log_probs.device).view_as(beam_log_probs)
        return SelectedCandidates(grown, parents, tokens.view_as(parents))

    def candidate_probabilities(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities R,k to draw from, the likeliest first, and the tokens that they are of."""
        ranked, order = log_probs.topk(min(self.top_k or log_probs.shape[1], log_probs.shape[1]), -1)
        probabilities = (ranked.double() / self.temperature).softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # the likeliest always stays
        return probabilities.masked_fill(before >= self.top_p, 0.0), order

    def is_done(self, sentence: SentenceState, best_open: float, scorer: Scorer) -> bool:
        """Every row is drawn to its end."""
        return False
