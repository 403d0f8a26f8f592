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

from regard.fast.cuda_graphs.buckets import next_power_of_two
from regard.fast.decoding.device.ops import DecodingOps, LSTMWeights, RowGather, SourceMemory, TokenEmbedding, TopK
from regard.fast.decoding.device.state import BeamState
from regard.fast.kernels.triton import decoding as kernels
from regard.fast.kernels.triton.rnn import TritonStepOps, tile_shape
from regard.fast.training.packed.ops_triton import TRITON_OPS as TRITON_PACKED_OPS
from regard.fast.training.step_ops import LSTMStep
from regard.special_tokens import BOS, EOS, PAD

MAX_GEMV_ROWS = 8  # rows up to which products are kernels of this module
MIN_BLOCK, MAX_BLOCKS = 4096, 32  # logits per program, and programs per row
LOGITS_PER_PROGRAM = 8  # of a single row
UNITS_PER_PROGRAM = 1  # of an LSTM layer
OUTPUTS_PER_PROGRAM = 2  # rows of W_c
MAX_WEIGHT_TILE = 16384  # numbers of a weight per program for a single row; a quarter for several
MAX_KEY_TILE = 2048  # numbers of previous keys that a program reads at once
SPECIAL_IDS = {"PAD": PAD, "BOS": BOS, "EOS": EOS}


