"""Beam search with continuous batching; a beam of 1 is greedy search.

A hypothesis that ends leaves the beam, which is narrower by one from then on (Sutskever et al. 2014, section 3.2). A
sentence is done when its beam is empty, at its length limit, or when no active hypothesis can still become one of its
n best. The loop, in `BeamSearch.add` and `BeamSearch.step`:

1. encode: run the encoder and start the decoder
2. expand: repeat the decoder state for each hypothesis of a beam
3. step: run one decoder step for all active hypotheses
4. constrain: set the log-probability of continuations that are not allowed to -inf
5. select: choose the top-k continuations of each sentence, or sample them
6. collect: take hypotheses that end, and stop sentences that are done
7. advance: reorder the decoder state, drop sentences that are done

Length and coverage penalty are in `regard.models.hypothesis.Scorer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.errors import make_nan_error
from regard.fast.decoding.search_trace import MAX_TARGET_LENGTH, search_fast
from regard.fast.decoding.vocabulary import VocabularySubset, restrict_vocabulary, topk
from regard.fast.eligibility import fast_paths_enabled
from regard.models.hypothesis import Floats, Hypothesis, Scorer, SearchOptions
from regard.search import constraints
from regard.search.constraints import Phrase, PhraseProgress, Prefix
from regard.search.ensemble import Ensemble, SearchModel
from regard.special_tokens import BOS, EOS, PAD

T = TypeVar("T")
DEFAULTS = SearchOptions()
Prefixes = Sequence[Sequence[int]] | None
Forced = Sequence[Sequence[Phrase | Sequence[int]]] | None


def search(
    model_or_models: SearchModel | Sequence[SearchModel],
    source: Tensor,
    lengths: Tensor,
    options: SearchOptions = DEFAULTS,
    *,
    prefix: Prefixes = None,
    force: Forced = None,
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
        changes: fields of `options` with other values: `search(model, source, lengths, beam=4, n_best=2)`; most used
            are `beam=5`, `n_best=1`, `max_length=None` and `length_penalty=0.6`.

    PAD and BOS are never produced.
    """
    options, models, sizes = replace(options, **changes), Ensemble(model_or_models), lengths.tolist()
    prefixes, phrases = check_per_source(prefix, len(sizes), "prefix"), check_per_source(force, len(sizes), "force")
    is_forced = any(map(len, prefixes)) or any(map(len, phrases))
    if find_fast_search_obstacle(options, sizes, is_forced) is None:
        fast = search_fast(models, source, lengths, options, Scorer(options.length_penalty).length_divisor)
        if fast is not None:
            return fast
    searcher = BeamSearch(models, options)
    searcher.add(source, lengths, prefix=prefix, force=force)
    return searcher.finish()


def find_fast_search_obstacle(options: SearchOptions, source_lengths: Sequence[int], is_forced: bool) -> str | None:
    """Return why only the loop of `BeamSearch` can run a search; None if faster ones with the same results can."""
    if not fast_paths_enabled():
        return "REGARD_FAST is 0"
    if is_forced or options.has_constraints:
        return "constraints or a coverage penalty"
    if not source_lengths:
        return "no sources"
    if max(options.max_lengths(source_lengths)) > MAX_TARGET_LENGTH:
        return f"a limit of more than {MAX_TARGET_LENGTH} tokens"
    return None


