"""Phrases that a target must hold: lexically constrained beam search with dynamic beam allocation (Post & Vilar 2018).

Hypotheses are sorted into banks by how many tokens of the phrases they have. The beam is shared out evenly over the
banks, so that a hypothesis with a phrase is not beaten by one without; EOS is open to those that have them all.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.search.choice import Choice
from regard.symbols import EOS


class Phrase(NamedTuple):
    """Tokens that must appear in a row, and those of which one must follow (None: any): the ends of a word."""

    tokens: tuple[int, ...]
    ends: frozenset[int] | None = None


class Progress(NamedTuple):
    """How many tokens of each phrase a hypothesis has; one more than it holds: that many, and properly ended."""

    reached: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Sequence[int], phrases: Sequence[Phrase]) -> Progress:
        """That of a whole target."""
        progress = cls((0,) * len(phrases))
        for token in tokens:
            progress = progress.after(token, phrases)
        return progress

    def after(self, token: int, phrases: Sequence[Phrase]) -> Progress:
        """With one more token; of equal phrases the second waits until the first has ended."""
        reached: list[int] = []
        for number, (phrase, at) in enumerate(zip(phrases, self.reached, strict=True)):
            twins = [other for other in range(number) if phrases[other].tokens == phrase.tokens]
            waits = any(reached[twin] <= len(phrase.tokens) for twin in twins)
            reached.append(0 if waits else advanced(phrase, at, token))
        return Progress(tuple(reached))

    def complete(self, phrases: Sequence[Phrase]) -> bool:
        """Whether every phrase is there, the one at the very end among them: EOS ends a word, too."""
        return all(at >= len(phrase.tokens) for phrase, at in zip(phrases, self.reached, strict=True))

    def wanted(self, phrases: Sequence[Phrase]) -> set[int]:
        """The tokens that would bring a phrase on."""
        both = zip(phrases, self.reached, strict=True)
        return {phrase.tokens[at] for phrase, at in both if at < len(phrase.tokens)}

    def endings(self, phrases: Sequence[Phrase]) -> list[frozenset[int]]:
        """For each phrase that is there but could still be the beginning of a longer word: what would end it."""
        both = zip(phrases, self.reached, strict=True)
        return [phrase.ends for phrase, at in both if at == len(phrase.tokens) and phrase.ends is not None]

    def bank(self, phrases: Sequence[Phrase]) -> int:
        """How far it has come: the tokens of all phrases that have ended, one more for each, and the best begun one."""
        both = list(zip(phrases, self.reached, strict=True))
        ended = sum(at for phrase, at in both if at > len(phrase.tokens))
        return ended + max((at for phrase, at in both if at <= len(phrase.tokens)), default=0)


def advanced(phrase: Phrase, at: int, token: int) -> int:
    """How much of a phrase stands at the end of a target after one more token; a phrase that is done stays done."""
    tokens = phrase.tokens
    if at > len(tokens):
        return at
    if at == len(tokens) and (phrase.ends is None or token in phrase.ends):
        return at + 1
    seen = (*tokens[:at], token)
    return max(size for size in range(min(len(seen), len(tokens)) + 1) if seen[len(seen) - size :] == tokens[:size])


def shortest(prefix: Sequence[int], phrases: Sequence[Phrase]) -> int:
    """The tokens of the shortest target that begins with the prefix and holds all phrases, which may overlap.

    Of more than six phrases only a lower bound is found: trying every order would take too long.
    """
    if len(phrases) > 6:
        return max(len(prefix), *(len(phrase.tokens) for phrase in phrases))
    orders = itertools.permutations([phrase.tokens for phrase in phrases])
    return min(len(functools.reduce(overlapped, order, tuple(prefix))) for order in orders)


def overlapped(text: tuple[int, ...], phrase: tuple[int, ...]) -> tuple[int, ...]:
    """A text that goes on until it holds the phrase, begun as early as its end allows."""
    if any(text[at : at + len(phrase)] == phrase for at in range(len(text))):
        return text
    shared = max(size for size in range(min(len(text), len(phrase)) + 1) if text[len(text) - size :] == phrase[:size])
    return text + phrase[shared:]


class Phrases:
    """The phrases of each source that is searched, and how far each row of its beam has come with them."""

    def __init__(self, beam: int) -> None:
        self.beam = beam
        self.phrases: dict[int, Sequence[Phrase]] = {}  # by the numbers of those sources that have any
        self.progress: dict[int, list[Progress]] = {}

    def add(self, source: int, phrases: Sequence[Phrase]) -> None:
        """Those of one source more."""
        for phrase in phrases:
            if not phrase.tokens or EOS in phrase.tokens:
                raise ValueError(f"a phrase to force holds words and no EOS: {list(phrase.tokens)}")
        if phrases:
            self.phrases[source] = phrases
            self.progress[source] = [Progress.of((), phrases)] * self.beam

    def drop(self, source: int) -> Sequence[Phrase]:
        """Those of a source that is no longer searched."""
        self.progress.pop(source, None)
        return self.phrases.pop(source, ())

    def close(self, log_probs: Tensor, sentences: Sequence[int]) -> None:
        """Takes EOS, in place, from rows that lack a phrase; log-probabilities A·beam,V of the sentences A."""
        lacking = [
            [not row.complete(self.phrases[sentence]) for row in self.progress[sentence]]
            if sentence in self.phrases
            else [False] * self.beam
            for sentence in sentences
        ]
        closed = torch.tensor(lacking, device=log_probs.device).flatten()
        log_probs[:, EOS] = log_probs[:, EOS].masked_fill(closed, -torch.inf)

    def choose(self, reach: Tensor, plain: Choice, sentences: Sequence[int], widths: Sequence[int]) -> Choice:
        """The choice A,beam where sentences with phrases share their beams out; `reach` is A,beam,V.

        `plain` are the best candidates of all, as a search without phrases takes them.
        """
        log_probs, parents, tokens = (part.clone() for part in plain)
        for index, sentence in enumerate(sentences):
            if sentence in self.phrases and widths[index]:
                chosen = self.shared_out(reach[index], plain, index, sentence, widths[index])
                log_probs[index] = -torch.inf
                for place, (log_prob, slot, token) in enumerate(chosen):
                    log_probs[index, place], tokens[index, place] = log_prob, token
                    parents[index, place] = index * reach.shape[1] + slot
                self.follow(sentence, chosen)
        return Choice(log_probs, parents, tokens)

    def shared_out(
        self, reach: Tensor, plain: Choice, index: int, sentence: int, width: int
    ) -> list[tuple[float, int, int]]:
        """At most `width` candidates (log-probability, slot, token), from each bank in turn, the fullest bank first."""
        phrases, progress = self.phrases[sentence], self.progress[sentence]
        beam = len(progress)
        places = {
            (int(parent) - index * beam, int(token))
            for parent, token in zip(plain.parents[index], plain.tokens[index], strict=True)
        }
        places |= {(slot, int(token)) for slot, token in enumerate(reach.argmax(-1))}
        places |= {(slot, token) for slot, row in enumerate(progress) for token in row.wanted(phrases)}
        for slot, row in enumerate(progress):
            for ends in row.endings(phrases):
                ids = sorted(ends)
                places.add((slot, ids[int(reach[slot, ids].argmax())]))
        ordered = sorted(places)
        log_probs = reach[[slot for slot, _ in ordered], [token for _, token in ordered]].tolist()
        banks: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
        for log_prob, (slot, token) in zip(log_probs, ordered, strict=True):
            if log_prob > -math.inf:
                banks[progress[slot].after(token, phrases).bank(phrases)].append((log_prob, slot, token))
        queues = [sorted(banks[bank]) for bank in sorted(banks, reverse=True)]
        chosen: list[tuple[float, int, int]] = []
        while len(chosen) < width and any(queues):
            chosen.extend(queue.pop() for queue in queues if queue)
        return sorted(chosen[:width], key=lambda candidate: -candidate[0])

    def follow(self, sentence: int, chosen: Sequence[tuple[float, int, int]]) -> None:
        """Each row takes over the progress of the hypothesis that it extends."""
        before, phrases = self.progress[sentence], self.phrases[sentence]
        after = [before[slot].after(token, phrases) for _, slot, token in chosen]
        self.progress[sentence] = [*after, *before[: len(before) - len(after)]]
