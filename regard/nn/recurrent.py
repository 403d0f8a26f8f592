"""Stacks of recurrent cells, in one direction or in both (Schuster & Paliwal 1997)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.nn.cells import State

CellUnroller = Callable[[nn.Module, Tensor, Tensor, State | None], tuple[Tensor, State]]


class Recurrent(nn.Module):
    """`layers` layers of `cell(input_size, hidden_size)`, run over sentences of different lengths.

    Bidirectional: h⃖_s and h⃗_s are computed with no link between them within a layer, the forward half stands first, and
    layer l+1 sees both. The backward direction starts at each sentence's own end, so padding is never read. Dropout is
    vertical only: on what goes from one layer up to the next. With `residual` each layer above the first adds what the
    layer below gave, undropped, to what it gives.
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
            raise ValueError(f"a recurrent network has at least one layer, not {layers}")
        directions = 2 if bidirectional else 1
        widths = [input_size] + [hidden_size * directions] * (layers - 1)
        self.forwards = nn.ModuleList(cell(width, hidden_size) for width in widths)
        self.backwards = nn.ModuleList(cell(width, hidden_size) for width in widths if bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.residual = residual
        self.output_size = hidden_size * directions
        self.unroll: CellUnroller = unroll_cell  # a faster one may take its place

    def forward(self, x: Tensor, lengths: Tensor, state: Sequence[State] | None = None) -> tuple[Tensor, list[State]]:
        """X B,S,I with `lengths` B -> outputs B,S,H·directions, zero past each end, and the last state of each layer.

        A bidirectional layer's state has the two directions' side by side, as its outputs have.
        """
        final = []
        for layer in range(len(self.forwards)):
            initial = None if state is None else state[layer]
            outputs, last = self._run_layer(layer, self.dropout(x) if layer else x, lengths, initial)
            x = outputs + x if self.residual and layer else outputs
            final.append(last)
        return x, final

    def _run_layer(self, layer: int, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
        """One layer: outputs B,S,H·directions and its last state."""
        if not self.backwards:
            return self.unroll(self.forwards[layer], x, lengths, initial)
        ahead, behind = (None, None) if initial is None else _split_directions(initial)
        forwards, forward_last = self.unroll(self.forwards[layer], x, lengths, ahead)
        mirror = reversal_indices(lengths, x.shape[1])
        backwards, backward_last = self.unroll(self.backwards[layer], _gather_time(x, mirror), lengths, behind)
        return torch.cat((forwards, _gather_time(backwards, mirror)), -1), _concat_directions(
            forward_last, backward_last
        )

    def step(self, x: Tensor, state: Sequence[State] | None) -> tuple[Tensor, list[State]]:
        """One position: x B,I and each layer's state -> output B,H and the new states."""
        if self.backwards:
            raise ValueError("a bidirectional network cannot go step by step: it needs the whole sentence")
        new_state: list[State] = []
        for layer, cell in enumerate(self.forwards):
            new_state.append(cell(self.dropout(x) if layer else x, None if state is None else state[layer]))
            x = hidden_state(new_state[-1]) + x if self.residual and layer else hidden_state(new_state[-1])
        return x, new_state


def unroll_cell(cell: nn.Module, x: Tensor, lengths: Tensor, initial: State | None) -> tuple[Tensor, State]:
    """Runs a cell over x B,S,I: outputs B,S,H, zero past each end, and the state after each sentence's last word.

    Padding comes after the sentence, so nothing real has seen it: it needs no mask inside the loop.
    """
    if not x.shape[1]:
        raise ValueError("a sentence has at least one position, if only of padding: x is B,0,I")
    states, state = [], initial
    for word in x.unbind(1):
        state = cell(word, state)
        states.append(state_tensors(state))
    tensors = [torch.stack(track, 1) for track in zip(*states, strict=True)]  # h, c, … each B,S,H
    begin = [torch.zeros_like(track[:, 0]) for track in tensors] if initial is None else state_tensors(initial)
    last = tuple(last_real_state(track, lengths, first) for track, first in zip(tensors, begin, strict=True))
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return tensors[0] * real[..., None], last[0] if isinstance(state, Tensor) else last


def last_real_state(states: Tensor, lengths: Tensor, initial: Tensor) -> Tensor:
    """The state after each sentence's last word, of states B,S,H; the initial one B,H where there is no word."""
    ends = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
    return torch.where(lengths[:, None] > 0, states.gather(1, ends).squeeze(1), initial)


def reversal_indices(lengths: Tensor, size: int) -> Tensor:
    """Indices B,S that turn each sentence round and leave its padding where it is; their own inverse."""
    position = torch.arange(size, device=lengths.device)
    return torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)


def _gather_time(x: Tensor, indices: Tensor) -> Tensor:
    """X B,S,I in the order of `places` B,S."""
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[2]))


def hidden_state(state: State) -> Tensor:
    """What a cell shows of its state: h."""
    return state_tensors(state)[0]


def state_tensors(state: State) -> tuple[Tensor, ...]:
    """A state's tensors: h alone, or h and c."""
    return (state,) if isinstance(state, Tensor) else state


def _concat_directions(forward_state: State, backward_state: State) -> State:
    """Two directions' states side by side: B,H and B,H -> B,2H."""
    pairs = [
        torch.cat(pair, -1) for pair in zip(state_tensors(forward_state), state_tensors(backward_state), strict=True)
    ]
    return pairs[0] if isinstance(forward_state, Tensor) else tuple(pairs)


def _split_directions(state: State) -> tuple[State, State]:
    """The forward and the backward half of a bidirectional state: the inverse of `beside`."""
    if isinstance(state, Tensor):
        return cast(tuple[Tensor, Tensor], state.chunk(2, -1))
    split = [part.chunk(2, -1) for part in state]
    return tuple(half[0] for half in split), tuple(half[1] for half in split)
