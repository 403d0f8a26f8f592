"""KV cache of a Transformer decoder on a CPU that beam reordering does not move.

Hypotheses attend over the keys of all hypotheses of their source, and a table says which of them are their own; the
others are masked. Reordering a beam changes the table only, keys and values stay where they are, and the queries of a
beam share one matrix product, as in cross-attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.eligibility import TRANSFORMER_MODULES, has_hooks_or_overrides, is_cpu_model
from regard.fast.gemm import batched_matmul
from regard.models.base import Decoder, Encoded, log_probs
from regard.models.vaswani2017 import TransformerDecoder
from regard.nn import Attended, MultiHeadAttention

MIN_FREE_POSITIONS = 16  # free positions after growing, at least


class BeamKVCache:
    """Keys and values of all positions, with one slot per hypothesis of a source.

    States share a cache; continuing from a state that is not the newest one copies it.
    """

    def __init__(self, keys: Tensor, values: Tensor, used: int) -> None:
        self.keys = keys  # (layers, groups, heads, d_k, positions, slots): fastest for products with few queries
        self.values = values  # (layers, groups, heads, positions, slots, d_k)
        self.length = used  # positions written so far

    @property
    def groups(self) -> int:
        """Number of groups: sources, or single rows."""
        return self.keys.shape[1]

    @property
    def slots(self) -> int:
        """Rows per group."""
        return self.keys.shape[5]

    def ensure_free(self, size: int) -> BeamKVCache:
        """Return a cache with free positions after `size`: this one, unless it is full or has newer positions."""
        return self if self.length == size < self.keys.shape[4] else self.resize(size, size)

    def resize(self, size: int, num_kept: int) -> BeamKVCache:
        """Return a cache of `num_kept` positions, with free ones behind.

        The last of them are the last of the first `size` positions of this one; those before are padding, which is
        masked.
        """
        count, num_free = min(size, num_kept), max(MIN_FREE_POSITIONS, num_kept // 2)

        def lay_out(x: Tensor, dim: int) -> Tensor:
            inner_dims = [0, 0] * (x.dim() - dim - 1)
            return F.pad(x.narrow(dim, size - count, count), [*inner_dims, num_kept - count, num_free])

        return BeamKVCache(lay_out(self.keys, 4), lay_out(self.values, 3), num_kept)

    def append(self, layer: int, position: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of a step (groups, heads, slots, d_k), and return all so far.

        Returns:
            keys (groups, heads, d_k, n) and values (groups, heads, n, d_k).
        """
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, :, position] = keys.transpose(2, 3)
        all_values[:, :, position] = values
        self.length = position + 1
        return all_keys[:, :, :, : self.length].flatten(3), all_values[:, :, : self.length].flatten(2, 3)

    def select_groups(self, groups: Tensor) -> BeamKVCache:
        """Return a cache with some of the groups."""
        return BeamKVCache(self.keys.index_select(1, groups), self.values.index_select(1, groups), self.length)

    def expand_beam(self, width: int) -> BeamKVCache:
        """Repeat every row `width` times, each in a slot of its own."""
        return BeamKVCache(self.keys.repeat_interleave(width, 5), self.values.repeat_interleave(width, 4), self.length)

    def repeat(self, times: int) -> BeamKVCache:
        """Repeat every group."""
        return BeamKVCache(self.keys.repeat_interleave(times, 1), self.values.repeat_interleave(times, 1), self.length)


MAX_SHARED_BEAM = 16  # larger beams have one group per row


def make_cached_decoder(decoder: Decoder) -> Decoder | KVCachedDecoder:
    """Return a decoder with a KV cache for an unmodified Transformer on a CPU in one dtype, else the decoder itself."""
    if type(decoder) is not TransformerDecoder:
        return decoder
    modules, weights = list(decoder.layers.modules()), list(decoder.parameters())
    is_supported = (
        {type(module) for module in modules} <= TRANSFORMER_MODULES
        and len({(weight.dtype, weight.device) for weight in weights}) == 1
        and is_cpu_model(weights)
        and not has_hooks_or_overrides(decoder, *modules)
    )
    return KVCachedDecoder(decoder) if is_supported else decoder


class KVState(NamedTuple):
    """State between two steps, of B rows, which are hypotheses of A sources."""

    keys: Tensor  # (layers, A, heads, d_k, S), of the sources
    values: Tensor  # (layers, A, heads, S, d_k)
    mask: Tensor  # (A, S)
    cache: BeamKVCache  # of the previous target positions
    table: Tensor  # (B, t), the slot of each previous position, −1 for padding
    step: int | Tensor  # number of previous positions, of all rows or (B,)

    def is_grouped(self) -> bool:
        """Return whether the rows of a source are one group of the cache; otherwise each row is a group."""
        return self.cache.groups == len(self.mask)


