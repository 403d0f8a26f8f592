"""Int8 inference of a Transformer on a CPU, by the kernels of `regard/fast/kernels/native/int8`.

The int8 model encodes as a `Seq2Seq` does, its decoder has the steps of a `KVCachedDecoder`, and greedy search runs
in C alone: between two chunks of steps Python allocates memory and handles signals.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from ctypes import byref
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from regard.fast.decoding import kv_cache as cached
from regard.fast.decoding.int8_weights import (
    Asked,
    Embedding,
    Going,
    Viewpoint,
    Weights,
    Words,
    Written,
    load_kernels,
    quantize_rows,
    tried,
)
from regard.fast.decoding.kv_cache import CachedDecoder, CachedState, Room
from regard.fast.decoding.numpy_search import Record, Wish, found
from regard.fast.eligibility import EMBEDDING_PARTS, KNOWN, heard
from regard.fast.kernels.build import MissingError, approved
from regard.models import Seq2Seq, vaswani2017
from regard.models.hypothesis import Hypothesis
from regard.models.vaswani2017 import PostNorm, PreNorm, TransformerDecoder, TransformerEncoder
from regard.nn import Attended, prefix_mask
from regard.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    pass


def quantize_model(model: Seq2Seq) -> OctetModel:
    """The model in bytes, where nothing is lacking."""
    return OctetModel(model, load_checked_kernels())


def lacking(model: Seq2Seq) -> str | None:
    """Why a model cannot be decoded in bytes, if it cannot."""
    if not covers(model):
        return "kernels know the Transformers of the recipes alone, in fp32 and unchanged"
    if not all(weight.isfinite().all() for weight in model.parameters()):
        return "it has weights that are not numbers"
    try:
        load_checked_kernels()
    except MissingError as error:
        return str(error)
    return None


@cache
def load_checked_kernels() -> ctypes.CDLL:
    """Those for this processor, if products are right and take less time than in single precision."""
    found = load_kernels()
    approved(found, lambda: tried(found))
    return found


def covers(model: Seq2Seq) -> bool:
    """Whether this is a Transformer that the kernels know, not one that somebody made of it."""
    encoder, decoder = model.encoder, model.decoder
    if type(model) is not Seq2Seq or type(encoder) is not TransformerEncoder:
        return False
    if not isinstance(decoder, TransformerDecoder) or not cached.covers(decoder):
        return False
    inside = [*encoder.layers.modules(), *decoder.layers.modules(), encoder.norm, decoder.norm, decoder.output]
    around = [*encoder.embedding.modules(), *decoder.embedding.modules()]
    kinds = {type(part) for part in inside}
    known = kinds <= KNOWN and not {PreNorm, PostNorm} <= kinds and {type(part) for part in around} <= EMBEDDING_PARTS
    here = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.parameters())
    return known and here and regular(encoder, decoder) and not heard(encoder, decoder, *inside, *around)


def regular(encoder: TransformerEncoder, decoder: TransformerDecoder) -> bool:
    """Whether layers are as they are written: all of a size, each norm with weights, each network with its ReLU."""
    layers = [*encoder.layers, *decoder.layers]
    sizes = {(layer.attention.size, layer.attention.heads) for layer in layers}
    networks = {tuple(type(part) for part in layer.feedforward) for layer in layers}
    last = {type(encoder.norm), type(decoder.norm)} <= {nn.LayerNorm, nn.Identity}
    norms = [part for half in (encoder, decoder) for part in half.modules() if isinstance(part, nn.LayerNorm)]
    weighted = all(part.weight is not None and part.bias is not None for part in norms)
    return last and weighted and len(sizes) == 1 and networks == {(nn.Linear, nn.ReLU, nn.Linear)}


FIRST = 256  # positions that are made at a time, at the least


class Embedder:
    """A Transformer's embedding as it is now, without dropout, by a table of words. Threads may share it."""

    def __init__(self, words: Tensor, embedding: vaswani2017.TransformerEmbedding) -> None:
        self.words, self.scale = words, embedding.scale
        self.positions = copy.deepcopy(embedding.positions)
        self.made = torch.empty(0, self.words.shape[1])

    def places(self, count: int) -> Tensor:
        """What so many positions, or more, add to words."""
        made = self.made  # another thread may put a shorter one in its place
        if count > len(made):
            made = self.positions(torch.zeros(1, 2 * count + FIRST, self.words.shape[1], dtype=torch.float32))
            self.made = made = made[0].detach().contiguous()
        return made

    def handed(self, places: Tensor) -> Embedding:
        """For the kernels, which do not keep the places alive."""
        return Embedding(self.words.data_ptr(), places.data_ptr(), len(self.words), self.scale)


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
        self.matrix = quantize_rows(decoder.output.weight.detach(), decoder.output.bias)
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


