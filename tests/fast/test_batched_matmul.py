"""Batched matrix products on a CPU against PyTorch, for any memory layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.fast import gemm
from regard.fast.gemm import TORCH_GEMM


@pytest.mark.parametrize("by_numpy", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_batched_products_are_those_of_pytorch(
    dtype: torch.dtype, by_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "NO_BATCHED_BLAS", by_numpy)
    torch.manual_seed(0)
    a, b = torch.randn(3, 9, 5, dtype=dtype), torch.randn(3, 7, 5, dtype=dtype, requires_grad=True)
    strided = a[:, ::4]
    for left, right in (
        (a, b.transpose(1, 2)),
        (strided, b.transpose(1, 2)),
        (a[:, 2:3], b.transpose(1, 2)),
        (b, a.mT),
    ):
        found = gemm.batched_matmul(left, right)
        assert found.dtype == dtype
        torch.testing.assert_close(found, (left @ right).detach())


@pytest.mark.filterwarnings("error")
def test_products_of_infinities_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "NO_BATCHED_BLAS", True)
    a = torch.full((2, 1, 3), torch.inf)
    assert gemm.batched_matmul(a, torch.zeros(2, 3, 2)).isnan().all()


def test_large_products_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "NO_BATCHED_BLAS", True)
    monkeypatch.setattr(np, "matmul", None)
    a, b = torch.randn(2, 70, 80), torch.randn(2, 80, 60)
    torch.testing.assert_close(gemm.batched_matmul(a, b), a @ b)


def test_transposed_matrix_is_made_contiguous() -> None:
    W = torch.arange(6.0).view(2, 3)
    assert torch.equal(TORCH_GEMM.prepack(W.t()), W.t())
    assert TORCH_GEMM.prepack(W.t()).is_contiguous()
