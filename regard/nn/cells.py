"""Recurrent cells: Elman, LSTM and GRU.

A cell is called as `cell(x, state) -> state`, with x (B, I) and a state (B, H), for the LSTM a pair (h, c). The state
None is all zeros. Parameters are laid out as in `torch.nn`: `weight_ih` (gates·H, I), `weight_hh` (gates·H, H) and two
biases, with the gates in the order i, f, g, o (LSTM) and r, z, n (GRU).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = Tensor | tuple[Tensor, ...]


class Cell(nn.Module):
    """Base class with the parameters of all cells: `gates` blocks of H rows."""

    num_state_tensors = 1  # 1: h; 2: h and c

    def __init__(self, input_size: int, hidden_size: int, gates: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(gates * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(gates * hidden_size))
        self.bias_hh = nn.Parameter(torch.empty(gates * hidden_size))
        bound = 1 / math.sqrt(hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def zero_state(self, x: Tensor) -> Tensor:
        """Return the all-zero initial state, (B, H)."""
        return x.new_zeros(x.shape[0], self.hidden_size)


class ElmanCell(Cell):
    """Elman cell: h_t = tanh(W x_t + U h_{t-1} + b)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, gates=1)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """Return h_t for x (B, I) and h_{t-1} (B, H)."""
        h = self.zero_state(x) if state is None else state
        return torch.tanh(F.linear(x, self.weight_ih, self.bias_ih) + F.linear(h, self.weight_hh, self.bias_hh))


class LSTMCell(Cell):
    """Long short-term memory with a forget gate (Hochreiter & Schmidhuber 1997; Gers 2000; Zaremba 2015).

    i, f, o = σ(W x_t + U h_{t-1} + b);  g = tanh(W x_t + U h_{t-1} + b);  c_t = f⊙c_{t-1} + i⊙g;  h_t = o⊙tanh(c_t)
    """

    num_state_tensors = 2

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, gates=4)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return (h_t, c_t) for x (B, I) and (h_{t-1}, c_{t-1})."""
        h, c = (self.zero_state(x), self.zero_state(x)) if state is None else state
        gates = F.linear(x, self.weight_ih, self.bias_ih) + F.linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class GRUCell(Cell):
    """Gated recurrent unit, in the papers' form or in PyTorch's.

    `form="paper"` follows Cho 2014 (eq. 5, 6, 8) and Bahdanau 2015 (appendix A.1.1): the reset gate acts before the
    product, and z is the weight of the new state.

        r, z = σ(W x_t + U h_{t-1} + b);  h̃ = tanh(W x_t + U(r⊙h_{t-1}) + b);  h_t = (1−z)⊙h_{t-1} + z⊙h̃

    `form="torch"` follows `torch.nn.GRU`: the reset gate acts after the product, and z is the weight of the old state.

        h̃ = tanh(W x_t + b + r⊙(U h_{t-1} + b'));  h_t = (1−z)⊙h̃ + z⊙h_{t-1}
    """

    def __init__(self, input_size: int, hidden_size: int, form: Literal["paper", "torch"] = "paper") -> None:
        super().__init__(input_size, hidden_size, gates=3)
        if form not in ("paper", "torch"):
            raise ValueError(f"form of a GRU must be 'paper' or 'torch', not {form!r}")
        self.form = form

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """Return h_t for x (B, I) and h_{t-1} (B, H)."""
        return self.step_from_projections(
            F.linear(x, self.weight_ih, self.bias_ih), self.zero_state(x) if state is None else state
        )

    def step_from_projections(self, projected_input: Tensor, h: Tensor) -> Tensor:
        """Return h_t, given the input projections of the three gates (…, 3H) and h_{t-1} (…, H)."""
        x_rz, x_n = projected_input.tensor_split([2 * self.hidden_size], -1)
        W_rz, W_n = self.weight_hh.tensor_split([2 * self.hidden_size])
        b_rz, b_n = self.bias_hh.tensor_split([2 * self.hidden_size])
        r, z = torch.sigmoid(x_rz + F.linear(h, W_rz, b_rz)).chunk(2, -1)
        if self.form == "torch":
            return (1 - z) * torch.tanh(x_n + r * F.linear(h, W_n, b_n)) + z * h
        return (1 - z) * h + z * torch.tanh(x_n + F.linear(r * h, W_n, b_n))