CHUNK = 32  # steps at a time


class Greedy:
    """One hypothesis of each source, from a first state on."""

    def __init__(self, decoder: OctetDecoder, state: CachedState, wish: Wish) -> None:
        self.decoder, self.wish = decoder, wish
        self.pairs, self.mask = state.values, state.mask
        layers, rows, heads, places, pair = state.values.shape
        self.past = torch.empty(layers, rows, heads, 0, pair, dtype=torch.float32)
        self.words = Words(
            *(rows, rows, None, rows, places, self.pairs.data_ptr(), self.mask.data_ptr()),
            *(rows, 1, 0, 0, None, None),
        )
        self.limits, self.never = torch.tensor(wish.limits), torch.tensor((PAD, BOS))
        self.numbers = torch.stack(
            (torch.arange(rows), torch.full((rows,), BOS), *torch.zeros(2, rows, dtype=torch.long))
        )
        self.reached = torch.zeros(rows, dtype=torch.float32)
        self.logits = torch.empty(rows, decoder.output.outside, dtype=torch.float32)
        self.record = Record(rows, 1, places)

    def found(self) -> list[list[Hypothesis]]:
        """The target of each source."""
        while self.words.many:
            self.chunk()
        self.record.done = self.numbers[3].int().numpy()
        return found(self.record, self.wish)

    def chunk(self) -> None:
        """Some steps of those that have not ended."""
        decoder, rows, last = self.decoder, self.words.rows, self.words.used + CHUNK
        self.enlarge(last)
        tokens = torch.zeros(CHUNK, rows, dtype=torch.long)
        log_probs = torch.zeros(CHUNK, rows, dtype=torch.float32)
        looks = torch.empty(CHUNK, rows, self.words.places, dtype=torch.float32) if self.wish.attention else None
        positions, space = decoder.embedder.places(last), decoder.space(self.words, last)
        who, read, places, done = (part.data_ptr() for part in self.numbers)
        how = (decoder.embedder.handed(positions), decoder.output, decoder.looking(), byref(self.asked()))
        going = Going(who, read, places, self.reached.data_ptr(), done)
        written = Written(*map(_pointer_or_none, (tokens, log_probs, looks, self.logits)))
        before = self.words.used
        decoder.kernels.octets_write(decoder.stack, self.words, *how, going, written, CHUNK, space.data_ptr())
        self.note(tokens, log_probs, looks, self.words.used - before)

    def enlarge(self, positions: int) -> None:
        """Room for so many."""
        if positions <= self.words.positions:
            return
        layers, rows, heads, size, pair = self.past.shape
        larger = torch.empty(layers, rows, heads, max(positions, 2 * size), pair, dtype=torch.float32)
        larger[:, :, :, :size] = self.past
        self.past, self.words.positions, self.words.past = larger, larger.shape[3], larger.data_ptr()

    def asked(self) -> Asked:
        """What is asked of targets."""
        places = (
            self.limits.data_ptr(),
            EOS,
            self.never.data_ptr(),
            len(self.never),
            _pointer_or_none(self.decoder.words),
        )
        return Asked(self.wish.min_length, *places)

    def note(self, tokens: Tensor, log_probs: Tensor, looks: Tensor | None, steps: int) -> None:
        """What was written in so many steps."""
        self.record.tokens.append(tokens[:steps, :, None].numpy())
        self.record.log_probs.append(log_probs[:steps, :, None].numpy())
        if looks is not None:
            self.record.looked(looks[:steps, :, None].numpy(), np.arange(len(looks[0])))


def _pointer_or_none(part: Tensor | None) -> int | None:
    """Where it is, if it is."""
    return None if part is None else part.data_ptr()
