"""Input-feeding decoders (Luong 2015) in training: eligibility, inputs of the fast loop, and its CUDA graphs.

Inputs are in the dtype that autocast asks for; dropout masks are drawn beforehand. Under autocast cell states and
attention weights are fp32.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.cache import GraphedFunctionCache, ShapeSpec, get_graph_cache
from regard.fast.eligibility import compute_dtype, dropout_rate, has_hooks_or_overrides
from regard.fast.kernels.fp16 import select_gemm
from regard.fast.training.graphed_loop import DropoutSite, draw_dropout_mask, run_loop
from regard.fast.training.luong_loop import LayerWeights, LoopConfig, LoopInputs, flatten_inputs, run_input_feeding
from regard.fast.training.step_ops import NO_WINDOW, Window
from regard.models.luong2015 import LuongDecoder, LuongState
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

MAX_WINDOWS = 4  # longer sources use the reference loop, which reads the window only


def run_luong_loop(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
    """Run the decoder over a whole target, words (B, T, E): h̃ (B, T, F) and attention."""
    has_kernels = words.is_cuda or (words.device.type == "cpu" and not torch.is_autocast_enabled("cpu"))
    if has_kernels and words.shape[1] and is_supported(decoder) and _are_shapes_supported(decoder, state, words):
        return run_input_feeding_loop(decoder, state, words, get_graph_cache(decoder) if words.is_cuda else None)
    return run_loop(decoder, state, words, drops_input=True)


def run_input_feeding_loop(
    decoder: LuongDecoder, state: LuongState, words: Tensor, graph_cache: GraphedFunctionCache | None
) -> tuple[Tensor, Attended]:
    """Run the input-feeding loop, by CUDA graphs if there is a cache."""
    config, tensors = prepare_inputs(decoder, state, words)
    run = partial(run_input_feeding, config)
    out, context, weights, *centers = (
        graph_cache(run, config, _make_shape_spec(config), tensors) if graph_cache else run(*tensors)
    )
    if not centers:
        return out, Attended(context, weights)
    return out, _gather_window(context, weights, centers[0], config.window.radius)


def _gather_window(context: Tensor, weights: Tensor, centers: Tensor, window_radius: int) -> Attended:
    """Return weights (B, T, S) as weights of a window around centres (B, T)."""
    positions = window_positions(centers.floor().long(), window_offsets(window_radius))
    inside = (positions >= 0) & (positions < weights.shape[2])
    return Attended(context, weights.gather(2, positions.clamp(0, weights.shape[2] - 1)) * inside, positions)


def _make_shape_spec(config: LoopConfig) -> ShapeSpec:
    layers = ["--", "-", "B-", "B-"] * config.layers
    center_dims = {0: [], 1: ["BT"], 3: ["B", "--", "-"]}[config.num_center_inputs]
    inputs = ["BT-", "B-", "BS-", "BS-", "BS", "--", "--", *layers, *center_dims, *["BT-"] * len(config.scales)]
    return ShapeSpec(inputs, ["BT-", "BT-", "BTS", *["BT"] * bool(center_dims)])


def is_supported(decoder: LuongDecoder) -> bool:
    """Return whether the input-feeding loop computes the steps of this decoder."""
    W_c = decoder.W_c
    return (
        decoder.input_feeding
        and has_known_steps(decoder, {Dot, General, Location}, {Global, LocalMonotonic, LocalPredictive})
        and type(W_c) is nn.Linear
        and W_c.bias is None
        and {type(decoder.dropout), type(decoder.recurrent.dropout)} == {nn.Dropout}
        and not has_hooks_or_overrides(*decoder.modules())
    )


def has_known_steps(decoder: LuongDecoder, scores: set[type], alignments: set[type]) -> bool:
    """Return whether a decoder has plain LSTM layers and attention with one of these scores and alignments."""
    attention, recurrent = decoder.attention, decoder.recurrent
    return (
        type(recurrent) is Recurrent
        and not recurrent.residual
        and all(type(cell) is LSTMCell for cell in recurrent.forwards)
        and type(attention) is Attention
        and attention.coverage is None
        and type(attention.score) in scores
        and type(attention.alignment) in alignments
    )


def _are_shapes_supported(decoder: LuongDecoder, state: LuongState, words: Tensor) -> bool:
    """Return whether each row has its own non-empty memory, and no window is too small in it."""
    (rows, source), (window_radius, sigma) = state.memory.mask.shape, _get_window(decoder)
    fits = not window_radius or source <= MAX_WINDOWS * (2 * window_radius + 1)
    is_normal = not sigma or 2 * sigma >= window_radius  # else the Gaussian underflows at the ends of the window
    return rows == words.shape[0] and source > 0 and fits and is_normal


def prepare_inputs(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[LoopConfig, list[Tensor]]:
    """Return configuration and tensors of the loop, with dropout masks drawn."""
    dropout_masks, scales = _draw_dropout_masks(decoder, words)
    if dropout_masks:
        words = words * dropout_masks[0] * scales[0]
    loop_inputs = _collect_inputs(decoder, state, words, dropout_masks[1:])
    config = LoopConfig(len(loop_inputs.layers), scales[1:], _get_window(decoder), select_gemm(words))
    return config, flatten_inputs(loop_inputs)


def _get_window(decoder: LuongDecoder) -> Window:
    alignment = decoder.attention.alignment
    if isinstance(alignment, LocalPredictive):
        return Window(alignment.offsets[-1], alignment.sigma)
    return Window(alignment.offsets[-1]) if isinstance(alignment, LocalMonotonic) else NO_WINDOW


def _collect_inputs(decoder: LuongDecoder, state: LuongState, words: Tensor, dropout_masks: list[Tensor]) -> LoopInputs:
    """Cast weights and states; dropout is already applied to the words."""
    dtype = compute_dtype(words)
    state_dtype = torch.promote_types(dtype, torch.float32)
    cells = [cell for cell in decoder.recurrent.forwards if isinstance(cell, LSTMCell)]
    keys, mask = _score_keys(decoder.attention, state.memory)
    E = words.shape[2]
    word_weight, fed_weight = cells[0].weight_ih.to(dtype).tensor_split([E], 1)
    input_weights = [fed_weight, *(cell.weight_ih.to(dtype) for cell in cells[1:])]
    layers = [
        LayerWeights(
            torch.cat((W, cell.weight_hh.to(dtype)), 1),
            (cell.bias_ih + cell.bias_hh).to(dtype),
            h.to(dtype),
            c.to(state_dtype),
        )
        for W, cell, (h, c) in zip(input_weights, cells, state.recurrent, strict=True)
    ]
    return LoopInputs(
        words.to(dtype),
        state.attentional_vector.to(dtype),
        keys.to(dtype).contiguous(),
        state.memory.values.to(dtype).contiguous(),
        mask,
        word_weight,
        decoder.W_c.weight.to(dtype),
        layers,
        _center_inputs(decoder, state, words.shape[1], state_dtype),
        dropout_masks,
    )


def _score_keys(attention: Attention, memory: Memory) -> tuple[Tensor, Tensor]:
    """Return the keys (B, S, H) and mask (B, S) of a query: for the location score the rows of W_a."""
    assert memory.projected is not None
    if not isinstance(attention.score, Location):
        return memory.projected, memory.mask
    rows, (B, S) = attention.score.weight, memory.mask.shape
    padded = F.pad(rows[:S], (0, 0, 0, max(0, S - len(rows))))
    return padded.expand(B, -1, -1), memory.mask & (torch.arange(S, device=rows.device) < len(rows))


def _center_inputs(decoder: LuongDecoder, state: LuongState, num_steps: int, state_dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors from which the centres of local attention are computed."""
    alignment, mask = decoder.attention.alignment, state.memory.mask
    if isinstance(alignment, LocalPredictive):
        return [mask.sum(1).to(state_dtype), alignment.weight.to(state_dtype), alignment.v.to(state_dtype)]
    if isinstance(alignment, LocalMonotonic):
        positions, _ = alignment.window(mask.new_empty(len(mask), num_steps, 0), mask, state.step)
        return [positions[..., positions.shape[2] // 2].to(state_dtype).contiguous()]
    return []


def _draw_dropout_masks(decoder: LuongDecoder, words: Tensor) -> tuple[list[Tensor], tuple[float, ...]]:
    """Draw the masks of words (B, T, E), h̃ (B, T, F) and between layers (B, T, H); none without dropout."""
    outer_rate, inner_rate = dropout_rate(decoder.dropout), dropout_rate(decoder.recurrent.dropout)
    sites = [DropoutSite("", width, outer_rate) for width in (words.shape[2], decoder.W_c.out_features)]
    inner_site = DropoutSite("recurrent", decoder.recurrent.output_size, inner_rate)
    sites += [inner_site] * (len(decoder.recurrent.forwards) - 1)
    if not any(site.rate for site in sites):
        return [], ()
    return [draw_dropout_mask(words, site) for site in sites], tuple(site.scale for site in sites)
