"""Triton kernels of packed Transformer training: add+norm, varlen attention, column sums, token counts.

Rows are tokens. All sums are fp32, without atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lowbias32(x):
    """Return a 32-bit hash in which every input bit affects every output bit (C. Wellons' lowbias32)."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def dropout_keep(seed, at, p):
    """Return whether dropout keeps a number, by a hash of index and seed, which is faster than Philox."""
    first, second = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)
    drawn = lowbias32(lowbias32(at.to(tl.uint32) + first) ^ second)
    return (drawn >> 8).to(tl.float32) * (1 / 16777216) >= p


@triton.jit
def add_norm_fwd(
    x, y, bias, weight, shift, s, n, wide, mean, scale, rows, D, epsilon, p, seed,
    R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr, POST: tl.constexpr,
):  # fmt: skip
    """Compute s = x + dropout(y + b) and n = LayerNorm(s) of R rows; POST: n is also stored in the dtype of s."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, C)
    inside = (row < rows)[:, None] & (column < D)[None]
    at = row.to(tl.int64)[:, None] * D + column[None]
    added = tl.load(y + at, inside, 0.0).to(tl.float32)
    added += tl.load(bias + column, column < D, 0.0).to(tl.float32)[None]
    if DROP:
        added = tl.where(dropout_keep(seed, at, p), added / (1 - p), 0.0)
    total = tl.where(inside, tl.load(x + at, inside, 0.0).to(tl.float32) + added, 0.0)
    tl.store(s + at, total, inside)
    total = total.to(s.dtype.element_ty).to(tl.float32)  # as the backward pass reads it
    centre = tl.sum(total, 1) / D
    off = tl.where(inside, total - centre[:, None], 0.0)
    by = 1 / tl.sqrt(tl.sum(off * off, 1) / D + epsilon)
    gain = tl.load(weight + column, column < D, 0.0).to(tl.float32)[None]
    normed = off * by[:, None] * gain + tl.load(shift + column, column < D, 0.0).to(tl.float32)[None]
    tl.store(n + at, normed, inside)
    if POST:
        tl.store(wide + at, normed, inside)
    tl.store(mean + row, centre, row < rows)
    tl.store(scale + row, by, row < rows)


@triton.jit
def add_norm_bwd(
    ds, dn, s, weight, mean, scale, dx, dy, dbias, dweight, dshift, rows, D, p, seed,
    R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr, STREAM: tl.constexpr, POST: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x and y, and partial sums for those of the three vectors.

    `ds` is the gradient of the residual stream: of s, or, with POST, of n.
    """
    column = tl.arange(0, C)
    gain = tl.load(weight + column, column < D, 0.0).to(tl.float32)[None]
    to_bias = tl.zeros((R, C), tl.float32)  # summed over rows once, at the end
    to_weight = tl.zeros((R, C), tl.float32)
    to_shift = tl.zeros((R, C), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, R), tl.num_programs(0)):
        row = block * R + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < D)[None]
        at = row.to(tl.int64)[:, None] * D + column[None]
        given = tl.load(dn + at, inside, 0.0).to(tl.float32)
        if STREAM and POST:
            given += tl.load(ds + at, inside, 0.0).to(tl.float32)
        by = tl.load(scale + row, row < rows, 0.0)[:, None]
        centre = tl.load(mean + row, row < rows, 0.0)[:, None]
        normed = tl.where(inside, (tl.load(s + at, inside, 0.0).to(tl.float32) - centre) * by, 0.0)
        to_weight += given * normed
        to_shift += given
        inner = given * gain
        back = by * (inner - tl.sum(inner, 1)[:, None] / D - normed * (tl.sum(inner * normed, 1)[:, None] / D))
        if STREAM and not POST:
            back += tl.load(ds + at, inside, 0.0).to(tl.float32)
        back = tl.where(inside, back, 0.0)
        tl.store(dx + at, back, inside)
        if DROP:
            back = tl.where(dropout_keep(seed, at, p), back / (1 - p), 0.0)
        tl.store(dy + at, back, inside)
        to_bias += back
    offset = tl.program_id(0) * D + column
    tl.store(dbias + offset, tl.sum(to_bias, 0), column < D)
    tl.store(dweight + offset, tl.sum(to_weight, 0), column < D)
    tl.store(dshift + offset, tl.sum(to_shift, 0), column < D)