class KVCachedDecoder:
    """The steps of `TransformerDecoder` with a KV cache."""

    supports_shared_memory = True

    def __init__(self, decoder: TransformerDecoder) -> None:
        self.decoder = decoder
        self.layers = decoder.decoder_layers()

    def start(self, encoded: Encoded) -> KVState:
        """Project the memory once for each layer."""
        memory = encoded.memory
        rows, size = memory.mask.shape
        both = torch.stack([layer.cross_attention.project(memory.keys, memory.values) for layer in self.layers])
        heads = both.view(len(both), rows, size, 2, self.layers[0].cross_attention.heads, -1)
        keys, values = heads[:, :, :, 0].permute(0, 1, 3, 4, 2), heads[:, :, :, 1].permute(0, 1, 3, 2, 4)
        cache = BeamKVCache(keys[..., :0, None], values[..., :0, None, :], 0)
        nothing = torch.empty(rows, 0, dtype=torch.long)
        return KVState(keys.contiguous(), values.contiguous(), memory.mask, cache, nothing, 0)

    def step(self, state: KVState, tokens: Tensor) -> tuple[Tensor, KVState, Attended]:
        """Take one step: tokens (B,) -> log-probabilities (B, V)."""
        position, state = state.table.shape[1], self._append_slot(state)
        cache, (word_mask, source_mask), has_source = state.cache, self._masks(state), state.mask.any(1)

        def attend_past(index: int, projected: Tensor) -> Tensor:
            q, k, v = self._split_heads(projected, 3, cache.groups)
            return _attend(q, *cache.append(index, position, k, v), word_mask)[0]

        def attend_source(index: int, projected: Tensor) -> tuple[Tensor, Tensor]:
            [q] = self._split_heads(projected, 1, len(state.mask))
            return _attend(q, state.keys[index], state.values[index], source_mask)

        found, attended = run_decoder_layers(
            self.decoder, tokens, state.step, None if has_source.all() else has_source, attend_past, attend_source
        )
        return found, state._replace(step=state.step + 1), attended

    def _split_heads(self, projected: Tensor, parts: int, groups: int) -> Tensor:
        return split_heads(projected, parts, groups, self.layers[0].attention.heads)

    def _append_slot(self, state: KVState) -> KVState:
        """Make room for the next position, which each row writes to its own slot."""
        position = state.table.shape[1]
        cache = state.cache.ensure_free(position)
        own = torch.arange(cache.slots).repeat(cache.groups)
        return state._replace(cache=cache, table=torch.cat((state.table, own[:, None]), 1))

    def _masks(self, state: KVState) -> tuple[Tensor | None, Tensor]:
        """Return the additive masks of previous positions (or None) and of sources."""
        slots, dtype = state.cache.slots, state.keys.dtype
        source_mask = additive_mask(state.mask[:, None, None], dtype)
        if slots == 1 and isinstance(state.step, int):
            return None, source_mask
        own = state.table[..., None] == torch.arange(slots)  # (B, t, slots)
        return additive_mask(own.view(state.cache.groups, 1, slots, -1), dtype), source_mask

    def select(self, state: KVState, rows: Tensor) -> KVState:
        """Select rows of a state without beams."""
        return self.keep_rows(state, rows, rows)

    def expand_beams(self, state: KVState, width: int) -> KVState:
        """Repeat each row; the copies share a group of the cache unless they are too many."""
        is_grouped = state.is_grouped() and (width <= MAX_SHARED_BEAM or state.cache.slots > 1)
        cache = state.cache.expand_beam(width) if is_grouped else state.cache.repeat(width)
        table = state.table * (width if is_grouped else 1)
        table = table.clamp(min=-1).repeat_interleave(width, 0)
        step = state.step if isinstance(state.step, int) else state.step.repeat_interleave(width)
        return state._replace(cache=cache, table=table, step=step)

    def reorder_beams(self, state: KVState, rows: Tensor) -> KVState:
        """Reorder rows within their sources; only ungrouped rows move in the cache."""
        if state.is_grouped():
            return _select_rows(state, rows)
        is_identity = torch.equal(rows, torch.arange(len(rows)))
        return state if is_identity else _select_rows(state._replace(cache=state.cache.select_groups(rows)), rows)

    def keep_rows(self, state: KVState, rows: Tensor, sources: Tensor) -> KVState:
        """Keep some rows, and the given sources."""
        cache = state.cache.select_groups(sources if state.is_grouped() else rows)
        keys, values = state.keys.index_select(1, sources), state.values.index_select(1, sources)
        new_state = KVState(keys, values, state.mask.index_select(0, sources), cache, state.table, state.step)
        return _select_rows(new_state, rows)

    def concat_states(self, first: KVState, second: KVState) -> KVState:
        """Concatenate two states: padding goes behind shorter sources, and before shorter targets."""
        both = (first, second)
        size, num_kept = (
            max(sizes) for sizes in zip(*((s.mask.shape[1], s.table.shape[1]) for s in both), strict=True)
        )
        num_free = [size - state.mask.shape[1] for state in both]
        caches = [state.cache.resize(state.table.shape[1], num_kept) for state in both]
        pairs = list(zip(both, num_free, strict=True))
        return KVState(
            torch.cat([F.pad(state.keys, (0, pad)) for state, pad in pairs], 1),
            torch.cat([F.pad(state.values, (0, 0, 0, pad)) for state, pad in pairs], 1),
            torch.cat([F.pad(state.mask, (0, pad)) for state, pad in pairs]),
            BeamKVCache(
                torch.cat([one.keys for one in caches], 1), torch.cat([one.values for one in caches], 1), num_kept
            ),
            torch.cat([F.pad(state.table, (num_kept - state.table.shape[1], 0), value=-1) for state in both]),
            torch.cat([torch.as_tensor(state.step).expand(len(state.table)) for state in both]),
        )

    def trim_padding(self, state: KVState, source: int, target: int) -> KVState:
        """Trim the padding behind sources and before targets."""
        keys, values, mask = state.keys[..., :source], state.values[..., :source, :], state.mask[:, :source]
        size, cache, table = state.table.shape[1], state.cache, state.table
        if target < size:
            cache, table = cache.resize(size, target), table[:, size - target :]
        return KVState(keys, values, mask, cache, table, state.step)


