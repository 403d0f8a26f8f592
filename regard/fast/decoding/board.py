"""What a search on the device knows from one step to the next, at addresses that stay.

Rows are the hypotheses of a sentence that are open at once: A sentences of W rows each, R = A·W in all. A `CHUNK` of
steps is taken without a look at it; what happened in each of them is written to a slab, which the host reads after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.fast.recording import Places
from regard.special_tokens import BOS

CHUNK = 8  # steps; an even number, since what a step writes is not where it reads, but where the next one does
LONGEST = 4096  # tokens that a target may have
WISHES = 2 * (LONGEST + 1)  # where they stand in a letter: behind the penalties


class Wish(NamedTuple):
    """What is asked of a search, the same for all of its sentences."""

    beam: int
    n_best: int
    min_length: int
    limits: Sequence[int]  # of each sentence: tokens that a target may have, EOS included
    penalties: Sequence[float]  # what log p(y) is divided by, for each |y| from 0 to the largest limit
    attention: bool
    sources: Sequence[int]  # of each sentence: words that it has


class Board(NamedTuple):
    """The search's own tensors."""

    letter: Tensor  # what the host says before the first step, in one piece, as numbers of 32 bits:
    penalties: Tensor  # LONGEST + 1, double precision
    wishes: Tensor  # 2; min_length and n_best
    limits: Tensor  # A; 0 where there is no sentence
    taken: Tensor  # 1; steps before this chunk
    reached: Tensor  # A,W; log-probability of what is open, −inf where nothing is
    tokens: Tensor  # A,W; the newest of each row
    rows: Tensor  # A,W; the row of all R that each one extends
    ended: Tensor  # A; how many hypotheses have ended
    scores: Tensor  # A,W; what they are ranked by, −inf behind; double precision, as on the host
    done: Tensor  # A; the step with which a sentence was done, 0 while it is open
    slab: Tensor  # CHUNK·3·A·W + A; of each step log-probabilities, parents and tokens; in the end `done`, once more
    looks: Tensor | None  # CHUNK,R,S; where each row looked for its next token, if somebody asks

    @property
    def steps(self) -> Tensor:
        """The slab as CHUNK,3,A,W: of each step the bits of log-probabilities, parents within a sentence, tokens."""
        return self.slab[: -len(self.done)].view(CHUNK, 3, *self.tokens.shape)


def laid(places: Places, like: Tensor, sentences: int, width: int, source: int, attention: bool) -> Board:
    """A board of this size, on the device of `like`."""

    def take(role: str, dtype: torch.dtype, *shape: int) -> Tensor:
        return places.take(role, shape, like.new_empty(0, dtype=dtype))

    A, W = sentences, width
    letter = take("letter", torch.int32, WISHES + 2 + A)
    return Board(
        letter,
        letter[:WISHES].view(torch.float64),
        letter[WISHES : WISHES + 2],
        letter[WISHES + 2 :],
        take("taken", torch.int32, 1),
        take("reached", torch.float32, A, W),
        take("tokens", torch.int64, A, W),
        take("rows", torch.int64, A, W),
        take("ended", torch.int32, A),
        take("scores", torch.float64, A, W),
        take("done", torch.int32, A),
        take("slab", torch.int32, CHUNK * 3 * A * W + A),
        take("looks", torch.float32, CHUNK, A * W, source) if attention else None,
    )


def tell(board: Board, wish: Wish) -> None:
    """What is asked for."""
    letter = np.zeros(board.letter.shape, np.int32)
    letter[:WISHES].view(np.float64)[: len(wish.penalties)] = wish.penalties
    letter[WISHES : WISHES + 2] = wish.min_length, wish.n_best
    letter[WISHES + 2 :][: len(wish.limits)] = wish.limits
    board.letter.copy_(torch.from_numpy(letter))


def begin(board: Board) -> None:
    """Before the first step: one hypothesis of each sentence is open, and has no token yet."""
    A, W = board.tokens.shape
    board.taken.zero_()
    board.reached.fill_(-torch.inf)[:, 0].zero_()
    board.tokens.fill_(BOS)
    board.rows.copy_(torch.arange(A * W, device=board.rows.device).view(A, W))
    board.ended.zero_()
    board.scores.fill_(-torch.inf)
    board.done.copy_(board.limits == 0)


def follow(board: Board, before: Board, kept: Tensor) -> None:
    """What was left on another board, of the sentences with these numbers there; the two may share their memory."""
    A, W = board.tokens.shape
    count = len(kept)
    moved = [part.index_select(0, kept) for part in sentence_parts(before)]
    parents = before.rows.index_select(0, kept) % W
    board.letter[: WISHES + 2].copy_(before.letter[: WISHES + 2])
    for place, part in zip(sentence_parts(board), moved, strict=True):
        place[:count].copy_(part)
    first = W * torch.arange(A, device=board.rows.device)[:, None]
    board.rows.copy_(first.expand(A, W))
    board.rows[:count] += parents
    board.limits[count:] = 0
    board.done[count:] = 1
    board.reached[count:] = -torch.inf


def sentence_parts(board: Board) -> list[Tensor]:
    """What a sentence takes with it."""
    return [board.limits, board.reached, board.tokens, board.ended, board.scores, board.done]
