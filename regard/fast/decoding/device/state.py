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


class BeamState:
    """Tensors of the search, on the device of `like`."""

    def __init__(self, buffers: StaticBuffers, like: Tensor, size: WorkspaceSize, has_attention: bool) -> None:
        take, A, W = StateAllocator(buffers, like), size.sentences, size.width
        # int32, the next three in one buffer, so that one copy uploads them
        self.request_buffer = take("request_buffer", torch.int32, OPTIONS_OFFSET + 2 + A)
        self.length_divisors = self.request_buffer[:OPTIONS_OFFSET].view(torch.float64)  # (MAX_TARGET_LENGTH + 1,)
        self.options = self.request_buffer[OPTIONS_OFFSET : OPTIONS_OFFSET + 2]  # (2,), min_length and n_best
        self.max_lengths = self.request_buffer[OPTIONS_OFFSET + 2 :]  # (A,), 0 for unused rows
        self.steps_done = take("steps_done", torch.int32, 1)  # steps before this chunk
        self.log_probs = take("log_probs", torch.float32, A, W)  # of open hypotheses, else −inf
        self.tokens = take("tokens", torch.int64, A, W)  # the newest
        self.rows = take("rows", torch.int64, A, W)  # the row, of all A·W, that each one extends
        self.num_ended = take("num_ended", torch.int32, A)  # hypotheses that have ended
        # scores of ended hypotheses, −inf behind; fp64 as on the host
        self.scores = take("scores", torch.float64, A, W)
        self.done = take("done", torch.int32, A)  # the last step of a sentence, 0 while it is open
        # log-probabilities, parents and tokens of each step; then `done`
        self.trace = take("trace", torch.int32, CHUNK_STEPS * 3 * A * W + A)
        # (CHUNK_STEPS, A·W, S), attention of each step if requested
        attention_shape = CHUNK_STEPS, size.rows, size.source
        self.attention = take("attention", torch.float32, *attention_shape) if has_attention else None

    def step(self, number: int) -> Tensor:
        """Return how many steps came before step `number` of this chunk, (1,)."""
        return self.steps_done.long() + number

    @property
    def steps(self) -> Tensor:
        """View the trace as (CHUNK_STEPS, 3, A, W): log-probability bits, parents (within a sentence) and tokens."""
        return self.trace[: -len(self.done)].view(CHUNK_STEPS, 3, *self.tokens.shape)

    def upload_request(self, request: SearchRequest) -> None:
        """Copy the options of a search to the device."""
        buffer = np.zeros(self.request_buffer.shape, np.int32)
        buffer[:OPTIONS_OFFSET].view(np.float64)[: len(request.length_divisors)] = request.length_divisors
        buffer[OPTIONS_OFFSET : OPTIONS_OFFSET + 2] = request.min_length, request.n_best
        buffer[OPTIONS_OFFSET + 2 :][: len(request.max_lengths)] = request.max_lengths
        self.request_buffer.copy_(torch.from_numpy(buffer))

    def reset(self) -> None:
        """Initialize the state: one open hypothesis without tokens per sentence."""
        A, W = self.tokens.shape
        self.steps_done.zero_()
        self.log_probs.fill_(-torch.inf)[:, 0].zero_()
        self.tokens.fill_(BOS)
        self.rows.copy_(torch.arange(A * W, device=self.rows.device).view(A, W))
        self.num_ended.zero_()
        self.scores.fill_(-torch.inf)
        self.done.copy_(self.max_lengths == 0)

    def copy_sentences(self, before: BeamState, sentence_ids: Tensor) -> None:
        """Copy the sentences with these ids from another state; the two may share memory."""
        A, W = self.tokens.shape
        count = len(sentence_ids)
        names = "max_lengths", "log_probs", "tokens", "num_ended", "scores", "done"
        tensors = {name: getattr(before, name).index_select(0, sentence_ids) for name in names}
        parents = before.rows.index_select(0, sentence_ids) % W
        self.request_buffer[: OPTIONS_OFFSET + 2].copy_(before.request_buffer[: OPTIONS_OFFSET + 2])
        for name, tensor in tensors.items():
            getattr(self, name)[:count].copy_(tensor)
        first = W * torch.arange(A, device=self.rows.device)[:, None]
        self.rows.copy_(first.expand(A, W))
        self.rows[:count] += parents
        self.max_lengths[count:] = 0
        self.done[count:] = 1
        self.log_probs[count:] = -torch.inf


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
