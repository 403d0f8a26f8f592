"""Triton kernels of recurrent decoders in training, with the interface of `regard.fast.training.step_ops.StepOps`.

Each operation is one launch; one program computes a row or a part of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.fast.cuda_graphs.buckets import power
from regard.fast.training.step_ops import EVERYWHERE, Window

WIDE = 512  # numbers of a row that one program sees to
TILE = 16384  # numbers of a row's keys, or values, that are read at once
UNALIGNED = ("kept", "real", "weights", "d_weights", "d_scores", "centre", "d_centre", "lengths")  # may begin anywhere


def kernel(function):
    """Compiled once for a model, not once for each shape: how rows lie is no reason, but for `UNIT`."""
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


@kernel
def lstm_forwards(
    pre, c, after, h, above, kept,
    pre_row, c_row, after_row, h_row, above_row, kept_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row's gates."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    pre += row * pre_row
    i = tl.sigmoid(tl.load(pre + at, mask=real, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(pre + SIZE + at, mask=real, other=0.0).to(tl.float32))
    g = tanh(tl.load(pre + 2 * SIZE + at, mask=real, other=0.0).to(tl.float32))
    o = tl.sigmoid(tl.load(pre + 3 * SIZE + at, mask=real, other=0.0).to(tl.float32))
    new = f * tl.load(c + row * c_row + at, mask=real, other=0.0) + i * g
    shown = o * tanh(new)
    tl.store(after + row * after_row + at, new, mask=real)
    tl.store(h + row * h_row + at, shown, mask=real)
    if KEPT:
        shown = shown * scale * tl.load(kept + row * kept_row + at, mask=real, other=0).to(tl.float32)
    tl.store(above + row * above_row + at, shown, mask=real)


@kernel
def lstm_backwards(
    pre, c, after, d_above, kept, d_h, d_c, d_pre,
    pre_row, c_row, after_row, d_above_row, kept_row, d_h_row, d_c_row, d_pre_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row's gates, the gates counted again."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    pre += row * pre_row
    i = tl.sigmoid(tl.load(pre + at, mask=real, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(pre + SIZE + at, mask=real, other=0.0).to(tl.float32))
    g = tanh(tl.load(pre + 2 * SIZE + at, mask=real, other=0.0).to(tl.float32))
    o = tl.sigmoid(tl.load(pre + 3 * SIZE + at, mask=real, other=0.0).to(tl.float32))
    before = tl.load(c + row * c_row + at, mask=real, other=0.0)
    seen = tanh(tl.load(after + row * after_row + at, mask=real, other=0.0))
    came = tl.load(d_above + row * d_above_row + at, mask=real, other=0.0).to(tl.float32)
    if KEPT:
        came = came * scale * tl.load(kept + row * kept_row + at, mask=real, other=0).to(tl.float32)
    came += tl.load(d_h + row * d_h_row + at, mask=real, other=0.0).to(tl.float32)
    d_c += row * d_c_row
    d = tl.load(d_c + at, mask=real, other=0.0) + came * o * (1 - seen * seen)
    d_pre += row * d_pre_row
    tl.store(d_pre + at, d * g * i * (1 - i), mask=real)
    tl.store(d_pre + SIZE + at, d * before * f * (1 - f), mask=real)
    tl.store(d_pre + 2 * SIZE + at, d * i * (1 - g * g), mask=real)
    tl.store(d_pre + 3 * SIZE + at, came * seen * o * (1 - o), mask=real)
    tl.store(d_c + at, d * f, mask=real)


@triton.jit
def products(vector, rows, place, there, SIZE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr):
    """The inner products of a vector with each of the rows of a matrix."""
    sums = tl.zeros((BLOCK_S, BLOCK), tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        one = tl.load(vector + at, mask=at < SIZE, other=0.0).to(tl.float32)
        real = there[:, None] & (at < SIZE)[None, :]
        sums += tl.load(rows + place[:, None] * SIZE + at[None, :], mask=real, other=0.0).to(tl.float32) * one[None, :]
    return tl.sum(sums, 1)


@triton.jit
def mixed(shares, rows, place, there, at, SIZE: tl.constexpr):
    """A part of the sum of a matrix's rows, each by its share."""
    real = there[:, None] & (at < SIZE)[None, :]
    tile = tl.load(rows + place[:, None] * SIZE + at[None, :], mask=real, other=0.0)
    return tl.sum(tile.to(tl.float32) * shares[:, None], 0)


@triton.jit
def bell(far, SIGMA: tl.constexpr):
    """A Gaussian of distances."""
    return tl.exp(-far * far / (2 * SIGMA * SIGMA))


