"""Cells against float64 NumPy and against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from regard.nn import Cell, ElmanCell, GRUCell, LSTMCell

Array = npt.NDArray[np.float64]
B, INPUT, H = 3, 4, 5


def array(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gates(cell: Cell, x: Tensor, h: Array, count: int) -> list[Array]:
    """W x + U h + b of each gate, with the two biases added."""
    W, U = array(cell.weight_ih), array(cell.weight_hh)
    b = array(cell.bias_ih) + array(cell.bias_hh)
    return np.split(array(x) @ W.T + h @ U.T + b, count, axis=1)


def test_elman() -> None:
    cell, x, h = ElmanCell(INPUT, H), torch.randn(B, INPUT), torch.randn(B, H)
    np.testing.assert_allclose(array(cell(x, h)), np.tanh(gates(cell, x, array(h), 1)[0]), atol=1e-6)


def test_lstm_and_pytorchs() -> None:
    cell, x, h, c = LSTMCell(INPUT, H), torch.randn(B, INPUT), torch.randn(B, H), torch.randn(B, H)
    i, f, g, o = gates(cell, x, array(h), 4)
    new_c = sigmoid(f) * array(c) + sigmoid(i) * np.tanh(g)
    found_h, found_c = cell(x, (h, c))
    np.testing.assert_allclose(array(found_c), new_c, atol=1e-6)
    np.testing.assert_allclose(array(found_h), sigmoid(o) * np.tanh(new_c), atol=1e-6)
    theirs = nn.LSTMCell(INPUT, H)
    theirs.load_state_dict(cell.state_dict())
    torch.testing.assert_close((found_h, found_c), theirs(x, (h, c)))


def test_gru_of_the_papers_resets_before_the_product_and_z_brings_in_the_new() -> None:
    cell, x, state = GRUCell(INPUT, H), torch.randn(B, INPUT), torch.randn(B, H)
    h = array(state)
    r, z, _ = map(sigmoid, gates(cell, x, h, 3))
    W, U = np.split(array(cell.weight_ih), 3)[2], np.split(array(cell.weight_hh), 3)[2]
    b = np.split(array(cell.bias_ih) + array(cell.bias_hh), 3)[2]
    candidate = np.tanh(array(x) @ W.T + (r * h) @ U.T + b)
    np.testing.assert_allclose(array(cell(x, state)), (1 - z) * h + z * candidate, atol=1e-6)


def test_gru_in_torch_form_is_pytorchs() -> None:
    cell, x, h = GRUCell(INPUT, H, form="torch"), torch.randn(B, INPUT), torch.randn(B, H)
    theirs = nn.GRUCell(INPUT, H)
    theirs.load_state_dict(cell.state_dict())
    torch.testing.assert_close(cell(x, h), theirs(x, h))
    paper = GRUCell(INPUT, H)
    paper.load_state_dict(cell.state_dict())
    assert not torch.allclose(paper(x, h), theirs(x, h))


def test_a_gru_has_one_of_two_forms() -> None:
    with pytest.raises(ValueError, match="'cudnn'"):
        GRUCell(INPUT, H, form="cudnn")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [ElmanCell, LSTMCell, GRUCell])
def test_no_state_is_a_state_of_zeros(make: Callable[[int, int], Cell]) -> None:
    cell, x = make(INPUT, H), torch.randn(B, INPUT)
    zeros = torch.zeros(B, H)
    torch.testing.assert_close(cell(x), cell(x, (zeros, zeros) if cell.tracks == 2 else zeros))
