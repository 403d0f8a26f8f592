"""Beam search with continuous batching; a beam of 1 is greedy search.

A hypothesis that ends leaves the beam, which is narrower by one from then on (Sutskever et al. 2014, section 3.2). A
sentence is done when its beam is empty, at its length limit, or when no active hypothesis can still become one of its
n best. The loop, in `DecodingLoop.add` and `DecodingLoop.step`:

1. encode: run the encoder and start the decoder
2. expand: repeat the decoder state for each hypothesis of a beam
3. step: run one decoder step for all active hypotheses
4. constrain: set the log-probability of continuations that are not allowed to -inf
5. select: choose the top-k continuations of each sentence, or sample them
6. collect: take hypotheses that end, and stop sentences that are done
7. advance: reorder the decoder state, drop sentences that are done
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from regard.fast.topk import topk
from regard.models.hypothesis import Hypothesis, SearchOptions
from regard.search.constraints import (
    Constraint,
    ForcedPhrases,
    Phrase,
    PhraseProgress,
    Prefix,
    UnsatisfiableConstraintError,
    build_constraints,
    min_length_with_phrases,
)
from regard.search.ensemble import Ensemble, SearchModel
from regard.search.fast_search import try_fast_search
from regard.search.scorer import Scorer
from regard.search.sentence_state import Selection, SentenceState
from regard.special_tokens import BOS, EOS, PAD

T = TypeVar("T")
DEFAULTS = SearchOptions()
StepCallback = Callable[[Sequence[SentenceState], Selection], None]


def search(
    model_or_models: SearchModel | Sequence[SearchModel],
    source: Tensor,
    lengths: Tensor,
    options: SearchOptions = DEFAULTS,
    *,
    prefix: Sequence[Sequence[int]] | None = None,
    force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    **changes: Any,
) -> list[list[Hypothesis]]:
    """Return the `n_best` targets of each source, best first.

    Args:
        model_or_models: one model, or several with the same vocabularies as an ensemble.
        source: (B, S) token ids, EOS included, right-padded; as `model.encode` takes them.
        lengths: (B,) source lengths.
        options: the search options; see `SearchOptions`.
        prefix: first tokens of each target.
        force: phrases that each target must contain, anywhere.
        changes: fields of `options` with other values: `search(model, source, lengths, beam=4, n_best=2)`.

    PAD and BOS are never produced.
    """
    options, models = replace(options, **changes), Ensemble(model_or_models)
    prefixes, phrases = check_per_source(prefix, len(lengths), "prefix"), check_per_source(force, len(lengths), "force")
    if not any(prefixes) and not any(phrases):
        fast = try_fast_search(models, source, lengths, options)
        if fast is not None:
            return fast
    searcher = BeamSearch(models, options)
    searcher.add(source, lengths, prefix=prefix, force=force)
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    while searcher.num_active:
        for index, hypotheses in searcher.step():
            found[index] = hypotheses
    return found


class BeamSearch:
    """A beam search one step at a time; sources may be added between any two steps (continuous batching).

    Sources are numbered in the order in which they are added. `on_step` is called after each step with the sentences
    and the continuations selected for them.
    """

    def __init__(
        self,
        models: Ensemble | SearchModel | Sequence[SearchModel],
        options: SearchOptions = DEFAULTS,
        on_step: StepCallback | None = None,
    ) -> None:
        self.options = options
        self.selector = TopKSelector(options.beam, options.n_best)
        self.num_added = 0
        self.loop = DecodingLoop(
            models if isinstance(models, Ensemble) else Ensemble(models),
            self.selector,
            Scorer(options.length_penalty, options.coverage_penalty),
            build_constraints(options),
            options.attention or bool(options.coverage_penalty),
            on_step,
        )

    @property
    def num_active(self) -> int:
        """Return the number of sources that are not done."""
        return len(self.loop.active)

    @torch.inference_mode()
    def add(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        prefix: Sequence[Sequence[int]] | None = None,
        force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    ) -> None:
        """Add sources (B, S) to the search; arguments as for `search`."""
        prefixes = check_per_source(prefix, len(lengths), "prefix")
        phrases = [[as_phrase(item) for item in some] for some in check_per_source(force, len(lengths), "force")]
        given = list(zip(prefixes, phrases, strict=True))
        sizes = lengths.tolist()
        forced = [len(first) + sum(len(phrase.tokens) for phrase in some) for first, some in given]
        limits = self.options.max_lengths(sizes, forced)
        for (first, some), limit in zip(given, limits, strict=True):
            needed = min_length_with_phrases(first, some)
            if some and needed >= limit:
                raise UnsatisfiableConstraintError(
                    f"{needed} tokens to force do not fit, with EOS, into max_length {limit}"
                )
        sentences = [
            SentenceState(index, size, limit)
            for index, (size, limit) in enumerate(zip(sizes, limits, strict=True), self.num_added)
        ]
        begun = Prefix(prefixes, limits, source.device)
        for sentence, some in zip(sentences, phrases, strict=True):
            self.selector.phrases.add(sentence.index, some)
        self.loop.add(source, lengths, sentences, begun)
        self.num_added += len(sentences)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """Run one step for all active sources; return (source number, n best hypotheses) of those that are done."""
        return [(sentence.index, self.selector.n_best_of(sentence)) for sentence in self.loop.step()]


class Selector(Protocol):
    """Chooses which hypotheses continue: top-k for beam search, random draws for sampling."""

    width: int  # active hypotheses per sentence
    initial_width: int  # of them before the first step

    def select(self, scores: Tensor, log_probs: Tensor, active: Sequence[SentenceState]) -> Selection:
        """Select continuations: `scores` (A, width) of the hypotheses, `log_probs` (A·width, V) of the next tokens."""
        ...

    def is_done(self, sentence: SentenceState, best_active: float, scorer: Scorer) -> bool:
        """Return whether no active hypothesis of a sentence is needed; the best of them has this log-probability."""
        ...


@dataclass
class SentenceGroup:
    """Sentences that were added together, so that their hypotheses have equally many tokens."""

    sentences: list[SentenceState]
    prefix: Prefix
    rows: Tensor  # (R,) number of the sentence that each row belongs to, within those added together
    tokens: Tensor  # (R, t) tokens so far; only kept if constraints or a prefix need them
    num_steps: int = 0

    def constrain(self, log_probs: Tensor, allowed: Tensor, constraints: Sequence[Constraint]) -> Tensor:
        """Return what is allowed (R, V) of the model's log-probabilities (R, V); nothing is renormalised."""
        for constraint in constraints:
            constraint(allowed, self.tokens, self.rows)
        return self.prefix.apply(allowed, log_probs, self.num_steps, self.rows)


