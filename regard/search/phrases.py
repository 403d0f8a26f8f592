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

from regard.search.choice import SelectedCandidates
from regard.special_tokens import EOS


class Phrase(NamedTuple):
    """Tokens that must appear in a row, and those of which one must follow (None: any): the ends of a word."""

    tokens: tuple[int, ...]
    ends: frozenset[int] | None = None


class PhraseProgress(NamedTuple):
    """How many tokens of each phrase a hypothesis has; one more than it holds: that many, and properly ended."""

    matched: tuple[int, ...]

    @classmethod
    def of_tokens(cls, tokens: Sequence[int], phrases: Sequence[Phrase]) -> PhraseProgress:
        """That of a whole target."""
        progress = cls((0,) * len(phrases))
        for token in tokens:
            progress = progress.advance(token, phrases)
        return progress

    def advance(self, token: int, phrases: Sequence[Phrase]) -> PhraseProgress:
        """With one more token; of equal phrases the second waits until the first has ended."""
        matched: list[int] = []
        for number, (phrase, at) in enumerate(zip(phrases, self.matched, strict=True)):
            twins = [other for other in range(number) if phrases[other].tokens == phrase.tokens]
            waits = any(matched[twin] <= len(phrase.tokens) for twin in twins)
            matched.append(0 if waits else _advance_phrase(phrase, at, token))
        return PhraseProgress(tuple(matched))

    def is_complete(self, phrases: Sequence[Phrase]) -> bool:
        """Whether every phrase is there, the one at the very end among them: EOS ends a word, too."""
        return all(at >= len(phrase.tokens) for phrase, at in zip(phrases, self.matched, strict=True))

    def next_tokens(self, phrases: Sequence[Phrase]) -> set[int]:
        """The tokens that would bring a phrase on."""
        both = zip(phrases, self.matched, strict=True)
        return {phrase.tokens[at] for phrase, at in both if at < len(phrase.tokens)}

    def word_ends(self, phrases: Sequence[Phrase]) -> list[frozenset[int]]:
        """For each phrase that is there but could still be the beginning of a longer word: what would end it."""
        both = zip(phrases, self.matched, strict=True)
        return [phrase.ends for phrase, at in both if at == len(phrase.tokens) and phrase.ends is not None]

    def num_met(self, phrases: Sequence[Phrase]) -> int:
        """How far it has come: the tokens of all phrases that have ended, one more for each, and the best begun one."""
        both = list(zip(phrases, self.matched, strict=True))
        ended = sum(at for phrase, at in both if at > len(phrase.tokens))
        return ended + max((at for phrase, at in both if at <= len(phrase.tokens)), default=0)


def _advance_phrase(phrase: Phrase, matched: int, token: int) -> int:
    """How much of a phrase stands at the end of a target after one more token; a phrase that is done stays done."""
    tokens = phrase.tokens
    if matched > len(tokens):
        return matched
    if matched == len(tokens) and (phrase.ends is None or token in phrase.ends):
        return matched + 1
    seen = (*tokens[:matched], token)
    return max(size for size in range(min(len(seen), len(tokens)) + 1) if seen[len(seen) - size :] == tokens[:size])


def min_length_with_phrases(prefix: Sequence[int], phrases: Sequence[Phrase]) -> int:
    """The tokens of the shortest target that begins with the prefix and holds all phrases, which may overlap.

    Of more than six phrases only a lower bound is found: trying every order would take too long.
    """
    if len(phrases) > 6:
        return max(len(prefix), *(len(phrase.tokens) for phrase in phrases))
    orders = itertools.permutations([phrase.tokens for phrase in phrases])
    return min(len(functools.reduce(_append_with_overlap, order, tuple(prefix))) for order in orders)


def _append_with_overlap(text: tuple[int, ...], phrase: tuple[int, ...]) -> tuple[int, ...]:
    """A text that goes on until it holds the phrase, begun as early as its end allows."""
    if any(text[at : at + len(phrase)] == phrase for at in range(len(text))):
        return text
    overlap = max(size for size in range(min(len(text), len(phrase)) + 1) if text[len(text) - size :] == phrase[:size])
    return text + phrase[overlap:]


