"""Alignments: where a query may look, and how scores become weights.

An alignment is two functions. `window(query, mask, step)` says where each query looks: source positions B,T,2D+1 and a
prior to multiply the weights by, or None and None for the whole sentence. `weigh(scores, mask, prior)` turns scores
into weights over what was looked at.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from regard.nn.mask import masked_softmax


class Alignment(Protocol):
    """What `Attention` asks of an alignment; any class with these two methods is one."""

    def window(self, query: Tensor, mask: Tensor, step: int) -> tuple[Tensor | None, Tensor | None]:
        """Positions B,T,2D+1 and their prior, each None for the whole sentence; `step`: index of the first query."""
        ...

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Weights of the scores B,T,S (or B,T,2D+1); the mask broadcasts over T where there is no window."""
        ...


class Global(nn.Module):
    """a_t(s) = softmax over all real positions (Luong 2015, eq. 7; Bahdanau 2015, eq. 6)."""

    def window(self, query: Tensor, mask: Tensor, step: int) -> tuple[None, None]:
        """No window: the whole sentence."""
        return None, None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Softmax over the real positions."""
        return masked_softmax(scores, mask)
