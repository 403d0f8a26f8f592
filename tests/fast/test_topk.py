"""Top-k by repeated argmax against `torch.topk`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.fast.decoding.vocabulary import topk


@given(st.integers(1, 4), st.integers(1, 3000), st.integers(1, 12), st.integers(0, 2**31), st.booleans())
def test_top_k_is_torch_topk(rows: int, size: int, k: int, seed: int, ties: bool) -> None:
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, size, generator=dice)
    x = x.round() if ties else x
    x[torch.rand(rows, size, generator=dice) < 0.3] = -torch.inf
    before, k = x.clone(), min(k, size)
    values, indices = topk(x, k)
    assert torch.equal(x, before)
    assert torch.equal(values, x.topk(k, -1).values)
    finite = values > -torch.inf
    assert torch.equal(x.gather(1, indices)[finite], values[finite])
    for some, kept in zip(indices, finite, strict=True):
        assert some[kept].unique().numel() == kept.sum()


@pytest.mark.parametrize("k", [1, 2])
def test_top_k_finds_nan(k: int) -> None:
    x = torch.randn(20, 4000)
    x[3, 17] = torch.nan
    assert topk(x, k)[0].isnan().any()
