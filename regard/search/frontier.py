"""The step that every search takes: all open hypotheses, a choice among what could follow, the harvest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.search.choice import SelectedCandidates
from regard.search.ensemble import Ensemble
from regard.search.ranking import Scorer
from regard.search.rules import Constraint, PrefixConstraint
from regard.search.sentence import SentenceState
from regard.special_tokens import BOS, EOS, PAD


class CandidateSelector(Protocol):
    """What decides which hypotheses go on."""

    rows_per_sentence: int  # hypotheses of a sentence that are open at once
    num_initial_rows: int  # how many of them before the first step

    def select_candidates(
        self, beam_log_probs: Tensor, log_probs: Tensor, active: Sequence[SentenceState]
    ) -> SelectedCandidates:
        """A choice for each active sentence, of what was reached A,rows and the next tokens' A·rows,V."""
        ...

    def is_done(self, sentence: SentenceState, best_open: float, scorer: Scorer) -> bool:
        """Whether a sentence is done although hypotheses are open, the best of them at `best_open`."""
        ...


@dataclass
class SentenceGroup:
    """Sentences that came in together, and so have written equally many tokens."""

    sentences: list[SentenceState]
    prefix: PrefixConstraint
    row_sentences: Tensor  # R; the sentence, counted from the cohort's first, that each row belongs to
    written_tokens: Tensor  # R,t; only where somebody asks for it
    num_steps: int = 0

    def apply_constraints(self, log_probs: Tensor, allowed: Tensor, constraints: Sequence[Constraint]) -> Tensor:
        """What may follow R,V, of the model's log-probabilities R,V; nothing is renormalised for what may not."""
        for rule in constraints:
            rule(allowed, self.written_tokens, self.row_sentences)
        return self.prefix.apply(allowed, log_probs, self.num_steps, self.row_sentences)

    def append_tokens(self, parents: Tensor, tokens: Tensor) -> None:
        """The rows of the next step: those they extend, and by what."""
        self.row_sentences, self.written_tokens = (
            self.row_sentences[parents],
            torch.cat((self.written_tokens[parents], tokens[:, None]), 1),
        )


