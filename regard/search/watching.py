"""A beam search that is looked at: which hypotheses were open after each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.beam import TopKSelector
from regard.search.choice import SelectedCandidates
from regard.search.ensemble import Ensemble
from regard.search.frontier import DecodingLoop
from regard.search.ranking import Scorer
from regard.search.rules import PrefixConstraint, build_constraints
from regard.search.sentence import SentenceState, make_sentence_states


class PartialHypothesis(NamedTuple):
    """A hypothesis while it is searched: open, or ended where its last token is EOS."""

    tokens: list[int]
    log_prob: float


@torch.inference_mode()
def search_with_trace(
    model_or_models: Seq2Seq | Sequence[Seq2Seq], source: Tensor, lengths: Tensor, *, beam: int = 5
) -> tuple[list[Hypothesis], list[list[PartialHypothesis]]]:
    """What `search` finds for one source 1,S, the best first; and the beam after each step, the likeliest first."""
    sentences = make_sentence_states(lengths, None, 1, [0])
    selector = TracingBeamSelector(beam)
    decoding_loop = DecodingLoop(Ensemble(model_or_models), selector, Scorer(), build_constraints(1, (), None, ()))
    decoding_loop.add_sentences(
        source, lengths, sentences, PrefixConstraint([()], [sentences[0].max_length], source.device)
    )
    while decoding_loop.groups:
        decoding_loop.step()
    return sentences[0].rank_hypotheses(), selector.steps


class TracingBeamSelector(TopKSelector):
    """The beam of one sentence, which remembers what it chose."""

    def __init__(self, beam_size: int) -> None:
        super().__init__(beam_size, 1)
        self.steps: list[list[PartialHypothesis]] = []
        self.row_tokens: list[list[int]] = [[] for _ in range(self.rows_per_sentence)]

    def select_candidates(
        self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]
    ) -> SelectedCandidates:
        """As the beam does."""
        selected = super().select_candidates(beam_log_probs, log_probs, active)
        known = [part[0].tolist() for part in selected]
        rows = [
            PartialHypothesis([*self.row_tokens[parent], token], log_prob)
            for log_prob, parent, token in zip(*known, strict=True)
        ]
        self.row_tokens = [row.tokens for row in rows]
        self.steps.append(sorted((row for row in rows if row.log_prob > -torch.inf), key=lambda row: -row.log_prob))
        return selected
