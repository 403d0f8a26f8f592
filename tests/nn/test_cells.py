"""Recurrent cells against float64 NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.oracles import Array, sigmoid, to_array
from torch import Tensor, nn

from regard.nn import Cell, ElmanCell, GRUCell, LSTMCell

B, INPUT, H = 3, 4, 5


pytestmark = pytest.mark.usefixtures("seed")


def compute_gates(cell: Cell, x: Tensor, h: Array, count: int) -> list[Array]:
    """Return W x + U h + b of each gate, with the two biases added."""
    W, U = to_array(cell.weight_ih), to_array(cell.weight_hh)
    b = to_array(cell.bias_ih) + to_array(cell.bias_hh)
    return np.split(to_array(x) @ W.T + h @ U.T + b, count, axis=1)


def test_elman_cell_follows_its_equation() -> None:
    cell, x, h = ElmanCell(INPUT, H), torch.randn(B, INPUT), torch.randn(B, H)
    np.testing.assert_allclose(to_array(cell(x, h)), np.tanh(compute_gates(cell, x, to_array(h), 1)[0]), atol=1e-6)


def test_lstm_cell_follows_its_equations_and_pytorch() -> None:
    cell, x, h, c = LSTMCell(INPUT, H), torch.randn(B, INPUT), torch.randn(B, H), torch.randn(B, H)
    i, f, g, o = compute_gates(cell, x, to_array(h), 4)
    new_c = sigmoid(f) * to_array(c) + sigmoid(i) * np.tanh(g)
    found_h, found_c = cell(x, (h, c))
    np.testing.assert_allclose(to_array(found_c), new_c, atol=1e-6)
    np.testing.assert_allclose(to_array(found_h), sigmoid(o) * np.tanh(new_c), atol=1e-6)
    theirs = nn.LSTMCell(INPUT, H)
    theirs.load_state_dict(cell.state_dict())
    torch.testing.assert_close((found_h, found_c), theirs(x, (h, c)))


def test_gru_cell_follows_the_equations_of_the_paper() -> None:
    cell, x, state = GRUCell(INPUT, H), torch.randn(B, INPUT), torch.randn(B, H)
    h = to_array(state)
    r, z, _ = map(sigmoid, compute_gates(cell, x, h, 3))
    W, U = np.split(to_array(cell.weight_ih), 3)[2], np.split(to_array(cell.weight_hh), 3)[2]
    b = np.split(to_array(cell.bias_ih) + to_array(cell.bias_hh), 3)[2]
    candidate = np.tanh(to_array(x) @ W.T + (r * h) @ U.T + b)
    np.testing.assert_allclose(to_array(cell(x, state)), (1 - z) * h + z * candidate, atol=1e-6)


def test_gru_cell_in_torch_form_equals_the_one_of_pytorch() -> None:
    cell, x, h = GRUCell(INPUT, H, form="torch"), torch.randn(B, INPUT), torch.randn(B, H)
    theirs = nn.GRUCell(INPUT, H)
    theirs.load_state_dict(cell.state_dict())
    torch.testing.assert_close(cell(x, h), theirs(x, h))
    paper = GRUCell(INPUT, H)
    paper.load_state_dict(cell.state_dict())
    assert not torch.allclose(paper(x, h), theirs(x, h))


def test_unknown_gru_form_is_refused() -> None:
    with pytest.raises(ValueError, match="'cudnn'"):
        GRUCell(INPUT, H, form="cudnn")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [ElmanCell, LSTMCell, GRUCell])
def test_a_missing_state_is_a_state_of_zeros(make: Callable[[int, int], Cell]) -> None:
    cell, x = make(INPUT, H), torch.randn(B, INPUT)
    zeros = torch.zeros(B, H)
    torch.testing.assert_close(cell(x), cell(x, (zeros, zeros) if cell.num_state_tensors == 2 else zeros))
