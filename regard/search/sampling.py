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
from regard.search.choice import Choice
from regard.search.ensemble import Ensemble
from regard.search.frontier import Frontier
from regard.search.ranking import Ranking
from regard.search.rules import Prefix, Rule, standing
from regard.search.sentence import Sentence, ranked, unsearched


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
    rules: Sequence[Rule] = (),
    attention: bool = True,
) -> list[list[Hypothesis]]:
    """`samples` targets drawn for each source, the most likely first; the same one may be drawn twice, and one that was
    cut off at its limit counts, too.

    Log-probabilities are divided by `temperature`; a token is drawn among the `top_k` likeliest, and among the
    likeliest that have `top_p` of the probability together. `log_prob` is the model's own, whatever was drawn from.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    sentences = unsearched(lengths, max_length, min_length, [0] * len(lengths))
    generators = [generator(seed, row[:length]) for row, length in zip(source.tolist(), lengths.tolist(), strict=True)]
    frontier = Frontier(
        Ensemble(model_or_models),
        Draw(samples, temperature, top_k, top_p, generators),
        Ranking(length_penalty=0.0),
        standing(min_length, forbid, no_repeat, rules),
        attention,
    )
    nothing = Prefix([()] * len(sentences), [sentence.limit for sentence in sentences], source.device)
    frontier.join(source, lengths, sentences, nothing)
    while frontier.cohorts:
        frontier.step()
    return [ranked([*sentence.ended, *sentence.cut]) for sentence in sentences]


def generator(seed: int, source: Sequence[int]) -> np.random.Generator:
    """The random numbers of one source."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, len(source), *source])))


class Draw:
    """Each row goes its own way, by one random number a step; a chooser for a `Frontier`."""

    def __init__(
        self,
        rows: int,
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
        self.rows = self.open_at_first = rows
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.generators = generators

    def choose(self, reached: Tensor, log_probs: Tensor, active: Sequence[Sentence]) -> Choice:
        """One token for each row, by the inverse of its cumulative distribution."""
        drawn = np.stack([self.generators[sentence.index].random(self.rows) for sentence in active])
        chances, order = self.chances(log_probs)
        heaped = chances.cumsum(-1)
        at = torch.from_numpy(drawn).to(heaped).view(-1, 1) * heaped[:, -1:]
        places = torch.searchsorted(heaped, at, right=True).clamp(max=heaped.shape[1] - 1)
        tokens = order.gather(1, places)
        grown = reached + log_probs.gather(1, tokens).view_as(reached)
        parents = torch.arange(reached.numel(), device=reached.device).view_as(reached)
        return Choice(grown, parents, tokens.view_as(parents))

    def chances(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities R,k to draw from, the likeliest first, and the tokens that they are of."""
        ranked, order = log_probs.topk(min(self.top_k or log_probs.shape[1], log_probs.shape[1]), -1)
        chances = (ranked.double() / self.temperature).softmax(-1)
        before = chances.cumsum(-1) - chances  # the likeliest always stays
        return chances.masked_fill(before >= self.top_p, 0.0), order

    def settled(self, sentence: Sentence, best_open: float, ranking: Ranking) -> bool:
        """Every row is drawn to its end."""
        return False
