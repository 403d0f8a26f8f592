"""KV cache of a Transformer decoder on a CPU that beam reordering does not move.

Hypotheses attend over the keys of all hypotheses of their source, and a table says which of them are their own; the
others are masked. Reordering a beam changes the table only, keys and values stay where they are, and the queries of a
beam share one matrix product, as in cross-attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.eligibility import KNOWN, heard
from regard.fast.gemm import products
from regard.models.base import Decoder, Encoded, log_probs
from regard.models.vaswani2017 import TransformerDecoder
from regard.nn import Attended, MultiHeadAttention

CHUNK = 16  # positions that a room grows by, at the least


class Room:
    """A place for every position and, at each, a slot for every row of a group, which are hypotheses of one source.

    States share a room; whoever goes on from a state that is not the newest in it gets a copy.
    """

    def __init__(self, keys: Tensor, values: Tensor, used: int) -> None:
        self.keys = keys  # layers,groups,heads,d_k,positions,slots: products with few queries are fastest so
        self.values = values  # layers,groups,heads,positions,slots,d_k
        self.used = used  # positions that are written

    @property
    def groups(self) -> int:
        """How many there are."""
        return self.keys.shape[1]

    @property
    def slots(self) -> int:
        """Rows of a group."""
        return self.keys.shape[5]

    def after(self, size: int) -> Room:
        """With `size` positions and free ones behind them: this one, unless it is full, or written to by others."""
        return self if self.used == size < self.keys.shape[4] else placed([(self, size)], size)

    def write(self, layer: int, place: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Takes those of a step in, groups,heads,slots,d_k; all so far, groups,heads,d_k,n and groups,heads,n,d_k."""
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, :, place] = keys.transpose(2, 3)
        all_values[:, :, place] = values
        self.used = place + 1
        return all_keys[:, :, :, : self.used].flatten(3), all_values[:, :, : self.used].flatten(2, 3)

    def select(self, groups: Tensor) -> Room:
        """Some of the groups."""
        return Room(self.keys.index_select(1, groups), self.values.index_select(1, groups), self.used)

    def widen(self, width: int) -> Room:
        """Every row so many times, each in a slot of its own."""
        return Room(self.keys.repeat_interleave(width, 5), self.values.repeat_interleave(width, 4), self.used)

    def repeat(self, times: int) -> Room:
        """Every group so many times."""
        return Room(self.keys.repeat_interleave(times, 1), self.values.repeat_interleave(times, 1), self.used)