def run_decoder_layers(
    decoder: TransformerDecoder,
    tokens: Tensor,
    step: int | Tensor,
    has_source: Tensor | None,
    attend_past: Callable[[int, Tensor], Tensor],
    attend_source: Callable[[int, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Attended]:
    """Feed tokens (B,) at position `step` to a decoder: log-probabilities (B, V) and the attention of its head.

    Args:
        has_source: (A,), False for empty sources, whose contexts and weights are zero; None: there is none.
        attend_past: returns contexts (B, size), given a layer's index and queries, keys and values (B, 3·size).
        attend_source: returns contexts (B, size) and weights (A, heads, T, S), given queries (B, size).
    """
    x = decoder.embedding(tokens[:, None], step)[:, 0]
    attended = []
    for index, layer in enumerate(decoder.decoder_layers()):
        projected = _project(layer.attention, layer.around_attention.sublayer_input(x), 3)
        x = layer.around_attention.add_residual(x, layer.attention.out_proj(attend_past(index, projected)))
        projected = _project(layer.cross_attention, layer.around_cross_attention.sublayer_input(x), 1)
        context, weights = attend_source(index, projected)
        context = layer.cross_attention.out_proj(context)
        if has_source is not None:
            context = (context.view(has_source.shape[0], -1, x.shape[1]) * has_source[:, None, None]).view(x.shape)
            weights = weights * has_source[:, None, None, None]
        attended.append((context, weights))
        x = layer.around_cross_attention.add_residual(x, context)
        x = layer.around_feedforward.add_residual(x, layer.feedforward(layer.around_feedforward.sublayer_input(x)))
    (context, weights), head = attended[decoder.alignment_head.layer], decoder.alignment_head.head
    alignment = (weights.mean(1) if head is None else weights[:, head]).reshape(x.shape[0], 1, -1)
    return log_probs(decoder.output(decoder.norm(x))), Attended(context[:, None], alignment)


def _project(attention: MultiHeadAttention, x: Tensor, parts: int) -> Tensor:
    """Project x (B, size) to the first of queries, keys and values: (B, parts·size)."""
    rows = parts * attention.size
    return F.linear(x, attention.in_proj_weight[:rows], attention.in_proj_bias[:rows])


def split_heads(projected: Tensor, parts: int, groups: int, heads: int) -> Tensor:
    """Split projections (B, parts·size) of the rows of some groups: (parts, groups, heads, B/groups, d_k)."""
    size = projected.shape[1] // parts // heads
    return projected.view(groups, -1, parts, heads, size).permute(2, 0, 3, 1, 4)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend with queries (A, heads, T, d_k) over keys (A, heads, d_k, S) and values (A, heads, S, d_k).

    Returns:
        contexts (A·T, size) and weights (A, heads, T, S).
    """
    A, heads, T, d_k = q.shape
    scores = batched_matmul(q.flatten(0, 1), keys.flatten(0, 1)).mul_(1 / math.sqrt(d_k)).view(A, heads, T, -1)
    weights = (scores if mask is None else scores.add_(mask)).softmax(-1)
    values_found = batched_matmul(weights.flatten(0, 1), values.flatten(0, 1)).view(A, heads, T, d_k)
    return values_found.transpose(1, 2).reshape(A * T, -1), weights


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a mask is True, and the lowest number elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def _select_rows(state: KVState, rows: Tensor) -> KVState:
    step = state.step if isinstance(state.step, int) else state.step.index_select(0, rows)
    return state._replace(table=state.table.index_select(0, rows), step=step)
