"""Products on a CPU are PyTorch's, whoever makes them and however their factors lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.fast import products
from regard.fast.products import EXACT


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_many_products_are_those_of_pytorch(
    dtype: torch.dtype, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "ONE_BY_ONE", one_by_one)
    torch.manual_seed(0)
    a, b = torch.randn(3, 9, 5, dtype=dtype), torch.randn(3, 7, 5, dtype=dtype, requires_grad=True)
    apart = a[:, ::4]  # rows that do not lie beside each other
    for left, right in ((a, b.transpose(1, 2)), (apart, b.transpose(1, 2)), (a[:, 2:3], b.transpose(1, 2)), (b, a.mT)):
        found = products.products(left, right)
        assert found.dtype == dtype
        torch.testing.assert_close(found, (left @ right).detach())


@pytest.mark.filterwarnings("error")
def test_products_do_not_warn_of_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ONE_BY_ONE", True)
    a = torch.full((2, 1, 3), torch.inf)
    assert products.products(a, torch.zeros(2, 3, 2)).isnan().all()


def test_large_products_start_no_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ONE_BY_ONE", True)
    monkeypatch.setattr(np, "matmul", None)
    a, b = torch.randn(2, 70, 80), torch.randn(2, 80, 60)
    torch.testing.assert_close(products.products(a, b), a @ b)


def test_a_turned_matrix_lies_as_it_is_read() -> None:
    W = torch.arange(6.0).view(2, 3)
    assert torch.equal(EXACT.often(W.t()), W.t())
    assert EXACT.often(W.t()).is_contiguous()
