"""Triton kernels of the device beam search. All sums are fp32, without atomics.

`number` is the index of a step within its chunk; `steps_done` steps came before the chunk. Both are runtime values,
so all steps share their kernels.
"""

from __future__ import annotations

import inspect

import triton
import triton.language as tl

from regard.fast.kernels.triton.rnn import score_rows, softmax_scores, sum_weighted_rows, tanh


def step_agnostic_jit(function):
    """Compile once per model and beam size, not per step index or number of rows."""
    loose = [name for name in inspect.signature(function).parameters if name in ("number", "rows", "sentences")]
    return triton.jit(function, do_not_specialize=loose)


# The output layer


@triton.jit
def block_topk(
    z, word, row, block, blocks, real, tops, sums, values, tokens, short,
    K: tl.constexpr, PAD: tl.constexpr, BOS: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """Store the maximum, Σ exp and the K largest allowed logits of a block (N, R)."""
    top = tl.max(z, 0)
    safe = tl.where(top == -float("inf"), 0.0, top)
    offset = row.to(tl.int64) * blocks + block
    tl.store(tops + offset, top, real)
    tl.store(sums + offset, tl.sum(tl.exp(z - safe[None]), 0), real)
    out = (word == PAD) | (word == BOS) | ((word == EOS) & short)
    z = tl.where(out[:, None], -float("inf"), z)
    for k in tl.static_range(K):
        best = tl.max(z, 0)
        # the first of equal maxima; it exists unless there are NaNs
        at = tl.min(tl.where(z == best[None], word[:, None], 2147483647), 0)
        tl.store(values + offset * K + k, best, real)
        tl.store(tokens + offset * K + k, tl.where(at == 2147483647, 0, at), real)
        z = tl.where(word[:, None] == at[None], -float("inf"), z)


@step_agnostic_jit
def logits_topk(
    logits, tops, sums, values, tokens, steps_done, search_options, number, vocabulary, blocks,
    K: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr, BOS: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """Reduce a block of the vocabulary of one row."""
    row = tl.program_id(0) + tl.arange(0, 1)
    block = tl.program_id(1)
    word = block * C + tl.arange(0, C)
    at = row.to(tl.int64)[None] * vocabulary + word[:, None]
    z = tl.load(logits + at, (word < vocabulary)[:, None], -float("inf")).to(tl.float32)
    short = tl.load(steps_done) + number + 1 < tl.load(search_options)
    block_topk(z, word, row, block, blocks, row >= 0, tops, sums, values, tokens, short, K, PAD, BOS, EOS)


@triton.jit
def partial_dot(
    total, x, read, real, weight, line, is_real,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Add products of lines of a weight with rows of x (·, SIZE) to an accumulator (N, B) or (N, B, R)."""
    for first in range(0, SIZE, B):
        at = first + tl.arange(0, B)
        inside = at < SIZE
        w = tl.load(weight + line.to(tl.int64)[:, None] * WIDTH + at[None], is_real[:, None] & inside[None], 0.0)
        if R == 1:
            total += w.to(tl.float32) * tl.load(x + tl.sum(read, 0) * SIZE + at, inside, 0.0).to(tl.float32)[None]
        else:
            part = tl.load(x + read[None] * SIZE + at[:, None], real[None] & inside[:, None], 0.0)
            total += w.to(tl.float32)[:, :, None] * part.to(tl.float32)[None]
    return total


@triton.jit
def make_accumulator(N: tl.constexpr, B: tl.constexpr, R: tl.constexpr):
    """Return zeros for such products; a single row has no dimension of its own."""
    return tl.zeros((N, B), tl.float32) if R == 1 else tl.zeros((N, B, R), tl.float32)


@triton.jit
def reduce_accumulator(total, R: tl.constexpr):
    """Return the sums (N, R) of such products."""
    return tl.sum(total, 1)[:, None] if R == 1 else tl.sum(total, 1)


@step_agnostic_jit
def output_topk(
    h, weight, tops, sums, values, tokens, steps_done, search_options, number, vocabulary, blocks,
    SIZE: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    PAD: tl.constexpr, BOS: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """Compute N logits of a single row and reduce them, without storing them."""
    block, row = tl.program_id(0), tl.arange(0, 1)
    word = block * N + tl.arange(0, N)
    is_real = word < vocabulary
    total = partial_dot(
        make_accumulator(N, B, 1), h, row.to(tl.int64), row == 0, weight, word, is_real, SIZE, SIZE, B, 1
    )
    z = tl.where(is_real[:, None], reduce_accumulator(total, 1), -float("inf"))
    short = tl.load(steps_done) + number + 1 < tl.load(search_options)
    block_topk(z, word, row, block, blocks, row == 0, tops, sums, values, tokens, short, 1, PAD, BOS, EOS)


# The search


@step_agnostic_jit
def beam_update(
    tops, sums, values, tokens, steps_done, search_options, length_divisors, limits, log_probs, newest, rows_of,
    ended, scores, done, trace, number, sentences, blocks, count,
    W: tl.constexpr, R: tl.constexpr, B: tl.constexpr, C: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """Update one sentence: continued and ended hypotheses, and whether it is done."""
    own = tl.program_id(0)
    row, block, column = tl.arange(0, R), tl.arange(0, B), tl.arange(0, C)
    real = row < W
    first = own.to(tl.int64) * W
    at = (first + row)[:, None] * blocks + block[None]
    inside = real[:, None] & (block < blocks)[None]
    top = tl.load(tops + at, inside, -float("inf"))
    part = tl.load(sums + at, inside, 0.0)
    most = tl.max(top, 1)
    most = tl.where(most == -float("inf"), 0.0, most)
    total = tl.sum(tl.exp(top - most[:, None]) * part, 1)
    norm = most + tl.log(tl.where(real, total, 1.0))
    strange = tl.sum(tl.where(norm != norm, 1, 0), 0) > 0

    held = real[:, None] & (column < count)[None]
    value = tl.load(values + (first + row)[:, None] * count + column[None], held, -float("inf"))
    base = tl.load(log_probs + first + row, real, -float("inf"))
    reach = tl.reshape(tl.where(held, base[:, None] + (value - norm[:, None]), -float("inf")), (R * C,))
    place_of = tl.arange(0, R * C)

    step = tl.load(steps_done) + number + 1
    limit, n = tl.load(limits + own), tl.load(ended + own)
    rank = tl.load(scores + first + row, real, -float("inf"))
    width = W - n
    divisor = tl.load(length_divisors + step)
    best_open = tl.full((), -float("inf"), tl.float32)
    to = trace + (number * 3 * sentences + own) * W
    tl.debug_barrier()  # all reads come before the writes below
    for slot in tl.static_range(W):
        best = tl.max(reach, 0)
        chosen = tl.min(tl.where(reach == best, place_of, R * C), 0)
        # without an open hypothesis, or with NaN, the index may be out of range
        chosen = tl.where((chosen == R * C) | (best == -float("inf")), 0, chosen)
        reach = tl.where(place_of == chosen, -float("inf"), reach)
        parent = chosen // C
        token = tl.load(tokens + (first + parent) * count + chosen % C)
        best = tl.where(slot < width, best, -float("inf"))
        ends = (token == EOS) & (best > -float("inf"))
        rank = tl.where((row == n) & ends, best.to(tl.float64) / divisor, rank)
        n += tl.where(ends, 1, 0)
        opens = (token != EOS) & (step < limit)
        best_open = tl.where(opens, tl.maximum(best_open, best), best_open)
        tl.store(log_probs + first + slot, tl.where(token == EOS, -float("inf"), best))
        tl.store(newest + first + slot, token.to(tl.int64))
        tl.store(rows_of + first + slot, first + parent)
        reported = tl.where(strange, float("nan"), best)
        tl.store(to + slot, reported.to(tl.int32, bitcast=True))
        tl.store(to + sentences * W + slot, parent)
        tl.store(to + 2 * sentences * W + slot, token)

    wanted = tl.load(search_options + 1)
    better = (rank[None] > rank[:, None]) | ((rank[None] == rank[:, None]) & (row[None] < row[:, None]))
    before = tl.sum(tl.where(better, 1, 0), 1)
    worst = tl.max(tl.where(before == wanted - 1, rank, -float("inf")), 0)
    open_now = best_open.to(tl.float64)
    hope = tl.maximum(open_now / tl.load(length_divisors + 1), open_now / tl.load(length_divisors + limit))
    over = (best_open == -float("inf")) | ((n >= wanted) & (worst >= hope)) | strange
    since = tl.load(done + own)
    tl.debug_barrier()
    tl.store(done + own, tl.where((since == 0) & over, step, since))
    tl.store(ended + own, n)
    tl.store(scores + first + row, rank, real)


# A Transformer


@step_agnostic_jit
def embed_and_link(
    newest, rows_of, words, positions, x, before, after, steps_done, number, scale, size, capacity,
    W: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Embed the newest token of a row, and extend its table of rows that wrote keys and values."""
    row = tl.program_id(0).to(tl.int64)
    step = tl.load(steps_done) + number
    column = tl.arange(0, D)
    inside = column < size
    word = tl.load(words + tl.load(newest + row) * size + column, inside, 0.0)
    tl.store(x + row * size + column, word * scale + tl.load(positions + step * size + column, inside, 0.0), inside)
    parent = tl.load(rows_of + row)
    for first in range(0, step + 1, P):
        at = first + tl.arange(0, P)
        writer = tl.load(before + parent * capacity + at, at < step, 0)
        tl.store(after + row * capacity + at, tl.where(at == step, (row % W).to(tl.int32), writer), at <= step)


@step_agnostic_jit
def self_attention_step(
    qkv, cache, table, out, steps_done, number, rows, heads, capacity, by,
    W: tl.constexpr, SIZE: tl.constexpr, H: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Compute all heads of a row: its own key and value go to the cache, earlier ones are read P at a time."""
    row = tl.program_id(0).to(tl.int64)
    step = tl.load(steps_done) + number
    head, column = tl.arange(0, H)[:, None], tl.arange(0, D)[None]
    inside = (head < heads) & (column < SIZE)
    size = heads * SIZE
    at = head * SIZE + column
    mine = qkv + row * 3 * size + at
    q = tl.load(mine, inside, 0.0).to(tl.float32) * by
    k = tl.load(mine + size, inside, 0.0)
    v = tl.load(mine + 2 * size, inside, 0.0)
    to = cache + (step.to(tl.int64) * rows + row) * 2 * size + at
    tl.store(to, k, inside)
    tl.store(to + size, v, inside)
    top = tl.sum(q * k.to(tl.float32), 1)
    total = tl.full((H,), 1.0, tl.float32)
    result = v.to(tl.float32)
    for first in range(0, step, P):
        position = first + tl.arange(0, P)
        is_real = position < step
        writer = row + position * 0
        if W > 1:  # in greedy search a row wrote all of its own keys and values
            writer = row // W * W + tl.load(table + row * capacity + position, is_real, 0)
        past = cache + ((position.to(tl.int64) * rows + writer) * 2 * size)[:, None, None] + at[None]
        mask = is_real[:, None, None] & inside[None]
        keys = tl.load(past, mask, 0.0).to(tl.float32)
        values = tl.load(past + size, mask, 0.0).to(tl.float32)
        scores = tl.where(is_real[:, None], tl.sum(keys * q[None], 2), -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        less = tl.exp(top - higher)
        probs = tl.exp(scores - higher[None])
        result = result * less[:, None] + tl.sum(probs[:, :, None] * values, 0)
        total = total * less + tl.sum(probs, 0)
        top = higher
    tl.store(out + row * size + at, result / total[:, None], inside)


@step_agnostic_jit
def cross_attention(
    q, source, lengths, out, from_sentence, from_place, heads, by,
    W: tl.constexpr, SIZE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, S: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute one head of the rows of a sentence, over S source positions at a time."""
    own, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, R), tl.arange(0, D)
    size = heads * SIZE
    inside = (row < W)[:, None] & (column < SIZE)[None]
    at = (own * W + row)[:, None] * size + head * SIZE + column[None]
    queries = tl.load(q + at, inside, 0.0)
    length = tl.load(lengths + own)
    top = tl.full((R,), -1e30, tl.float32)
    total = tl.zeros((R,), tl.float32)
    result = tl.zeros((R, D), tl.float32)
    for first in range(0, length, S):
        position = first + tl.arange(0, S)
        mask = (position < length)[:, None] & (column < SIZE)[None]
        keys_at = source + own * from_sentence + position[:, None] * from_place + head * SIZE + column[None]
        keys = tl.load(keys_at, mask, 0.0)
        values = tl.load(keys_at + size, mask, 0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision=EXACT) * by
        scores = tl.where((position < length)[None], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        less = tl.exp(top - higher)
        probs = tl.exp(scores - higher[:, None])
        result = result * less[:, None] + tl.dot(probs.to(values.dtype), values, input_precision=EXACT)
        total = total * less + tl.sum(probs, 1)
        top = higher
    tl.store(out + at, result / tl.maximum(total, 1e-30)[:, None], inside)


# A recurrent decoder


@triton.jit
def row_index(rows_of, row, real, GIVEN: tl.constexpr):
    """Return the row of a piece that each row reads."""
    return tl.load(rows_of + row, real, 0) if GIVEN else row.to(tl.int64)


@triton.jit
def gather_gemv(
    x_0, rows_0, x_1, rows_1, x_2, rows_2, weight, line, is_real, row, real,
    SIZE_0: tl.constexpr, SIZE_1: tl.constexpr, SIZE_2: tl.constexpr,
    GIVEN_0: tl.constexpr, GIVEN_1: tl.constexpr, GIVEN_2: tl.constexpr,
    N: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Return some lines of a weight times up to three concatenated pieces, for a few rows: (N, R)."""
    WIDTH: tl.constexpr = SIZE_0 + SIZE_1 + SIZE_2
    total = make_accumulator(N, B, R)
    read = row_index(rows_0, row, real, GIVEN_0)
    total = partial_dot(total, x_0, read, real, weight, line, is_real, SIZE_0, WIDTH, B, R)
    if SIZE_1 > 0:
        read = row_index(rows_1, row, real, GIVEN_1)
        total = partial_dot(total, x_1, read, real, weight + SIZE_0, line, is_real, SIZE_1, WIDTH, B, R)
    if SIZE_2 > 0:
        read = row_index(rows_2, row, real, GIVEN_2)
        total = partial_dot(total, x_2, read, real, weight + SIZE_0 + SIZE_1, line, is_real, SIZE_2, WIDTH, B, R)
    return reduce_accumulator(total, R)


@step_agnostic_jit
def lstm_step(
    x_0, rows_0, x_1, rows_1, x_2, rows_2, weight, bias, c, rows_of, after, h, rows,
    SIZE_0: tl.constexpr, SIZE_1: tl.constexpr, SIZE_2: tl.constexpr,
    GIVEN_0: tl.constexpr, GIVEN_1: tl.constexpr, GIVEN_2: tl.constexpr,
    H: tl.constexpr, J: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Compute J units of an LSTM layer for a few rows: products and gates."""
    line = tl.arange(0, 4 * J)
    own = tl.program_id(0) * J
    is_real = own + line % J < H
    gate_line = line // J * H + own + line % J
    row = tl.arange(0, R)
    real = row < rows
    pre = gather_gemv(
        x_0, rows_0, x_1, rows_1, x_2, rows_2, weight, gate_line, is_real, row, real,
        SIZE_0, SIZE_1, SIZE_2, GIVEN_0, GIVEN_1, GIVEN_2, 4 * J, B, R,
    )  # fmt: skip
    pre += tl.load(bias + gate_line, is_real, 0.0).to(tl.float32)[:, None]
    gates = tl.reshape(pre, (4, J, R))
    gate = tl.arange(0, 4)[:, None, None]
    i = tl.sigmoid(tl.sum(tl.where(gate == 0, gates, 0.0), 0))
    f = tl.sigmoid(tl.sum(tl.where(gate == 1, gates, 0.0), 0))
    g = tanh(tl.sum(tl.where(gate == 2, gates, 0.0), 0))
    o = tl.sigmoid(tl.sum(tl.where(gate == 3, gates, 0.0), 0))
    unit = own + tl.arange(0, J)
    inside = (unit < H)[:, None] & real[None]
    parent = tl.load(rows_of + row, real, 0)
    new = f * tl.load(c + parent[None] * H + unit[:, None], inside, 0.0) + i * g
    at = row.to(tl.int64)[None] * H + unit[:, None]
    tl.store(after + at, new, inside)
    tl.store(h + at, o * tanh(new), inside)


@step_agnostic_jit
def attentional_state(
    x_0, rows_0, x_1, rows_1, x_2, rows_2, weight, out, rows,
    SIZE_0: tl.constexpr, SIZE_1: tl.constexpr, SIZE_2: tl.constexpr,
    GIVEN_0: tl.constexpr, GIVEN_1: tl.constexpr, GIVEN_2: tl.constexpr,
    F: tl.constexpr, N: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Compute N numbers of h̃ for a few rows."""
    line, row = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, R)
    is_real, real = line < F, row < rows
    z = gather_gemv(
        x_0, rows_0, x_1, rows_1, x_2, rows_2, weight, line, is_real, row, real,
        SIZE_0, SIZE_1, SIZE_2, GIVEN_0, GIVEN_1, GIVEN_2, N, B, R,
    )  # fmt: skip
    tl.store(out + row.to(tl.int64)[None] * F + line[:, None], tanh(z), is_real[:, None] & real[None])


@triton.jit
def copy_row(x, rows_of, out, row, SIZE: tl.constexpr, GIVEN: tl.constexpr, B: tl.constexpr):
    """Copy a row of a piece."""
    if GIVEN:
        row = tl.load(rows_of + row)
    for first in range(0, SIZE, B):
        at = first + tl.arange(0, B)
        tl.store(out + at, tl.load(x + row * SIZE + at, at < SIZE, 0.0), at < SIZE)


@step_agnostic_jit
def gather_pieces(
    x_0, rows_0, x_1, rows_1, x_2, rows_2, out,
    SIZE_0: tl.constexpr, SIZE_1: tl.constexpr, SIZE_2: tl.constexpr,
    GIVEN_0: tl.constexpr, GIVEN_1: tl.constexpr, GIVEN_2: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Concatenate a row of up to three pieces."""
    row = tl.program_id(0).to(tl.int64)
    out += row * (SIZE_0 + SIZE_1 + SIZE_2)
    copy_row(x_0, rows_0, out, row, SIZE_0, GIVEN_0, B)
    if SIZE_1 > 0:
        copy_row(x_1, rows_1, out + SIZE_0, row, SIZE_1, GIVEN_1, B)
    if SIZE_2 > 0:
        copy_row(x_2, rows_2, out + SIZE_0 + SIZE_1, row, SIZE_2, GIVEN_2, B)


@step_agnostic_jit
def luong_attention(
    query, keys, values, v, lengths, weights, context, source,
    W: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK: tl.constexpr, CONCAT: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Compute scores, softmax and a part of the context of a row; several programs per row repeat the scores."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = row // W
    position = tl.arange(0, BLOCK_S)
    is_real = position < tl.load(lengths + own)
    q, k = query + row * SIZE, keys + own * source * SIZE
    probs = softmax_scores(score_rows(q, k, v, position, is_real, SIZE, BLOCK_S, BLOCK, CONCAT), is_real)
    if STORE:
        tl.store(weights + row * source + position, probs, (position < source) & (part == 0))
    for start in range(0, SPAN, BLOCK):
        at = part * SPAN + start + tl.arange(0, BLOCK)
        result = sum_weighted_rows(probs, values + own * source * WIDTH, position, is_real, at, WIDTH)
        tl.store(context + row * WIDTH + at, result, at < WIDTH)
