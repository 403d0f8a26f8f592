"""A product in bytes by itself, and whether it is worth its while on this processor."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from regard.fast.octets.library import Rows
from regard.fast.octets.weights import Weights, in_bytes
from regard.fast.trial import ratio

TRIAL, ROUNDS = (32, 256, 1024), 4  # the shape of products by which it is compared with PyTorch's, and how many turns
CLOSE = 0.02  # of the whole; what bytes may be off by


class Linear:
    """X Wᵀ + b, or with `relu` what of it is above 0."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kernels, self.weights = kernels, Weights(kernels)
        self.product = self.weights.product(in_bytes(weight, bias))

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """X N,I -> N,O."""
        x, (rows, inside), outside = x.contiguous(), x.shape, self.product.outside
        panels = torch.empty(self.kernels.octets_room(rows, inside), dtype=torch.uint8)
        scales, y = torch.empty(rows, dtype=torch.float32), torch.empty(rows, outside, dtype=torch.float32)
        halfway = Rows(panels.data_ptr(), scales.data_ptr())
        self.kernels.octets_quantise(x.data_ptr(), rows, inside, halfway)
        self.kernels.octets_multiply(halfway, self.product, rows, y.data_ptr(), relu)
        return y


def tried(kernels: ctypes.CDLL) -> str:
    """Nothing, if products are right, and take less time than in single precision; otherwise what is wrong."""
    rows, inside, outside = TRIAL
    with torch.random.fork_rng(devices=[]):
        x, weight = (torch.randn(many, inside, dtype=torch.float32) for many in (rows, outside))
    linear, exact = Linear(kernels, weight), x @ weight.t()
    if not (linear(x) - exact).norm() < CLOSE * exact.norm():
        return "kernels for bytes give wrong numbers here"
    times = ratio(lambda: linear(x), lambda: x @ weight.t(), ROUNDS)
    return f"in bytes products would take {times:.2f} times as long" if times > 1 else ""
