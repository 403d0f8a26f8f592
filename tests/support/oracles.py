"""Plain NumPy versions of functions and recurrent cells, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]


def to_array(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def softmax(scores: Array) -> Array:
    """Return the softmax of a vector; scores of -inf get no weight, and nothing else needs to be left."""
    weights = np.zeros_like(scores)
    finite = np.isfinite(scores)
    if finite.any():
        raised = np.exp(scores[finite] - scores[finite].max())
        weights[finite] = raised / raised.sum()
    return weights


def run_lstm(cell: Any, inputs: Array) -> Array:
    """Return the states h of an LSTM cell after each input (T, H)."""
    W, U, b, c = (to_array(getattr(cell, name)) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h = memory = np.zeros(cell.hidden_size)
    states = []
    for x in inputs:
        i, f, g, o = np.split(W @ x + b + U @ h + c, 4)
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(memory)
        states.append(h)
    return np.stack(states)


def run_gru(cell: Any, inputs: Array) -> Array:
    """Return the states h of a GRU cell after each input (T, H); the reset gate acts after the product."""
    W, U, b, c = (to_array(getattr(cell, name)) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h, states = np.zeros(cell.hidden_size), []
    for x in inputs:
        x_r, x_z, x_n = np.split(W @ x + b, 3)
        u_r, u_z, u_n = np.split(U @ h + c, 3)
        r, z = sigmoid(x_r + u_r), sigmoid(x_z + u_z)
        h = (1 - z) * np.tanh(x_n + r * u_n) + z * h
        states.append(h)
    return np.stack(states)
