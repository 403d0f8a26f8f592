"""Decoder states for ONNX: a head-major KV cache for Transformers, and states as named tensors.

The reference Transformer decoder keeps keys and values as they were projected, and each step splits all of them into
heads. Here they are stored by heads, as the matrix products read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.decoding.kv_cache import added
from regard.fast.eligibility import KNOWN
from regard.models import Seq2Seq, decoder_state
from regard.models.base import Decoder, Encoded, log_probs
from regard.models.vaswani2017 import TransformerDecoder
from regard.nn import Attended, Memory, MultiHeadAttention

ENCODER, STEP = "encoder.onnx", "step.onnx"
SHARED = "sources"  # what graphs call the rows of a tensor that the hypotheses of a source share
B, S, W = 2, 3, 4  # sizes to trace with, all different; 1 would be taken for one that never changes


def begun(model: Any, source: Tensor, lengths: Tensor) -> Any:
    """The state before the first token, with a step's number for each row."""
    return decoder_state.steps_per_row(model.decoder.start(model.encode(source, lengths)))


class Mould:
    """What a state is made like, to fill many times."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.names = list(decoder_state.distinct_tensors(state))
        self.places = {id(leaf): number for number, leaf in enumerate(decoder_state.distinct_tensors(state).values())}

    def filled(self, leaves: Sequence[Tensor]) -> Any:
        """Such a state of these tensors."""
        return decoder_state.map_tensors(self.state, lambda leaf: leaves[self.places[id(leaf)]])

    def spelt(self, named: Mapping[str, Tensor]) -> Any:
        """Such a state of tensors by their names."""
        return self.filled([named[name] for name in self.names])

    def named(self, state: Any) -> dict[str, Tensor]:
        """The tensors of such a state by their names; what stands in several places has one."""
        known = dict(decoder_state.named_tensors(state))
        return {name: known[name] for name in self.names}

    @cached_property
    def staying(self) -> set[str]:
        """The names of what rows of one source have in common: it stays when they change places."""
        moved = decoder_state.reorder_beams(self.state, torch.arange(B))
        both = zip(decoder_state.named_tensors(self.state), decoder_state.named_tensors(moved), strict=True)
        return {name for (name, before), (_, after) in both if before is after}


def sample(model: Any, places: int = S, written: int = W) -> Any:
    """A state to trace with: sources of so many places, and so many tokens behind it."""
    with torch.no_grad():
        state = begun(model, torch.full((B, places), 4), torch.full((B,), places))
        for _ in range(written):
            _, state, _ = model.decoder.step(state, torch.full((B,), 4))
    return state


def laid(model: Seq2Seq) -> Seq2Seq:
    """The model with such a decoder, where it is a Transformer; any other is its own."""
    decoder = model.decoder
    if type(decoder) is not TransformerDecoder or not {type(part) for part in decoder.layers.modules()} <= KNOWN:
        return model
    return Seq2Seq(model.encoder, LaidDecoder(decoder), model.criterion)


class Past(NamedTuple):
    """The words so far, of one layer."""

    keys: Tensor  # B,heads,t,d_k
    values: Tensor  # B,heads,t,d_k


class LaidState(NamedTuple):
    """Between two steps, of B rows, which are hypotheses of A sources."""

    source: list[Memory]  # for each layer; keys and values are A,heads,S,d_k
    past: list[Past]  # the words of a row that has fewer than t stand at the end
    step: int | Tensor  # how many they are, in all rows or B in each

    def sizes(self) -> tuple[int, int]:
        """How many places sources have, and how many words there are."""
        return self.source[0].mask.shape[1], self.past[0].keys.shape[2]


class LaidDecoder(Decoder):
    """Gives what the readable decoder gives, from states of its own."""

    supports_shared_memory = True

    def __init__(self, decoder: TransformerDecoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.alignment_head = decoder.alignment_head

    def start(self, encoded: Encoded) -> LaidState:
        """Projects the memory once for each layer."""
        memory = encoded.memory
        source = []
        for layer in self.decoder.decoder_layers():
            attention = layer.cross_attention
            both = attention.project(memory.keys, memory.values).chunk(2, -1)
            keys, values = (attention.split_heads(part).contiguous() for part in both)
            source.append(Memory(keys, values, memory.mask))
        nothing = [Past(one.keys[:, :, :0], one.values[:, :, :0]) for one in source]
        return LaidState(source, nothing, 0)

    def step(self, state: LaidState, tokens: Tensor) -> tuple[Tensor, LaidState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        decoder, mask = self.decoder, state.source[0].mask
        x = decoder.embedding(tokens[:, None], state.step)  # B,1,size
        words, there = written(state, tokens.shape[0]), added(mask[:, None, None], x.dtype)
        sighted = mask.any(1)[:, None, None]  # nothing to look at gives a context of zeros
        pasts, looks = [], []
        for layer, source, before in zip(decoder.decoder_layers(), state.source, state.past, strict=True):
            found, past = read(layer.attention, layer.around_attention.sublayer_input(x), before, words)
            x = layer.around_attention.add_residual(x, found)
            q = layer.around_cross_attention.sublayer_input(x)
            found, weights = look(layer.cross_attention, q.reshape(mask.shape[0], -1, q.shape[2]), source, there)
            looks.append(Attended((found * sighted).reshape(q.shape), weights))
            x = layer.around_cross_attention.add_residual(x, looks[-1].context)
            x = layer.around_feedforward.add_residual(x, layer.feedforward(layer.around_feedforward.sublayer_input(x)))
            pasts.append(past)
        (context, weights, *_), head = looks[decoder.alignment_head.layer], decoder.alignment_head.head
        seen = (weights.mean(1) if head is None else weights[:, head]) * sighted
        after = LaidState(state.source, pasts, state.step + 1)
        attended = Attended(context, seen.reshape(x.shape[0], 1, -1))
        return log_probs(decoder.output(decoder.norm(x))[:, 0]), after, attended

    def concat_states(self, first: LaidState, second: LaidState) -> LaidState:
        """Padding goes behind the shorter sources, and before the words of rows that have written less."""
        places, words = (max(sizes) for sizes in zip(first.sizes(), second.sizes(), strict=True))
        return decoder_state.concat_states(
            self.trim_padding(first, places, words), self.trim_padding(second, places, words)
        )

    def trim_padding(self, state: LaidState, source_length: int, target_length: int) -> LaidState:
        """Cuts or adds padding behind sources, and before the words so far."""
        places, words = state.sizes()
        behind, before = (0, 0, 0, source_length - places), (0, 0, target_length - words, 0)
        mask = F.pad(state.source[0].mask, behind[2:])
        sources = [Memory(F.pad(one.keys, behind), F.pad(one.values, behind), mask) for one in state.source]
        past = [Past(F.pad(one.keys, before), F.pad(one.values, before)) for one in state.past]
        return LaidState(sources, past, state.step)


def read(attention: MultiHeadAttention, y: Tensor, past: Past, mask: Tensor) -> tuple[Tensor, Past]:
    """What the newest words y B,1,size find in all so far, and these: one product for queries, keys and values."""
    projected = F.linear(y, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = (attention.split_heads(part) for part in projected.chunk(3, -1))
    past = Past(torch.cat((past.keys, k), 2), torch.cat((past.values, v), 2))
    found, _ = attend(q, past.keys, past.values, mask)
    return attention.out_proj(found), past


def look(attention: MultiHeadAttention, y: Tensor, source: Memory, mask: Tensor) -> tuple[Tensor, Tensor]:
    """What y A,T,size, the rows of a source beside each other, finds there, and the weights A,heads,T,S."""
    size = attention.size
    q = attention.split_heads(F.linear(y, attention.in_proj_weight[:size], attention.in_proj_bias[:size]))
    found, weights = attend(q, source.keys, source.values, mask)
    return attention.out_proj(found), weights


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Queries A,heads,T,d_k over keys and values A,heads,S,d_k: what they find A,T,size, and weights A,heads,T,S."""
    weights = (q @ keys.transpose(2, 3) * (1 / math.sqrt(q.shape[3])) + mask).softmax(-1)
    return (weights @ values).transpose(1, 2).flatten(2), weights


def written(state: LaidState, rows: int) -> Tensor:
    """What is added to the scores of the words so far and of one more, by which of them a row has: B,1,1,t+1."""
    words = state.sizes()[1]
    steps = torch.as_tensor(state.step).expand(rows)
    return added(torch.arange(words + 1) >= words - steps[:, None], state.past[0].keys.dtype)[:, None, None]
