"""A Transformer in bytes: reads sources as a `Seq2Seq` does, and its decoder takes a `CachedDecoder`'s steps."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.fast.cached import CachedDecoder, CachedState
from regard.fast.decoding.board import Wish
from regard.fast.decoding.harvest import Record, found
from regard.fast.octets.library import Asked, Embedding, Viewpoint, Words
from regard.fast.octets.weights import Weights, in_bytes
from regard.fast.room import Room
from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.nn import Attended, prefix_mask
from regard.symbols import BOS, EOS, PAD

FIRST = 256  # positions that are made at a time, at the least


class OctetModel:
    """The two halves, made of a readable model that stays as it is."""

    def __init__(self, model: Seq2Seq, kernels: ctypes.CDLL) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(decoder, TransformerDecoder)
        self.embedding, self.kernels = encoder.embedding, kernels
        self.weights = Weights()
        self.stack = self.weights.stack(list(encoder.layers), encoder.norm)  # type: ignore[arg-type]
        self.memory = self.weights.memory(decoder.decoder_layers())
        self.decoder = OctetDecoder(decoder, kernels)

    def narrowed(self, words: Sequence[int]) -> OctetModel:
        """The same model, which reads and writes the given target ids only, and calls them 0, 1, …"""
        other = copy.copy(self)
        other.decoder = self.decoder.narrowed(torch.tensor(words))
        return other

    def encode(self, source: Tensor, lengths: Tensor) -> CachedState:
        """The state before the first token of sources B,S."""
        mask, decoder = prefix_mask(lengths, source.shape[1]), self.decoder.stack
        x = self.embedding(source)[mask]
        rows, places = mask.shape
        pairs = torch.zeros(decoder.count, rows, decoder.heads, places, 2 * decoder.size // decoder.heads)
        room = torch.empty(self.kernels.octets_encode_room(self.stack, places), dtype=torch.uint8)
        shape = (lengths.contiguous().data_ptr(), rows, self.memory, decoder.count, decoder.heads, places)
        self.kernels.octets_encode(self.stack, x.data_ptr(), *shape, pairs.data_ptr(), room.data_ptr())
        none = pairs.new_empty(decoder.count, rows, decoder.heads, 0, places)
        nothing = Room(none[..., :0, None], pairs[..., :0, None, :], 0)
        return CachedState(none, pairs, mask, nothing, torch.empty(rows, 0, dtype=torch.long), 0)

    def shortcut(self, _: OctetModel, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Hypothesis]] | None:
        """A search by the kernels alone, where each sentence has one hypothesis."""
        return self.decoder.written(self.encode(source, lengths), wish) if wish.beam == 1 else None


class OctetDecoder(CachedDecoder):
    """Its steps are the kernels'. In its states keys and values lie side by side, where others have values alone."""

    def __init__(self, decoder: TransformerDecoder, kernels: ctypes.CDLL) -> None:
        super().__init__(decoder)
        self.viewpoint = decoder.viewpoint
        self.kernels = kernels
        self.weights, self.own = Weights(), Weights()
        self.stack = self.weights.stack(self.layers, decoder.norm)
        self.matrix = in_bytes(decoder.output.weight, decoder.output.bias)
        self.output = self.own.product(self.matrix)
        self.table = self.weights.keep(decoder.embedding.words.weight)
        self.positions = torch.empty(0)
        self.words: Tensor | None = None  # what tokens are called where they are those of some words alone

    def narrowed(self, words: Tensor) -> OctetDecoder:
        """Among some words."""
        other = copy.copy(self)
        other.own, other.words = Weights(), words
        other.output = other.own.product(self.matrix.some(words))
        return other

    def start(self, encoded: CachedState) -> CachedState:  # type: ignore[override]
        """What was read is the first state already."""
        return encoded

    def step(self, state: CachedState, tokens: Tensor) -> tuple[Tensor, CachedState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        place = state.table.shape[1]
        room = state.room.after(place)
        own = torch.arange(room.slots).repeat(room.groups)
        state = state._replace(room=room, table=torch.cat((state.table, own[:, None]), 1))
        rows, pairs, mask = len(tokens), state.values.contiguous(), state.mask.contiguous()
        words = Words(
            *(rows, rows, None, *mask.shape, pairs.data_ptr(), mask.data_ptr()),
            *(room.groups, room.slots, room.keys.shape[4], place, room.values.data_ptr(), state.table.data_ptr()),
        )
        read = tokens.contiguous() if self.words is None else self.words[tokens]
        steps = torch.full((rows,), state.step) if isinstance(state.step, int) else state.step.contiguous()
        log_probs, look = torch.empty(rows, self.output.outside), torch.zeros(rows, mask.shape[1])
        positions, free = self.places(place), self.room(words, place)
        tensors = (part.data_ptr() for part in (read, steps, look, log_probs, free))
        self.kernels.octets_step(self.stack, words, self.embedded(positions), self.output, self.viewed(), *tensors)
        room.used = place + 1
        return log_probs, state._replace(step=state.step + 1), Attended(look[:, None, :0], look[:, None])

    def written(self, state: CachedState, wish: Wish) -> list[list[Hypothesis]]:
        """The likeliest token after the other, from a first state on."""
        (layers, rows, heads, places, pair), most = state.values.shape, max(1, *wish.limits)
        past = torch.empty(layers, rows, heads, most, pair)
        words = Words(
            *(rows, rows, None, rows, places, state.values.data_ptr(), state.mask.data_ptr()),
            *(rows, 1, most, 0, past.data_ptr(), None),
        )
        limits, never = torch.tensor(wish.limits), torch.tensor((PAD, BOS))
        names = None if self.words is None else self.words.data_ptr()
        asked = Asked(most, wish.min_length, limits.data_ptr(), BOS, EOS, never.data_ptr(), len(never), names)
        tokens, chances = torch.empty(most, rows, dtype=torch.long), torch.empty(most, rows)
        looks = torch.empty(most, rows, places) if wish.attention else None
        done, numbers = torch.zeros(rows, dtype=torch.long), torch.empty(3, rows, dtype=torch.long)
        logits, positions, free = torch.empty(rows, self.output.outside), self.places(most), self.room(words, most)
        parts = (tokens, chances, looks, done, logits, numbers, free)
        tensors = (None if part is None else part.data_ptr() for part in parts)
        how = (self.embedded(positions), self.output, self.viewed())
        self.kernels.octets_write(self.stack, words, *how, asked, *tensors)
        return found(recorded(tokens, chances, looks, done, places), wish)

    def places(self, last: int) -> Tensor:
        """What positions add to words, up to the last and some more."""
        if last >= len(self.positions):
            there = torch.zeros(1, 2 * last + FIRST, self.stack.size)
            self.positions = self.decoder.embedding.positions(there)[0].contiguous()
        return self.positions

    def embedded(self, positions: Tensor) -> Embedding:
        """How words are embedded."""
        return Embedding(self.table, positions.data_ptr(), self.decoder.embedding.scale)

    def viewed(self) -> Viewpoint:
        """From where it looks at the source."""
        layer, head, _ = self.viewpoint
        return Viewpoint(layer % len(self.layers), -1 if head is None else head)

    def room(self, words: Words, last: int) -> Tensor:
        """What steps up to the last need besides."""
        return torch.empty(self.kernels.octets_step_room(self.stack, words, last), dtype=torch.uint8)


def recorded(tokens: Tensor, chances: Tensor, looks: Tensor | None, done: Tensor, places: int) -> Record:
    """Steps T of sentences A, as a search notes them: tokens and log-probabilities T,A, looks T,A,S."""
    steps = int(done.max())
    record = Record(len(done), 1, places)
    record.tokens.append(tokens[:steps, :, None].numpy())
    record.log_probs.append(chances[:steps, :, None].numpy())
    record.done = done.int().numpy()
    if looks is not None:
        record.looked(looks[:steps, :, None].numpy(), done.new_tensor(range(len(done))).numpy())
    return record
