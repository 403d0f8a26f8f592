"""Batched inference: batches of similar length, halved when memory runs out, results in input order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.dataset import Indices
from regard.data.loader import map_batches, map_batches_in_order


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100), st.integers(1, 30))
def test_results_are_in_input_order_when_memory_runs_out(sizes: list[int], batch_tokens: int, most: int) -> None:
    def process(rows: Indices) -> list[str]:
        if len(rows) > most:
            raise torch.OutOfMemoryError
        return [f"example {row}" for row in rows.tolist()]

    found = map_batches_in_order(process, np.array(sizes, dtype=np.int32), batch_tokens)
    assert found == [f"example {row}" for row in range(len(sizes))]


def test_batches_hold_examples_of_similar_length_within_the_limit() -> None:
    sizes = np.array([9, 2, 30, 2, 8, 3])
    batches = map_batches(lambda rows: sizes[rows].tolist(), sizes, 18)
    assert batches == [[2, 2, 3], [8, 9], [30]]


def test_an_example_too_large_alone_and_other_errors_are_raised() -> None:
    def run_out_of_memory(rows: Indices) -> list[int]:
        raise torch.OutOfMemoryError("too large")

    def fail(rows: Indices) -> list[int]:
        raise RuntimeError("no such kernel")

    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        map_batches_in_order(run_out_of_memory, np.array([4, 4, 4]), 100)
    with pytest.raises(RuntimeError, match="no such kernel"):
        map_batches_in_order(fail, np.array([4, 4, 4]), 100)
