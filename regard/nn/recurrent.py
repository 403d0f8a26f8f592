"""Recurrent cells (Elman, LSTM, GRU), and networks of them: deep, bidirectional (Schuster & Paliwal 1997).

A cell is called as `cell(x, state) -> state`, with x (B, I) and a state (B, H), for the LSTM a pair (h, c). The state
None is all zeros. Parameters are laid out as in `torch.nn`: `weight_ih` (gates·H, I), `weight_hh` (gates·H, H) and two
biases, with the gates in the order i, f, g, o (LSTM) and r, z, n (GRU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.memory import prefix_mask

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
        h = self.zero_state(x) if state is None else state
        return self.step_from_projections(F.linear(x, self.weight_ih, self.bias_ih), h)

    def step_from_projections(self, projected_input: Tensor, h: Tensor) -> Tensor:
        """Return h_t, given the input projections of the three gates (…, 3H) and h_{t-1} (…, H)."""
        x_rz, x_n = projected_input.tensor_split([2 * self.hidden_size], -1)
        W_rz, W_n = self.weight_hh.tensor_split([2 * self.hidden_size])
        b_rz, b_n = self.bias_hh.tensor_split([2 * self.hidden_size])
        r, z = torch.sigmoid(x_rz + F.linear(h, W_rz, b_rz)).chunk(2, -1)
        if self.form == "torch":
            return (1 - z) * torch.tanh(x_n + r * F.linear(h, W_n, b_n)) + z * h
        return (1 - z) * h + z * torch.tanh(x_n + F.linear(r * h, W_n, b_n))


CellUnroller = Callable[[nn.Module, Tensor, Tensor, State | None], tuple[Tensor, State]]


class Recurrent(nn.Module):
    """Stack of `layers` layers of `cell(input_size, hidden_size)` over sentences of different lengths.

    Bidirectional: h⃗_s and h⃖_s of a layer do not depend on each other; they are concatenated, forward first, and layer
    l+1 reads both. The backward direction starts at each sentence's last word, so padding is never read. Dropout is
    applied between layers only. With `residual`, each layer above the first adds its input, before dropout, to its
    output.
    """

    def __init__(
        self,
        cell: Callable[[int, int], nn.Module],
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1, not {layers}")
        directions = 2 if bidirectional else 1
        widths = [input_size] + [hidden_size * directions] * (layers - 1)
        self.forwards = nn.ModuleList(cell(width, hidden_size) for width in widths)
        self.backwards = nn.ModuleList(cell(width, hidden_size) for width in widths if bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.residual = residual
        self.output_size = hidden_size * directions
        self.unroll: CellUnroller = unroll_cell  # replaced by a faster implementation if there is one

    def forward(self, x: Tensor, lengths: Tensor, state: Sequence[State] | None = None) -> tuple[Tensor, list[State]]:
        """Return outputs (B, S, H·directions), zero after each end, and the last state of each layer.

        The state of a bidirectional layer is the concatenation of both directions, like its outputs.

        Args:
            x: inputs (B, S, I).
            lengths: number of real positions, (B,).
            state: initial state of each layer; None is zeros.
        """
        final = []
        for layer in range(len(self.forwards)):
            initial = None if state is None else state[layer]
            outputs, last = self._run_layer(layer, self.dropout(x) if layer else x, lengths, initial)
            x = outputs + x if self.residual and layer else outputs
            final.append(last)
        return x, final

    def _run_layer(self, layer: int, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
        """Return outputs (B, S, H·directions) and the last state of one layer."""
        if not self.backwards:
            return self.unroll(self.forwards[layer], x, lengths, initial)
        forward_start, backward_start = (None, None) if initial is None else _split_directions(initial)
        forwards, forward_last = self.unroll(self.forwards[layer], x, lengths, forward_start)
        reversed_x = reverse_sequences(x, lengths)
        backwards, backward_last = self.unroll(self.backwards[layer], reversed_x, lengths, backward_start)
        outputs = torch.cat((forwards, reverse_sequences(backwards, lengths)), -1)
        return outputs, _concat_directions(forward_last, backward_last)

    def step(self, x: Tensor, state: Sequence[State] | None) -> tuple[Tensor, list[State]]:
        """Run one position: x (B, I) and each layer's state → output (B, H) and the new states."""
        if self.backwards:
            raise ValueError("a bidirectional network has no step(): it needs the whole sentence")
        new_state: list[State] = []
        for layer, cell in enumerate(self.forwards):
            new_state.append(cell(self.dropout(x) if layer else x, None if state is None else state[layer]))
            x = hidden_state(new_state[-1]) + x if self.residual and layer else hidden_state(new_state[-1])
        return x, new_state


def unroll_cell(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Run a cell over x (B, S, I): return outputs (B, S, H), zero after each end, and the state after each last word.

    The loop needs no mask: padding follows the sentence, so no real position depends on it.
    """
    if not x.shape[1]:
        raise ValueError("x must have at least one position, if only padding; its shape is (B, 0, I)")
    states, state = [], initial
    for word in x.unbind(1):
        state = cell(word, state)
        states.append(state_tensors(state))
    tensors = [torch.stack(tensor, 1) for tensor in zip(*states, strict=True)]  # h, c, …, each (B, S, H)
    starts = [torch.zeros_like(tensor[:, 0]) for tensor in tensors] if initial is None else state_tensors(initial)
    last = tuple(last_real_state(tensor, lengths, first) for tensor, first in zip(tensors, starts, strict=True))
    return tensors[0] * prefix_mask(lengths, x.shape[1])[..., None], last[0] if isinstance(state, Tensor) else last


def last_real_state(states: Tensor, lengths: Tensor, initial: Tensor) -> Tensor:
    """Return the state (B, H) after each sentence's last word, from states (B, S, H).

    `initial` (B, H) for an empty sentence.
    """
    ends = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
    return torch.where(lengths[:, None] > 0, states.gather(1, ends).squeeze(1), initial)


def reverse_sequences(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each sentence of x, (B, S) or (B, S, I), and keep its padding in place."""
    position = torch.arange(x.shape[1], device=lengths.device)
    indices = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)  # (B, S)
    return x.gather(1, indices if x.dim() == 2 else indices[..., None].expand(-1, -1, x.shape[2]))


def hidden_state(state: State) -> Tensor:
    """Return h, the first tensor of a state."""
    return state_tensors(state)[0]


def state_tensors(state: State) -> tuple[Tensor, ...]:
    """Return the tensors of a state: (h,), or (h, c)."""
    return (state,) if isinstance(state, Tensor) else state


def _concat_directions(forward_state: State, backward_state: State) -> State:
    """Concatenate the states of two directions: (B, H) and (B, H) → (B, 2H)."""
    pairs = zip(state_tensors(forward_state), state_tensors(backward_state), strict=True)
    both = tuple(torch.cat(pair, -1) for pair in pairs)
    return both[0] if isinstance(forward_state, Tensor) else both


def _split_directions(state: State) -> tuple[State, State]:
    """Undo `_concat_directions`."""
    if isinstance(state, Tensor):
        return cast(tuple[Tensor, Tensor], state.chunk(2, -1))
    split = [part.chunk(2, -1) for part in state]
    return tuple(half[0] for half in split), tuple(half[1] for half in split)
