"""A search on a CPU where nothing is asked for but the best: what a `Frontier` finds, with NumPy between two steps.

A step of a small model takes less time than twenty calls of PyTorch. So sentences are not looked at one by one, what
was chosen is written down for all of them at once, and the way back is walked when all are done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.errors import damaged
from regard.fast.decoding.board import Wish
from regard.fast.decoding.harvest import Record, found
from regard.fast.topk import topk
from regard.models.hypothesis import Hypothesis
from regard.search.ensemble import Ensemble
from regard.symbols import BOS, EOS, PAD

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[Any]  # in the precision that log-probabilities have


class Open:
    """The A sentences that are not done, with W rows each."""

    def __init__(self, wish: Wish) -> None:
        sentences, width = len(wish.limits), wish.beam
        self.wish, self.penalties = wish, np.array(wish.penalties)
        self.who: Numbers = np.arange(sentences)
        self.limits: Numbers = np.array(wish.limits)
        self.reached: Reals = np.full((sentences, width), -np.inf, np.float32)
        self.reached[:, 0] = 0.0
        self.ended: Numbers = np.zeros(sentences, np.int64)
        self.scores = np.full((sentences, width), -np.inf)  # of those that have ended

    def choose(self, log_probs: Tensor, step: int) -> tuple[Reals, Numbers, Numbers]:
        """The best extensions of each sentence, as many as have not ended: log-probabilities, parents, tokens A,W."""
        A, W = self.reached.shape
        values, tokens = likeliest(log_probs, W, step < self.wish.min_length)
        reach = (self.reached[..., None] + values.reshape(A, W, -1)).reshape(A, -1)
        if W == 1:
            return reach, np.zeros((A, 1), np.int64), tokens
        reach, places = (part.numpy() for part in torch.from_numpy(reach).topk(W, -1))
        if self.ended.any():
            reach[np.arange(W) >= W - self.ended[:, None]] = -np.inf
        return reach, places // tokens.shape[1], np.take_along_axis(tokens.reshape(A, -1), places, 1)

    def take_up(self, reach: Reals, tokens: Numbers, step: int) -> npt.NDArray[np.bool_]:
        """What ends with this step; the sentences A that are done with it."""
        going = (reach > -np.inf) & (tokens != EOS)
        for sentence, row in zip(*((reach > -np.inf) & (tokens == EOS)).nonzero(), strict=True):
            self.scores[sentence, self.ended[sentence]] = float(reach[sentence, row]) / self.penalties[step]
            self.ended[sentence] += 1
        best = np.where(going, reach, -np.inf).max(1).astype(np.float64)
        done: npt.NDArray[np.bool_] = (best == -np.inf) | (step >= self.limits)
        enough = self.ended >= self.wish.n_best
        if enough.any():
            hope = np.maximum(best / self.penalties[1], best / self.penalties[self.limits])
            worst = -np.sort(-self.scores, 1)[:, self.wish.n_best - 1]
            done |= enough & (worst >= hope)
        self.reached = np.where(going, reach, -np.inf)
        return done

    def keep(self, left: Numbers) -> None:
        """The sentences in these places."""
        self.who, self.limits, self.ended = self.who[left], self.limits[left], self.ended[left]
        self.reached, self.scores = self.reached[left], self.scores[left]


def likeliest(log_probs: Tensor, count: int, short: bool) -> tuple[Reals, Numbers]:
    """The likeliest tokens of each row R,V that may follow, and their log-probabilities R,count."""
    kind = torch.promote_types(log_probs.dtype, torch.float32)  # NumPy has no bf16
    # A decoder may have given out what it still needs, or the same numbers to several threads.
    allowed = log_probs.to(kind, copy=True, memory_format=torch.contiguous_format)
    for token in (PAD, BOS, EOS) if short else (PAD, BOS):
        allowed[:, token] = -torch.inf
    values, tokens = topk(allowed, min(count, allowed.shape[1]))
    return values.numpy(), tokens.numpy()


@torch.inference_mode()
def searched(models: Ensemble, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Hypothesis]]:
    """The `n_best` targets of each source B,S, the best first."""
    width = wish.beam
    record, going, step = Record(len(lengths), width, source.shape[1]), Open(wish), 0
    rows = torch.arange(len(lengths)).repeat_interleave(width)
    with models.resting():
        states, newest = models.widen(models.start(source, lengths), width, rows), torch.full_like(rows, BOS)
        while True:
            log_probs, states, looks = models.step(states, newest, source.shape[1] if wish.attention else None)
            step += 1
            reach, parents, tokens = going.choose(log_probs, step)
            if np.isnan(reach).any():
                raise damaged(step)
            note(record, going.who, (reach, parents, tokens), looks)
            done = going.take_up(reach, tokens, step)
            record.done[going.who[done]] = step
            if done.all():
                break
            states, newest = follow(models, states, going, done, parents, tokens)
    return found(record, wish)


def note(record: Record, who: Numbers, chosen: tuple[Any, Any, Any], looks: Tensor | None) -> None:
    """What happened to the sentences with these numbers, as a chunk of one step."""

    def whole(part: Any) -> Any:
        """Zeros for the others, which are done."""
        if len(part) == record.sentences:
            return part[None]
        every = np.zeros((1, record.sentences, *part.shape[1:]), part.dtype)
        every[0, who] = part
        return every

    for kept, part in zip((record.log_probs, record.parents, record.tokens), chosen, strict=True):
        kept.append(whole(part))
    if looks is not None:
        record.looked(looks.float().numpy().reshape(1, len(who), record.width, -1), who)


def follow(
    models: Ensemble, states: list[Any], going: Open, done: npt.NDArray[np.bool_], parents: Numbers, tokens: Numbers
) -> tuple[list[Any], Tensor]:
    """The states of the rows that go on, and their newest tokens."""
    A, W = tokens.shape
    rows = parents + W * np.arange(A)[:, None]
    if not done.any():
        # A row that is alone in its sentence extends itself.
        moved = models.reorder(states, torch.from_numpy(rows.reshape(-1))) if W > 1 else states
        return moved, torch.from_numpy(tokens.flatten())  # a copy: what was chosen is written down
    left = np.flatnonzero(~done)
    going.keep(left)
    kept = models.keep(states, torch.from_numpy(rows[left].reshape(-1)), torch.from_numpy(left))
    return kept, torch.from_numpy(tokens[left].flatten())
