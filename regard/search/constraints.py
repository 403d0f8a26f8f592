"""Constraints on targets: minimum length, no-repeat n-grams, forbidden sequences, prefixes and forced phrases.

Forced phrases are lexically constrained beam search with dynamic beam allocation (Post & Vilar 2018): hypotheses are
sorted into banks by how many tokens of the phrases they contain, and the beam is divided evenly over the banks, so that
a hypothesis with a phrase does not have to beat one without. Hypotheses that lack a phrase cannot end.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.hypothesis import SearchOptions
from regard.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from regard.search.beam import Selection, SentenceState


class Constraint(Protocol):
    """A callable that removes continuations; a user's own may be passed to a search, too."""

    def __call__(self, log_probs: Tensor, tokens: Tensor, sentence: Tensor, /) -> None:
        """Set log-probabilities (R, V) of tokens that may not follow `tokens` (R, t) to -inf, in place.

        `sentence` (R,) is the index in the batch of the source that each row belongs to.
        """


class MinLength:
    """Forbids EOS before a target has `length` tokens, EOS included."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, log_probs: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """See `Constraint`."""
        if tokens.shape[1] + 1 < self.length:
            log_probs[:, EOS] = -torch.inf


class NoRepeatNgram:
    """Forbids n-grams of `size` tokens that the target already contains."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"no_repeat must be at least 1, not {size}")
        self.size = size

    def __call__(self, log_probs: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """See `Constraint`."""
        if tokens.shape[1] < self.size:
            return
        ngrams = tokens.unfold(1, self.size, 1)  # (R, n, size)
        last = tokens[:, tokens.shape[1] - self.size + 1 :]  # the tokens that the next one would complete to an n-gram
        repeated = (ngrams[:, :, :-1] == last[:, None]).all(-1)
        banned = torch.zeros_like(log_probs).scatter_add_(1, ngrams[:, :, -1], repeated.to(log_probs.dtype))
        log_probs.masked_fill_(banned > 0, -torch.inf)


class ForbiddenSequences:
    """Forbids the last token of each sequence where a target ends with the tokens before it."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        if not all(sequences):
            raise ValueError("forbid contains an empty sequence")
        single_tokens = [sequence[0] for sequence in sequences if len(sequence) == 1]
        self.single_tokens = torch.tensor(single_tokens, dtype=torch.long)
        self.sequences = [sequence for sequence in sequences if len(sequence) > 1]

    def __call__(self, log_probs: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """See `Constraint`."""
        log_probs[:, self.single_tokens.to(log_probs.device)] = -torch.inf
        for *before, last in self.sequences:
            if len(before) <= tokens.shape[1]:
                tail = tokens[:, tokens.shape[1] - len(before) :]
                matches = (tail == tail.new_tensor(before)).all(1)
                log_probs[:, last] = log_probs[:, last].masked_fill(matches, -torch.inf)


def build_constraints(options: SearchOptions) -> list[Constraint]:
    """Build the constraints that the options name, followed by the user's own."""
    constraints: list[Constraint] = [MinLength(options.min_length)] if options.min_length > 1 else []
    constraints += [ForbiddenSequences(options.forbid)] if options.forbid else []
    constraints += [] if options.no_repeat is None else [NoRepeatNgram(options.no_repeat)]
    return [*constraints, *options.constraints]


class Prefix:
    """The first tokens of each target; they override all other constraints."""

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> None:
        for prefix in prefixes:
            if {PAD, BOS, EOS} & set(prefix):
                raise ValueError(f"a prefix must not contain PAD, BOS or EOS: {list(prefix)}")
        self.max_length = max(map(len, prefixes), default=0)
        padded = [[*prefix, *[PAD] * (self.max_length - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(padded, dtype=torch.long, device=device)

    def apply(self, allowed: Tensor, log_probs: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Return `allowed` (R, V), with the token of the prefix as the only choice in rows that have one at `step`."""
        if step >= self.max_length:
            return allowed
        token = self.tokens[sentence, step][:, None]
        only = torch.full_like(allowed, -torch.inf).scatter_(1, token, log_probs.gather(1, token))
        return torch.where(token != PAD, only, allowed)


class Phrase(NamedTuple):
    """Consecutive tokens that a target must contain, and the tokens of which one must follow (None: any).

    `ends` keeps a phrase from being the beginning of a longer word: it holds the tokens that begin a new one.
    """

    tokens: tuple[int, ...]
    ends: frozenset[int] | None = None

    def map_ids(self, ids: Mapping[int, int]) -> Phrase:
        """Return the phrase with other ids; `ends` that have none are left out."""
        ends = None if self.ends is None else frozenset(ids[end] for end in self.ends & ids.keys())
        return Phrase(tuple(ids[token] for token in self.tokens), ends)


class PhraseProgress(NamedTuple):
    """Number of tokens of each phrase that a hypothesis has.

    A phrase of n tokens counts n + 1 once it has ended: a token follows that does not make its last word longer.
    """

    counts: tuple[int, ...]

    @classmethod
    def of_tokens(cls, tokens: Sequence[int], phrases: Sequence[Phrase]) -> PhraseProgress:
        """Return the progress of a whole target."""
        progress = cls((0,) * len(phrases))
        for token in tokens:
            progress = progress.advance(token, phrases)
        return progress

    def advance(self, token: int, phrases: Sequence[Phrase]) -> PhraseProgress:
        """Return the progress with one more token; of equal phrases the second waits until the first has ended."""
        counts: list[int] = []
        for number, (phrase, count) in enumerate(zip(phrases, self.counts, strict=True)):
            equal = [other for other in range(number) if phrases[other].tokens == phrase.tokens]
            waits = any(counts[other] <= len(phrase.tokens) for other in equal)
            counts.append(0 if waits else _advance_phrase(phrase, count, token))
        return PhraseProgress(tuple(counts))

    def is_complete(self, phrases: Sequence[Phrase]) -> bool:
        """Return whether every phrase is there; one at the very end counts, because EOS ends a word, too."""
        return all(count >= len(phrase.tokens) for phrase, count in zip(phrases, self.counts, strict=True))

    def next_tokens(self, phrases: Sequence[Phrase]) -> set[int]:
        """Return the tokens that would continue a phrase."""
        pairs = zip(phrases, self.counts, strict=True)
        return {phrase.tokens[count] for phrase, count in pairs if count < len(phrase.tokens)}

    def word_ends(self, phrases: Sequence[Phrase]) -> list[frozenset[int]]:
        """Return, for each phrase whose tokens are there but may continue as a longer word, the tokens that end it."""
        pairs = zip(phrases, self.counts, strict=True)
        return [phrase.ends for phrase, count in pairs if count == len(phrase.tokens) and phrase.ends is not None]

    def find_bank(self, phrases: Sequence[Phrase]) -> int:
        """Return the number of the bank: tokens of ended phrases, plus one for each, and of the longest begun one."""
        pairs = list(zip(phrases, self.counts, strict=True))
        ended = sum(count for phrase, count in pairs if count > len(phrase.tokens))
        return ended + max((count for phrase, count in pairs if count <= len(phrase.tokens)), default=0)


def _advance_phrase(phrase: Phrase, count: int, token: int) -> int:
    """Return how much of a phrase stands at the end of a target after one more token; an ended phrase stays ended."""
    tokens = phrase.tokens
    if count > len(tokens):
        return count
    if count == len(tokens) and (phrase.ends is None or token in phrase.ends):
        return count + 1
    seen = (*tokens[:count], token)
    return max(size for size in range(min(len(seen), len(tokens)) + 1) if seen[len(seen) - size :] == tokens[:size])


def check_phrases(force: Sequence[Sequence[Phrase | Sequence[int]]]) -> list[list[Phrase]]:
    """Return the phrases of each source; a phrase may be given as its tokens alone."""
    phrases = [[item if isinstance(item, Phrase) else Phrase(tuple(item)) for item in of_source] for of_source in force]
    for phrase in itertools.chain.from_iterable(phrases):
        if not phrase.tokens or EOS in phrase.tokens:
            raise ValueError(f"a forced phrase must have tokens and no EOS: {list(phrase.tokens)}")
    return phrases


def find_max_lengths(
    options: SearchOptions,
    source_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    phrases: Sequence[Sequence[Phrase]],
) -> list[int]:
    """Return the length limit of each target; raise UserError if its constraints do not fit."""
    given = list(zip(prefixes, phrases, strict=True))
    forced = [len(prefix) + sum(len(phrase.tokens) for phrase in own_phrases) for prefix, own_phrases in given]
    limits = options.max_lengths(source_lengths, forced)
    for (prefix, own_phrases), limit in zip(given, limits, strict=True):
        if own_phrases and (needed := min_length_with_phrases(prefix, own_phrases)) >= limit:
            raise UserError(f"{needed} tokens to force do not fit, with EOS, into max_length {limit}")
        if len(prefix) >= limit:
            raise UserError(f"a prefix of {len(prefix)} tokens leaves no room for EOS within max_length {limit}")
    return limits


def min_length_with_phrases(prefix: Sequence[int], phrases: Sequence[Phrase]) -> int:
    """Return the length of the shortest target with this prefix and all phrases, which may overlap.

    For more than six phrases it is a lower bound: trying every order would take too long.
    """
    if len(phrases) > 6:
        return max(len(prefix), *(len(phrase.tokens) for phrase in phrases))
    orders = itertools.permutations([phrase.tokens for phrase in phrases])
    return min(len(functools.reduce(_append_overlapping, order, tuple(prefix))) for order in orders)


def _append_overlapping(text: tuple[int, ...], phrase: tuple[int, ...]) -> tuple[int, ...]:
    if any(text[start : start + len(phrase)] == phrase for start in range(len(text))):
        return text
    sizes = range(min(len(text), len(phrase)) + 1)
    overlap = max(size for size in sizes if text[len(text) - size :] == phrase[:size])
    return text + phrase[overlap:]


def block_eos(log_probs: Tensor, active: Sequence[SentenceState]) -> None:
    """Set EOS to -inf, in place, in rows that lack a phrase; `log_probs` is (A·beam, V) for A active sentences."""
    incomplete = [not row.is_complete(sentence.phrases) for sentence in active for row in sentence.progress]
    log_probs[:, EOS].masked_fill_(torch.tensor(incomplete, device=log_probs.device), -torch.inf)


def allocate_beams(
    totals: Tensor, topk: Selection, active: Sequence[SentenceState], widths: Sequence[int]
) -> Selection:
    """Return a selection in which the beams of sentences with phrases are allocated over banks.

    Args:
        totals: (A, beam, V) log-probabilities of all continuations.
        topk: the selection of a search without phrases.
        active: the A sentences.
        widths: how many hypotheses of each have not ended.
    """
    log_probs, parents, tokens = (part.clone() for part in topk)
    for index, (sentence, width) in enumerate(zip(active, widths, strict=True)):
        if sentence.phrases and width:
            first_row = index * len(sentence.progress)
            selected = zip((topk.parents[index] - first_row).tolist(), topk.tokens[index].tolist(), strict=True)
            chosen = _allocate_beam(totals[index], set(selected), sentence, width)
            log_probs[index] = -torch.inf
            for slot, (log_prob, row, token) in enumerate(chosen):
                log_probs[index, slot], tokens[index, slot] = log_prob, token
                parents[index, slot] = first_row + row
            after = [sentence.progress[row].advance(token, sentence.phrases) for _, row, token in chosen]
            sentence.progress = [*after, *sentence.progress[len(after) :]]
    return topk._replace(log_probs=log_probs, parents=parents, tokens=tokens)


def _allocate_beam(
    totals: Tensor, selected: set[tuple[int, int]], sentence: SentenceState, width: int
) -> list[tuple[float, int, int]]:
    """Return at most `width` candidates (log-probability, row, token), from each bank in turn, fullest first.

    Candidates are those `selected` overall, the best token of each row, and the tokens that continue or end a phrase.
    """
    phrases, progress = sentence.phrases, sentence.progress
    candidates = selected | set(enumerate(totals.argmax(-1).tolist()))
    for row, state in enumerate(progress):
        candidates |= {(row, token) for token in state.next_tokens(phrases)}
        for ends in state.word_ends(phrases):
            ids = sorted(ends)
            candidates.add((row, ids[int(totals[row, ids].argmax())]))
    ordered = sorted(candidates)
    log_probs = totals[[row for row, _ in ordered], [token for _, token in ordered]].tolist()
    banks: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for log_prob, (row, token) in zip(log_probs, ordered, strict=True):
        if log_prob > -math.inf:
            banks[progress[row].advance(token, phrases).find_bank(phrases)].append((log_prob, row, token))
    queues = [sorted(banks[bank]) for bank in sorted(banks, reverse=True)]
    chosen: list[tuple[float, int, int]] = []
    while len(chosen) < width and any(queues):
        chosen.extend(queue.pop() for queue in queues if queue)
    return sorted(chosen[:width], key=lambda candidate: -candidate[0])
