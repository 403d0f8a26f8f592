"""A Transformer in bytes: reads sources as a `Seq2Seq` does, and its decoder takes a `CachedDecoder`'s steps."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.fast.cached import CachedDecoder, CachedState
from regard.fast.decoding.board import Wish
from regard.fast.octets.embedder import Embedder
from regard.fast.octets.greedy import Greedy
from regard.fast.octets.library import Viewpoint, Words
from regard.fast.octets.weights import Weights, in_bytes
from regard.fast.room import Room
from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.models.vaswani2017 import TransformerDecoder, TransformerEncoder
from regard.nn import Attended, prefix_mask


class OctetModel:
    """The two halves, made of a readable model as it is now."""

    def __init__(self, model: Seq2Seq, kernels: ctypes.CDLL) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(decoder, TransformerDecoder)
        source, target = encoder.embedding.words.weight, decoder.embedding.words.weight
        words = source.detach().clone()
        self.embedder, self.kernels, self.weights = Embedder(words, encoder.embedding), kernels, Weights(kernels)
        self.stack = self.weights.encoder(encoder)
        self.memory = self.weights.memory(decoder.decoder_layers())
        own = Embedder(words if target is source else target.detach().clone(), decoder.embedding)
        self.decoder = OctetDecoder(decoder, own, kernels)

    def narrowed(self, words: Sequence[int]) -> OctetModel:
        """The same model, which reads and writes the given target ids only, and calls them 0, 1, …"""
        other = copy.copy(self)
        other.decoder = self.decoder.narrowed(torch.tensor(words))
        return other

    def encode(self, source: Tensor, lengths: Tensor) -> CachedState:
        """The state before the first token of sources B,S."""
        mask, decoder = prefix_mask(lengths, source.shape[1]), self.decoder.stack
        ids, words, (rows, places) = source.long().contiguous(), mask.sum(1), mask.shape
        positions = self.embedder.places(places)
        pairs = torch.zeros(
            decoder.count, rows, decoder.heads, places, 2 * decoder.size // decoder.heads, dtype=torch.float32
        )
        space = torch.empty(self.kernels.octets_encode_space(self.stack, places), dtype=torch.uint8)
        known = self.kernels.octets_encode(
            *(self.stack, self.embedder.handed(positions), ids.data_ptr(), words.data_ptr(), rows, places),
            *(self.memory, decoder.count, decoder.heads, pairs.data_ptr(), space.data_ptr()),
        )
        checked(known, source, self.embedder)
        none = pairs.new_empty(decoder.count, rows, decoder.heads, 0, places)  # keys are with their values
        nothing = Room(none[..., :0, None], pairs[..., :0, None, :], 0)
        return CachedState(none, pairs, mask, nothing, torch.empty(rows, 0, dtype=torch.long), 0)

    def device_search(
        self, _: OctetModel, source: Tensor, lengths: Tensor, wish: Wish
    ) -> list[list[Hypothesis]] | None:
        """A search by the kernels alone, where each sentence has one hypothesis."""
        if wish.beam > 1:
            return None
        return Greedy(self.decoder, self.encode(source, lengths), wish).found()


class OctetDecoder(CachedDecoder):
    """Its steps are the kernels'. In its states keys and values lie side by side, where others have values alone."""

    def __init__(self, decoder: TransformerDecoder, embedder: Embedder, kernels: ctypes.CDLL) -> None:
        super().__init__(decoder)
        self.alignment_head, self.embedder, self.kernels = decoder.alignment_head, embedder, kernels
        self.weights, self.own = Weights(kernels), Weights(kernels)
        self.stack = self.weights.decoder(decoder)
        self.matrix = in_bytes(decoder.output.weight.detach(), decoder.output.bias)
        self.output = self.own.product(self.matrix)
        self.words: Tensor | None = None  # what tokens are called where they are those of some words alone

    def narrowed(self, words: Tensor) -> OctetDecoder:
        """Among some words."""
        other = copy.copy(self)
        other.words = words if self.words is None else self.words[words]
        other.matrix, other.own = self.matrix.some(words), Weights(self.kernels)
        other.output = other.own.product(other.matrix)
        return other

    def start(self, encoded: CachedState) -> CachedState:  # type: ignore[override]
        """What was read is the first state already."""
        return encoded

    def step(self, state: CachedState, tokens: Tensor) -> tuple[Tensor, CachedState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        place = state.table.shape[1]
        state = self.opened(state)
        rows, pairs, mask, room = len(tokens), state.values.contiguous(), state.mask.contiguous(), state.room
        words = Words(
            *(rows, rows, None, *mask.shape, pairs.data_ptr(), mask.data_ptr()),
            *(room.groups, room.slots, room.keys.shape[4], place, room.values.data_ptr(), state.table.data_ptr()),
        )
        read = tokens.long().contiguous() if self.words is None else self.words[tokens]
        steps = torch.full((rows,), state.step) if isinstance(state.step, int) else state.step.contiguous()
        log_probs = torch.empty(rows, self.output.outside, dtype=torch.float32)
        look = torch.zeros(rows, mask.shape[1], dtype=torch.float32)
        positions, space = self.embedder.places(place + 1), self.space(words, place)
        tensors = (part.data_ptr() for part in (read, steps, look, log_probs, space))
        how = (self.embedder.handed(positions), self.output, self.looking())
        checked(self.kernels.octets_step(self.stack, words, *how, *tensors), read, self.embedder)
        room.used = place + 1
        return log_probs, state._replace(step=state.step + 1), Attended(look[:, None, :0], look[:, None])

    def looking(self) -> Viewpoint:
        """From where it looks at the source."""
        layer, head, _ = self.alignment_head
        return Viewpoint(layer % len(self.layers), -1 if head is None else head)

    def space(self, words: Words, last: int) -> Tensor:
        """What steps up to the last need besides."""
        return torch.empty(self.kernels.octets_step_space(self.stack, words, last), dtype=torch.uint8)


def checked(known: int, ids: Tensor, embedder: Embedder) -> None:
    """Refuses ids that no word has."""
    if not known:
        least, most = ids.min().item(), ids.max().item()
        raise IndexError(f"ids are from 0 to {len(embedder.words) - 1}, not from {least} to {most}")
