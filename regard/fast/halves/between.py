"""What lies between two products by kernels of `between.c`, in single precision: the twin of `Squashing` and `entropy`.

What they do not know, as windows, is left to the others.
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor

from regard.fast.gates import EVERYWHERE, Squashing, Window, dropped
from regard.fast.products import dense, is_dense


class Between(Squashing):
    """See `regard.fast.gates.Steps`."""

    def __init__(self, kernels: CDLL) -> None:
        self.kernels = kernels

    def entropy(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The loss of logits N,V and ids N,1, summed up; in the place of the logits it leaves their gradients."""
        (rows, words), targets = logits.shape, targets.to(torch.int64).contiguous()
        if rows and not 0 <= int(targets.min()) <= int(targets.max()) < words:
            raise IndexError(f"targets from {int(targets.min())} to {int(targets.max())}, but there are {words} words")
        losses = logits.new_empty(rows)
        self.kernels.between_entropy(*at(logits), rows, words, targets.data_ptr(), smoothing, losses.data_ptr())
        return losses.sum()

    def lstm(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, kept: Tensor | None, scale: float
    ) -> None:
        """See `Steps`; after this `pre` are gates."""
        self.kernels.between_lstm(*at(pre), *at(c), *at(after), *at(h), *c.shape)
        if above is not h:
            above.copy_(dropped(h, kept, scale))

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
        """See `Steps`; `pre` are gates."""
        came = dense(dropped(d_above, kept, scale))
        self.kernels.between_lstm_back(
            *at(pre), *at(c), *at(after), *at(came), *at(d_h), *at(d_c), *at(d_pre), *c.shape
        )  # fmt: skip

    def gather(self, weights: Tensor, x: Tensor) -> Tensor:
        """See `Steps`."""
        weights, (B, T, S), V = weights.contiguous(), weights.shape, x.shape[2]
        x = x if x.stride(0) == T * x.stride(1) else x.contiguous()
        y = x.new_empty(B, S, V)
        self.kernels.between_gather(weights.data_ptr(), *at(x.flatten(0, 1)), y.data_ptr(), B, T, S, V)
        return y

    def squash(self, z: Tensor, out: Tensor, fed: Tensor, kept: Tensor | None, scale: float) -> None:
        """See `Steps`."""
        self.kernels.between_squash(*at(z), *at(out), *z.shape)
        fed.copy_(dropped(out, kept, scale))

    def squash_back(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, kept: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `Steps`."""
        fed = dense(dropped(d_fed, kept, scale))
        self.kernels.between_squash_back(*at(d_out), *at(fed), *at(out), *at(d_z), *out.shape)

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
        if centre is not None:
            super().look(query, keys, values, mask, weights, context, centre, window)
            return
        keys, values, mask = keys.contiguous(), values.contiguous(), mask.contiguous()
        self.kernels.between_look(
            *at(query), keys.data_ptr(), values.data_ptr(), mask.data_ptr(), *at(weights), *at(context),
            *keys.shape, values.shape[2],
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
        if centre is not None:
            super().look_back(
                d_context, d_weights, weights, keys, values, d_query, d_scores, d_all, centre, window, d_centre
            )
            return
        keys, values = keys.contiguous(), values.contiguous()
        self.kernels.between_look_back(
            *at(d_context), *at(d_weights), *at(weights), keys.data_ptr(), values.data_ptr(), *at(d_query),
            *at(d_scores), *at(d_all), *keys.shape, values.shape[2],
        )  # fmt: skip


def at(x: Tensor) -> tuple[int, int]:
    """Where a matrix is, and how far its rows are apart; kernels check nothing."""
    if not x.is_cpu or x.dtype is not torch.float32 or not is_dense(x):
        raise ValueError(f"kernels take rows of single precision, not {x.dtype} on {x.device} with steps {x.stride()}")
    return x.data_ptr(), x.stride(0)