def search_restricted(
    words: Iterable[int],
    models: Sequence[SearchModel],
    source: Tensor,
    lengths: Tensor,
    options: SearchOptions = DEFAULTS,
    *,
    prefix: Prefixes = None,
    force: Forced = None,
    **changes: Any,
) -> list[list[Hypothesis]]:
    """Run `search` with these options over targets that contain only these word ids (a vocabulary shortlist).

    Special symbols and the tokens of prefixes and forced phrases are always included. Probabilities are normalised over
    the words included. A user's own `constraints` are refused: they know the ids of the whole vocabulary.
    """
    options = replace(options, **changes)
    if options.constraints:
        raise ValueError("constraints of your own need the whole vocabulary: search without a shortlist")
    prefixes = check_per_source(prefix, len(lengths), "prefix")
    phrases = constraints.check_phrases(check_per_source(force, len(lengths), "force"))
    required = [*prefixes, *(phrase.tokens for of_source in phrases for phrase in of_source)]
    subset = VocabularySubset([*words, *(token for tokens in required for token in tokens)])
    results = search(
        [restrict_vocabulary(model, subset.ids) for model in models],
        source,
        lengths,
        replace(options, forbid=[subset.to_local(tokens) for tokens in options.forbid if subset.contains(tokens)]),
        prefix=[subset.to_local(tokens) for tokens in prefixes],
        force=[[phrase.map_ids(subset.local_ids) for phrase in of_source] for of_source in phrases],
    )
    return [[one._replace(tokens=[subset.ids[id] for id in one.tokens]) for one in n_best] for n_best in results]


def check_per_source(given: Sequence[Sequence[T]] | None, batch: int, name: str) -> Sequence[Sequence[T]]:
    """Return one entry for each source of the batch; None stands for empty ones."""
    if given is not None and len(given) != batch:
        raise ValueError(f"{name} has {len(given)} entries for {batch} sources; pass one for each")
    return [()] * batch if given is None else given


class Selection(NamedTuple):
    """The continuations selected at a step for each of A sentences; an unused slot has log-probability -inf."""

    log_probs: Tensor  # (A, beam), best first; of the whole hypothesis
    parents: Tensor  # (A, beam): row of the hypothesis that each extends
    tokens: Tensor  # (A, beam): token that it is extended by


class SearchStep(NamedTuple):
    """The continuations selected at a step for one sentence, whose rows have numbers of their own; on the host."""

    log_probs: list[float]
    parents: list[int]  # row at the previous step
    tokens: list[int]
    attention: Floats | None  # (rows, S): attention of the parents for these tokens


@dataclass
class SentenceState:
    """One source while it is searched, with all its steps."""

    index: int  # in the order in which sources were added to the search
    source_length: int
    max_length: int  # length limit of the target, EOS included
    phrases: Sequence[Phrase] = ()  # phrases that the target must contain
    progress: list[PhraseProgress] = field(default_factory=list)  # phrases found so far, for each row
    steps: list[SearchStep] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)
    truncated: list[Hypothesis] = field(default_factory=list)  # cut off at max_length, without EOS
    done: bool = False

    def rank_hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses, best first; truncated ones only if none finished."""
        return sort_by_score(self.finished or self.truncated)

    def collect(self, step: SearchStep, scorer: Scorer) -> float:
        """Record one step and collect the hypotheses that end with it; return the best log-probability still active."""
        self.steps.append(step)
        if math.isnan(sum(step.log_probs)):
            raise make_nan_error(len(self.steps))
        is_last = len(self.steps) >= self.max_length
        if not is_last and EOS not in step.tokens:  # at most steps nothing ends
            return max(step.log_probs)
        best_active = -math.inf
        for row, (log_prob, token) in enumerate(zip(step.log_probs, step.tokens, strict=True)):
            if log_prob > -math.inf and (token == EOS or is_last):
                path, weights = self.backtrack(row)
                hypothesis = scorer.score(path, log_prob, weights)
                (self.finished if token == EOS else self.truncated).append(hypothesis)
            else:
                best_active = max(best_active, log_prob)
        return best_active

    def backtrack(self, row: int) -> tuple[list[int], Floats | None]:
        """Return tokens and attention of the hypothesis that ends in `row` of the last step."""
        tokens, attention = [], []
        for step in reversed(self.steps):
            tokens.append(step.tokens[row])
            row = step.parents[row]
            if step.attention is not None:
                attention.append(step.attention[row, : self.source_length])
        return tokens[::-1], np.stack(attention[::-1]) if attention else None


def sort_by_score(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses, best first; equal ones keep their order."""
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


