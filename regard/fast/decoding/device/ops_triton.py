"""Operations of a decoding step by Triton kernels, with the results of `ops`.

Products with many rows are PyTorch's. Products with a few rows, which are bound by reading the weights, are kernels
that also compute what follows the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.fast.cuda_graphs.buckets import power
from regard.fast.decoding.device.ops import Candidates, Gates, Parts, Piece, Source
from regard.fast.decoding.device.state import Board
from regard.fast.kernels.triton import decoding as kernels
from regard.fast.kernels.triton.rnn import tile
from regard.fast.training.packed.ops_triton import FUSED as PACKED
from regard.special_tokens import BOS, EOS, PAD

FEW = 8  # rows whose products are made by kernels here
WORDS, BLOCKS = 4096, 32  # logits that one program looks at, but no more programs for a row than this
LOGITS = 8  # that one program makes, of a single row
UNITS = 1  # of an LSTM layer, that one program sees to
LINES = 2  # of W_c
HELD = 16384  # numbers of a weight that one program multiplies at once, by a single row; a quarter by several
PAST = 2048  # numbers of keys of the words before that one program reads at once
WARPS = {"weigh": 1, "layer": 2, "squash": 4, "focus": 4, "attend": 2, "look": 2}
SIGNS = {"PAD": PAD, "BOS": BOS, "EOS": EOS}


def weigh(h: Tensor, weight: Tensor, board: Board, number: int) -> Candidates:
    """The logits of one row are not even written; those of many are read once."""
    (R, D), V = h.shape, len(weight)
    if R > 1:
        return scan(h @ weight.t(), board, number)
    found = candidates(h, math.ceil(V / LOGITS), 1)
    blocks = found.tops.shape[1]
    kernels.weigh[(blocks,)](
        h, weight, *found, board.taken, board.wishes, number, V, blocks,
        SIZE=D, N=LOGITS, B=breadth(D, LOGITS, 1), **SIGNS, num_warps=WARPS["weigh"],
    )  # fmt: skip
    return found


def scan(logits: Tensor, board: Board, number: int) -> Candidates:
    """The candidates of each block of logits R,V."""
    (R, V), W = logits.shape, board.tokens.shape[1]
    C = min(max(WORDS, power(math.ceil(V / BLOCKS), 1)), power(V))
    found = candidates(logits, math.ceil(V / C), W)
    kernels.scan[(R, found.tops.shape[1])](
        logits, *found, board.taken, board.wishes, number, V, found.tops.shape[1], K=W, C=C, **SIGNS,
        num_warps=max(4, min(16, C // 1024)),
    )  # fmt: skip
    return found


def candidates(like: Tensor, blocks: int, each: int) -> Candidates:
    """Room for them."""
    R = len(like)
    tops, sums = like.new_empty(2, R, blocks, dtype=torch.float32)
    values = like.new_empty(R, blocks * each, dtype=torch.float32)
    return Candidates(tops, sums, values, torch.empty_like(values, dtype=torch.int32))


def choose(board: Board, found: Candidates, number: int) -> None:
    """One program for each sentence."""
    (A, W), (_, blocks), (_, count) = board.tokens.shape, found.tops.shape, found.values.shape
    kernels.choose[(A,)](
        *found, board.taken, board.wishes, board.penalties, board.limits, board.reached, board.tokens, board.rows,
        board.ended, board.scores, board.done, board.slab, number, A, blocks, count,
        W=W, R=power(W, 1), B=power(blocks, 1), C=power(count, 1), EOS=EOS, num_warps=4,
    )  # fmt: skip


def enter(
    board: Board, number: int, words: Tensor, scale: float, places: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """One program for each row."""
    (R, capacity), size = before.shape, words.shape[1]
    x = words.new_empty(R, size)
    kernels.enter[(R,)](
        board.tokens, board.rows, words, places, x, before, after, board.taken, number, scale, size, capacity,
        W=board.tokens.shape[1], D=power(size), P=32,
    )  # fmt: skip
    return x


def attend(qkv: Tensor, cache: Tensor, table: Tensor, board: Board, number: int, heads: int) -> Tensor:
    """One program for each row."""
    (R, width), capacity = qkv.shape, len(cache)
    size = width // 3 // heads
    out = qkv.new_empty(R, width // 3)
    H, D = power(heads, 1), power(size)
    kernels.attend[(R,)](
        qkv, cache, table, out, board.taken, number, R, heads, capacity, size**-0.5,
        W=board.tokens.shape[1], SIZE=size, H=H, D=D, P=max(1, min(32, PAST // (H * D))), num_warps=WARPS["attend"],
    )  # fmt: skip
    return out


def look(q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """One program for each head of each sentence."""
    A, S, _ = source.shape
    size, W = q.shape[1] // heads, len(q) // A
    out = torch.empty_like(q)
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    kernels.look[(A, heads)](
        q, source, lengths, out, source.stride(0), source.stride(1), heads, size**-0.5,
        W=W, SIZE=size, R=power(W), D=power(size), S=min(32, power(S)), EXACT=exact, num_warps=WARPS["look"],
    )  # fmt: skip
    return out


def layer(pieces: Sequence[Piece], gates: Gates, c: Tensor, rows: Tensor, after: Tensor, h: Tensor) -> None:
    """Few rows: one kernel. Many: a gathering, a product, and the gates."""
    R, H = h.shape
    if R > FEW:
        pre = torch.addmm(gates.bias, gathered(pieces, R), gates.weight.t())
        B = min(512, power(H))
        kernels.gated[(R, math.ceil(H / B))](pre, c, rows, after, h, H=H, B=B)
        return
    given, sizes = spread(pieces)
    kernels.layer[(math.ceil(H / UNITS),)](
        *given, gates.weight, gates.bias, c, rows, after, h, R, **sizes,
        H=H, J=UNITS, B=breadth(max(sizes.values()), 4 * UNITS, power(R, 1)), R=power(R, 1), num_warps=WARPS["layer"],
    )  # fmt: skip


def focus(query: Tensor, source: Source, v: Tensor | None, weights: Tensor | None) -> Tensor:
    """One program for each row, and for each part of its context where rows are few."""
    (A, S, K), V, R = source.keys.shape, source.values.shape[2], len(query)
    context = query.new_empty(R, V)
    places, block = tile(S, max(K, V))
    span = block if R <= FEW else power(V, 1)
    kernels.focus[(R, math.ceil(V / span))](
        query, source.keys, source.values, query if v is None else v, source.lengths,
        context if weights is None else weights, context, S,
        W=R // A, SIZE=K, WIDTH=V, SPAN=span, BLOCK_S=places, BLOCK=block,
        CONCAT=v is not None, TOLD=weights is not None, num_warps=WARPS["focus"] if R <= FEW else 8,
    )  # fmt: skip
    return context


def squash(pieces: Sequence[Piece], weight: Tensor, out: Tensor) -> None:
    """Few rows: one kernel."""
    R, F = out.shape
    if R > FEW:
        torch.tanh(gathered(pieces, R) @ weight.t(), out=out)
        return
    given, sizes = spread(pieces)
    kernels.squash[(math.ceil(F / LINES),)](
        *given, weight, out, R, **sizes,
        F=F, N=LINES, B=breadth(max(sizes.values()), LINES, power(R, 1)), R=power(R, 1), num_warps=WARPS["squash"],
    )  # fmt: skip


def gathered(pieces: Sequence[Piece], rows: int) -> Tensor:
    """The pieces side by side, R,·."""
    out = pieces[0].values.new_empty(rows, sum(piece.values.shape[1] for piece in pieces))
    given, sizes = spread(pieces)
    kernels.gather[(rows,)](*given, out, **sizes, B=512)
    return out


def spread(pieces: Sequence[Piece]) -> tuple[list[Tensor], dict[str, Any]]:
    """Up to three pieces as kernels take them: tensors, and what is known beforehand."""
    tensors: list[Tensor] = []
    sizes: dict[str, Any] = {}
    for place in range(3):
        piece = pieces[place] if place < len(pieces) else Piece(pieces[0].values, None)
        tensors += [piece.values, piece.values if piece.rows is None else piece.rows]
        sizes[f"SIZE_{place}"] = piece.values.shape[1] if place < len(pieces) else 0
        sizes[f"GIVEN_{place}"] = piece.rows is not None
    return tensors, sizes


def breadth(size: int, lines: int, rows: int) -> int:
    """How many numbers of each line a program multiplies at once: as many as its registers hold."""
    return max(16, min(power(size), (HELD if rows == 1 else HELD // 4) // (lines * rows)))


FUSED = Parts(PACKED, weigh, choose, enter, attend, look, layer, focus, squash)
