"""A beam search that is looked at: which hypotheses were open after each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.beam import Beam
from regard.search.choice import Choice
from regard.search.ensemble import Ensemble
from regard.search.frontier import Frontier
from regard.search.ranking import Ranking
from regard.search.rules import Prefix, standing
from regard.search.sentence import Sentence, unsearched


class Open(NamedTuple):
    """A hypothesis while it is searched: open, or ended where its last token is EOS."""

    tokens: list[int]
    log_prob: float


@torch.inference_mode()
def watch(
    model_or_models: Seq2Seq | Sequence[Seq2Seq], source: Tensor, lengths: Tensor, *, beam: int = 5
) -> tuple[list[Hypothesis], list[list[Open]]]:
    """What `search` finds for one source 1,S, the best first; and the beam after each step, the likeliest first."""
    sentences = unsearched(lengths, None, 1, [0])
    chooser = Watched(beam)
    frontier = Frontier(Ensemble(model_or_models), chooser, Ranking(), standing(1, (), None, ()))
    frontier.join(source, lengths, sentences, Prefix([()], [sentences[0].limit], source.device))
    while frontier.cohorts:
        frontier.step()
    return sentences[0].best(), chooser.seen


class Watched(Beam):
    """The beam of one sentence, which remembers what it chose."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, 1)
        self.seen: list[list[Open]] = []
        self.rows_so_far: list[list[int]] = [[] for _ in range(self.rows)]

    def choose(self, reached: Tensor, log_probs: Tensor, active: Sequence[Sentence]) -> Choice:
        """As the beam does."""
        choice = super().choose(reached, log_probs, active)
        known = [part[0].tolist() for part in choice]
        rows = [Open([*self.rows_so_far[parent], token], chance) for chance, parent, token in zip(*known, strict=True)]
        self.rows_so_far = [row.tokens for row in rows]
        self.seen.append(sorted((row for row in rows if row.log_prob > -torch.inf), key=lambda row: -row.log_prob))
        return choice