class PhraseConstraints:
    """The phrases of each source that is searched, and how far each row of its beam has come with them."""

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.by_source: dict[int, Sequence[Phrase]] = {}  # by the numbers of those sources that have any
        self.progress: dict[int, list[PhraseProgress]] = {}

    def add_source(self, source: int, phrases: Sequence[Phrase]) -> None:
        """Those of one source more."""
        for phrase in phrases:
            if not phrase.tokens or EOS in phrase.tokens:
                raise ValueError(f"a phrase to force holds words and no EOS: {list(phrase.tokens)}")
        if phrases:
            self.by_source[source] = phrases
            self.progress[source] = [PhraseProgress.of_tokens((), phrases)] * self.beam_size

    def remove_source(self, source: int) -> Sequence[Phrase]:
        """Those of a source that is no longer searched."""
        self.progress.pop(source, None)
        return self.by_source.pop(source, ())

    def block_eos(self, log_probs: Tensor, sentences: Sequence[int]) -> None:
        """Takes EOS, in place, from rows that lack a phrase; log-probabilities A·beam,V of the sentences A."""
        lacking = [
            [not row.is_complete(self.by_source[sentence]) for row in self.progress[sentence]]
            if sentence in self.by_source
            else [False] * self.beam_size
            for sentence in sentences
        ]
        closed = torch.tensor(lacking, device=log_probs.device).flatten()
        log_probs[:, EOS] = log_probs[:, EOS].masked_fill(closed, -torch.inf)

    def select_candidates(
        self, candidate_log_probs: Tensor, topk: SelectedCandidates, sentences: Sequence[int], widths: Sequence[int]
    ) -> SelectedCandidates:
        """The choice A,beam where sentences with phrases share their beams out; `reach` is A,beam,V.

        `plain` are the best candidates of all, as a search without phrases takes them.
        """
        log_probs, parents, tokens = (part.clone() for part in topk)
        for index, sentence in enumerate(sentences):
            if sentence in self.by_source and widths[index]:
                selected = self._allocate_beam(candidate_log_probs[index], topk, index, sentence, widths[index])
                log_probs[index] = -torch.inf
                for rank, (log_prob, slot, token) in enumerate(selected):
                    log_probs[index, rank], tokens[index, rank] = log_prob, token
                    parents[index, rank] = index * candidate_log_probs.shape[1] + slot
                self._update_progress(sentence, selected)
        return SelectedCandidates(log_probs, parents, tokens)

    def _allocate_beam(
        self, candidate_log_probs: Tensor, topk: SelectedCandidates, index: int, sentence: int, width: int
    ) -> list[tuple[float, int, int]]:
        """At most `width` candidates (log-probability, slot, token), from each bank in turn, the fullest bank first."""
        phrases, progress = self.by_source[sentence], self.progress[sentence]
        beam = len(progress)
        candidates = {
            (int(parent) - index * beam, int(token))
            for parent, token in zip(topk.parents[index], topk.tokens[index], strict=True)
        }
        candidates |= {(slot, int(token)) for slot, token in enumerate(candidate_log_probs.argmax(-1))}
        candidates |= {(slot, token) for slot, row in enumerate(progress) for token in row.next_tokens(phrases)}
        for slot, row in enumerate(progress):
            for ends in row.word_ends(phrases):
                ids = sorted(ends)
                candidates.add((slot, ids[int(candidate_log_probs[slot, ids].argmax())]))
        ordered = sorted(candidates)
        log_probs = candidate_log_probs[[slot for slot, _ in ordered], [token for _, token in ordered]].tolist()
        banks: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
        for log_prob, (slot, token) in zip(log_probs, ordered, strict=True):
            if log_prob > -math.inf:
                banks[progress[slot].advance(token, phrases).num_met(phrases)].append((log_prob, slot, token))
        queues = [sorted(banks[bank]) for bank in sorted(banks, reverse=True)]
        selected: list[tuple[float, int, int]] = []
        while len(selected) < width and any(queues):
            selected.extend(queue.pop() for queue in queues if queue)
        return sorted(selected[:width], key=lambda candidate: -candidate[0])

    def _update_progress(self, sentence: int, selected: Sequence[tuple[float, int, int]]) -> None:
        """Each row takes over the progress of the hypothesis that it extends."""
        before, phrases = self.progress[sentence], self.by_source[sentence]
        after = [before[slot].advance(token, phrases) for _, slot, token in selected]
        self.progress[sentence] = [*after, *before[: len(before) - len(after)]]
