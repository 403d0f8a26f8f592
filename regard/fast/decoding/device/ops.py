"""Operations of a decoding step on the device: their interface, and the reference implementation in PyTorch.

`number` is the index of a step within its chunk; `state.taken` steps came before the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.fast.decoding.device.state import BeamState
from regard.fast.training.packed.ops import TORCH_OPS as TORCH_PACKED_OPS
from regard.fast.training.packed.ops import PackedOps
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


class SourceMemory(NamedTuple):
    """Memory of recurrent decoders."""

    keys: Tensor  # (A, S, K), projected for the score
    values: Tensor  # (A, S, V)
    lengths: Tensor  # (A,)


class OutputTopK(Protocol):
    """Output layer and top-k."""

    def __call__(self, h: Tensor, weight: Tensor, state: BeamState, number: int) -> TopK:
        """Return at least as many candidates per row as the beam size, for h (R, size) and weight (V, size)."""
        ...


class BeamUpdate(Protocol):
    """Choice of continued and ended hypotheses; writes to the state."""

    def __call__(self, state: BeamState, topk: TopK, number: int) -> None:
        """PAD and BOS are never chosen, EOS not before `min_length`; probabilities are not renormalized for that."""
        ...


class EmbedAndLink(Protocol):
    """Embedding of the newest tokens, and the table of rows that wrote earlier keys and values."""

    def __call__(
        self,
        state: BeamState,
        number: int,
        words: Tensor,
        scale: float,
        places: Tensor,
        before: Tensor,
        after: Tensor,
    ) -> Tensor:
        """Return x (R, size) of words (V, size) and positions (capacity, size).

        `before` and `after` (R, capacity): for each position the row, within its sentence, that wrote it. `after` is
        `before` of the extended row, and the row itself at its newest position.
        """
        ...


class SelfAttentionStep(Protocol):
    """Self-attention of the newest tokens over all previous ones."""

    def __call__(self, qkv: Tensor, cache: Tensor, table: Tensor, state: BeamState, number: int, heads: int) -> Tensor:
        """Return contexts (R, size) of queries, keys and values (R, 3·size).

        Keys and values go to the cache (capacity, R, 2·size).
        """
        ...


class CrossAttention(Protocol):
    """Attention over the source, which the rows of a sentence share."""

    def __call__(self, q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
        """Return contexts (R, size) of queries (R, size) over keys and values (A, S, 2·size) of given lengths."""
        ...


class LSTMStep(Protocol):
    """One step of an LSTM layer."""

    def __call__(
        self, pieces: Sequence[RowGather], gates: LSTMWeights, c: Tensor, rows: Tensor, after: Tensor, h: Tensor
    ) -> None:
        """Compute `after` = c_t and `h` from the pieces [x; h_{t-1}] and c_{t-1} of the `rows` that were extended."""
        ...


class LuongAttention(Protocol):
    """Attention of a recurrent decoder over the source."""

    def __call__(self, query: Tensor, source: SourceMemory, v: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the context (R, V) by scores qᵀk, or vᵀ tanh(q + k); optionally write `weights` (R, S)."""
        ...


class AttentionalState(Protocol):
    """h̃ = tanh(W_c [c; h])."""

    def __call__(self, pieces: Sequence[RowGather], weight: Tensor, out: Tensor) -> None:
        """Compute `out` (R, F) with weight (F, I)."""
        ...


class DecodingOps(NamedTuple):
    """An implementation of all operations, with those that training has, too."""

    packed: PackedOps
    output_topk: OutputTopK
    beam_update: BeamUpdate
    embed_and_link: EmbedAndLink
    self_attention_step: SelfAttentionStep
    cross_attention: CrossAttention
    lstm_step: LSTMStep
    luong_attention: LuongAttention
    attentional_state: AttentionalState


def output_topk(h: Tensor, weight: Tensor, state: BeamState, number: int) -> TopK:
    """Treat the vocabulary as one block."""
    return logits_topk((h @ weight.t()).float(), state, number)


def logits_topk(logits: Tensor, state: BeamState, number: int) -> TopK:
    """Return the candidates of logits (R, V)."""
    tops = logits.amax(1, keepdim=True)
    sums = (logits - tops).exp().sum(1, keepdim=True)
    forbid_eos = int(state.steps_done) + number + 1 < int(state.options[0])
    forbidden = torch.tensor([PAD, BOS, EOS] if forbid_eos else [PAD, BOS], device=logits.device)
    allowed = logits.index_fill(1, forbidden, -torch.inf)
    values, tokens = allowed.topk(min(state.tokens.shape[1], logits.shape[1]), -1)
    return TopK(tops, sums, values, tokens.int())


