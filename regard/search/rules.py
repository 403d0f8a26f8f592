"""What a target may not be: each rule takes the tokens that would break it out of the running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from regard.special_tokens import BOS, EOS, PAD


class UnsatisfiableConstraintError(ValueError):
    """What is asked of a target cannot be had together."""


class Constraint(Protocol):
    """Any callable like this is a rule."""

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """Sets to −inf, in place, what may not follow.

        Log-probabilities R,V of the token after `written` R,t; `sentence` R is each row's source in the batch.
        """
        ...


class MinimumLength:
    """No EOS before a target has `length` tokens with it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `Rule`."""
        if written.shape[1] + 1 < self.length:
            log_probs[:, EOS] = -torch.inf


class NoRepeatNgram:
    """No `size` tokens in a row come twice in one target."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"no_repeat is at least 1 token, not {size}")
        self.size = size

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `Rule`."""
        if written.shape[1] < self.size:
            return
        grams = written.unfold(1, self.size, 1)  # R,n,size
        begins = written[:, written.shape[1] - self.size + 1 :]  # the tokens that the next one would complete
        repeated = (grams[:, :, :-1] == begins[:, None]).all(-1)
        banned = torch.zeros_like(log_probs).scatter_add_(1, grams[:, :, -1], repeated.to(log_probs.dtype))
        log_probs.masked_fill_(banned > 0, -torch.inf)


class ForbiddenSequences:
    """Sequences of tokens that must not appear."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        if not all(sequences):
            raise ValueError("a sequence of tokens to forbid is empty")
        self.singles = torch.tensor([sequence[0] for sequence in sequences if len(sequence) == 1], dtype=torch.long)
        self.sequences = [sequence for sequence in sequences if len(sequence) > 1]

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `Rule`."""
        log_probs[:, self.singles.to(log_probs.device)] = -torch.inf
        for *before, last in self.sequences:
            if len(before) <= written.shape[1]:
                tail = written[:, written.shape[1] - len(before) :]
                breaks = (tail == tail.new_tensor(before)).all(1)
                log_probs[:, last] = log_probs[:, last].masked_fill(breaks, -torch.inf)


def build_constraints(
    min_length: int, forbid: Sequence[Sequence[int]], no_repeat: int | None, constraints: Sequence[Constraint]
) -> list[Constraint]:
    """The rules of a search: those that are asked for, and those of one's own."""
    built_in: list[Constraint] = [MinimumLength(min_length)] if min_length > 1 else []
    built_in += [ForbiddenSequences(forbid)] if forbid else []
    built_in += [] if no_repeat is None else [NoRepeatNgram(no_repeat)]
    return [*built_in, *constraints]


class PrefixConstraint:
    """The first tokens of each target are given. What is given overrules every other rule."""

    def __init__(self, prefixes: Sequence[Sequence[int]], max_lengths: Sequence[int], device: torch.device) -> None:
        for prefix, limit in zip(prefixes, max_lengths, strict=True):
            if len(prefix) >= limit:
                raise UnsatisfiableConstraintError(
                    f"a prefix of {len(prefix)} tokens leaves no room for EOS within max_length {limit}"
                )
            if {PAD, BOS, EOS} & set(prefix):
                raise ValueError(f"a prefix holds words, not PAD, BOS or EOS: {list(prefix)}")
        self.max_prefix_length = max(map(len, prefixes), default=0)
        table = [[*prefix, *[PAD] * (self.max_prefix_length - len(prefix))] for prefix in prefixes]
        self.prefix_tokens = torch.tensor(table, dtype=torch.long, device=device)

    def apply(self, allowed: Tensor, log_probs: Tensor, step: int, sentence: Tensor) -> Tensor:
        """What is allowed R,V at position `step`, with a given token in place of all others where there is one."""
        if step >= self.max_prefix_length:
            return allowed
        prefix_token = self.prefix_tokens[sentence, step][:, None]
        prefix_only = torch.full_like(allowed, -torch.inf).scatter_(1, prefix_token, log_probs.gather(1, prefix_token))
        return torch.where(prefix_token != PAD, prefix_only, allowed)
