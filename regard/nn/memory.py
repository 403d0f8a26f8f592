"""What attention reads from and what it gives back.

Shapes, here and everywhere in this package: B batch, T target positions, S source positions, D half a window,
Q, K, V the widths of a query, a key, a value. Masks are boolean, True = a real position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.coverage import CoverageState


class Memory(NamedTuple):
    """What an encoder leaves for a decoder, in the source's own order, also where it read reversed.

    A memory may have fewer rows than the queries that look at it: the first row is then that of the first so many
    queries, as of the hypotheses of a beam, and so on. What is covered differs from query to query and has B rows.
    """

    keys: Tensor  # B,S,K
    values: Tensor  # B,S,V; the same tensor as keys unless a model splits them
    mask: Tensor  # B,S
    projected: Tensor | None = None  # the keys as the score wants them: computed once a sentence, never once a step
    coverage: CoverageState | None = None  # how far each position has been looked at, where the attention keeps count
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
    """A context and where it came from."""

    context: Tensor  # B,T,V
    weights: Tensor  # B,T,S; B,T,2D+1 for a window; B,heads,T,S from MultiHeadAttention
    positions: Tensor | None = None  # B,T,2D+1 source positions of a window; those outside the sentence have weight 0
    log_prob: Tensor | None = None  # B,T hard attention: of the place chosen …
    probabilities: Tensor | None = None  # B,T,S … and what it was drawn from

    def dense(self, source_length: int) -> Tensor:
        """Weights over the whole source, B,T,S (heads are averaged): a window is laid back at its positions."""
        weights = self.weights.mean(1) if self.weights.dim() == 4 else self.weights
        if self.positions is None:
            return F.pad(weights, (0, source_length - weights.shape[2]))
        if not source_length:
            return weights.new_zeros(*weights.shape[:2], 0)
        inside = (self.positions >= 0) & (self.positions < source_length)
        row = weights.new_zeros(*weights.shape[:2], source_length)
        return row.scatter_add(2, self.positions.clamp(0, source_length - 1), weights * inside)


def fold_beams(query: Tensor, rows: int) -> Tensor:
    """Queries B,T,Q as rows,B/rows·T,Q: those that share a row of a memory stand beside each other."""
    return query if query.shape[0] == rows else query.reshape(rows, -1, query.shape[2])


def repeat_rows(x: Tensor, rows: int) -> Tensor:
    """A tensor with fewer rows, each as often as it takes to have so many."""
    if x.shape[0] == rows:
        return x
    # Not `repeat_interleave`: in a graph of ONNX the number of times would be that of the example.
    return x[:, None].expand(-1, rows // x.shape[0], *x.shape[1:]).reshape(rows, *x.shape[1:])


def unfold_beams(attended: Attended, rows: int) -> Attended:
    """What queries found that stood beside each other, each in a row of its own again: the inverse of `gathered`."""
    if attended.context.shape[0] == rows:
        return attended

    def unfold(field: Tensor | None) -> Tensor | None:
        if field is None:
            return None
        if field.dim() < 4:
            return field.reshape(rows, -1, *field.shape[2:])
        A, heads, _, size = field.shape
        return field.view(A, heads, rows // A, -1, size).transpose(1, 2).reshape(rows, heads, -1, size)

    context, weights, *rest = map(unfold, attended)
    assert context is not None
    assert weights is not None
    return Attended(context, weights, *rest)


def concat_steps(steps: list[Attended]) -> Attended:
    """What attention gave at several steps, one after the other along T."""
    along = (-2, -2, -2, -1, -2)  # where T stands in each field
    fields = zip(zip(*steps, strict=True), along, strict=True)
    context, weights, *rest = (None if field[0] is None else torch.cat(field, dim) for field, dim in fields)
    assert context is not None
    assert weights is not None
    return Attended(context, weights, *rest)
