"""Which decoders go by the fast loop, and how: the fast twin of `regard.models.rnn_common.unroll_decoder`."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from regard.fast.captured import Captured, Form, graphs
from regard.fast.feeding.layout import prepared, windowed
from regard.fast.feeding.loop import Plan, fed
from regard.fast.hearing import heard
from regard.fast.looping import recorded
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
