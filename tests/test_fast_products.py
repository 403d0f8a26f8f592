"""Products on a CPU are PyTorch's, whoever makes them and however their factors lie."""

from __future__ import annotations

import pytest
import torch

from regard.fast import products
from regard.fast.products import turned


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


def test_a_turned_matrix_lies_as_it_is_read() -> None:
    W = torch.arange(6.0).view(2, 3)
    assert torch.equal(turned(W), W.t())
    assert turned(W).is_contiguous()