class DecodingLoop:
    """What is open of all sentences that are searched together; others may come in between any two steps.

    A sentence has `chooser.rows` rows as long as it is searched; those that hold no open hypothesis stand at −inf. One
    that is done leaves. With `look` hypotheses come with their attention.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        selector: CandidateSelector,
        scorer: Scorer,
        constraints: Sequence[Constraint],
        with_attention: bool = True,
    ) -> None:
        self.ensemble = ensemble
        self.selector = selector
        self.scorer = scorer
        self.constraints = constraints
        self.with_attention = with_attention
        self.groups: list[SentenceGroup] = []  # those that came first are first, here and in every tensor
        self.states: list[Any]
        self.tokens: Tensor  # R; the newest of each row
        self.beam_log_probs: Tensor  # A,rows; log-probability of what is open
        self.source_size = 0
        self.has_padding = False  # whether sentences of different batches share the tensors

    @property
    def active_sentences(self) -> list[SentenceState]:
        """The sentences that are not done, in the order of their rows."""
        return [sentence for cohort in self.groups for sentence in cohort.sentences]

    def add_sentences(
        self, source: Tensor, lengths: Tensor, sentences: Sequence[SentenceState], prefix: PrefixConstraint
    ) -> None:
        """New sentences: source ids B,S with their lengths."""
        if not sentences:
            return
        width = self.selector.rows_per_sentence
        rows = torch.arange(len(sentences), device=source.device).repeat_interleave(width)
        with self.ensemble.eval_mode():
            states = self.ensemble.expand_beams(self.ensemble.start(source, lengths), width, rows)
        tokens = torch.full_like(rows, BOS)
        beam_log_probs = torch.full((len(sentences), width), -torch.inf, device=source.device)
        beam_log_probs[:, : self.selector.num_initial_rows] = 0.0
        if self.groups:
            states, self.has_padding = self.ensemble.concat_states(self.states, states), True
            tokens, beam_log_probs = torch.cat((self.tokens, tokens)), torch.cat((self.beam_log_probs, beam_log_probs))
        self.states, self.tokens, self.beam_log_probs = states, tokens, beam_log_probs
        self.source_size = max(self.source_size, source.shape[1])
        self.groups.append(SentenceGroup(list(sentences), prefix, rows, rows.new_empty(len(rows), 0)))

    def step(self) -> list[SentenceState]:
        """One token more for every open hypothesis; the sentences that are done with it."""
        with self.ensemble.eval_mode():
            size = self.source_size if self.with_attention else None
            log_probs, self.states, attention = self.ensemble.step(self.states, self.tokens, size)
        active = self.active_sentences
        selected = self.selector.select_candidates(self.beam_log_probs, self._apply_constraints(log_probs), active)
        self._record_selected(active, selected, attention)
        self._advance(selected, [index for index, sentence in enumerate(active) if not sentence.is_finished])
        return [sentence for sentence in active if sentence.is_finished]

    def _apply_constraints(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities R,V of what may follow; PAD and BOS never do."""
        allowed = log_probs.clone()  # a decoder may have given out what it still needs
        for token in (PAD, BOS):
            allowed[:, token] = -torch.inf
        if not self.constraints and not any(
            cohort.prefix.max_prefix_length > cohort.num_steps for cohort in self.groups
        ):
            return allowed
        sizes = [self.selector.rows_per_sentence * len(cohort.sentences) for cohort in self.groups]
        both = (torch.split(some, sizes) for some in (log_probs, allowed))
        constrained = [
            cohort.ruled(*parts, self.constraints) for cohort, *parts in zip(self.groups, *both, strict=True)
        ]
        return torch.cat(constrained) if len(constrained) > 1 else constrained[0]  # one alone is not copied once more

    def _record_selected(
        self, active: Sequence[SentenceState], selected: SelectedCandidates, attention: Tensor | None
    ) -> None:
        """Leaves in each sentence what was chosen for it."""
        width = self.selector.rows_per_sentence
        first = width * torch.arange(len(active), device=selected.parents.device)[:, None]
        known = selected._replace(parents=selected.parents - first)
        attention_rows = None if attention is None else attention.float().cpu().numpy()
        for index, (sentence, *rows) in enumerate(zip(active, *(part.tolist() for part in known), strict=True)):
            sentence_attention = None if attention_rows is None else attention_rows[index * width : (index + 1) * width]
            sentence.harvest(*rows, sentence_attention, self.selector.is_done, self.scorer)

    def _advance(self, selected: SelectedCandidates, unfinished: list[int]) -> None:
        """On to the next step, with what was chosen for the sentences, by their places, that are left."""
        some_finished = len(unfinished) < len(selected.tokens)
        beam_log_probs, parents, tokens = (part[unfinished] if some_finished else part for part in selected)
        self.beam_log_probs = beam_log_probs.masked_fill(tokens == EOS, -torch.inf)
        self.tokens, rows = tokens.flatten(), parents.flatten()
        self._advance_groups(rows)
        if not some_finished:
            # A row that is alone in its sentence extends itself.
            self.states = (
                self.ensemble.reorder_beams(self.states, rows) if self.selector.rows_per_sentence > 1 else self.states
            )
        elif unfinished:
            self.states = self.ensemble.keep_rows(self.states, rows, torch.tensor(unfinished, device=rows.device))
            self._trim_padding()
        else:
            self.source_size, self.has_padding = 0, False

    def _advance_groups(self, rows: Tensor) -> None:
        """Each cohort goes its part of the way: `rows` are those that the next step's rows extend."""
        width, first, offset = self.selector.rows_per_sentence, 0, 0
        for cohort in self.groups:
            before = width * len(cohort.sentences)
            cohort.sentences = [sentence for sentence in cohort.sentences if not sentence.is_finished]
            after = slice(offset, offset := offset + width * len(cohort.sentences))
            cohort.num_steps += 1
            if self.constraints or cohort.prefix.max_prefix_length:
                cohort.append_tokens(rows[after] - first, self.tokens[after])
            first += before
        self.groups = [cohort for cohort in self.groups if cohort.sentences]

    def _trim_padding(self) -> None:
        """Drops the padding for sentences that have left; a batch that nobody joined has next to none."""
        if self.has_padding:
            self.source_size = max(sentence.source_length for sentence in self.active_sentences)
            self.states = self.ensemble.trim_padding(self.states, self.source_size, self.groups[0].num_steps)
