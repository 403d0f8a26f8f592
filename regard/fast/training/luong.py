"""Input-feeding decoders (Luong 2015) in training: eligibility, inputs of the fast loop, and its CUDA graphs.

Inputs are in the dtype that autocast asks for; dropout masks are drawn beforehand. Under autocast cell states and
attention weights are fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.cache import Captured, graphs
from regard.fast.cuda_graphs.function import Form
from regard.fast.eligibility import heard, rate
from regard.fast.kernels.fp16 import multiplying
from regard.fast.training.graphed_loop import recorded
from regard.fast.training.luong_loop import Given, Layer, Plan, fed, flat
from regard.fast.training.step_ops import EVERYWHERE, Window
from regard.models.luong2015 import LuongDecoder, LuongState
from regard.models.rnn_common import unroll_decoder
from regard.nn import (
    Attended,
    Attention,
    Dot,
    General,
    Global,
    LocalMonotonic,
    LocalPredictive,
    Location,
    LSTMCell,
    Memory,
    Recurrent,
)
from regard.nn.alignments import window_offsets, window_positions

WHOLE = 4  # a source of up to so many windows is looked at as a whole; of a longer one the readable loop reads less


def looped(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
    """The steps of a whole target, words B,T,E: h̃_t B,T,F and what was attended to."""
    known = words.is_cuda or (words.device.type == "cpu" and not torch.is_autocast_enabled("cpu"))
    if known and words.shape[1] and covers(decoder) and alike(decoder, state, words):
        return played(decoder, state, words, graphs(decoder) if words.is_cuda else None)
    return recorded(unroll_decoder, decoder, state, words, drops_input=True)


def played(
    decoder: LuongDecoder, state: LuongState, words: Tensor, captured: Captured | None
) -> tuple[Tensor, Attended]:
    """The same by the loop below, and by its graphs where there may be any."""
    plan, tensors = prepared(decoder, state, words)
    run = partial(fed, plan)
    out, context, weights, *centre = captured(run, plan, form(plan), tensors) if captured else run(*tensors)
    if not centre:
        return out, Attended(context, weights)
    return out, seen_through(context, weights, centre[0], plan.window.reach)


def seen_through(context: Tensor, weights: Tensor, centre: Tensor, reach: int) -> Attended:
    """Weights B,T,S as those of a window around centres B,T."""
    positions = window_positions(centre.floor().long(), window_offsets(reach))
    inside = (positions >= 0) & (positions < weights.shape[2])
    return Attended(context, weights.gather(2, positions.clamp(0, weights.shape[2] - 1)) * inside, positions)


def form(plan: Plan) -> Form:
    """Which dimensions of the loop's tensors are B, T and S."""
    layers = ["--", "-", "B-", "B-"] * plan.layers
    aim = {0: [], 1: ["BT"], 3: ["B", "--", "-"]}[plan.aims]
    inputs = ["BT-", "B-", "BS-", "BS-", "BS", "--", "--", *layers, *aim, *["BT-"] * len(plan.scales)]
    return Form(inputs, ["BT-", "BT-", "BTS", *["BT"] * bool(aim)])


def covers(decoder: LuongDecoder) -> bool:
    """Whether this decoder's steps are those computed here; any other goes by the readable loop."""
    attention, recurrent, W_c = decoder.attention, decoder.recurrent, decoder.W_c
    return (
        decoder.input_feeding
        and type(recurrent) is Recurrent
        and not recurrent.residual
        and all(type(cell) is LSTMCell for cell in recurrent.forwards)
        and type(attention) is Attention
        and attention.coverage is None
        and type(attention.score) in (Dot, General, Location)
        and type(attention.alignment) in (Global, LocalMonotonic, LocalPredictive)
        and type(W_c) is nn.Linear
        and W_c.bias is None
        and {type(decoder.dropout), type(recurrent.dropout)} == {nn.Dropout}
        and not heard(*decoder.modules())
    )


def alike(decoder: LuongDecoder, state: LuongState, words: Tensor) -> bool:
    """Whether each row of words has a row of the memory to itself, with places in it, and no window is small in it."""
    (rows, source), (reach, sigma) = state.memory.mask.shape, windowed(decoder)
    fits = not reach or source <= WHOLE * (2 * reach + 1)
    wide = not sigma or 2 * sigma >= reach  # else the Gaussian is too small to be divided by at the window's ends
    return rows == words.shape[0] and source > 0 and fits and wide


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
