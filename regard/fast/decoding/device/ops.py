"""Operations of a decoding step on the device: their interface, and the reference implementation in PyTorch.

`number` is the index of a step within its chunk; `state.taken` steps came before the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.fast.decoding.device.state import Board
from regard.fast.training.packed.ops import PLAIN as PACKED
from regard.fast.training.packed.ops import Parts as Packed
from regard.nn import masked_softmax, prefix_mask
from regard.special_tokens import BOS, EOS, PAD


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


def weigh(h: Tensor, weight: Tensor, board: Board, number: int) -> Candidates:
    """The vocabulary as one block."""
    return scan((h @ weight.t()).float(), board, number)


def scan(logits: Tensor, board: Board, number: int) -> Candidates:
    """The candidates among logits R,V."""
    tops = logits.amax(1, keepdim=True)
    sums = (logits - tops).exp().sum(1, keepdim=True)
    short = int(board.taken) + number + 1 < int(board.wishes[0])
    out = torch.tensor([PAD, BOS, EOS] if short else [PAD, BOS], device=logits.device)
    allowed = logits.index_fill(1, out, -torch.inf)
    values, tokens = allowed.topk(min(board.tokens.shape[1], logits.shape[1]), -1)
    return Candidates(tops, sums, values, tokens.int())


def choose(board: Board, found: Candidates, number: int) -> None:
    """The best of each sentence, as many as the beam has places for beside those that have ended."""
    (A, W), step = board.tokens.shape, int(board.taken) + number + 1
    top = found.tops.amax(1, keepdim=True)
    norm = top + (found.sums * (found.tops - top).exp()).sum(1, keepdim=True).log()
    reach = (board.reached.view(-1, 1) + (found.values - norm)).view(A, -1)
    strange = norm.isnan().view(A, W).any(1)
    log_probs, best = reach.topk(W, -1)
    parents = best // found.values.shape[1]
    tokens = found.tokens.long().view(A, -1).gather(1, best)
    places = torch.arange(W, device=best.device)
    log_probs = log_probs.masked_fill(places >= W - board.ended[:, None], -torch.inf)
    log_probs = log_probs.masked_fill(strange[:, None], torch.nan)
    harvest(board, log_probs, tokens, strange, step)
    for place, part in zip(board.steps[number], (log_probs.view(torch.int32), parents, tokens), strict=True):
        place.copy_(part)
    board.reached.copy_(log_probs.masked_fill(tokens == EOS, -torch.inf))
    board.tokens.copy_(tokens)
    board.rows.copy_(parents + W * torch.arange(A, device=parents.device)[:, None])


def harvest(board: Board, log_probs: Tensor, tokens: Tensor, strange: Tensor, step: int) -> None:
    """Takes up what ends with this step, and which sentences are done with it."""
    real, ends = log_probs > -torch.inf, tokens == EOS
    ending, open_ones = real & ends, real & ~ends & (step < board.limits[:, None])
    slots = board.ended[:, None] + ending.cumsum(1) - 1
    for place in range(tokens.shape[1]):
        here = ending[:, place].nonzero()[:, 0]
        board.scores[here, slots[here, place]] = log_probs[here, place].double() / board.penalties[step]
    board.ended.add_(ending.sum(1))
    best_open = log_probs.masked_fill(~open_ones, -torch.inf).amax(1).double()
    n_best, limits = int(board.wishes[1]), board.limits.long()
    hope = torch.maximum(best_open / board.penalties[1], best_open / board.penalties[limits])
    settled = (board.ended >= n_best) & (board.scores.sort(1, descending=True).values[:, n_best - 1] >= hope)
    done = (best_open == -torch.inf) | settled | strange
    board.done.copy_(torch.where((board.done == 0) & done, step, board.done))


def enter(
    board: Board, number: int, words: Tensor, scale: float, places: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """The newest words, and whose the words before them are."""
    step, (A, W) = int(board.taken) + number, board.tokens.shape
    after[:, :step] = before[board.rows.flatten(), :step]
    after[:, step] = torch.arange(W, device=after.device).repeat(A)
    return words[board.tokens.flatten()] * scale + places[step]


def attend(qkv: Tensor, cache: Tensor, table: Tensor, board: Board, number: int, heads: int) -> Tensor:
    """Keys and values are gathered, each from the row that wrote it."""
    step, W, (_, R, _) = int(board.taken) + number, board.tokens.shape[1], cache.shape
    q, k, v = qkv.chunk(3, 1)
    cache[step] = torch.cat((k, v), 1)
    first = torch.arange(R, device=qkv.device) // W * W
    written = cache[torch.arange(step + 1, device=qkv.device), first[:, None] + table[:, : step + 1].long()]
    return headed(q[:, None], written, torch.ones_like(written[..., 0], dtype=torch.bool), heads)[:, 0]


def look(q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """The rows of a sentence look together."""
    A, S, _ = source.shape
    return headed(q.view(A, -1, q.shape[1]), source, prefix_mask(lengths, S), heads).reshape_as(q)


def headed(q: Tensor, kv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V of each head: q B,T,size over B,S,2·size, where the mask B,S is."""
    v = split(kv.chunk(2, -1)[1], heads)
    return (looks(q, kv, mask, heads).to(v.dtype) @ v).transpose(1, 2).flatten(2)


def looks(q: Tensor, kv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Where they look: B,heads,T,S, in single precision at the least."""
    scores = split(q, heads) @ split(kv.chunk(2, -1)[0], heads).transpose(2, 3)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return masked_softmax(wide * (q.shape[-1] // heads) ** -0.5, mask[:, None, None])


def split(x: Tensor, heads: int) -> Tensor:
    """B,T,size -> B,heads,T,size/heads."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def layer(pieces: Sequence[Piece], gates: Gates, c: Tensor, rows: Tensor, after: Tensor, h: Tensor) -> None:
    """One product for all gates."""
    pre = torch.addmm(gates.bias, joined(pieces), gates.weight.t())
    i, f, g, o = pre.to(c.dtype).chunk(4, 1)
    after.copy_(torch.sigmoid(f) * c[rows] + torch.sigmoid(i) * torch.tanh(g))
    h.copy_(torch.sigmoid(o) * torch.tanh(after))


def focus(query: Tensor, source: Source, v: Tensor | None, weights: Tensor | None) -> Tensor:
    """The rows of a sentence look together."""
    A, S, _ = source.keys.shape
    q = query.view(A, -1, query.shape[1])
    keys = source.keys
    scores = q @ keys.transpose(1, 2) if v is None else torch.tanh(q[:, :, None] + keys[:, None]) @ v
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    found = masked_softmax(wide, prefix_mask(source.lengths, S)[:, None])
    if weights is not None:
        weights.copy_(found.flatten(0, 1))
    return (found.to(source.values.dtype) @ source.values).flatten(0, 1)


def squash(pieces: Sequence[Piece], weight: Tensor, out: Tensor) -> None:
    """One product, then tanh."""
    out.copy_(torch.tanh(joined(pieces) @ weight.t()))


def joined(pieces: Sequence[Piece]) -> Tensor:
    """The pieces side by side."""
    return torch.cat([values if rows is None else values[rows] for values, rows in pieces], 1)


PLAIN = Parts(PACKED, weigh, choose, enter, attend, look, layer, focus, squash)