@triton.jit
def column_sums(x, activations, sums, rows, D, R: tl.constexpr, C: tl.constexpr, MASKED: tl.constexpr):
    """Compute partial sums over rows; MASKED: x is first set to 0 where an activation is at most 0 (ReLU backward)."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    total = tl.zeros((R, C), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, R), tl.num_programs(0)):
        row = block * R + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < D)[None]
        at = row.to(tl.int64)[:, None] * D + column[None]
        part = tl.load(x + at, inside, 0.0)
        if MASKED:
            part = tl.where(tl.load(activations + at, inside, 0.0) > 0, part, 0.0)
            tl.store(x + at, part, inside)
        total += part.to(tl.float32)
    tl.store(sums + tl.program_id(0) * D + column, tl.sum(total, 0), column < D)


@triton.jit
def load_rows(base, start, length, stride, head, size, L: tl.constexpr, C: tl.constexpr):
    """Load the rows start … start+length of one head: (L, C)."""
    row, column = tl.arange(0, L), tl.arange(0, C)
    inside = (row < length)[:, None] & (column < size)[None]
    at = (start + row).to(tl.int64)[:, None] * stride + head * size + column[None]
    return tl.load(base + at, inside, 0.0)


@triton.jit
def store_rows(base, start, length, stride, head, size, x, L: tl.constexpr, C: tl.constexpr):
    """Store what `load_rows` loads."""
    row, column = tl.arange(0, L), tl.arange(0, C)
    inside = (row < length)[:, None] & (column < size)[None]
    at = (start + row).to(tl.int64)[:, None] * stride + head * size + column[None]
    tl.store(base + at, x.to(base.dtype.element_ty), inside)


@triton.jit
def attention_probs(q, k, length, by, T: tl.constexpr, S: tl.constexpr, CAUSAL: tl.constexpr, EXACT: tl.constexpr):
    """Return softmax(Q Kᵀ / √d_k) over the first `length` keys: (T, S)."""
    scores = tl.dot(q, tl.trans(k), input_precision=EXACT) * by
    column = tl.arange(0, S)[None]
    is_visible = column < length
    if CAUSAL:
        is_visible = is_visible & (column <= tl.arange(0, T)[:, None])
    scores = tl.where(is_visible, scores, -float("inf"))
    scores = tl.exp(scores - tl.maximum(tl.max(scores, 1), -1e30)[:, None])
    return scores / tl.maximum(tl.sum(scores, 1), 1e-30)[:, None]  # 0 for a row without keys


@triton.jit
def attention_varlen_fwd(
    q, k, v, out, q_starts, k_starts, q_stride, k_stride, out_stride, size, by,
    T: tl.constexpr, S: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute one head of one sentence."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    q_start, k_start = tl.load(q_starts + sentence), tl.load(k_starts + sentence)
    q_length, k_length = tl.load(q_starts + sentence + 1) - q_start, tl.load(k_starts + sentence + 1) - k_start
    a = attention_probs(
        load_rows(q, q_start, q_length, q_stride, head, size, T, C),
        load_rows(k, k_start, k_length, k_stride, head, size, S, C),
        k_length, by, T, S, CAUSAL, EXACT,
    )  # fmt: skip
    values = load_rows(v, k_start, k_length, k_stride, head, size, S, C)
    context = tl.dot(a.to(values.dtype), values, input_precision=EXACT)
    store_rows(out, q_start, q_length, out_stride, head, size, context, T, C)


@triton.jit
def attention_varlen_bwd(
    q, k, v, dout, dq, dk, dv, q_starts, k_starts, q_stride, k_stride, out_stride, dk_stride, size, by,
    T: tl.constexpr, S: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one head of one sentence; the weights are recomputed."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    q_start, k_start = tl.load(q_starts + sentence), tl.load(k_starts + sentence)
    q_length, k_length = tl.load(q_starts + sentence + 1) - q_start, tl.load(k_starts + sentence + 1) - k_start
    queries = load_rows(q, q_start, q_length, q_stride, head, size, T, C)
    keys = load_rows(k, k_start, k_length, k_stride, head, size, S, C)
    values = load_rows(v, k_start, k_length, k_stride, head, size, S, C)
    given = load_rows(dout, q_start, q_length, out_stride, head, size, T, C)
    a = attention_probs(queries, keys, k_length, by, T, S, CAUSAL, EXACT)
    to_values = tl.dot(tl.trans(a.to(given.dtype)), given, input_precision=EXACT)
    store_rows(dv, k_start, k_length, dk_stride, head, size, to_values, S, C)
    to_weights = tl.dot(given, tl.trans(values), input_precision=EXACT)
    to_scores = (a * (to_weights - tl.sum(a * to_weights, 1)[:, None]) * by).to(given.dtype)
    store_rows(dq, q_start, q_length, q_stride, head, size, tl.dot(to_scores, keys, input_precision=EXACT), T, C)
    to_keys = tl.dot(tl.trans(to_scores), queries, input_precision=EXACT)
    store_rows(dk, k_start, k_length, dk_stride, head, size, to_keys, S, C)


@triton.jit
def count_tokens(
    lengths, before, after, result, rows, T, apart_before, apart_after, PAD: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Compute the shortest source length, and the sums of source and target lengths, in one program."""
    least = tl.full((R,), 2**31 - 1, tl.int64)
    sources, targets = tl.zeros((R,), tl.int64), tl.zeros((R,), tl.int64)
    for first in range(0, rows, R):
        row = first + tl.arange(0, R)
        inside = row < rows
        length = tl.load(lengths + row, inside, 2**31 - 1).to(tl.int64)
        least = tl.minimum(least, length)
        sources += tl.where(inside, length, 0)
        last = tl.zeros((R,), tl.int64)
        for begin in range(0, T, C):
            column = begin + tl.arange(0, C)
            is_real = inside[:, None] & (column < T)[None]
            at = row.to(tl.int64)[:, None]
            read = tl.load(before + at * apart_before + column[None], is_real, PAD) != PAD
            read |= tl.load(after + at * apart_after + column[None], is_real, PAD) != PAD
            last = tl.maximum(last, tl.max(tl.where(read, column[None] + 1, 0), 1).to(tl.int64))
        targets += last
    tl.store(result, tl.min(least, 0))
    tl.store(result + 1, tl.sum(sources, 0))
    tl.store(result + 2, tl.sum(targets, 0))