class DecodingLoop:
    """The loop that beam search and sampling share (steps 1 to 7 of the module's docstring).

    A sentence has `selector.width` rows while it is active; rows without an active hypothesis have score -inf.
    Hypotheses have attention if `attention` is set.
    """

    def __init__(
        self,
        models: Ensemble,
        selector: Selector,
        scorer: Scorer,
        constraints: Sequence[Constraint],
        attention: bool = True,
        on_step: StepCallback | None = None,
    ) -> None:
        self.models = models
        self.selector = selector
        self.scorer = scorer
        self.constraints = constraints
        self.attention = attention
        self.on_step = on_step
        self.groups: list[SentenceGroup] = []  # oldest first, here and in every tensor
        self.states: list[Any]
        self.tokens: Tensor  # (R,) newest token of each row
        self.scores: Tensor  # (A, width) log-probability of each active hypothesis
        self.source_size = 0  # S
        self.has_padding = False  # of sentences that were added at different times

    @property
    def active(self) -> list[SentenceState]:
        """Return the sentences that are not done, in the order of their rows."""
        return [sentence for group in self.groups for sentence in group.sentences]

    def add(self, source: Tensor, lengths: Tensor, sentences: Sequence[SentenceState], prefix: Prefix) -> None:
        """Add sentences with their sources (B, S) and lengths (B,)."""
        if not sentences:
            return
        width = self.selector.width
        rows = torch.arange(len(sentences), device=source.device).repeat_interleave(width)
        with self.models.eval_mode():
            # 1. Encode.
            states = self.models.start(source, lengths)
            # 2. Expand.
            states = self.models.expand_beams(states, width, rows)
        tokens = torch.full_like(rows, BOS)
        scores = torch.full((len(sentences), width), -torch.inf, device=source.device)
        scores[:, : self.selector.initial_width] = 0.0
        if self.groups:
            states, self.has_padding = self.models.concat_states(self.states, states), True
            tokens, scores = torch.cat((self.tokens, tokens)), torch.cat((self.scores, scores))
        self.states, self.tokens, self.scores = states, tokens, scores
        self.source_size = max(self.source_size, source.shape[1])
        self.groups.append(SentenceGroup(list(sentences), prefix, rows, rows.new_empty(len(rows), 0)))

    def step(self) -> list[SentenceState]:
        """Extend every active hypothesis by one token; return the sentences that are done with it."""
        active = self.active
        # 3. Step.
        with self.models.eval_mode():
            log_probs, self.states, attention = self.models.step(
                self.states, self.tokens, self.source_size if self.attention else None
            )
        # 4. Constrain.
        log_probs = self._constrain(log_probs)
        # 5. Select.
        selection = self.selector.select(self.scores, log_probs, active)
        # 6. Collect.
        self._collect(active, selection, attention)
        if self.on_step is not None:
            self.on_step(active, selection)
        # 7. Advance.
        self._advance(selection, [index for index, sentence in enumerate(active) if not sentence.done])
        return [sentence for sentence in active if sentence.done]

    def _constrain(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities (R, V) with -inf for tokens that may not follow; PAD and BOS never do."""
        allowed = log_probs.clone()  # the decoder may still need its own
        for token in (PAD, BOS):
            allowed[:, token] = -torch.inf
        if not self.constraints and not any(group.prefix.max_length > group.num_steps for group in self.groups):
            return allowed
        sizes = [self.selector.width * len(group.sentences) for group in self.groups]
        parts = zip(self.groups, torch.split(log_probs, sizes), torch.split(allowed, sizes), strict=True)
        constrained = [group.constrain(given, part, self.constraints) for group, given, part in parts]
        return torch.cat(constrained) if len(constrained) > 1 else constrained[0]  # no copy of a single group

    def _collect(self, active: Sequence[SentenceState], selection: Selection, attention: Tensor | None) -> None:
        """Take the hypotheses that end from each sentence's beam, and mark sentences that are done."""
        width = self.selector.width
        first_rows = width * torch.arange(len(active), device=selection.parents.device)[:, None]
        by_sentence = selection._replace(parents=selection.parents - first_rows)
        weights = None if attention is None else attention.float().cpu().numpy()
        rows = zip(active, *(part.tolist() for part in by_sentence), strict=True)
        for index, (sentence, log_probs, parents, tokens) in enumerate(rows):
            own = None if weights is None else weights[index * width : (index + 1) * width]
            best_active = sentence.collect(log_probs, parents, tokens, own, self.scorer)
            sentence.done = best_active == -math.inf or self.selector.is_done(sentence, best_active, self.scorer)

    def _advance(self, selection: Selection, remaining: list[int]) -> None:
        """Move scores, tokens and decoder states on to the selected hypotheses of the `remaining` sentences."""
        some_done = len(remaining) < len(selection.tokens)
        scores, parents, tokens = (part[remaining] if some_done else part for part in selection)
        self.scores = scores.masked_fill(tokens == EOS, -torch.inf)
        self.tokens, rows = tokens.flatten(), parents.flatten()
        self._advance_groups(rows)
        if not some_done:
            # The only row of a sentence extends itself.
            self.states = self.models.reorder_beams(self.states, rows) if self.selector.width > 1 else self.states
        elif remaining:
            self.states = self.models.keep_rows(self.states, rows, torch.tensor(remaining, device=rows.device))
            if self.has_padding:
                self.source_size = max(sentence.source_length for sentence in self.active)
                self.states = self.models.trim_padding(self.states, self.source_size, self.groups[0].num_steps)
        else:
            self.source_size, self.has_padding = 0, False

    def _advance_groups(self, parents: Tensor) -> None:
        """Drop done sentences from the groups; `parents` (R,) are the rows that the next step's rows extend."""
        width, first_row, end = self.selector.width, 0, 0
        for group in self.groups:
            num_rows = width * len(group.sentences)
            group.sentences = [sentence for sentence in group.sentences if not sentence.done]
            own = slice(end, end := end + width * len(group.sentences))
            group.num_steps += 1
            if self.constraints or group.prefix.max_length:
                kept = parents[own] - first_row
                group.rows = group.rows[kept]
                group.tokens = torch.cat((group.tokens[kept], self.tokens[own, None]), 1)
            first_row += num_rows
        self.groups = [group for group in self.groups if group.sentences]


class TopKSelector:
    """Selects the best continuations, as many as hypotheses of the sentence have not ended yet."""

    def __init__(self, width: int, n_best: int) -> None:
        self.width = width
        self.n_best = n_best
        self.phrases = ForcedPhrases(width)
        self.initial_width = 1  # all rows of a sentence would begin as the same hypothesis

    def select(self, scores: Tensor, log_probs: Tensor, active: Sequence[SentenceState]) -> Selection:
        """See `Selector`."""
        forced = [sentence.index for sentence in active] if self.phrases.phrases else []
        if forced:
            self.phrases.block_eos(log_probs, forced)
        selection = select_topk(scores, log_probs)
        widths = [self.width - len(sentence.finished) for sentence in active]
        if forced:
            totals = scores[..., None] + log_probs.view(*scores.shape, -1)
            selection = self.phrases.select(totals, selection, forced, widths)
        if min(widths) == self.width:
            return selection
        device = scores.device
        unused = torch.arange(self.width, device=device) >= torch.tensor(widths, device=device)[:, None]
        return selection._replace(log_probs=selection.log_probs.masked_fill(unused, -torch.inf))

    def is_done(self, sentence: SentenceState, best_active: float, scorer: Scorer) -> bool:
        """Return whether the n best have finished and no active hypothesis can score more."""
        if len(sentence.finished) < self.n_best:
            return False
        return sentence.rank_hypotheses()[self.n_best - 1].score >= scorer.upper_bound(best_active, sentence.max_length)

    def n_best_of(self, sentence: SentenceState) -> list[Hypothesis]:
        """Return the best hypotheses of a done sentence; of truncated ones those with most of the forced phrases."""
        ranked, phrases = sentence.rank_hypotheses(), self.phrases.remove(sentence.index)
        if phrases:
            ranked.sort(key=lambda hypothesis: -PhraseProgress.of_tokens(hypothesis.tokens, phrases).num_met(phrases))
        return ranked[: self.n_best]


def select_topk(scores: Tensor, log_probs: Tensor) -> Selection:
    """Return the `beam` best continuations of each sentence, of scores (A, beam) and log-probabilities (A·beam, V)."""
    num_sentences, beam = scores.shape
    values, tokens = topk(log_probs, min(beam, log_probs.shape[1]))  # no row contributes more than these
    if beam == 1:
        return Selection(scores + values, torch.arange(num_sentences, device=tokens.device)[:, None], tokens)
    best, indices = (scores.flatten()[:, None] + values).view(num_sentences, -1).topk(beam, -1)
    first_rows = beam * torch.arange(num_sentences, device=indices.device)[:, None]
    parents = indices // values.shape[1] + first_rows
    return Selection(best, parents, tokens.view(num_sentences, -1).gather(1, indices))


def as_phrase(item: Phrase | Sequence[int]) -> Phrase:
    """Return a phrase that may be given as its tokens alone."""
    return item if isinstance(item, Phrase) else Phrase(tuple(item))


def check_per_source(given: Sequence[Sequence[T]] | None, batch: int, name: str) -> Sequence[Sequence[T]]:
    """Return one entry for each source of the batch; None stands for empty ones."""
    if given is None:
        return [()] * batch
    if len(given) != batch:
        raise ValueError(f"{name} has {len(given)} entries for {batch} sources; pass one for each")
    return given
