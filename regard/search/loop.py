"""The loop that every search runs: one step of all open hypotheses, a choice among what could follow, the harvest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from regard.search.choice import Choice
from regard.search.ensemble import Ensemble
from regard.search.hypothesis import Hypothesis
from regard.search.ranking import Ranking
from regard.search.rules import Prefix, Rule
from regard.search.trail import Trail
from regard.symbols import BOS, EOS


@dataclass
class Sentence:
    """One source of the batch while it is searched."""

    index: int  # in the batch
    length: int
    limit: int  # tokens that a target may have, EOS included
    ended: list[Hypothesis] = field(default_factory=list)
    cut: list[Hypothesis] = field(default_factory=list)
    done: bool = False

    def best(self) -> list[Hypothesis]:
        """The best first; those that were cut off only where none ended."""
        return ranked(self.ended or self.cut)


def ranked(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The best first; among equals in the order given."""
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


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


def unsearched(lengths: Tensor, max_length: int | None, min_length: int, more: Sequence[int]) -> list[Sentence]:
    """The sources of a batch before a search; `more` are tokens of each target that are given anyway."""
    if max_length is not None and max_length < max(1, min_length):
        raise ValueError(f"max_length must be at least 1 and min_length: {max_length}, {min_length}")
    return [
        Sentence(index, length, max_length or max(2 * length + 10 + extra, 2 * min_length))
        for index, (length, extra) in enumerate(zip(lengths.tolist(), more, strict=True))
    ]


def run(
    models: Ensemble,
    source: Tensor,
    lengths: Tensor,
    sentences: list[Sentence],
    chooser: Chooser,
    ranking: Ranking,
    rules: Sequence[Rule],
    prefix: Prefix,
    look: bool = True,
    done: Callable[[Sentence], None] | None = None,
) -> None:
    """Searches all sentences together and leaves in each what was found; one that is done leaves the batch.

    With `look` the hypotheses come with their attention; `done` is told of each sentence when it is. A sentence has
    `chooser.rows` rows as long as it is in the batch; those that hold no open hypothesis stand at −inf.
    """
    if not sentences:
        return
    device, width = source.device, chooser.rows
    rows = torch.arange(len(sentences), device=device).repeat_interleave(width)
    written = torch.empty(len(rows), 0, dtype=torch.long, device=device)
    tokens = torch.full_like(rows, BOS)
    reached = torch.full((len(sentences), width), -torch.inf, device=device)  # log-probability of what is open
    reached[:, : chooser.open_at_first] = 0.0
    trail, active = Trail(), sentences
    with models.resting():
        states = models.select(models.start(source, lengths), rows)
        for step in range(max(sentence.limit for sentence in sentences)):
            log_probs, states, attention = models.step(states, tokens, source.shape[1])
            if look:
                trail.look(attention)
            log_probs = ruled(log_probs, written, rows, rules, prefix)
            choice = chooser.choose(reached, log_probs, active)
            known = Choice(*(part.cpu() for part in choice))
            harvest(active, known, trail, step + 1, chooser, ranking)
            if done is not None:
                for sentence in active:
                    if sentence.done:
                        done(sentence)
            keep = [place for place, sentence in enumerate(active) if not sentence.done]
            if not keep:
                return
            active = [active[place] for place in keep]
            reached = choice.log_probs.masked_fill(choice.tokens == EOS, -torch.inf)[keep]
            parents, tokens = choice.parents[keep].flatten(), choice.tokens[keep].flatten()
            trail.go(known.parents[keep].flatten(), known.tokens[keep].flatten())
            rows, written = rows[parents], torch.cat((written[parents], tokens[:, None]), 1)
            states = models.select(states, parents)


def ruled(log_probs: Tensor, written: Tensor, rows: Tensor, rules: Sequence[Rule], prefix: Prefix) -> Tensor:
    """Log-probabilities R,V of what may follow; nothing is renormalised for what may not."""
    allowed = log_probs.clone()
    for rule in rules:
        rule(allowed, written, rows)
    return prefix.impose(allowed, log_probs, written.shape[1], rows)


def harvest(
    active: Sequence[Sentence], choice: Choice, trail: Trail, step: int, chooser: Chooser, ranking: Ranking
) -> None:
    """Takes up what ends at this step, and marks the sentences that are done."""
    log_probs, parents, tokens = (part.tolist() for part in choice)
    for place, sentence in enumerate(active):
        best_open = -math.inf
        for log_prob, row, token in zip(log_probs[place], parents[place], tokens[place], strict=True):
            if math.isnan(log_prob):
                raise ArithmeticError(f"the model's probabilities at step {step} are not numbers: weights are damaged")
            if log_prob == -math.inf:
                continue
            if token != EOS and step < sentence.limit:
                best_open = max(best_open, log_prob)
                continue
            path, attention = trail.back(row, token, sentence.length)
            found = ranking.hypothesis(path, log_prob, attention)
            (sentence.ended if token == EOS else sentence.cut).append(found)
        sentence.done = best_open == -math.inf or chooser.settled(sentence, best_open, ranking)
