"""Where each step of a decoder's loop looks: the centre p_t of local attention, forwards and backwards.

`Everywhere` is global attention. Of local-m every p_t is known beforehand; that of local-p waits for h_t, so that its
product and its gradient are part of the loop. The window and the Gaussian around p_t are `regard.fast.gates`'.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.fast.gates import EVERYWHERE, Steps, Window


class Everywhere:
    """No p_t at all."""

    window = EVERYWHERE
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


class Told(Everywhere):
    """local-m: p B,T is known."""

    def __init__(self, window: Window, p: Tensor) -> None:
        self.window, self.p = window, p

    def centre(self, t: int) -> Tensor:
        """A column of all of them."""
        return self.p[:, t]

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """It learns nothing."""
        return [None]


class Predicted(Everywhere):
    """local-p: p_t = S·σ(v_pᵀ tanh(u_t)) with u_t = W_p h_t (Luong 2015, eq. 9), never in half precision."""

    def __init__(self, steps: Steps, window: Window, given: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        self.steps, self.window, self.kept = steps, window, kept
        self.S, self.W_p, self.v_p = given  # B; P,H; P
        self.p, self.u = kept  # B,T; B,T,P
        self.d_p, self.d_u = torch.empty_like(self.p), torch.empty_like(self.u)

    def turn(self, t: int, h: Tensor) -> None:
        """Equation 9."""
        torch.mm(h.to(self.W_p.dtype), self.W_p.t(), out=self.u[:, t])
        self.steps.aim(self.u[:, t], self.v_p, self.S, self.p[:, t])

    def centre(self, t: int) -> Tensor:
        """A column of all of them."""
        return self.p[:, t]

    def slope(self, t: int) -> Tensor:
        """A column of all of them."""
        return self.d_p[:, t]

    def back(self, t: int, d_h: Tensor) -> None:
        """Through σ, tanh and W_p."""
        self.steps.aim_back(self.d_p[:, t], self.p[:, t], self.S, self.u[:, t], self.v_p, self.d_u[:, t])
        d_h.addmm_(self.d_u[:, t], self.W_p)

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """Of S none, of W_p and v_p from all steps at once."""
        d_W = self.d_u.flatten(0, 1).t() @ h.flatten(0, 1).to(self.W_p.dtype)
        logits = self.d_p * self.p * (1 - self.p / self.S.clamp(min=1)[:, None])
        return [None, d_W, logits.flatten() @ self.u.tanh().flatten(0, 1)]
