"""Triton kernels of recurrent decoders in training, with the interface of `regard.fast.training.step_ops.StepOps`.

Each operation is one launch; one program computes a row or a part of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.fast.cuda_graphs.buckets import next_power_of_two
from regard.fast.training.step_ops import AttentionGrads, AttentionStep, LSTMStep, StepOps

MAX_BLOCK = 512  # numbers of a row per program
TILE_SIZE = 16384  # keys or values that are read at once
# Arguments that may start at any address.
UNALIGNED = frozenset(["keep_mask", "real", "weights", "d_weights", "d_scores", "centre", "d_centre", "lengths"])


def shape_agnostic_jit(function):
    """Compile once per model, not per shape: strides and lengths are not specialized, except through `UNIT`."""
    names = inspect.signature(function).parameters
    loose = [name for name in names if name.endswith("_row") or name == "source"]
    unaligned = [name for name in names if name in UNALIGNED]
    return triton.jit(function, do_not_specialize=loose, do_not_specialize_on_alignment=unaligned)


@triton.jit
def tanh(x):
    """tanh x to a relative error of 3e-7: near 0, where 2σ(2x) − 1 has few digits left, by Cephes' polynomial."""
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    return tl.where(tl.abs(x) < 0.625, x + x * z * p, 2 * tl.sigmoid(2 * x) - 1)