def placed(rooms: Sequence[tuple[Room, int]], last: int) -> Room:
    """The groups of some rooms in one, with free positions.

    Of each room the last of so many positions become the last of as many as are wanted, behind padding if need be.
    """
    more = max(CHUNK, last // 2)
    keys = laid([(room.keys, size) for room, size in rooms], 4, last, last + more)
    values = laid([(room.values, size) for room, size in rooms], 3, last, last + more)
    return Room(keys, values, last)


def laid(parts: Sequence[tuple[Tensor, int]], dim: int, last: int, whole: int) -> Tensor:
    """Tensors behind each other, of each the last of so many entries along `dim` in front of `last`."""
    shape, first = list(parts[0][0].shape), 0
    shape[1], shape[dim] = sum(part.shape[1] for part, _ in parts), whole
    out = parts[0][0].new_empty(shape)
    for part, size in parts:
        own, both = out.narrow(1, first, part.shape[1]), min(size, last)
        own.narrow(dim, 0, last - both).zero_()  # is read, though masked, and must be numbers
        own.narrow(dim, last - both, both).copy_(part.narrow(dim, size - both, both))
        first += part.shape[1]
    return out


WIDEST = 16  # hypotheses that look at each other's words; of more, each has a room of its own


def cached(decoder: Decoder) -> Decoder | CachedDecoder:
    """The faster one of a decoder that is known here; any other is its own."""
    return CachedDecoder(decoder) if isinstance(decoder, TransformerDecoder) and covers(decoder) else decoder


def covers(decoder: TransformerDecoder) -> bool:
    """Whether this is the readable decoder, not one that somebody made of it, with its weights here, on a CPU."""
    inside, weights = list(decoder.layers.modules()), list(decoder.parameters())
    known = type(decoder) is TransformerDecoder and {type(part) for part in inside} <= KNOWN
    here = all(type(weight) is nn.Parameter and weight.device.type == "cpu" for weight in weights)
    whole = {weight.dtype for weight in weights} in ({torch.float32}, {torch.float64})
    return known and not heard(decoder, *inside) and here and whole and not torch.is_autocast_enabled("cpu")


class CachedState(NamedTuple):
    """Between two steps, of B rows, which are hypotheses of A sources."""

    keys: Tensor  # layers,A,heads,d_k,S; those of the sources …
    values: Tensor  # layers,A,heads,S,d_k
    mask: Tensor  # A,S
    room: Room  # … and of the words so far
    table: Tensor  # B,t; the slot of each word so far, −1 where a row has fewer
    step: int | Tensor  # how many they are, in all rows or B in each

    def shared(self) -> bool:
        """Whether the rows of a source are a group in the room; otherwise each row is one."""
        return self.room.groups == len(self.mask)


class CachedDecoder:
    """Gives what the readable decoder gives, from states of its own."""

    supports_shared_memory = True

    def __init__(self, decoder: TransformerDecoder) -> None:
        self.decoder = decoder
        self.layers = decoder.decoder_layers()

    def start(self, encoded: Encoded) -> CachedState:
        """Projects the memory once for each layer."""
        memory = encoded.memory
        rows, size = memory.mask.shape
        both = torch.stack([layer.cross_attention.project(memory.keys, memory.values) for layer in self.layers])
        heads = both.view(len(both), rows, size, 2, self.layers[0].cross_attention.heads, -1)
        keys, values = heads[:, :, :, 0].permute(0, 1, 3, 4, 2), heads[:, :, :, 1].permute(0, 1, 3, 2, 4)
        room = Room(keys[..., :0, None], values[..., :0, None, :], 0)
        nothing = torch.empty(rows, 0, dtype=torch.long)
        return CachedState(keys.contiguous(), values.contiguous(), memory.mask, room, nothing, 0)

    def step(self, state: CachedState, tokens: Tensor) -> tuple[Tensor, CachedState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        decoder, place, state = self.decoder, state.table.shape[1], self.opened(state)
        room = state.room
        words, there = self.masks(state)
        sighted = state.mask.any(1)
        blind = None if sighted.all() else ~sighted
        x = decoder.embedding(tokens[:, None], state.step)[:, 0]
        looks = []
        for number, layer in enumerate(self.layers):
            q, k, v = heads_of(layer.attention, layer.around_attention.sublayer_input(x), 3, room.groups)
            found, _ = attend(q, *room.write(number, place, k, v), words)
            x = layer.around_attention.add_residual(x, layer.attention.out_proj(found))
            [q] = heads_of(layer.cross_attention, layer.around_cross_attention.sublayer_input(x), 1, len(state.mask))
            found, weights = attend(q, state.keys[number], state.values[number], there)
            looks.append(seen(layer.cross_attention.out_proj(found), weights, blind))
            x = layer.around_cross_attention.add_residual(x, looks[-1].context)
            x = layer.around_feedforward.add_residual(x, layer.feedforward(layer.around_feedforward.sublayer_input(x)))
        context, weights, *_ = looks[decoder.alignment_head.layer]
        head = decoder.alignment_head.head
        look = (weights.mean(1) if head is None else weights[:, head]).reshape(len(tokens), 1, -1)
        after = state._replace(step=state.step + 1)
        return log_probs(decoder.output(decoder.norm(x))), after, Attended(context[:, None], look)

    def opened(self, state: CachedState) -> CachedState:
        """With room for the next words, each in the slot of its row."""
        place = state.table.shape[1]
        room = state.room.after(place)
        own = torch.arange(room.slots).repeat(room.groups)
        return state._replace(room=room, table=torch.cat((state.table, own[:, None]), 1))

    def masks(self, state: CachedState) -> tuple[Tensor | None, Tensor]:
        """What is added to scores of words so far, if anything need be, and of sources."""
        slots, dtype = state.room.slots, state.keys.dtype
        there = added(state.mask[:, None, None], dtype)
        if slots == 1 and isinstance(state.step, int):
            return None, there
        own = state.table[..., None] == torch.arange(slots)  # B,t,slots
        return added(own.view(state.room.groups, 1, slots, -1), dtype), there

    def select(self, state: CachedState, rows: Tensor) -> CachedState:
        """Rows of a state that was not widened."""
        return self.keep_rows(state, rows, rows)

    def expand_beams(self, state: CachedState, width: int) -> CachedState:
        """Each row so many times, beside each other in the room if they are not too many."""
        beside = state.shared() and (width <= WIDEST or state.room.slots > 1)
        room = state.room.widen(width) if beside else state.room.repeat(width)
        table = state.table * (width if beside else 1)
        table = table.clamp(min=-1).repeat_interleave(width, 0)
        step = state.step if isinstance(state.step, int) else state.step.repeat_interleave(width)
        return state._replace(room=room, table=table, step=step)

    def reorder_beams(self, state: CachedState, rows: Tensor) -> CachedState:
        """The rows of each source among themselves: only those that do not lie beside each other move."""
        if state.shared():
            return followed(state, rows)
        stay = torch.equal(rows, torch.arange(len(rows)))
        return state if stay else followed(state._replace(room=state.room.select(rows)), rows)

    def keep_rows(self, state: CachedState, rows: Tensor, sources: Tensor) -> CachedState:
        """Some rows, of the sources that are left."""
        room = state.room.select(sources if state.shared() else rows)
        keys, values = state.keys.index_select(1, sources), state.values.index_select(1, sources)
        left = CachedState(keys, values, state.mask.index_select(0, sources), room, state.table, state.step)
        return followed(left, rows)

    def concat_states(self, first: CachedState, second: CachedState) -> CachedState:
        """Padding goes behind the shorter sources, and before the words of rows that have written less."""
        both = (first, second)
        size, last = (max(sizes) for sizes in zip(*((s.mask.shape[1], s.table.shape[1]) for s in both), strict=True))
        more = [size - state.mask.shape[1] for state in both]
        pairs = list(zip(both, more, strict=True))
        return CachedState(
            torch.cat([F.pad(state.keys, (0, pad)) for state, pad in pairs], 1),
            torch.cat([F.pad(state.values, (0, 0, 0, pad)) for state, pad in pairs], 1),
            torch.cat([F.pad(state.mask, (0, pad)) for state, pad in pairs]),
            placed([(state.room, state.table.shape[1]) for state in both], last),
            torch.cat([F.pad(state.table, (last - state.table.shape[1], 0), value=-1) for state in both]),
            torch.cat([torch.as_tensor(state.step).expand(len(state.table)) for state in both]),
        )

    def trim_padding(self, state: CachedState, source: int, target: int) -> CachedState:
        """Cuts the padding behind sources, and before the words so far."""
        keys, values, mask = state.keys[..., :source], state.values[..., :source, :], state.mask[:, :source]
        size, room, table = state.table.shape[1], state.room, state.table
        if target < size:
            room, table = placed([(room, size)], target), table[:, size - target :]
        return CachedState(keys, values, mask, room, table, state.step)


def heads_of(attention: MultiHeadAttention, x: Tensor, parts: int, groups: int) -> Tensor:
    """The first of queries, keys and values of x B,size: parts,groups,heads,B/groups,d_k."""
    size = parts * attention.size
    projected = F.linear(x, attention.in_proj_weight[:size], attention.in_proj_bias[:size])
    return projected.view(groups, -1, parts, attention.heads, attention.size // attention.heads).permute(2, 0, 3, 1, 4)


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries A,heads,T,d_k over keys A,heads,d_k,S and values A,heads,S,d_k: what they find A·T,size, and weights."""
    A, heads, T, d_k = q.shape
    scores = products(q.flatten(0, 1), keys.flatten(0, 1)).mul_(1 / math.sqrt(d_k)).view(A, heads, T, -1)
    weights = (scores if mask is None else scores.add_(mask)).softmax(-1)
    found = products(weights.flatten(0, 1), values.flatten(0, 1)).view(A, heads, T, d_k)
    return found.transpose(1, 2).reshape(A * T, -1), weights


def seen(context: Tensor, weights: Tensor, blind: Tensor | None) -> Attended:
    """What was found B,size by weights A,heads,·,S; of sources without a word, if there are such A, it is nothing."""
    if blind is None:
        return Attended(context, weights)
    rows = blind.repeat_interleave(len(context) // len(blind))
    return Attended(context.masked_fill(rows[:, None], 0.0), weights.masked_fill(blind[:, None, None, None], 0.0))


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a mask is True, elsewhere the lowest number: what is added to scores."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def followed(state: CachedState, rows: Tensor) -> CachedState:
    """With the tables of these rows."""
    step = state.step if isinstance(state.step, int) else state.step.index_select(0, rows)
    return state._replace(table=state.table.index_select(0, rows), step=step)
