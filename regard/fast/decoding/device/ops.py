"""Operations of a decoding step on the device: their interface, and the reference implementation in PyTorch.

`number` is the index of a step within its chunk; `state.steps_done` steps came before the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.fast.decoding.device.state import BeamState
from regard.fast.training.packed.ops import TORCH_OPS as TORCH_PACKED_OPS
from regard.fast.training.packed.ops import PackedOps
from regard.fast.training.step_ops import LSTMStep, StepOps
from regard.nn import masked_softmax, prefix_mask
from regard.special_tokens import BOS, EOS, PAD


class TopK(NamedTuple):
    """Most probable tokens of each row, found in blocks of the vocabulary."""

    block_max: Tensor  # (R, blocks), the largest logit of a block
    block_sums: Tensor  # (R, blocks), Σ exp(logit − block_max)
    values: Tensor  # (R, n), logits, −inf for forbidden tokens
    tokens: Tensor  # (R, n)


class RowGather(NamedTuple):
    """A part of the input of a layer: for each row, a row of `values`."""

    values: Tensor  # (·, size)
    rows: Tensor | None  # (R,), or None for its own


class LSTMWeights(NamedTuple):
    """LSTM layer: [W_ih W_hh] and the sum of its biases."""

    weight: Tensor  # (4H, I+H)
    bias: Tensor  # (4H,)


class TokenEmbedding(NamedTuple):
    """Embedding of a Transformer's tokens."""

    words: Tensor  # (V, size)
    scale: float
    positions: Tensor  # (capacity, size)


class SourceMemory(NamedTuple):
    """Memory of recurrent decoders."""

    keys: Tensor  # (A, S, K), projected for the score
    values: Tensor  # (A, S, V)
    lengths: Tensor  # (A,)


