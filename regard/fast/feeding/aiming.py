"""Where each step of a decoder's loop looks: the centre p_t of local attention, forwards and backwards.

Of local-m every p_t is known beforehand; that of local-p waits for h_t, so that its
product and its gradient are part of the loop. The window and the Gaussian around p_t are `regard.fast.gates`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from regard.fast.gates import Steps
from regard.fast.products import EXACT


class Aim:
    """What the loop asks; as it is here, global attention: no p_t at all."""

    kept: Sequence[Tensor] = ()  # what the way back needs of the way there

    def turn(self, t: int, h: Tensor) -> None:
        """Finds p_t from the states h_t B,H."""

    def centre(self, t: int) -> Tensor | None:
        """p_t B."""
        return None

    def slope(self, t: int) -> Tensor | None:
        """Where the gradient of p_t is to be written."""
        return None

    def back(self, t: int, d_h: Tensor) -> None:
        """Adds what came to p_t to the gradient of h_t."""

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """The gradients of what it was given, all steps being done; h is B,T,H."""
        return []


class Told(Aim):
    """local-m: all p_t are known."""

    def __init__(self, p: Tensor) -> None:
        self.p = p  # B,T

    def centre(self, t: int) -> Tensor:
        """p_t."""
        return self.p[:, t]

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """It learns nothing."""
        return [None]


class Predicted(Told):
    """local-p: p_t = S·σ(v_pᵀ tanh(u_t)) with u_t = W_p h_t (Luong 2015, eq. 9), never in half precision."""

    def __init__(
        self,
        steps: Steps,
        given: Sequence[Tensor],  # S B, W_p P,H and v_p P
        kept: Sequence[Tensor],  # places for p B,T and u B,T,P
        slopes: Sequence[Tensor],  # and on the way back for their gradients
    ) -> None:
        super().__init__(kept[0])
        self.steps, self.kept, self.u, self.found = steps, kept, kept[1], slopes
        self.S, self.W_p, self.v_p = given

    @cached_property
    def turned_weight(self) -> Tensor:
        """W_pᵀ, which the way back does not need."""
        return EXACT.often(self.W_p.t())

    def turn(self, t: int, h: Tensor) -> None:
        """Equation 9."""
        torch.mm(h.to(self.W_p.dtype), self.turned_weight, out=self.u[:, t])
        self.steps.aim(self.u[:, t], self.v_p, self.S, self.p[:, t])

    def slope(self, t: int) -> Tensor:
        """That of p_t."""
        return self.found[0][:, t]

    def back(self, t: int, d_h: Tensor) -> None:
        """Through σ, tanh and W_p."""
        d_p, d_u = (one[:, t] for one in self.found)
        self.steps.aim_back(d_p, self.p[:, t], self.S, self.u[:, t], self.v_p, d_u)
        d_h.addmm_(d_u, self.W_p)

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """Of S none, of W_p and v_p from all steps at once."""
        d_p, d_u = self.found
        d_W = d_u.flatten(0, 1).t() @ h.flatten(0, 1).to(self.W_p.dtype)
        d_logits = d_p * self.p * (1 - self.p / self.S.clamp(min=1)[:, None])
        return [None, d_W, d_logits.flatten() @ self.u.tanh().flatten(0, 1)]
