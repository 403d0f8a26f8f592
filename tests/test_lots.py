"""Work on many examples: lots of about one size, halved where the memory is too small, and answers in order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.ragged import Indices
from regard.tasks.memory import in_lots, in_order


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100), st.integers(1, 30))
def test_every_example_has_its_own_answer_whatever_fits_into_the_memory(
    sizes: list[int], batch_tokens: int, most: int
) -> None:
    def work(rows: Indices) -> list[str]:
        if len(rows) > most:
            raise torch.OutOfMemoryError
        return [f"example {row}" for row in rows.tolist()]

    found = in_order(work, np.array(sizes, dtype=np.int32), batch_tokens)
    assert found == [f"example {row}" for row in range(len(sizes))]


def test_lots_hold_examples_of_about_one_size_within_the_tokens() -> None:
    sizes = np.array([9, 2, 30, 2, 8, 3])
    lots = in_lots(lambda rows: sizes[rows].tolist(), sizes, 18)
    assert lots == [[2, 2, 3], [8, 9], [30]]


def test_what_does_not_fit_alone_and_other_errors_are_not_hidden() -> None:
    def starved(rows: Indices) -> list[int]:
        raise torch.OutOfMemoryError("too large")

    def broken(rows: Indices) -> list[int]:
        raise RuntimeError("no such kernel")

    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        in_order(starved, np.array([4, 4, 4]), 100)
    with pytest.raises(RuntimeError, match="no such kernel"):
        in_order(broken, np.array([4, 4, 4]), 100)