@kernel
def look_forwards(
    query, context, keys, values, real, weights, centre,
    query_row, context_row, real_row, weights_row, centre_row,
    source,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr,
    REACH: tl.constexpr, SIGMA: tl.constexpr,
):  # fmt: skip
    """A row: scores, softmax, context."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK_S)
    there = tl.load(real + row * real_row + place, mask=place < source, other=0) != 0
    if REACH > 0:
        p = tl.load(centre + row * centre_row)
        there = there & (tl.abs(place - tl.floor(p)) <= REACH)
    own = query + row * UNIT * query_row
    scores = products(own, keys + row * source * SIZE, place, there, SIZE, BLOCK_S, BLOCK)
    scores = tl.where(there, scores, -float("inf"))
    top = tl.max(scores, 0)
    shares = tl.where(there, tl.exp(scores - tl.where(top == -float("inf"), 0.0, top)), 0.0)
    total = tl.sum(shares, 0)
    shares = shares / tl.where(total == 0.0, 1.0, total)
    if SIGMA > 0:
        shares *= bell(place - p, SIGMA)
    tl.store(weights + row * weights_row + place, shares, mask=place < source)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found = mixed(shares, values + row * source * WIDTH, place, there, at, WIDTH)
        tl.store(context + row * UNIT * context_row + at, found, mask=at < WIDTH)


@kernel
def look_backwards(
    d_context, d_query, d_all, keys, values, d_weights, weights, d_scores, centre, d_centre,
    d_context_row, d_query_row, d_all_row, d_weights_row, weights_row, d_scores_row, centre_row, d_centre_row,
    source,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr,
    SIGMA: tl.constexpr,
):  # fmt: skip
    """A row, backwards. A place without weight has nothing to say, whatever the reason."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK_S)
    inside = place < source
    shares = tl.load(weights + row * weights_row + place, mask=inside, other=0.0)
    there = inside & (shares != 0.0)
    own = d_context + row * UNIT * d_context_row
    came = products(own, values + row * source * WIDTH, place, there, WIDTH, BLOCK_S, BLOCK)
    came += tl.load(d_weights + row * d_weights_row + place, mask=inside, other=0.0)
    each = shares * came
    if SIGMA > 0:
        far = place - tl.load(centre + row * centre_row)
        tl.store(d_centre + row * d_centre_row, tl.sum(each * far, 0) / (SIGMA * SIGMA))
        shares = tl.where(there, shares / bell(far, SIGMA), 0.0)
    change = each - shares * tl.sum(each, 0)
    tl.store(d_scores + row * d_scores_row + place, change, mask=inside)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found = mixed(change, keys + row * source * SIZE, place, there, at, SIZE)
        found += tl.load(d_query + row * UNIT * d_query_row + at, mask=at < SIZE, other=0.0).to(tl.float32)
        tl.store(d_all + row * UNIT * d_all_row + at, found, mask=at < SIZE)


