"""State of the device beam search at fixed addresses, and buffers for the states of decoders.

A sentences with W hypotheses each are R = A·W rows. A chunk of steps is taken without synchronization; each step
writes to a trace that the host reads after the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.fast.cuda_graphs.buckets import leading_slice
from regard.fast.cuda_graphs.pool import StaticBuffers
from regard.fast.decoding.search_trace import CHUNK_STEPS, MAX_TARGET_LENGTH, SearchRequest
from regard.special_tokens import BOS

OPTIONS_OFFSET = 2 * (MAX_TARGET_LENGTH + 1)  # options come after the length divisors


class BeamState(NamedTuple):
    """Tensors of the search."""

    request_buffer: Tensor  # int32; the next three in one buffer, so that one copy uploads them
    length_divisors: Tensor  # (MAX_TARGET_LENGTH + 1,), fp64
    options: Tensor  # (2,), min_length and n_best
    max_lengths: Tensor  # (A,), 0 for unused rows
    steps_done: Tensor  # (1,), steps before this chunk
    log_probs: Tensor  # (A, W), of open hypotheses, else −inf
    tokens: Tensor  # (A, W), the newest
    rows: Tensor  # (A, W), the row, of all R, that each one extends
    num_ended: Tensor  # (A,), hypotheses that have ended
    scores: Tensor  # (A, W), scores of ended hypotheses, −inf behind; fp64 as on the host
    done: Tensor  # (A,), the last step of a sentence, 0 while it is open
    trace: Tensor  # (CHUNK_STEPS·3·A·W + A,): log-probabilities, parents, tokens of each step; then `done`
    attention: Tensor | None  # (CHUNK_STEPS, R, S), attention of each step if requested

    def step(self, number: int) -> Tensor:
        """Return how many steps came before step `number` of this chunk, (1,)."""
        return self.steps_done.long() + number

    @property
    def steps(self) -> Tensor:
        """View the trace as (CHUNK_STEPS, 3, A, W): log-probability bits, parents (within a sentence) and tokens."""
        return self.trace[: -len(self.done)].view(CHUNK_STEPS, 3, *self.tokens.shape)


def allocate_state(
    buffers: StaticBuffers, like: Tensor, sentences: int, width: int, source: int, attention: bool
) -> BeamState:
    """Allocate the state of a search of this size, on the device of `like`."""

    take = StateAllocator(buffers, like)
    A, W = sentences, width
    buffer = take("request_buffer", torch.int32, OPTIONS_OFFSET + 2 + A)
    return BeamState(
        buffer,
        buffer[:OPTIONS_OFFSET].view(torch.float64),
        buffer[OPTIONS_OFFSET : OPTIONS_OFFSET + 2],
        buffer[OPTIONS_OFFSET + 2 :],
        take("steps_done", torch.int32, 1),
        take("log_probs", torch.float32, A, W),
        take("tokens", torch.int64, A, W),
        take("rows", torch.int64, A, W),
        take("num_ended", torch.int32, A),
        take("scores", torch.float64, A, W),
        take("done", torch.int32, A),
        take("trace", torch.int32, CHUNK_STEPS * 3 * A * W + A),
        take("attention", torch.float32, CHUNK_STEPS, A * W, source) if attention else None,
    )


def upload_request(state: BeamState, request: SearchRequest) -> None:
    """Copy the options of a search to the device."""
    buffer = np.zeros(state.request_buffer.shape, np.int32)
    buffer[:OPTIONS_OFFSET].view(np.float64)[: len(request.length_divisors)] = request.length_divisors
    buffer[OPTIONS_OFFSET : OPTIONS_OFFSET + 2] = request.min_length, request.n_best
    buffer[OPTIONS_OFFSET + 2 :][: len(request.max_lengths)] = request.max_lengths
    state.request_buffer.copy_(torch.from_numpy(buffer))


def reset_state(state: BeamState) -> None:
    """Initialize the state: one open hypothesis without tokens per sentence."""
    A, W = state.tokens.shape
    state.steps_done.zero_()
    state.log_probs.fill_(-torch.inf)[:, 0].zero_()
    state.tokens.fill_(BOS)
    state.rows.copy_(torch.arange(A * W, device=state.rows.device).view(A, W))
    state.num_ended.zero_()
    state.scores.fill_(-torch.inf)
    state.done.copy_(state.max_lengths == 0)


def move_sentences(state: BeamState, before: BeamState, sentence_ids: Tensor) -> None:
    """Copy the sentences with these ids from another state; the two may share memory."""
    A, W = state.tokens.shape
    count = len(sentence_ids)
    moved_tensors = [tensor.index_select(0, sentence_ids) for tensor in _per_sentence_tensors(before)]
    parents = before.rows.index_select(0, sentence_ids) % W
    state.request_buffer[: OPTIONS_OFFSET + 2].copy_(before.request_buffer[: OPTIONS_OFFSET + 2])
    for target, tensor in zip(_per_sentence_tensors(state), moved_tensors, strict=True):
        target[:count].copy_(tensor)
    first = W * torch.arange(A, device=state.rows.device)[:, None]
    state.rows.copy_(first.expand(A, W))
    state.rows[:count] += parents
    state.max_lengths[count:] = 0
    state.done[count:] = 1
    state.log_probs[count:] = -torch.inf


def _per_sentence_tensors(state: BeamState) -> list[Tensor]:
    return [state.max_lengths, state.log_probs, state.tokens, state.num_ended, state.scores, state.done]


# Runs work by key; work at fixed addresses may be captured and replayed.
ReplayFunction = Callable[[Hashable, Callable[[], None]], None]


class WorkspaceSize(NamedTuple):
    """Shapes of a search."""

    sentences: int
    width: int  # beam size
    source: int  # positions of the longest source
    capacity: int  # target positions of a KV cache

    @property
    def rows(self) -> int:
        """R, rows of all sentences."""
        return self.sentences * self.width


class StateAllocator:
    """Allocates static buffers for decoder states."""

    def __init__(self, buffers: StaticBuffers, like: Tensor) -> None:
        self.buffers, self.like = buffers, like

    def __call__(self, role: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """Return a tensor of this shape; decoders of one model share the memory of a role."""
        size = torch.Size(shape).numel()
        most = 1 << max(0, size - 1).bit_length()  # so that slightly larger searches share the memory
        return self.buffers.allocate(("state", role), (most,), self.like.new_empty(0, dtype=dtype))[:size].view(shape)


def copy_into(target: Tensor, tensor: Tensor) -> None:
    """Copy a tensor to the leading slice of a larger one."""
    leading_slice(target, tensor.shape).copy_(tensor)


class CastWeights:
    """Casts and products of weights at fixed addresses, refreshed before each search.

    Whether weights have changed cannot be detected: fused optimizers do not count up versions.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.derived: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self.casts: dict[Tensor, Tensor] = {}

    def cast(self, weight: Tensor) -> Tensor:
        """Return a weight in this dtype, without a copy if it has it already."""
        if weight.dtype == self.dtype:
            return weight.detach()
        if weight not in self.casts:
            self.casts[weight] = self.derive(lambda: weight)
        return self.casts[weight]

    def derive(self, make: Callable[[], Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor that is computed from weights, in this dtype or another."""
        target = make().detach().to(dtype or self.dtype).contiguous()
        self.derived.append((target, make))
        return target

    def refresh(self) -> None:
        """Recompute all tensors from the current weights."""
        for target, make in self.derived:
            target.copy_(make())
