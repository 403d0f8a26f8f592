"""The step that every search takes: all open hypotheses, a choice among what could follow, the harvest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.search.choice import Choice
from regard.search.ensemble import Ensemble
from regard.search.ranking import Ranking
from regard.search.rules import Prefix, Rule
from regard.search.sentence import Sentence
from regard.symbols import BOS, EOS, PAD


class Chooser(Protocol):
    """What decides which hypotheses go on."""

    rows: int  # hypotheses of a sentence that are open at once
    open_at_first: int  # how many of them before the first step

    def choose(self, reached: Tensor, log_probs: Tensor, active: Sequence[Sentence]) -> Choice:
        """A choice for each active sentence, of what was reached A,rows and the next tokens' A·rows,V."""
        ...

    def settled(self, sentence: Sentence, best_open: float, ranking: Ranking) -> bool:
        """Whether a sentence is done although hypotheses are open, the best of them at `best_open`."""
        ...


@dataclass
class Cohort:
    """Sentences that came in together, and so have written equally many tokens."""

    sentences: list[Sentence]
    prefix: Prefix
    rows: Tensor  # R; the sentence, counted from the cohort's first, that each row belongs to
    written: Tensor  # R,t; only where somebody asks for it
    age: int = 0

    def ruled(self, log_probs: Tensor, allowed: Tensor, rules: Sequence[Rule]) -> Tensor:
        """What may follow R,V, of the model's log-probabilities R,V; nothing is renormalised for what may not."""
        for rule in rules:
            rule(allowed, self.written, self.rows)
        return self.prefix.impose(allowed, log_probs, self.age, self.rows)

    def go(self, parents: Tensor, tokens: Tensor) -> None:
        """The rows of the next step: those they extend, and by what."""
        self.rows, self.written = self.rows[parents], torch.cat((self.written[parents], tokens[:, None]), 1)


class Frontier:
    """What is open of all sentences that are searched together; others may come in between any two steps.

    A sentence has `chooser.rows` rows as long as it is searched; those that hold no open hypothesis stand at −inf. One
    that is done leaves. With `look` hypotheses come with their attention.
    """

    def __init__(
        self, models: Ensemble, chooser: Chooser, ranking: Ranking, rules: Sequence[Rule], look: bool = True
    ) -> None:
        self.models = models
        self.chooser = chooser
        self.ranking = ranking
        self.rules = rules
        self.look = look
        self.cohorts: list[Cohort] = []  # those that came first are first, here and in every tensor
        self.states: list[Any]
        self.tokens: Tensor  # R; the newest of each row
        self.reached: Tensor  # A,rows; log-probability of what is open
        self.source_size = 0
        self.padded = False  # whether sentences of different batches share the tensors

    @property
    def active(self) -> list[Sentence]:
        """The sentences that are not done, in the order of their rows."""
        return [sentence for cohort in self.cohorts for sentence in cohort.sentences]

    def join(self, source: Tensor, lengths: Tensor, sentences: Sequence[Sentence], prefix: Prefix) -> None:
        """New sentences: source ids B,S with their lengths."""
        if not sentences:
            return
        width = self.chooser.rows
        rows = torch.arange(len(sentences), device=source.device).repeat_interleave(width)
        with self.models.resting():
            states = self.models.widen(self.models.start(source, lengths), width, rows)
        tokens = torch.full_like(rows, BOS)
        reached = torch.full((len(sentences), width), -torch.inf, device=source.device)
        reached[:, : self.chooser.open_at_first] = 0.0
        if self.cohorts:
            states, self.padded = self.models.join(self.states, states), True
            tokens, reached = torch.cat((self.tokens, tokens)), torch.cat((self.reached, reached))
        self.states, self.tokens, self.reached = states, tokens, reached
        self.source_size = max(self.source_size, source.shape[1])
        self.cohorts.append(Cohort(list(sentences), prefix, rows, rows.new_empty(len(rows), 0)))

    def step(self) -> list[Sentence]:
        """One token more for every open hypothesis; the sentences that are done with it."""
        with self.models.resting():
            size = self.source_size if self.look else None
            log_probs, self.states, attention = self.models.step(self.states, self.tokens, size)
        active = self.active
        choice = self.chooser.choose(self.reached, self.ruled(log_probs), active)
        self.harvest(active, choice, attention)
        self.go(choice, [place for place, sentence in enumerate(active) if not sentence.done])
        return [sentence for sentence in active if sentence.done]

    def ruled(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities R,V of what may follow; PAD and BOS never do."""
        allowed = log_probs.clone()  # a decoder may have given out what it still needs
        for token in (PAD, BOS):
            allowed[:, token] = -torch.inf
        if not self.rules and not any(cohort.prefix.longest > cohort.age for cohort in self.cohorts):
            return allowed
        sizes = [self.chooser.rows * len(cohort.sentences) for cohort in self.cohorts]
        both = (torch.split(some, sizes) for some in (log_probs, allowed))
        ruled = [cohort.ruled(*parts, self.rules) for cohort, *parts in zip(self.cohorts, *both, strict=True)]
        return torch.cat(ruled) if len(ruled) > 1 else ruled[0]  # one alone is not copied once more

    def harvest(self, active: Sequence[Sentence], choice: Choice, attention: Tensor | None) -> None:
        """Leaves in each sentence what was chosen for it."""
        width = self.chooser.rows
        first = width * torch.arange(len(active), device=choice.parents.device)[:, None]
        known = choice._replace(parents=choice.parents - first)
        looks = None if attention is None else attention.float().cpu().numpy()
        for place, (sentence, *rows) in enumerate(zip(active, *(part.tolist() for part in known), strict=True)):
            look = None if looks is None else looks[place * width : (place + 1) * width]
            sentence.harvest(*rows, look, self.chooser.settled, self.ranking)

    def go(self, choice: Choice, left: list[int]) -> None:
        """On to the next step, with what was chosen for the sentences, by their places, that are left."""
        fewer = len(left) < len(choice.tokens)
        reached, parents, tokens = (part[left] if fewer else part for part in choice)
        self.reached = reached.masked_fill(tokens == EOS, -torch.inf)
        self.tokens, rows = tokens.flatten(), parents.flatten()
        self.follow(rows)
        if not fewer:
            # A row that is alone in its sentence extends itself.
            self.states = self.models.reorder(self.states, rows) if self.chooser.rows > 1 else self.states
        elif left:
            self.states = self.models.keep(self.states, rows, torch.tensor(left, device=rows.device))
            self.trim()
        else:
            self.source_size, self.padded = 0, False

    def follow(self, rows: Tensor) -> None:
        """Each cohort goes its part of the way: `rows` are those that the next step's rows extend."""
        width, first, place = self.chooser.rows, 0, 0
        for cohort in self.cohorts:
            before = width * len(cohort.sentences)
            cohort.sentences = [sentence for sentence in cohort.sentences if not sentence.done]
            after = slice(place, place := place + width * len(cohort.sentences))
            cohort.age += 1
            if self.rules or cohort.prefix.longest:
                cohort.go(rows[after] - first, self.tokens[after])
            first += before
        self.cohorts = [cohort for cohort in self.cohorts if cohort.sentences]

    def trim(self) -> None:
        """Drops the padding for sentences that have left; a batch that nobody joined has next to none."""
        if self.padded:
            self.source_size = max(sentence.length for sentence in self.active)
            self.states = self.models.trim(self.states, self.source_size, self.cohorts[0].age)