def beam_update(state: BeamState, topk: TopK, number: int) -> None:
    """Keep the best candidates of each sentence, as many as have not ended."""
    (A, W), step = state.tokens.shape, int(state.steps_done) + number + 1
    top = topk.block_max.amax(1, keepdim=True)
    norm = top + (topk.block_sums * (topk.block_max - top).exp()).sum(1, keepdim=True).log()
    candidates = (state.log_probs.view(-1, 1) + (topk.values - norm)).view(A, -1)
    is_nan = norm.isnan().view(A, W).any(1)
    log_probs, best = candidates.topk(W, -1)
    parents = best // topk.values.shape[1]
    tokens = topk.tokens.long().view(A, -1).gather(1, best)
    columns = torch.arange(W, device=best.device)
    log_probs = log_probs.masked_fill(columns >= W - state.num_ended[:, None], -torch.inf)
    log_probs = log_probs.masked_fill(is_nan[:, None], torch.nan)
    _record_ended(state, log_probs, tokens, is_nan, step)
    for column, part in zip(state.steps[number], (log_probs.view(torch.int32), parents, tokens), strict=True):
        column.copy_(part)
    state.log_probs.copy_(log_probs.masked_fill(tokens == EOS, -torch.inf))
    state.tokens.copy_(tokens)
    state.rows.copy_(parents + W * torch.arange(A, device=parents.device)[:, None])


def _record_ended(state: BeamState, log_probs: Tensor, tokens: Tensor, is_nan: Tensor, step: int) -> None:
    """Record hypotheses that end with this step, and the sentences that are done."""
    is_open, is_eos = log_probs > -torch.inf, tokens == EOS
    is_ending, stays_open = is_open & is_eos, is_open & ~is_eos & (step < state.max_lengths[:, None])
    slots = state.num_ended[:, None] + is_ending.cumsum(1) - 1
    for column in range(tokens.shape[1]):
        here = is_ending[:, column].nonzero()[:, 0]
        state.scores[here, slots[here, column]] = log_probs[here, column].double() / state.length_divisors[step]
    state.num_ended.add_(is_ending.sum(1))
    best_open = log_probs.masked_fill(~stays_open, -torch.inf).amax(1).double()
    n_best, limits = int(state.options[1]), state.max_lengths.long()
    upper_bound = torch.maximum(best_open / state.length_divisors[1], best_open / state.length_divisors[limits])
    has_enough = (state.num_ended >= n_best) & (
        state.scores.sort(1, descending=True).values[:, n_best - 1] >= upper_bound
    )
    done = (best_open == -torch.inf) | has_enough | is_nan
    state.done.copy_(torch.where((state.done == 0) & done, step, state.done))


def embed_and_link(
    state: BeamState, number: int, words: Tensor, scale: float, places: Tensor, before: Tensor, after: Tensor
) -> Tensor:
    """Embed the newest tokens, and extend the table."""
    step, (A, W) = int(state.steps_done) + number, state.tokens.shape
    after[:, :step] = before[state.rows.flatten(), :step]
    after[:, step] = torch.arange(W, device=after.device).repeat(A)
    return words[state.tokens.flatten()] * scale + places[step]


def self_attention_step(qkv: Tensor, cache: Tensor, table: Tensor, state: BeamState, number: int, heads: int) -> Tensor:
    """Gather keys and values, each from the row that wrote it."""
    step, W, (_, R, _) = int(state.steps_done) + number, state.tokens.shape[1], cache.shape
    q, k, v = qkv.chunk(3, 1)
    cache[step] = torch.cat((k, v), 1)
    first = torch.arange(R, device=qkv.device) // W * W
    written = cache[torch.arange(step + 1, device=qkv.device), first[:, None] + table[:, : step + 1].long()]
    return _attend_heads(q[:, None], written, torch.ones_like(written[..., 0], dtype=torch.bool), heads)[:, 0]


def cross_attention(q: Tensor, source: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Attend with the rows of a sentence together."""
    A, S, _ = source.shape
    return _attend_heads(q.view(A, -1, q.shape[1]), source, prefix_mask(lengths, S), heads).reshape_as(q)


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


def lstm_step(
    pieces: Sequence[RowGather], gates: LSTMWeights, c: Tensor, rows: Tensor, after: Tensor, h: Tensor
) -> None:
    """Compute all gates by one product."""
    pre = torch.addmm(gates.bias, _concat_pieces(pieces), gates.weight.t())
    i, f, g, o = pre.to(c.dtype).chunk(4, 1)
    after.copy_(torch.sigmoid(f) * c[rows] + torch.sigmoid(i) * torch.tanh(g))
    h.copy_(torch.sigmoid(o) * torch.tanh(after))


def luong_attention(query: Tensor, source: SourceMemory, v: Tensor | None, weights: Tensor | None) -> Tensor:
    """Attend with the rows of a sentence together."""
    A, S, _ = source.keys.shape
    q = query.view(A, -1, query.shape[1])
    keys = source.keys
    scores = q @ keys.transpose(1, 2) if v is None else torch.tanh(q[:, :, None] + keys[:, None]) @ v
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    found = masked_softmax(wide, prefix_mask(source.lengths, S)[:, None])
    if weights is not None:
        weights.copy_(found.flatten(0, 1))
    return (found.to(source.values.dtype) @ source.values).flatten(0, 1)


def attentional_state(pieces: Sequence[RowGather], weight: Tensor, out: Tensor) -> None:
    """Compute the product, then tanh."""
    out.copy_(torch.tanh(_concat_pieces(pieces) @ weight.t()))


def _concat_pieces(pieces: Sequence[RowGather]) -> Tensor:
    return torch.cat([values if rows is None else values[rows] for values, rows in pieces], 1)


TORCH_OPS = DecodingOps(
    TORCH_PACKED_OPS,
    output_topk,
    beam_update,
    embed_and_link,
    self_attention_step,
    cross_attention,
    lstm_step,
    luong_attention,
    attentional_state,
)
