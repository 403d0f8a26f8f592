"""A greedy search by the kernels alone: between two chunks of steps Python looks after memory, and hears signals."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regard.fast.cached import CachedState
from regard.fast.decoding.board import Wish
from regard.fast.decoding.harvest import Record, found
from regard.fast.octets.library import Asked, Going, Words, Written
from regard.models.hypothesis import Hypothesis
from regard.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from regard.fast.octets.model import OctetDecoder

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
        written = Written(*map(place, (tokens, log_probs, looks, self.logits)))
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
        places = (self.limits.data_ptr(), EOS, self.never.data_ptr(), len(self.never), place(self.decoder.words))
        return Asked(self.wish.min_length, *places)

    def note(self, tokens: Tensor, log_probs: Tensor, looks: Tensor | None, steps: int) -> None:
        """What was written in so many steps."""
        self.record.tokens.append(tokens[:steps, :, None].numpy())
        self.record.log_probs.append(log_probs[:steps, :, None].numpy())
        if looks is not None:
            self.record.looked(looks[:steps, :, None].numpy(), np.arange(len(looks[0])))


def place(part: Tensor | None) -> int | None:
    """Where it is, if it is."""
    return None if part is None else part.data_ptr()
