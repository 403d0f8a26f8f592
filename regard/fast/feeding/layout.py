"""A decoder's weights and states as the loop takes them, in the precision that autocast asks for.

Dropout is drawn beforehand. Under autocast cell states and attention's weights are in single precision.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.feeding.loop import Given, Layer, Plan, flat
from regard.fast.gates import EVERYWHERE, Window
from regard.fast.halves.way import multiplying
from regard.fast.hearing import rate
from regard.models.luong2015 import LuongDecoder, LuongState
from regard.nn import Attention, LocalMonotonic, LocalPredictive, Location, LSTMCell, Memory


def prepared(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Plan, list[Tensor]]:
    """What the loop is asked, and all that it reads."""
    kept, scales = drawn(decoder, words)
    if kept:
        words = words * kept[0] * scales[0]
    given = arranged(decoder, state, words, kept[1:])
    return Plan(len(given.layers), scales[1:], windowed(decoder), multiplying(words)), flat(given)


def windowed(decoder: LuongDecoder) -> Window:
    """How far a decoder looks."""
    alignment = decoder.attention.alignment
    if isinstance(alignment, LocalPredictive):
        return Window(alignment.offsets[-1], alignment.sigma)
    return Window(alignment.offsets[-1]) if isinstance(alignment, LocalMonotonic) else EVERYWHERE


def arranged(decoder: LuongDecoder, state: LuongState, words: Tensor, kept: list[Tensor]) -> Given:
    """The same with dropout already drawn, and applied to the words."""
    kind = words.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else words.dtype
    wide = torch.promote_types(dtype, torch.float32)
    cells = [cell for cell in decoder.recurrent.forwards if isinstance(cell, LSTMCell)]
    keys, mask = compared(decoder.attention, state.memory)
    E = words.shape[2]
    of_words, of_fed = cells[0].weight_ih.to(dtype).tensor_split([E], 1)
    below = [of_fed, *(cell.weight_ih.to(dtype) for cell in cells[1:])]
    layers = [
        Layer(torch.cat((W, cell.weight_hh.to(dtype)), 1), (cell.bias_ih + cell.bias_hh).to(dtype), *begin)
        for W, cell, begin in zip(below, cells, started(state, dtype, wide), strict=True)
    ]
    return Given(
        words.to(dtype),
        state.attentional_vector.to(dtype),
        keys.to(dtype).contiguous(),
        state.memory.values.to(dtype).contiguous(),
        mask,
        of_words,
        decoder.W_c.weight.to(dtype),
        layers,
        aimed(decoder, state, words.shape[1], wide),
        kept,
    )


def compared(attention: Attention, memory: Memory) -> tuple[Tensor, Tensor]:
    """What a query is multiplied with, B,S,H, and a mask B,S: for the score location the rows of W_a."""
    assert memory.projected is not None
    if not isinstance(attention.score, Location):
        return memory.projected, memory.mask
    rows, (B, S) = attention.score.weight, memory.mask.shape
    padded = F.pad(rows[:S], (0, 0, 0, max(0, S - len(rows))))
    return padded.expand(B, -1, -1), memory.mask & (torch.arange(S, device=rows.device) < len(rows))


def aimed(decoder: LuongDecoder, state: LuongState, count: int, wide: torch.dtype) -> list[Tensor]:
    """What the centres of so many steps' windows are made of."""
    alignment, mask = decoder.attention.alignment, state.memory.mask
    if isinstance(alignment, LocalPredictive):
        return [mask.sum(1).to(wide), alignment.weight.to(wide), alignment.v.to(wide)]
    if isinstance(alignment, LocalMonotonic):
        positions, _ = alignment.window(mask.new_empty(len(mask), count, 0), mask, state.step)
        return [positions[..., positions.shape[2] // 2].to(wide).contiguous()]
    return []


def started(state: LuongState, dtype: torch.dtype, wide: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """H and c of each layer."""
    for pair in state.recurrent:
        h, c = pair
        yield h.to(dtype), c.to(wide)


def drawn(decoder: LuongDecoder, words: Tensor) -> tuple[list[Tensor], tuple[float, ...]]:
    """What dropout leaves of the words B,T,E, of h̃ B,T,F and between layers B,T,H; nothing where there is none."""
    cells = decoder.recurrent.forwards
    inner = len(cells) - 1
    rates = [rate(decoder.dropout)] * 2 + [rate(decoder.recurrent.dropout)] * inner
    if not any(rates):
        return [], ()
    H = decoder.recurrent.output_size
    widths = [words.shape[2], decoder.W_c.out_features] + [H] * inner
    kept = [
        torch.empty(*words.shape[:2], width, dtype=torch.bool, device=words.device).bernoulli_(1 - share)
        for width, share in zip(widths, rates, strict=True)
    ]
    return kept, tuple(1 / (1 - share) if share < 1 else 0.0 for share in rates)