@kernel
def aim_forwards(
    u, v, lengths, centre,
    u_row, centre_row,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        part = tl.load(u + row * u_row + at, mask=at < SIZE, other=0.0)
        sums += tanh(part) * tl.load(v + at, mask=at < SIZE, other=0.0)
    tl.store(centre + row * centre_row, tl.load(lengths + row) * tl.sigmoid(tl.sum(sums, 0)))


@kernel
def aim_backwards(
    d_centre, centre, lengths, u, v, d_u,
    d_centre_row, centre_row, u_row, d_u_row,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row, backwards."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(centre + row * centre_row)
    share = p / tl.maximum(tl.load(lengths + row), 1.0)
    slope = tl.load(d_centre + row * d_centre_row) * p * (1 - share)
    squashed = tanh(tl.load(u + row * u_row + at, mask=at < SIZE, other=0.0))
    found = slope * tl.load(v + at, mask=at < SIZE, other=0.0) * (1 - squashed * squashed)
    tl.store(d_u + row * d_u_row + at, found, mask=at < SIZE)


@kernel
def squash_forwards(
    z, out, fed, kept,
    z_row, out_row, fed_row, kept_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    found = tanh(tl.load(z + row * z_row + at, mask=real, other=0.0).to(tl.float32))
    tl.store(out + row * out_row + at, found, mask=real)
    if KEPT:
        found = found * scale * tl.load(kept + row * kept_row + at, mask=real, other=0).to(tl.float32)
    tl.store(fed + row * fed_row + at, found, mask=real)


@kernel
def squash_backwards(
    d_out, out, d_fed, kept, d_z,
    d_out_row, out_row, d_fed_row, kept_row, d_z_row,
    scale,
    SIZE: tl.constexpr, UNIT: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row, backwards."""
    row = tl.program_id(0).to(tl.int64) * UNIT
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    found = tl.load(out + row * out_row + at, mask=real, other=0.0).to(tl.float32)
    came = tl.load(d_fed + row * d_fed_row + at, mask=real, other=0.0).to(tl.float32)
    if KEPT:
        came = came * scale * tl.load(kept + row * kept_row + at, mask=real, other=0).to(tl.float32)
    came += tl.load(d_out + row * d_out_row + at, mask=real, other=0.0).to(tl.float32)
    tl.store(d_z + row * d_z_row + at, came * (1 - found * found), mask=real)


class Kernels:
    """The launches, with the signatures of `regard.fast.gates.Steps`.

    Keys and values are dense, and the last dimension of everything else.
    """

    def lstm(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, kept: Tensor | None, scale: float
    ) -> None:
        """See `Steps`."""
        rows, size = c.shape
        tensors = (pre, c, after, h, above, bytes_of(kept, c))
        (grid, block), (unit, steps) = parts(rows, size), strides(tensors)
        lstm_forwards[grid](*tensors, *steps, scale, SIZE=size, UNIT=unit, KEPT=kept is not None, BLOCK=block)

    def lstm_back(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        kept: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """See `Steps`."""
        rows, size = c.shape
        tensors = (pre, c, after, d_above, bytes_of(kept, c), d_h, d_c, d_pre)
        (grid, block), (unit, steps) = parts(rows, size), strides(tensors)
        lstm_backwards[grid](*tensors, *steps, scale, SIZE=size, UNIT=unit, KEPT=kept is not None, BLOCK=block)

    def look(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        weights: Tensor,
        context: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
    ) -> None:
        """See `Steps`."""
        (rows, source, size), width = keys.shape, values.shape[2]
        (places, block), (unit, steps) = tile(source, max(size, width)), strides((query, context))
        p = weights if centre is None else centre  # some tensor that is not looked at
        look_forwards[rows,](
            query, context, keys, values, mask.view(torch.uint8), weights, p,
            *steps, mask.stride(0), weights.stride(0), p.stride(0), source,
            SIZE=size, WIDTH=width, UNIT=unit, BLOCK_S=places, BLOCK=block,
            REACH=window.reach, SIGMA=window.sigma, num_warps=8,
        )  # fmt: skip

    def look_back(
        self,
        d_context: Tensor,
        d_weights: Tensor,
        weights: Tensor,
        keys: Tensor,
        values: Tensor,
        d_query: Tensor,
        d_scores: Tensor,
        d_all: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
        d_centre: Tensor | None = None,
    ) -> None:
        """See `Steps`."""
        (rows, source, size), width = keys.shape, values.shape[2]
        p, d_p = (weights, weights) if centre is None or d_centre is None else (centre, d_centre)
        (places, block), (unit, steps) = tile(source, max(size, width)), strides((d_context, d_query, d_all))
        look_backwards[rows,](
            d_context, d_query, d_all, keys, values, d_weights, weights, d_scores, p, d_p,
            *steps, d_weights.stride(0), weights.stride(0), d_scores.stride(0), p.stride(0), d_p.stride(0), source,
            SIZE=size, WIDTH=width, UNIT=unit, BLOCK_S=places, BLOCK=block,
            SIGMA=0.0 if d_centre is None else window.sigma, num_warps=8,
        )  # fmt: skip

    def aim(self, u: Tensor, v: Tensor, lengths: Tensor, centre: Tensor) -> None:
        """See `Steps`."""
        rows, size = u.shape
        aim_forwards[rows,](u, v, lengths, centre, u.stride(0), centre.stride(0), SIZE=size, BLOCK=parts(rows, size)[1])

    def aim_back(self, d_centre: Tensor, centre: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor) -> None:
        """See `Steps`."""
        rows, size = u.shape
        grid, block = parts(rows, size)
        steps = [one.stride(0) for one in (d_centre, centre, u, d_u)]
        aim_backwards[grid](d_centre, centre, lengths, u, v, d_u, *steps, SIZE=size, BLOCK=block)

    def gather(self, weights: Tensor, x: Tensor) -> Tensor:
        """See `Steps`: PyTorch's."""
        return torch.bmm(weights.transpose(1, 2), x)

    def squash(self, z: Tensor, out: Tensor, fed: Tensor, kept: Tensor | None, scale: float) -> None:
        """See `Steps`."""
        rows, size = z.shape
        tensors = (z, out, fed, bytes_of(kept, z))
        (grid, block), (unit, steps) = parts(rows, size), strides(tensors)
        squash_forwards[grid](*tensors, *steps, scale, SIZE=size, UNIT=unit, KEPT=kept is not None, BLOCK=block)

    def squash_back(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, kept: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `Steps`."""
        rows, size = d_z.shape
        tensors = (d_out, out, d_fed, bytes_of(kept, d_z), d_z)
        (grid, block), (unit, steps) = parts(rows, size), strides(tensors)
        squash_backwards[grid](*tensors, *steps, scale, SIZE=size, UNIT=unit, KEPT=kept is not None, BLOCK=block)


def bytes_of(kept: Tensor | None, other: Tensor) -> Tensor:
    """Booleans as a kernel reads them; where there are none, some tensor that is not looked at."""
    return other if kept is None else kept.view(torch.uint8)


def strides(tensors: Sequence[Tensor]) -> tuple[int, list[int]]:
    """From a row to the next, in units of 8 numbers if they all are: a compiler that knows reads 8 numbers at once."""
    found = [tensor.stride(0) for tensor in tensors]
    unit = 1 if any(step % 8 for step in found) else 8
    return unit, [step // unit for step in found]


def parts(rows: int, size: int) -> tuple[tuple[int, int], int]:
    """A grid of programs for rows of this size, and how much of a row each sees to."""
    block = min(WIDE, power(size))
    return (rows, -(-size // block)), block


def tile(source: int, width: int) -> tuple[int, int]:
    """How many places, and how many numbers of each, a program reads at once."""
    places = power(source)
    return places, max(16, min(TILE // places, power(width)))