class Selector(Protocol):
    """Chooses which hypotheses continue: top-k for beam search, random draws for sampling."""

    width: int  # active hypotheses per sentence
    initial_width: int  # active hypotheses per sentence before the first step

    def select(self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]) -> Selection:
        """Select continuations of hypotheses (A, width), given `log_probs` (A·width, V) of the next tokens."""
        ...

    def is_done(self, sentence: SentenceState, best_active: float, scorer: Scorer) -> bool:
        """Return whether no active hypothesis of a sentence is needed; the best of them has this log-probability."""
        ...

    def rank_results(self, sentence: SentenceState) -> list[Hypothesis]:
        """Return the hypotheses of a sentence that is done, best first."""
        ...


@dataclass
class TopKSelector:
    """Selects the best continuations, as many as hypotheses of the sentence have not ended yet."""

    width: int
    n_best: int
    initial_width = 1  # all rows of a sentence would begin as the same hypothesis

    def select(self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]) -> Selection:
        """See `Selector`."""
        widths = [self.width - len(sentence.finished) for sentence in active]
        if any(sentence.phrases for sentence in active):
            constraints.block_eos(log_probs, active)
            totals = beam_log_probs[..., None] + log_probs.view(*beam_log_probs.shape, -1)
            selection = constraints.allocate_beams(totals, select_topk(beam_log_probs, log_probs), active, widths)
        else:
            selection = select_topk(beam_log_probs, log_probs)
        if min(widths) == self.width:
            return selection
        device = log_probs.device
        unused = torch.arange(self.width, device=device) >= torch.tensor(widths, device=device)[:, None]
        return selection._replace(log_probs=selection.log_probs.masked_fill(unused, -torch.inf))

    def is_done(self, sentence: SentenceState, best_active: float, scorer: Scorer) -> bool:
        """Return whether the n best have finished and no active hypothesis can score more."""
        if len(sentence.finished) < self.n_best:
            return False
        return sentence.rank_hypotheses()[self.n_best - 1].score >= scorer.upper_bound(best_active, sentence.max_length)

    def rank_results(self, sentence: SentenceState) -> list[Hypothesis]:
        """Return the best hypotheses; of truncated ones those with most of the forced phrases."""
        ranked, phrases = sentence.rank_hypotheses(), sentence.phrases
        if phrases:
            ranked.sort(key=lambda hypothesis: -PhraseProgress.of_tokens(hypothesis.tokens, phrases).find_bank(phrases))
        return ranked[: self.n_best]


def select_topk(beam_log_probs: Tensor, log_probs: Tensor) -> Selection:
    """Return the `beam` best continuations of each sentence, of log-probabilities (A, beam) and (A·beam, V)."""
    num_sentences, beam = beam_log_probs.shape
    values, tokens = topk(log_probs, min(beam, log_probs.shape[1]))  # no row contributes more than these
    if beam == 1:
        return Selection(beam_log_probs + values, torch.arange(num_sentences, device=tokens.device)[:, None], tokens)
    best, indices = (beam_log_probs.flatten()[:, None] + values).view(num_sentences, -1).topk(beam, -1)
    first_rows = beam * torch.arange(num_sentences, device=indices.device)[:, None]
    parents = indices // values.shape[1] + first_rows
    return Selection(best, parents, tokens.view(num_sentences, -1).gather(1, indices))


@dataclass
class SentenceGroup:
    """Sentences that were added together, so that their hypotheses have equally many tokens."""

    sentences: list[SentenceState]
    prefix: Prefix | None  # None if no sentence has one
    sentence_of_row: Tensor  # (R,) index of each row's sentence among those that were added together
    tokens: Tensor  # (R, t) tokens so far; only kept if constraints or a prefix need them
    num_steps: int = 0

    @property
    def is_in_prefix(self) -> bool:
        """Return whether the next token of a sentence is that of its prefix."""
        return self.prefix is not None and self.num_steps < self.prefix.max_length


