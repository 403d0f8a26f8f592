"""Recurrent networks: stacks of cells, unidirectional or bidirectional (Schuster & Paliwal 1997)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.nn.cells import State
from regard.nn.mask import prefix_mask

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
    pairs = [
        torch.cat(pair, -1) for pair in zip(state_tensors(forward_state), state_tensors(backward_state), strict=True)
    ]
    return pairs[0] if isinstance(forward_state, Tensor) else tuple(pairs)


def _split_directions(state: State) -> tuple[State, State]:
    """Undo `_concat_directions`."""
    if isinstance(state, Tensor):
        return cast(tuple[Tensor, Tensor], state.chunk(2, -1))
    split = [part.chunk(2, -1) for part in state]
    return tuple(half[0] for half in split), tuple(half[1] for half in split)
