"""What a step on the device is made of, as functions; there are plain ones and those of Triton's kernels.

`number` is a step's number within its chunk; `board.taken` of them came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from regard.fast.decoding.board import Board
from regard.fast.packed.parts import Parts as Packed


class Candidates(NamedTuple):
    """Of each row the likeliest words, found in each of some blocks of the vocabulary."""

    tops: Tensor  # R,blocks; the largest logit of a block …
    sums: Tensor  # … and Σ exp(logit − that)
    values: Tensor  # R,n; logits of words that may follow, −inf of those that may not
    tokens: Tensor  # R,n; the words


class Piece(NamedTuple):
    """A part of what a layer reads: of each row a row of `values`."""

    values: Tensor  # ·,size
    rows: Tensor | None  # R; which; None: its own


class Gates(NamedTuple):
    """An LSTM layer: [W_ih W_hh] and the sum of its two biases."""

    weight: Tensor  # 4H,I+H
    bias: Tensor  # 4H


class Source(NamedTuple):
    """What recurrent decoders look at."""

    keys: Tensor  # A,S,K; as the score wants them
    values: Tensor  # A,S,V
    lengths: Tensor  # A


class Weigh(Protocol):
    """The output layer."""

    def __call__(self, h: Tensor, weight: Tensor, board: Board, number: int) -> Candidates:
        """H R,size; weight V,size -> as many candidates, of each row, as the beam is wide, or more."""
        ...


class Choose(Protocol):
    """Which hypotheses go on, which have ended, and which sentences are done: all of it is left on the board."""

    def __call__(self, board: Board, found: Candidates, number: int) -> None:
        """PAD and BOS never follow, EOS not before `min_length`; nothing is renormalised for that."""
        ...


class Enter(Protocol):
    """The newest words of a Transformer's rows; and which row each word before them was written by."""

    def __call__(
        self,
        board: Board,
        number: int,
        words: Tensor,
        scale: float,
        places: Tensor,
        before: Tensor,
        after: Tensor,
    ) -> Tensor:
        """Words V,size; places capacity,size -> x R,size.

        `before` and `after` R,capacity: for each position the row, counted within its sentence, whose keys and values
        are this row's. `after` is `before` of the row that was extended, and itself at its newest position.
        """
        ...


class Attend(Protocol):
    """Self-attention of the newest words over those before them."""

    def __call__(self, qkv: Tensor, cache: Tensor, table: Tensor, board: Board, number: int, heads: int) -> Tensor:
        """Queries, keys and values R,3·size -> R,size; keys and values go to the cache capacity,R,2·size."""
        ...


class Look(Protocol):
    """Attention over the source, which the rows of a sentence share."""

    def __call__(self, q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
        """Q R,size over keys and values A,S,2·size, of which each sentence has so many -> R,size."""
        ...


class Layer(Protocol):
    """One step of an LSTM layer."""

    def __call__(
        self, pieces: Sequence[Piece], gates: Gates, c: Tensor, rows: Tensor, after: Tensor, h: Tensor
    ) -> None:
        """The pieces are [x; h_{t-1}]; with c_{t-1} of the `rows` that were extended -> `after` = c_t, and `h`."""
        ...


class Focus(Protocol):
    """A recurrent decoder's look at the source."""

    def __call__(self, query: Tensor, source: Source, v: Tensor | None, weights: Tensor | None) -> Tensor:
        """Scores qᵀk, or vᵀ tanh(q + k), R,S -> the context R,V; `weights` R,S are written where they are wanted."""
        ...


class Squash(Protocol):
    """h̃ = tanh(W_c [c; h])."""

    def __call__(self, pieces: Sequence[Piece], weight: Tensor, out: Tensor) -> None:
        """Weight F,I -> `out` R,F."""
        ...


class Parts(NamedTuple):
    """One of each, and those that training has, too."""

    packed: Packed
    weigh: Weigh
    choose: Choose
    enter: Enter
    attend: Attend
    look: Look
    layer: Layer
    focus: Focus
    squash: Squash
