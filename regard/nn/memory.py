"""Padding masks, encoder memory, attention results, and the folding of beam hypotheses that share one memory.

Shapes in this package: B batch, T target positions, S source positions, D half a window, Q, K, V the widths of a query,
a key, a value. Masks are boolean, True for a real position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def prefix_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a mask (B, size) that is True for the first `lengths[b]` positions of row b."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the last dimension, restricted to positions with `mask` True and a score above −inf.

    All other positions get a weight of exactly 0. A row without any position is all zeros, and so is its gradient: the
    lowest finite number replaces −inf, because a softmax over −inf alone is NaN, forward and backward.
    """
    is_masked = ~mask | (scores == -torch.inf)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(is_masked, lowest).softmax(-1).masked_fill(is_masked, 0.0)


class CoverageState(NamedTuple):
    """Coverage of a source between two steps; see `regard.nn.coverage`."""

    amount: Tensor  # C_{i-1,j}, (B, S, C)
    word_features: Tensor  # (B, S, ·); depends on h_j alone, so it is computed once per sentence


class Memory(NamedTuple):
    """Encoder memory that attention reads: keys, values and mask, in source order even if the encoder read in reverse.

    A memory may have fewer rows than the queries: with B queries over A rows, each row serves B/A consecutive queries,
    such as the hypotheses of one beam. Coverage differs between queries and has B rows.
    """

    keys: Tensor  # (B, S, K)
    values: Tensor  # (B, S, V); the same tensor as keys unless a model splits them
    mask: Tensor  # (B, S)
    projected: Tensor | None = None  # the keys as projected by the score: computed once per sentence, not per step
    coverage: CoverageState | None = None  # None if the attention has no coverage model
    owner: nn.Module | None = None  # the attention that projected the keys; no other can use `projected`

    def __reduce__(self) -> tuple[type[Memory], tuple[object, ...]]:
        """Copy and pickle a memory without its owner, which is a whole module."""
        return type(self), tuple(self._replace(owner=None))

    def is_prepared(self, attention: nn.Module) -> bool:
        """Return whether the keys are projected; raise ValueError if another attention has projected them."""
        if self.owner is not None and self.owner is not attention:
            raise ValueError(
                f"this memory was prepared by another {type(self.owner).__name__}: prepare the encoder's own memory "
                "with each attention that reads it"
            )
        return self.projected is not None


class Attended(NamedTuple):
    """Result of attention: context vectors and the weights that produced them."""

    context: Tensor  # (B, T, V)
    weights: Tensor  # (B, T, S); (B, T, 2D+1) for a window; (B, heads, T, S) from MultiHeadAttention
    positions: Tensor | None = None  # (B, T, 2D+1), of a window; positions outside the sentence have weight 0
    log_prob: Tensor | None = None  # (B, T), hard attention: log-probability of the chosen position
    probabilities: Tensor | None = None  # (B, T, S), hard attention: distribution that it was sampled from

    def dense(self, source_length: int) -> Tensor:
        """Return weights (B, T, S) over the whole source.

        Heads are averaged, a window is scattered to its positions.
        """
        weights = self.weights.mean(1) if self.weights.dim() == 4 else self.weights
        if self.positions is None:
            return F.pad(weights, (0, source_length - weights.shape[2]))
        if not source_length:
            return weights.new_zeros(*weights.shape[:2], 0)
        inside = (self.positions >= 0) & (self.positions < source_length)
        row = weights.new_zeros(*weights.shape[:2], source_length)
        return row.scatter_add(2, self.positions.clamp(0, source_length - 1), weights * inside)


def fold_beams(query: Tensor, rows: int) -> Tensor:
    """Fold beam hypotheses into the time axis: (B, T, Q) → (rows, B/rows·T, Q).

    Hypotheses of one source then attend to one copy of its memory.
    """
    return query if query.shape[0] == rows else query.reshape(rows, -1, query.shape[2])


def repeat_rows(x: Tensor, rows: int) -> Tensor:
    """Repeat each row `rows / len(x)` times, as `repeat_interleave` does."""
    if x.shape[0] == rows:
        return x
    # Not `repeat_interleave`: an ONNX export would fix the number of repeats to that of the example input.
    return x[:, None].expand(-1, rows // x.shape[0], *x.shape[1:]).reshape(rows, *x.shape[1:])


def unfold_beams(attended: Attended, rows: int) -> Attended:
    """Undo `fold_beams`: one row per hypothesis again."""
    if attended.context.shape[0] == rows:
        return attended

    def unfold(field: Tensor | None) -> Tensor | None:
        if field is None:
            return None
        if field.dim() < 4:
            return field.reshape(rows, -1, *field.shape[2:])
        A, heads, _, size = field.shape
        return field.view(A, heads, rows // A, -1, size).transpose(1, 2).reshape(rows, heads, -1, size)

    return Attended._make(map(unfold, attended))


def concat_steps(steps: list[Attended]) -> Attended:
    """Concatenate the attention results of consecutive steps along T."""
    time_dims = (-2, -2, -2, -1, -2)  # dimension of T in each field
    fields = zip(zip(*steps, strict=True), time_dims, strict=True)
    return Attended._make(None if field[0] is None else torch.cat(field, dim) for field, dim in fields)