class TritonDecodingOps(DecodingOps):
    """The operations by kernels; see `DecodingOps`."""

    packed = TRITON_PACKED_OPS

    def output_topk(self, h: Tensor, weight: Tensor, state: BeamState, number: int) -> TopK:
        """For a single row logits are not even stored; those of many rows are read once."""
        (R, D), V = h.shape, len(weight)
        if R > 1:
            return self.logits_topk(h @ weight.t(), state, number)
        topk = _allocate_topk(h, math.ceil(V / LOGITS_PER_PROGRAM), 1)
        blocks = topk.block_max.shape[1]
        kernels.output_topk[(blocks,)](
            h, weight, *topk, state.steps_done, state.options, number, V, blocks,
            SIZE=D, N=LOGITS_PER_PROGRAM, B=_block_width(D, LOGITS_PER_PROGRAM, 1), **SPECIAL_IDS, num_warps=1,
        )  # fmt: skip
        return topk

    def logits_topk(self, logits: Tensor, state: BeamState, number: int) -> TopK:
        """Return the candidates of each block of logits (R, V)."""
        (R, V), W = logits.shape, state.tokens.shape[1]
        C = min(max(MIN_BLOCK, next_power_of_two(math.ceil(V / MAX_BLOCKS), 1)), next_power_of_two(V))
        topk = _allocate_topk(logits, math.ceil(V / C), W)
        kernels.logits_topk[(R, topk.block_max.shape[1])](
            logits, *topk, state.steps_done, state.options, number, V, topk.block_max.shape[1], K=W, C=C, **SPECIAL_IDS,
            num_warps=max(4, min(16, C // 1024)),
        )  # fmt: skip
        return topk

    def beam_update(self, state: BeamState, topk: TopK, number: int) -> None:
        """Run one program for each sentence."""
        (A, W), (_, blocks), (_, count) = state.tokens.shape, topk.block_max.shape, topk.values.shape
        kernels.beam_update[(A,)](
            *topk, state.steps_done, state.options, state.length_divisors, state.max_lengths, state.log_probs,
            state.tokens, state.rows, state.num_ended, state.scores, state.done, state.trace, number, A, blocks, count,
            W=W, R=next_power_of_two(W, 1), B=next_power_of_two(blocks, 1), C=next_power_of_two(count, 1), EOS=EOS,
            num_warps=4,
        )  # fmt: skip

    def embed_and_link(
        self, state: BeamState, number: int, embedding: TokenEmbedding, before: Tensor, after: Tensor
    ) -> Tensor:
        """Run one program for each row."""
        words, scale, positions = embedding
        (R, capacity), size = before.shape, words.shape[1]
        x = words.new_empty(R, size)
        kernels.embed_and_link[(R,)](
            state.tokens, state.rows, words, positions, x, before, after, state.steps_done, number, scale, size,
            capacity, W=state.tokens.shape[1], D=next_power_of_two(size), P=32,
        )  # fmt: skip
        return x

    def self_attention_step(
        self, qkv: Tensor, cache: Tensor, table: Tensor, state: BeamState, number: int, heads: int
    ) -> Tensor:
        """Run one program for each row."""
        (R, width), capacity = qkv.shape, len(cache)
        size = width // 3 // heads
        out = qkv.new_empty(R, width // 3)
        H, D = next_power_of_two(heads, 1), next_power_of_two(size)
        kernels.self_attention_step[(R,)](
            qkv, cache, table, out, state.steps_done, number, R, heads, capacity, size**-0.5,
            W=state.tokens.shape[1], SIZE=size, H=H, D=D, P=max(1, min(32, MAX_KEY_TILE // (H * D))), num_warps=2,
        )  # fmt: skip
        return out

    def cross_attention(self, q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
        """Run one program for each head of each sentence."""
        A, S, _ = source.shape
        size, W = q.shape[1] // heads, len(q) // A
        out = torch.empty_like(q)
        exact = "ieee" if q.dtype == torch.float32 else "tf32"
        kernels.cross_attention[(A, heads)](
            q, source, lengths, out, source.stride(0), source.stride(1), heads, size**-0.5,
            W=W, SIZE=size, R=next_power_of_two(W), D=next_power_of_two(size), S=min(32, next_power_of_two(S)),
            EXACT=exact, num_warps=2,
        )  # fmt: skip
        return out

    def lstm_step(
        self, pieces: Sequence[RowGather], gates: LSTMWeights, c: Tensor, rows: Tensor, after: Tensor, h: Tensor
    ) -> None:
        """Run one kernel for few rows; for many a gather, a product and the gates."""
        R, H = h.shape
        if R > MAX_GEMV_ROWS:
            pre = torch.addmm(gates.bias, _gather_pieces(pieces, R), gates.weight.t())
            TritonStepOps().lstm_gates(LSTMStep(pre, c, after), h, h, rows)
            return
        tensors, sizes = _pack_pieces(pieces)
        block_rows = next_power_of_two(R, 1)
        kernels.lstm_step[(math.ceil(H / UNITS_PER_PROGRAM),)](
            *tensors, gates.weight, gates.bias, c, rows, after, h, R, **sizes,
            H=H, J=UNITS_PER_PROGRAM, B=_block_width(max(sizes.values()), 4 * UNITS_PER_PROGRAM, block_rows),
            R=block_rows, num_warps=2,
        )  # fmt: skip

    def luong_attention(self, query: Tensor, source: SourceMemory, v: Tensor | None, weights: Tensor | None) -> Tensor:
        """Run one program for each row, or several for parts of the context if there are few rows."""
        (A, S, K), V, R = source.keys.shape, source.values.shape[2], len(query)
        context = query.new_empty(R, V)
        source_block, block = tile_shape(S, max(K, V))
        span = block if R <= MAX_GEMV_ROWS else next_power_of_two(V, 1)
        kernels.luong_attention[(R, math.ceil(V / span))](
            query, source.keys, source.values, query if v is None else v, source.lengths,
            context if weights is None else weights, context, S,
            W=R // A, SIZE=K, WIDTH=V, SPAN=span, BLOCK_S=source_block, BLOCK=block,
            CONCAT=v is not None, STORE=weights is not None, num_warps=4 if R <= MAX_GEMV_ROWS else 8,
        )  # fmt: skip
        return context

    def attentional_state(self, pieces: Sequence[RowGather], weight: Tensor, out: Tensor) -> None:
        """Run one kernel for few rows."""
        R, F = out.shape
        if R > MAX_GEMV_ROWS:
            torch.tanh(_gather_pieces(pieces, R) @ weight.t(), out=out)
            return
        tensors, sizes = _pack_pieces(pieces)
        block_rows = next_power_of_two(R, 1)
        kernels.attentional_state[(math.ceil(F / OUTPUTS_PER_PROGRAM),)](
            *tensors, weight, out, R, **sizes,
            F=F, N=OUTPUTS_PER_PROGRAM, B=_block_width(max(sizes.values()), OUTPUTS_PER_PROGRAM, block_rows),
            R=block_rows, num_warps=4,
        )  # fmt: skip


TRITON_OPS = TritonDecodingOps()


def _allocate_topk(like: Tensor, blocks: int, each: int) -> TopK:
    R = len(like)
    tops, sums = like.new_empty(2, R, blocks, dtype=torch.float32)
    values = like.new_empty(R, blocks * each, dtype=torch.float32)
    return TopK(tops, sums, values, torch.empty_like(values, dtype=torch.int32))


def _gather_pieces(pieces: Sequence[RowGather], rows: int) -> Tensor:
    """Concatenate pieces: (R, ·)."""
    out = pieces[0].values.new_empty(rows, sum(piece.values.shape[1] for piece in pieces))
    tensors, sizes = _pack_pieces(pieces)
    kernels.gather_pieces[(rows,)](*tensors, out, **sizes, B=512)
    return out


def _pack_pieces(pieces: Sequence[RowGather]) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the arguments of kernels for up to three pieces: tensors and constants."""
    tensors: list[Tensor] = []
    sizes: dict[str, Any] = {}
    for place in range(3):
        piece = pieces[place] if place < len(pieces) else RowGather(pieces[0].values, None)
        tensors += [piece.values, piece.values if piece.rows is None else piece.rows]
        sizes[f"SIZE_{place}"] = piece.values.shape[1] if place < len(pieces) else 0
        sizes[f"GIVEN_{place}"] = piece.rows is not None
    return tensors, sizes


def _block_width(size: int, lines: int, rows: int) -> int:
    """Return how many numbers of each line a program multiplies at once, limited by its registers."""
    return max(
        16, min(next_power_of_two(size), (MAX_WEIGHT_TILE if rows == 1 else MAX_WEIGHT_TILE // 4) // (lines * rows))
    )