@triton.jit
def load_gates(pre, at, real, SIZE: tl.constexpr):
    """Return a part of the gates i, f, g, o of an LSTM, activated, from a row of their pre-activations (4 · SIZE,)."""
    i = tl.sigmoid(tl.load(pre + at, mask=real, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(pre + SIZE + at, mask=real, other=0.0).to(tl.float32))
    g = tanh(tl.load(pre + 2 * SIZE + at, mask=real, other=0.0).to(tl.float32))
    o = tl.sigmoid(tl.load(pre + 3 * SIZE + at, mask=real, other=0.0).to(tl.float32))
    return i, f, g, o


@shape_agnostic_jit
def lstm_gates_fwd(
    pre, c, after, h, above, keep_mask,
    pre_row, c_row, after_row, h_row, above_row, keep_mask_row,
    scale, rows_of,
    SIZE: tl.constexpr, UNIT: tl.constexpr, HAS_DROPOUT: tl.constexpr, GATHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gates of a part of a row; GATHER: from the cell state of another row."""
    row = tl.program_id(0).to(tl.int64)
    before = (tl.load(rows_of + row) if GATHER else row) * UNIT
    row *= UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    i, f, g, o = load_gates(pre + row * pre_row, at, real, SIZE)
    new = f * tl.load(c + before * c_row + at, mask=real, other=0.0) + i * g
    new_h = o * tanh(new)
    tl.store(after + row * after_row + at, new, mask=real)
    tl.store(h + row * h_row + at, new_h, mask=real)
    if HAS_DROPOUT:
        new_h = new_h * scale * tl.load(keep_mask + row * keep_mask_row + at, mask=real, other=0).to(tl.float32)
    tl.store(above + row * above_row + at, new_h, mask=real)


@shape_agnostic_jit
def lstm_gates_bwd(
    pre, c, after, d_above, keep_mask, d_h, d_c, d_pre,
    pre_row, c_row, after_row, d_above_row, keep_mask_row, d_h_row, d_c_row, d_pre_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a part of a row; gates are recomputed."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    i, f, g, o = load_gates(pre + row * pre_row, at, real, SIZE)
    before = tl.load(c + row * c_row + at, mask=real, other=0.0)
    tanh_c = tanh(tl.load(after + row * after_row + at, mask=real, other=0.0))
    grad = tl.load(d_above + row * d_above_row + at, mask=real, other=0.0).to(tl.float32)
    if HAS_DROPOUT:
        grad = grad * scale * tl.load(keep_mask + row * keep_mask_row + at, mask=real, other=0).to(tl.float32)
    grad += tl.load(d_h + row * d_h_row + at, mask=real, other=0.0).to(tl.float32)
    d_c += row * d_c_row
    d = tl.load(d_c + at, mask=real, other=0.0) + grad * o * (1 - tanh_c * tanh_c)
    d_pre += row * d_pre_row
    tl.store(d_pre + at, d * g * i * (1 - i), mask=real)
    tl.store(d_pre + SIZE + at, d * before * f * (1 - f), mask=real)
    tl.store(d_pre + 2 * SIZE + at, d * i * (1 - g * g), mask=real)
    tl.store(d_pre + 3 * SIZE + at, grad * tanh_c * o * (1 - o), mask=real)
    tl.store(d_c + at, d * f, mask=real)


@triton.jit
def score_rows(
    vector, rows, v, position, is_real,
    SIZE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr, CONCAT: tl.constexpr,
):  # fmt: skip
    """Return the inner products of a vector q with each row k of a matrix; CONCAT: vᵀ tanh(q + k)."""
    sums = tl.zeros((BLOCK_S, BLOCK), tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < SIZE
        q = tl.load(vector + at, inside, 0.0).to(tl.float32)
        mask = is_real[:, None] & inside[None, :]
        k = tl.load(rows + position[:, None] * SIZE + at[None, :], mask, 0.0).to(tl.float32)
        if CONCAT:
            sums += tanh(q[None, :] + k) * tl.load(v + at, inside, 0.0).to(tl.float32)[None, :]
        else:
            sums += k * q[None, :]
    return tl.sum(sums, 1)


@triton.jit
def softmax_scores(scores, is_real):
    """Return the softmax over the positions that are there; zeros if there is none."""
    scores = tl.where(is_real, scores, -float("inf"))
    top = tl.max(scores, 0)
    probs = tl.where(is_real, tl.exp(scores - tl.where(top == -float("inf"), 0.0, top)), 0.0)
    total = tl.sum(probs, 0)
    return probs / tl.where(total == 0.0, 1.0, total)


@triton.jit
def sum_weighted_rows(probs, rows, position, is_real, at, SIZE: tl.constexpr):
    """Return a part of the weighted sum of the rows of a matrix."""
    real = is_real[:, None] & (at < SIZE)[None, :]
    tile = tl.load(rows + position[:, None] * SIZE + at[None, :], mask=real, other=0.0)
    return tl.sum(tile.to(tl.float32) * probs[:, None], 0)


@triton.jit
def gaussian(distance, SIGMA: tl.constexpr):
    """Return a Gaussian of distances."""
    return tl.exp(-distance * distance / (2 * SIGMA * SIGMA))


@shape_agnostic_jit
def attention_fwd(
    query, context, keys, values, real, weights, centre,
    query_row, context_row, real_row, weights_row, centre_row,
    source,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr,
    REACH: tl.constexpr, SIGMA: tl.constexpr,
):  # fmt: skip
    """Compute scores, softmax and context of a row."""
    row = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, BLOCK_S)
    is_real = tl.load(real + row * real_row + position, mask=position < source, other=0) != 0
    if REACH > 0:
        p = tl.load(centre + row * centre_row)
        is_real = is_real & (tl.abs(position - tl.floor(p)) <= REACH)
    own = query + row * UNIT * query_row
    scores = score_rows(own, keys + row * source * SIZE, None, position, is_real, SIZE, BLOCK_S, BLOCK, False)
    probs = softmax_scores(scores, is_real)
    if SIGMA > 0:
        probs *= gaussian(position - p, SIGMA)
    tl.store(weights + row * weights_row + position, probs, mask=position < source)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        result = sum_weighted_rows(probs, values + row * source * WIDTH, position, is_real, at, WIDTH)
        tl.store(context + row * UNIT * context_row + at, result, mask=at < WIDTH)


@shape_agnostic_jit
def attention_bwd(
    d_context, d_query, d_all, keys, values, d_weights, weights, d_scores, centre, d_centre,
    d_context_row, d_query_row, d_all_row, d_weights_row, weights_row, d_scores_row, centre_row, d_centre_row,
    source,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr,
    SIGMA: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a row; positions with weight 0 have none."""
    row = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, BLOCK_S)
    inside = position < source
    probs = tl.load(weights + row * weights_row + position, mask=inside, other=0.0)
    is_real = inside & (probs != 0.0)
    own = d_context + row * UNIT * d_context_row
    grad = score_rows(own, values + row * source * WIDTH, None, position, is_real, WIDTH, BLOCK_S, BLOCK, False)
    grad += tl.load(d_weights + row * d_weights_row + position, mask=inside, other=0.0)
    each = probs * grad
    if SIGMA > 0:
        distance = position - tl.load(centre + row * centre_row)
        tl.store(d_centre + row * d_centre_row, tl.sum(each * distance, 0) / (SIGMA * SIGMA))
        probs = tl.where(is_real, probs / gaussian(distance, SIGMA), 0.0)
    change = each - probs * tl.sum(each, 0)
    tl.store(d_scores + row * d_scores_row + position, change, mask=inside)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        result = sum_weighted_rows(change, keys + row * source * SIZE, position, is_real, at, SIZE)
        result += tl.load(d_query + row * UNIT * d_query_row + at, mask=at < SIZE, other=0.0).to(tl.float32)
        tl.store(d_all + row * UNIT * d_all_row + at, result, mask=at < SIZE)


@shape_agnostic_jit
def center_fwd(
    u, v, lengths, centre,
    u_row, centre_row,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the predicted centre of a row."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        part = tl.load(u + row * u_row + at, mask=at < SIZE, other=0.0)
        sums += tanh(part) * tl.load(v + at, mask=at < SIZE, other=0.0)
    tl.store(centre + row * centre_row, tl.load(lengths + row) * tl.sigmoid(tl.sum(sums, 0)))


@shape_agnostic_jit
def center_bwd(
    d_centre, centre, lengths, u, v, d_u,
    d_centre_row, centre_row, u_row, d_u_row,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a part of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(centre + row * centre_row)
    fraction = p / tl.maximum(tl.load(lengths + row), 1.0)
    slope = tl.load(d_centre + row * d_centre_row) * p * (1 - fraction)
    squashed = tanh(tl.load(u + row * u_row + at, mask=at < SIZE, other=0.0))
    result = slope * tl.load(v + at, mask=at < SIZE, other=0.0) * (1 - squashed * squashed)
    tl.store(d_u + row * d_u_row + at, result, mask=at < SIZE)


@shape_agnostic_jit
def tanh_fwd(
    z, out, fed, keep_mask,
    z_row, out_row, fed_row, keep_mask_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute tanh, and its copy with dropout, of a part of a row."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    result = tanh(tl.load(z + row * z_row + at, mask=real, other=0.0).to(tl.float32))
    tl.store(out + row * out_row + at, result, mask=real)
    if HAS_DROPOUT:
        result = result * scale * tl.load(keep_mask + row * keep_mask_row + at, mask=real, other=0).to(tl.float32)
    tl.store(fed + row * fed_row + at, result, mask=real)


@shape_agnostic_jit
def tanh_bwd(
    d_out, out, d_fed, keep_mask, d_z,
    d_out_row, out_row, d_fed_row, keep_mask_row, d_z_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a part of a row."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    result = tl.load(out + row * out_row + at, mask=real, other=0.0).to(tl.float32)
    grad = tl.load(d_fed + row * d_fed_row + at, mask=real, other=0.0).to(tl.float32)
    if HAS_DROPOUT:
        grad = grad * scale * tl.load(keep_mask + row * keep_mask_row + at, mask=real, other=0).to(tl.float32)
    grad += tl.load(d_out + row * d_out_row + at, mask=real, other=0.0).to(tl.float32)
    tl.store(d_z + row * d_z_row + at, grad * (1 - result * result), mask=real)


class TritonStepOps(StepOps):
    """The launches, with the signatures of `regard.fast.training.step_ops.StepOps`.

    Keys and values are contiguous, as is the last dimension of everything else.
    """

    def lstm_gates(self, step: LSTMStep, h: Tensor, above: Tensor, rows: Tensor | None = None) -> None:
        """See `StepOps`; with `rows` (B,) c_{t-1} is that of these rows."""
        pre, c, after, keep_mask, scale = step
        tensors = (pre, c, after, h, above, _as_uint8(keep_mask, c))
        gather = {"rows_of": c if rows is None else rows, "GATHER": rows is not None}
        _launch_elementwise(lstm_gates_fwd, tensors, h, keep_mask, scale, **gather)

    def lstm_gates_backward(self, step: LSTMStep, d_above: Tensor, d_h: Tensor, d_c: Tensor, d_pre: Tensor) -> None:
        """See `StepOps`."""
        pre, c, after, keep_mask, scale = step
        tensors = (pre, c, after, d_above, _as_uint8(keep_mask, c), d_h, d_c, d_pre)
        _launch_elementwise(lstm_gates_bwd, tensors, c, keep_mask, scale)

    def attention(self, step: AttentionStep, query: Tensor, context: Tensor) -> None:
        """See `StepOps`."""
        keys, values, mask, weights, center, window = step
        (rows, source, size), width = keys.shape, values.shape[2]
        (block_positions, block), (unit, steps) = tile_shape(source, max(size, width)), _row_strides((query, context))
        p = weights if center is None else center  # a placeholder that is not read
        attention_fwd[rows,](
            query, context, keys, values, mask.view(torch.uint8), weights, p,
            *steps, mask.stride(0), weights.stride(0), p.stride(0), source,
            SIZE=size, WIDTH=width, UNIT=unit, BLOCK_S=block_positions, BLOCK=block,
            REACH=window.radius, SIGMA=window.sigma, num_warps=8,
        )  # fmt: skip

    def attention_backward(self, step: AttentionStep, grads: AttentionGrads) -> None:
        """See `StepOps`."""
        keys, values, _, weights, center, window = step
        d_context, d_weights, d_query, d_scores, d_all, d_center = grads
        (rows, source, size), width = keys.shape, values.shape[2]
        p, d_p = (weights, weights) if center is None or d_center is None else (center, d_center)
        block_positions, block = tile_shape(source, max(size, width))
        unit, steps = _row_strides((d_context, d_query, d_all))
        attention_bwd[rows,](
            d_context, d_query, d_all, keys, values, d_weights, weights, d_scores, p, d_p,
            *steps, d_weights.stride(0), weights.stride(0), d_scores.stride(0), p.stride(0), d_p.stride(0), source,
            SIZE=size, WIDTH=width, UNIT=unit, BLOCK_S=block_positions, BLOCK=block,
            SIGMA=0.0 if d_center is None else window.sigma, num_warps=8,
        )  # fmt: skip

    def predict_center(self, u: Tensor, v: Tensor, lengths: Tensor, center: Tensor) -> None:
        """See `StepOps`."""
        rows, size = u.shape
        center_fwd[rows,](
            u, v, lengths, center, u.stride(0), center.stride(0), SIZE=size, BLOCK=_row_grid(rows, size)[1]
        )

    def predict_center_backward(
        self, d_center: Tensor, center: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor
    ) -> None:
        """See `StepOps`."""
        rows, size = u.shape
        grid, block = _row_grid(rows, size)
        steps = [one.stride(0) for one in (d_center, center, u, d_u)]
        center_bwd[grid](d_center, center, lengths, u, v, d_u, *steps, SIZE=size, BLOCK=block)

    def attentional_tanh(self, z: Tensor, out: Tensor, fed: Tensor, keep_mask: Tensor | None, scale: float) -> None:
        """See `StepOps`."""
        _launch_elementwise(tanh_fwd, (z, out, fed, _as_uint8(keep_mask, z)), z, keep_mask, scale)

    def attentional_tanh_backward(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, keep_mask: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `StepOps`."""
        tensors = (d_out, out, d_fed, _as_uint8(keep_mask, d_z), d_z)
        _launch_elementwise(tanh_bwd, tensors, d_z, keep_mask, scale)


def _launch_elementwise(
    kernel: Any, tensors: Sequence[Tensor], like: Tensor, keep_mask: Tensor | None, scale: float, **others: Any
) -> None:
    """Run a kernel on parts of rows of the size of `like`, with the row strides of its tensors."""
    rows, size = like.shape
    (grid, block), (unit, steps) = _row_grid(rows, size), _row_strides(tensors)
    has_dropout = keep_mask is not None
    kernel[grid](*tensors, *steps, scale, **others, SIZE=size, UNIT=unit, HAS_DROPOUT=has_dropout, BLOCK=block)


def _as_uint8(keep_mask: Tensor | None, other: Tensor) -> Tensor:
    """Return a mask as kernels read it; without one, a placeholder that is not read."""
    return other if keep_mask is None else keep_mask.view(torch.uint8)


def _row_strides(tensors: Sequence[Tensor]) -> tuple[int, list[int]]:
    """Return (unit, row strides in this unit): if all are multiples of 8, the compiler can use vector loads."""
    result = [tensor.stride(0) for tensor in tensors]
    unit = 1 if any(step % 8 for step in result) else 8
    return unit, [step // unit for step in result]


def _row_grid(rows: int, size: int) -> tuple[tuple[int, int], int]:
    """Return a grid of programs for rows of this size, and the block size of each."""
    block = min(MAX_BLOCK, next_power_of_two(size))
    return (rows, -(-size // block)), block


def tile_shape(source: int, width: int) -> tuple[int, int]:
    """Return how many positions, and how many numbers of each, a program reads at once."""
    block_positions = next_power_of_two(source)
    return block_positions, max(16, min(TILE_SIZE // block_positions, next_power_of_two(width)))
