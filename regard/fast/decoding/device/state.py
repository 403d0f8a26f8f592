"""State of the device beam search at fixed addresses, and the interface of decoders.

A hypotheses of W sentences are R = A·W rows. A chunk of steps is taken without synchronization; each step writes to a
trace that the host reads after the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.fast.cuda_graphs.pool import Places
from regard.fast.decoding.numpy_search import CHUNK, LONGEST, Wish
from regard.models.base import Decoder
from regard.special_tokens import BOS

WISHES = 2 * (LONGEST + 1)  # where they stand in a letter: behind the penalties


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


# Does work that has a name, once for all: what reads and writes at fixed addresses may be recorded and played back.
Play = Callable[[Hashable, Callable[[], None]], None]


class Size(NamedTuple):
    """The shapes of a search."""

    sentences: int
    width: int  # rows of each
    source: int  # positions of the longest
    capacity: int  # positions of targets that are kept, by decoders that keep any

    @property
    def rows(self) -> int:
        """R."""
        return self.sentences * self.width


class Stepper(Protocol):
    """A decoder's states, and its step."""

    def begin(self, source: Tensor, lengths: Tensor, count: int, play: Play) -> None:
        """The states before the first token of sources B,S, of `count` words in all; there may be room for more."""
        ...

    def leave(self, kept: Tensor, taken: int) -> list[Tensor]:
        """Copies of the states, after so many steps, of the sentences with these numbers …"""
        ...

    def follow(self, left: list[Tensor]) -> None:
        """… from which another one goes on."""
        ...

    def step(self, board: Board, number: int) -> Tensor:
        """One step of all rows -> what the output layer reads, R,size."""
        ...


class Weights(Protocol):
    """A model as steps take it."""

    copies: Copies  # what must be made anew when weights have changed
    output: Tensor  # V,size; the output layer
    grows: bool  # whether what is kept grows with the target

    @property
    def decoder(self) -> Decoder:
        """The readable one."""
        ...

    def stepper(self, size: Size, places: Places) -> Stepper:
        """One with room for this."""
        ...


class States:
    """Takes places for the states of a decoder."""

    def __init__(self, places: Places, like: Tensor) -> None:
        self.places, self.like = places, like

    def __call__(self, role: str, kind: torch.dtype, *shape: int) -> Tensor:
        """One of this shape; what another stepper of the same model has in this role may lie there, too."""
        size = torch.Size(shape).numel()
        most = 1 << max(0, size - 1).bit_length()  # so that a little more does not need memory of its own
        return self.places.take(("state", role), (most,), self.like.new_empty(0, dtype=kind))[:size].view(shape)


def put(place: Tensor, tensor: Tensor) -> None:
    """Copies a tensor to the first of a place, in every dimension."""
    for dimension, size in enumerate(tensor.shape):
        place = place.narrow(dimension, 0, size)
    place.copy_(tensor)


class Copies:
    """Copies of weights, which are made anew, in the same places, before each search.

    Whether weights have changed since the last one cannot be asked: fused optimizers write to them and say nothing.
    """

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind
        self.made: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def of(self, weight: Tensor) -> Tensor:
        """A weight in this precision; one that has it already is no copy."""
        if weight.dtype == self.kind:
            return weight.detach()
        return self.keep(lambda: weight)

    def keep(self, make: Callable[[], Tensor], kind: torch.dtype | None = None) -> Tensor:
        """What is made of weights, in this precision or another."""
        place = make().detach().to(kind or self.kind).contiguous()
        self.made.append((place, make))
        return place

    def renew(self) -> None:
        """All copies, from the weights as they are."""
        for place, make in self.made:
            place.copy_(make())
