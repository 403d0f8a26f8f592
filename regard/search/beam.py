"""Beam search over anything that has `start`, `step` and `select`; a beam of 1 is greedy search.

A hypothesis that ends leaves the beam, which is narrower by one from then on (Sutskever 2014, section 3.2). A sentence
is done when its beam is empty, at its length limit, or when nothing still open could come in among the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.choice import SelectedCandidates, select_topk
from regard.search.ensemble import Ensemble
from regard.search.frontier import DecodingLoop
from regard.search.phrases import Phrase, PhraseConstraints, PhraseProgress, min_length_with_phrases
from regard.search.ranking import LengthPenalty, Scorer
from regard.search.rules import Constraint, PrefixConstraint, UnsatisfiableConstraintError, build_constraints
from regard.search.sentence import SentenceState, make_sentence_states
from regard.search.shortcut import try_fast_search

T = TypeVar("T")


def search(
    model_or_models: Seq2Seq | Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int = 5,
    max_length: int | None = None,
    n_best: int = 1,
    length_penalty: LengthPenalty = 0.6,
    coverage_penalty: float = 0.0,
    min_length: int = 1,
    no_repeat: int | None = None,
    prefix: Sequence[Sequence[int]] | None = None,
    force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    forbid: Sequence[Sequence[int]] = (),
    constraints: Sequence[Constraint] = (),
    attention: bool = True,
) -> list[list[Hypothesis]]:
    """The `n_best` targets for each source, the best first.

    Source ids B,S with lengths B, EOS included, as `model.encode` takes them; several models are an ensemble.

    - `max_length`, `min_length` count EOS; where `max_length` is None a target may grow to twice its source, what is
      given and forced, and ten more. PAD and BOS are never produced.
    - `length_penalty`, `coverage_penalty`: see `Ranking`.
    - `no_repeat`: so many tokens in a row never come twice.
    - `prefix`: the first tokens of each target. `force`: phrases that each target must hold, somewhere.
    - `forbid`: sequences of tokens that no target holds. `rules`: those of one's own.
    - `attention`: False spares the trouble where nobody wants to know where the model looked.
    """
    beam_search = BeamSearch(
        model_or_models,
        beam=beam,
        max_length=max_length,
        n_best=n_best,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        min_length=min_length,
        no_repeat=no_repeat,
        forbid=forbid,
        constraints=constraints,
        attention=attention,
    )
    prefixes, forced = check_per_source(prefix, len(lengths), "prefix"), check_per_source(force, len(lengths), "force")
    is_unconstrained = not (coverage_penalty or no_repeat or forbid or constraints or any(prefixes) or any(forced))
    fast_results = beam_search.try_fast_path(source, lengths) if is_unconstrained else None
    if fast_results is not None:
        return fast_results
    beam_search.add(source, lengths, prefix=prefix, force=force)
    results: list[list[Hypothesis]] = [[] for _ in lengths]
    while beam_search.num_active:
        for index, hypotheses in beam_search.step():
            results[index] = hypotheses
    return results


class BeamSearch:
    """The same, a step at a time; further sources may come in between any two steps.

    Sources are numbered in the order in which they come in.
    """

    def __init__(
        self,
        model_or_models: Seq2Seq | Sequence[Seq2Seq],
        *,
        beam: int = 5,
        max_length: int | None = None,
        n_best: int = 1,
        length_penalty: LengthPenalty = 0.6,
        coverage_penalty: float = 0.0,
        min_length: int = 1,
        no_repeat: int | None = None,
        forbid: Sequence[Sequence[int]] = (),
        constraints: Sequence[Constraint] = (),
        attention: bool = True,
    ) -> None:
        if not 1 <= n_best <= beam:
            raise ValueError(f"n_best must be between 1 and the beam: n_best {n_best}, beam {beam}")
        self.max_length = max_length
        self.min_length = min_length
        self.selector = TopKSelector(beam, n_best)
        self.num_added = 0  # of sources that ever came in
        self.decoding_loop = DecodingLoop(
            Ensemble(model_or_models),
            self.selector,
            Scorer(length_penalty, coverage_penalty),
            build_constraints(min_length, forbid, no_repeat, constraints),
            attention or bool(coverage_penalty),
        )

    @property
    def num_active(self) -> int:
        """Sources whose targets are not known yet."""
        return sum(len(cohort.sentences) for cohort in self.decoding_loop.groups)

    @torch.inference_mode()
    def add(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        prefix: Sequence[Sequence[int]] | None = None,
        force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    ) -> None:
        """Takes sources B,S in, as `search` does."""
        batch = len(lengths)
        prefixes = check_per_source(prefix, batch, "prefix")
        forced = [[as_phrase(item) for item in some] for some in check_per_source(force, batch, "force")]
        pairs = list(zip(prefixes, forced, strict=True))
        extra_lengths = [len(first) + sum(len(phrase.tokens) for phrase in some) for first, some in pairs]
        sentences = make_sentence_states(lengths, self.max_length, self.min_length, extra_lengths, self.num_added)
        for sentence, (first, phrases) in zip(sentences, pairs, strict=True):
            needed = min_length_with_phrases(first, phrases)
            if phrases and needed >= sentence.max_length:
                raise UnsatisfiableConstraintError(
                    f"{needed} tokens to force do not fit, with EOS, into max_length {sentence.max_length}"
                )
        prefix_constraint = PrefixConstraint(prefixes, [sentence.max_length for sentence in sentences], source.device)
        for sentence, phrases in zip(sentences, forced, strict=True):
            self.selector.phrase_constraints.add_source(sentence.index, phrases)
        self.decoding_loop.add_sentences(source, lengths, sentences, prefix_constraint)
        self.num_added += batch

    def try_fast_path(self, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]] | None:
        """All of it at once for these sources, where there is a faster way; None where there is none."""
        return try_fast_search(
            self.decoding_loop.ensemble,
            self.decoding_loop.scorer,
            source,
            lengths,
            beam=self.selector.rows_per_sentence,
            n_best=self.selector.n_best,
            max_length=self.max_length,
            min_length=self.min_length,
            attention=self.decoding_loop.with_attention,
        )

    @torch.inference_mode()
    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """One step of all that is open: the sources, by their numbers, whose targets are known with it."""
        return [(sentence.index, self.selector.take_results(sentence)) for sentence in self.decoding_loop.step()]


class TopKSelector:
    """Keeps the best; a chooser for a `Frontier`."""

    def __init__(self, beam_size: int, n_best: int) -> None:
        self.rows_per_sentence = beam_size
        self.n_best = n_best
        self.phrase_constraints = PhraseConstraints(beam_size)
        self.num_initial_rows = 1  # all rows of a sentence begin as the same hypothesis

    def select_candidates(
        self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]
    ) -> SelectedCandidates:
        """The best extensions, as many as the beam has places for beside those that have ended."""
        forced = [sentence.index for sentence in active] if self.phrase_constraints.by_source else []
        if forced:
            self.phrase_constraints.block_eos(log_probs, forced)
        selected = select_topk(beam_log_probs, log_probs)
        widths = [self.rows_per_sentence - len(sentence.completed) for sentence in active]
        if forced:
            candidate_log_probs = beam_log_probs[..., None] + log_probs.view(*beam_log_probs.shape, -1)
            selected = self.phrase_constraints.select_candidates(candidate_log_probs, selected, forced, widths)
        if min(widths) == self.rows_per_sentence:
            return selected
        device = beam_log_probs.device
        outside = torch.arange(self.rows_per_sentence, device=device) >= torch.tensor(widths, device=device)[:, None]
        return selected._replace(log_probs=selected.log_probs.masked_fill(outside, -torch.inf))

    def is_done(self, sentence: SentenceState, best_open: float, scorer: Scorer) -> bool:
        """Whether no open hypothesis can come in among the best."""
        if len(sentence.completed) < self.n_best:
            return False
        return sentence.rank_hypotheses()[self.n_best - 1].score >= scorer.upper_bound(best_open, sentence.max_length)

    def take_results(self, sentence: SentenceState) -> list[Hypothesis]:
        """The best first; where all were cut off, those first that have the most of what was to be forced."""
        best, phrases = sentence.rank_hypotheses(), self.phrase_constraints.remove_source(sentence.index)
        if phrases:
            best.sort(key=lambda hypothesis: -PhraseProgress.of_tokens(hypothesis.tokens, phrases).num_met(phrases))
        return best[: self.n_best]


def as_phrase(item: Phrase | Sequence[int]) -> Phrase:
    """A phrase, also where it was given as its tokens alone."""
    return item if isinstance(item, Phrase) else Phrase(tuple(item))


def check_per_source(values: Sequence[Sequence[T]] | None, batch: int, name: str) -> Sequence[Sequence[T]]:
    """What was given for each source of the batch."""
    if values is None:
        return [()] * batch
    if len(values) != batch:
        raise ValueError(f"{name} has {len(values)} entries for {batch} sources; there is one for each")
    return values