class DecodingOps:
    """All operations in PyTorch, with those that training has, too; other implementations override them.

    None synchronizes with the host or has shapes that depend on data, so CUDA graphs can contain them.
    """

    packed: PackedOps = TORCH_PACKED_OPS

    def output_topk(self, h: Tensor, weight: Tensor, state: BeamState, number: int) -> TopK:
        """Return at least as many candidates per row as the beam size, for h (R, size) and weight (V, size)."""
        return self.logits_topk((h @ weight.t()).float(), state, number)

    def logits_topk(self, logits: Tensor, state: BeamState, number: int) -> TopK:
        """Return the candidates of logits (R, V): PAD and BOS are none, EOS not before `min_length`.

        Probabilities are not renormalized for that. Here the vocabulary is one block.
        """
        tops = logits.amax(1, keepdim=True)
        sums = (logits - tops).exp().sum(1, keepdim=True)
        ids, is_early = torch.arange(logits.shape[1], device=logits.device), state.step(number) + 1 < state.options[:1]
        forbidden = (ids == PAD) | (ids == BOS) | ((ids == EOS) & is_early)
        values, tokens = logits.masked_fill(forbidden, -torch.inf).topk(min(state.tokens.shape[1], len(ids)), -1)
        return TopK(tops, sums, values, tokens.int())

    def beam_update(self, state: BeamState, topk: TopK, number: int) -> None:
        """Keep the best candidates of each sentence, as many as have not ended; writes to the state."""
        (A, W), columns = state.tokens.shape, torch.arange(state.tokens.shape[1], device=state.tokens.device)
        top = topk.block_max.amax(1, keepdim=True)
        norm = top + (topk.block_sums * (topk.block_max - top).exp()).sum(1, keepdim=True).log()
        candidates = (state.log_probs.view(-1, 1) + (topk.values - norm)).view(A, -1)
        is_nan = norm.isnan().view(A, W).any(1)
        log_probs, best = candidates.topk(W, -1)
        parents = best // topk.values.shape[1]
        tokens = topk.tokens.long().view(A, -1).gather(1, best)
        log_probs = log_probs.masked_fill(columns >= W - state.num_ended[:, None], -torch.inf)
        log_probs = log_probs.masked_fill(is_nan[:, None], torch.nan)
        self._record_ended(state, log_probs, tokens, is_nan, state.step(number) + 1)
        for column, part in zip(state.steps[number], (log_probs.view(torch.int32), parents, tokens), strict=True):
            column.copy_(part)
        state.log_probs.copy_(log_probs.masked_fill(tokens == EOS, -torch.inf))
        state.tokens.copy_(tokens)
        state.rows.copy_(parents + W * torch.arange(A, device=parents.device)[:, None])

    def _record_ended(self, state: BeamState, log_probs: Tensor, tokens: Tensor, is_nan: Tensor, step: Tensor) -> None:
        """Record hypotheses that end with this step, and the sentences that are done."""
        is_open, is_eos = log_probs > -torch.inf, tokens == EOS
        is_ending, stays_open = is_open & is_eos, is_open & ~is_eos & (step < state.max_lengths[:, None])
        slots = state.num_ended[:, None] + is_ending.cumsum(1) - 1
        writes = is_ending[:, :, None] & (slots[:, :, None] == torch.arange(slots.shape[1], device=slots.device))
        scores = (log_probs.double() / state.length_divisors[step])[:, :, None].masked_fill(~writes, -torch.inf)
        state.scores.copy_(torch.where(writes.any(1), scores.amax(1), state.scores))
        state.num_ended.add_(is_ending.sum(1))
        best_open = log_probs.masked_fill(~stays_open, -torch.inf).amax(1).double()
        lengths, n_best = state.max_lengths.long(), state.options[1:].long()
        upper_bound = torch.maximum(best_open / state.length_divisors[1], best_open / state.length_divisors[lengths])
        nth_score = state.scores.sort(1, descending=True).values.index_select(1, n_best - 1)[:, 0]
        done = (best_open == -torch.inf) | ((state.num_ended >= n_best) & (nth_score >= upper_bound)) | is_nan
        state.done.copy_(torch.where((state.done == 0) & done, step, state.done))

    def embed_and_link(
        self, state: BeamState, number: int, embedding: TokenEmbedding, before: Tensor, after: Tensor
    ) -> Tensor:
        """Embed the newest tokens, and extend the table of rows that wrote earlier keys and values.

        `before` and `after` (R, capacity): for each position the row, within its sentence, that wrote it. `after` is
        `before` of the extended row, and the row itself at its newest position.

        Returns:
            x (R, size).
        """
        (A, W), step = state.tokens.shape, state.step(number)
        is_earlier = torch.arange(before.shape[1], device=before.device) < step
        own = torch.arange(W, device=after.device, dtype=after.dtype).repeat(A)[:, None]
        after.copy_(torch.where(is_earlier, before[state.rows.flatten()], own))
        return embedding.words[state.tokens.flatten()] * embedding.scale + embedding.positions[step]

    def self_attention_step(
        self, qkv: Tensor, cache: Tensor, table: Tensor, state: BeamState, number: int, heads: int
    ) -> Tensor:
        """Attend with the newest tokens over all previous ones, each gathered from the row that wrote it.

        Returns contexts (R, size) of queries, keys and values (R, 3·size). Keys and values go to the cache
        (capacity, R, 2·size).
        """
        (capacity, R, _), W, step = cache.shape, state.tokens.shape[1], state.step(number)
        q, k, v = qkv.chunk(3, 1)
        cache.index_copy_(0, step, torch.cat((k, v), 1)[None])
        positions, first = torch.arange(capacity, device=qkv.device), torch.arange(R, device=qkv.device) // W * W
        is_written = positions <= step
        written = cache[positions, first[:, None] + table.long().where(is_written, 0)]
        written = written.masked_fill(~is_written[:, None], 0)  # memory of later positions may contain NaN
        return _attend_heads(q[:, None], written, is_written.expand(R, capacity), heads)[:, 0]

    def cross_attention(self, q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
        """Return contexts (R, size) of queries (R, size) over keys and values (A, S, 2·size) of given lengths.

        The rows of a sentence share its source.
        """
        A, S, _ = source.shape
        return _attend_heads(q.view(A, -1, q.shape[1]), source, prefix_mask(lengths, S), heads).reshape_as(q)

    def lstm_step(
        self, pieces: Sequence[RowGather], gates: LSTMWeights, c: Tensor, rows: Tensor, after: Tensor, h: Tensor
    ) -> None:
        """Compute `after` = c_t and `h` from the pieces [x; h_{t-1}] and c_{t-1} of the `rows` that were extended."""
        pre = torch.addmm(gates.bias, _concat_pieces(pieces), gates.weight.t())
        StepOps().lstm_gates(LSTMStep(pre, c[rows], after), h, h)

    def luong_attention(self, query: Tensor, source: SourceMemory, v: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the context (R, V) by scores qᵀk, or vᵀ tanh(q + k); optionally write `weights` (R, S)."""
        A, S, _ = source.keys.shape
        q = query.view(A, -1, query.shape[1])
        keys = source.keys
        scores = q @ keys.transpose(1, 2) if v is None else torch.tanh(q[:, :, None] + keys[:, None]) @ v
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        shares = masked_softmax(wide, prefix_mask(source.lengths, S)[:, None])
        if weights is not None:
            weights.copy_(shares.flatten(0, 1))
        return (shares.to(source.values.dtype) @ source.values).flatten(0, 1)

    def attentional_state(self, pieces: Sequence[RowGather], weight: Tensor, out: Tensor) -> None:
        """Compute `out` = h̃ (R, F) = tanh(W_c [c; h]) with weight W_c (F, I)."""
        out.copy_(torch.tanh(_concat_pieces(pieces) @ weight.t()))


TORCH_OPS = DecodingOps()


def _attend_heads(q: Tensor, kv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k) V of each head: q (B, T, size) over kv (B, S, 2·size) with a mask (B, S)."""
    v = _split_heads(kv.chunk(2, -1)[1], heads)
    return (attention_weights(q, kv, mask, heads).to(v.dtype) @ v).transpose(1, 2).flatten(2)


def attention_weights(q: Tensor, kv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return the weights (B, heads, T, S), at least fp32."""
    scores = _split_heads(q, heads) @ _split_heads(kv.chunk(2, -1)[0], heads).transpose(2, 3)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return masked_softmax(wide * (q.shape[-1] // heads) ** -0.5, mask[:, None, None])


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (B, T, size) to (B, heads, T, size/heads)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _concat_pieces(pieces: Sequence[RowGather]) -> Tensor:
    return torch.cat([values if rows is None else values[rows] for values, rows in pieces], 1)
