"""The parts of a step in plain PyTorch: the twins of `fused`, to read and to test them by, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.fast.decoding.board import Board
from regard.fast.decoding.parts import Candidates, Gates, Parts, Piece, Source
from regard.fast.packed.plain import PLAIN as PACKED
from regard.nn import masked_softmax, prefix_mask
from regard.special_tokens import BOS, EOS, PAD


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