class BeamSearch:
    """A search one step at a time; sources may be added between any two steps (continuous batching).

    Sources are numbered in the order in which they are added. A sentence has `selector.width` rows while it is active;
    rows without an active hypothesis have score -inf.
    """

    def __init__(
        self,
        models: Ensemble | SearchModel | Sequence[SearchModel],
        options: SearchOptions = DEFAULTS,
        selector: Selector | None = None,
    ) -> None:
        self.models = models if isinstance(models, Ensemble) else Ensemble(models)
        self.options = options
        self.selector = selector or TopKSelector(options.beam, options.n_best)
        self.scorer = Scorer(options.length_penalty, options.coverage_penalty)
        is_constrained = options.has_constraints or options.min_length > 1
        self.constraints = constraints.build_constraints(options) if is_constrained else []
        self.needs_attention = options.attention or bool(options.coverage_penalty)
        self.num_added = 0
        self.groups: list[SentenceGroup] = []  # oldest first, here and in every tensor
        self.states: list[Any]
        self.tokens: Tensor  # (R,) newest token of each row
        self.beam_log_probs: Tensor  # (A, width) log-probability of each active hypothesis
        self.source_length = 0  # S, of the longest active source
        self.has_padding = False  # whether the states of sources that were added at different times are padded

    @property
    def active(self) -> list[SentenceState]:
        """Return the sentences that are not done, in the order of their rows."""
        return [sentence for group in self.groups for sentence in group.sentences]

    @property
    def num_active(self) -> int:
        """Return the number of sources that are not done."""
        return len(self.active)

    @torch.inference_mode()
    def add(self, source: Tensor, lengths: Tensor, *, prefix: Prefixes = None, force: Forced = None) -> None:
        """Add sources (B, S) to the search; arguments as for `search`."""
        sizes, width = lengths.tolist(), self.selector.width
        prefixes, forced = check_per_source(prefix, len(sizes), "prefix"), check_per_source(force, len(sizes), "force")
        phrases: Sequence[Sequence[Phrase]] = [()] * len(sizes)
        limits, prefix_tokens = self.options.max_lengths(sizes), None
        if any(map(len, prefixes)) or any(map(len, forced)):
            phrases = constraints.check_phrases(forced)
            limits = constraints.find_max_lengths(self.options, sizes, prefixes, phrases)
            prefix_tokens = Prefix(prefixes, source.device) if any(map(len, prefixes)) else None
        sentences = [
            SentenceState(index, size, limit, own_phrases, [PhraseProgress((0,) * len(own_phrases))] * width)
            for index, (size, limit, own_phrases) in enumerate(zip(sizes, limits, phrases, strict=True), self.num_added)
        ]
        if not sentences:
            return
        self.num_added += len(sentences)
        rows = torch.arange(len(sentences), device=source.device).repeat_interleave(width)
        with self.models.eval_mode():
            # 1. Encode.
            states = self.models.start(source, lengths)
            # 2. Expand.
            states = self.models.expand_beams(states, width, rows)
        tokens = torch.full_like(rows, BOS)
        log_probs = torch.full((len(sentences), width), -torch.inf, device=source.device)
        log_probs[:, : self.selector.initial_width] = 0.0
        if self.groups:
            states, self.has_padding = self.models.concat_states(self.states, states), True
            tokens, log_probs = torch.cat((self.tokens, tokens)), torch.cat((self.beam_log_probs, log_probs))
        self.states, self.tokens, self.beam_log_probs = states, tokens, log_probs
        self.source_length = max(self.source_length, source.shape[1])
        self.groups.append(SentenceGroup(sentences, prefix_tokens, rows, rows.new_empty(len(rows), 0)))

    @torch.inference_mode()
    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """Extend every active hypothesis by one token; return (source number, hypotheses) of those that are done."""
        active = self.active
        # 3. Step.
        with self.models.eval_mode():
            log_probs, self.states, attention = self.models.step(
                self.states, self.tokens, self.source_length if self.needs_attention else None
            )
        # 4. Constrain.
        log_probs = self._constrain(log_probs)
        # 5. Select.
        selection = self.selector.select(self.beam_log_probs, log_probs, active)
        # 6. Collect.
        self._collect(active, selection, attention)
        # 7. Advance.
        self._advance(selection, [index for index, sentence in enumerate(active) if not sentence.done])
        return [(sentence.index, self.selector.rank_results(sentence)) for sentence in active if sentence.done]

    def finish(self) -> list[list[Hypothesis]]:
        """Run all steps; return the hypotheses of every source that was added and not done before."""
        found: dict[int, list[Hypothesis]] = {}
        while self.groups:
            found.update(self.step())
        return [found[index] for index in sorted(found)]

    def _constrain(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities (R, V) with -inf for tokens that may not follow; PAD and BOS never do."""
        masked = log_probs.clone()  # the decoder may still need its own
        for token in (PAD, BOS):
            masked[:, token] = -torch.inf
        if not self.constraints and not any(group.is_in_prefix for group in self.groups):
            return masked
        sizes = [self.selector.width * len(group.sentences) for group in self.groups]
        parts = zip(self.groups, torch.split(log_probs, sizes), torch.split(masked, sizes), strict=True)
        constrained = []
        for group, raw_part, masked_part in parts:
            for constraint in self.constraints:
                constraint(masked_part, group.tokens, group.sentence_of_row)
            if group.prefix is not None:
                masked_part = group.prefix.apply(masked_part, raw_part, group.num_steps, group.sentence_of_row)
            constrained.append(masked_part)
        return torch.cat(constrained) if len(constrained) > 1 else constrained[0]  # no copy of a single group

    def _collect(self, active: Sequence[SentenceState], selection: Selection, attention: Tensor | None) -> None:
        """Take the hypotheses that end from each sentence's beam, and mark sentences that are done."""
        width = self.selector.width
        by_sentence = selection._replace(parents=selection.parents % width)
        weights = repeat(None) if attention is None else attention.float().cpu().view(len(active), width, -1).numpy()
        steps = map(SearchStep, *(part.tolist() for part in by_sentence), weights)
        for sentence, step in zip(active, steps, strict=True):
            best_active = sentence.collect(step, self.scorer)
            sentence.done = best_active == -math.inf or self.selector.is_done(sentence, best_active, self.scorer)

    def _advance(self, selection: Selection, remaining: list[int]) -> None:
        """Advance log-probabilities, tokens and decoder states to the selected hypotheses of `remaining` sentences."""
        some_done = len(remaining) < len(selection.tokens)
        log_probs, parents, tokens = (part[remaining] if some_done else part for part in selection)
        self.beam_log_probs = log_probs.masked_fill(tokens == EOS, -torch.inf)
        self.tokens, rows = tokens.flatten(), parents.flatten()
        self._advance_groups(rows)
        if not some_done:
            # The only row of a sentence extends itself.
            self.states = self.models.reorder_beams(self.states, rows) if self.selector.width > 1 else self.states
        elif remaining:
            self.states = self.models.keep_rows(self.states, rows, torch.tensor(remaining, device=rows.device))
            if self.has_padding:
                self.source_length = max(sentence.source_length for sentence in self.active)
                self.states = self.models.trim_padding(self.states, self.source_length, self.groups[0].num_steps)
        else:
            self.source_length, self.has_padding = 0, False

    def _advance_groups(self, parents: Tensor) -> None:
        """Drop done sentences from the groups; `parents` (R,) are the rows that the next step's rows extend."""
        width, first_row, end = self.selector.width, 0, 0
        for group in self.groups:
            num_rows = width * len(group.sentences)
            group.sentences = [sentence for sentence in group.sentences if not sentence.done]
            own = slice(end, end := end + width * len(group.sentences))
            group.num_steps += 1
            if self.constraints or group.prefix is not None:
                kept = parents[own] - first_row
                group.sentence_of_row = group.sentence_of_row[kept]
                group.tokens = torch.cat((group.tokens[kept], self.tokens[own, None]), 1)
            first_row += num_rows
        self.groups = [group for group in self.groups if group.sentences]
