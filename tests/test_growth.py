"""What grows with a sentence, and how fast: memory, which can be counted byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.growth import distinct, kept, model, training

RECURRENT = ["sutskever2014", "bahdanau2015", "luong2015-global", "luong2015-local-m", "luong2015-local-p"]


def steps(name: str, source: int) -> int:
    """Bytes that 8 steps of a decoder keep for the way back, besides the source that they look at."""
    made = model(name)
    state: Any = made.decoder.start(made.encode(torch.randint(4, 1000, (1, source)), torch.tensor([source])))
    there = {tensor.untyped_storage().data_ptr() for tensor in [*made.parameters(), *distinct(state)]}
    outputs: list[Tensor] = []
    with kept() as held:
        for token in range(8):
            log_probs, state, _ = made.decoder.step(state, torch.tensor([5 + token]))
            outputs.append(log_probs)
        return sum(size for address, size in held.items() if address not in there)


@pytest.mark.parametrize("name", ["sutskever2014", "luong2015-local-m", "luong2015-local-p"])
def test_steps_that_look_through_a_window_or_at_nothing_are_flat_in_the_source(name: str) -> None:
    assert steps(name, 64) == pytest.approx(steps(name, 2048), rel=0.15)  # a mask of the source is a byte a word


@pytest.mark.parametrize("name", ["bahdanau2015", "luong2015-global", "vaswani2017-base"])
def test_steps_that_look_at_the_whole_source_grow_in_proportion_to_it(name: str) -> None:
    short, middle, long = (steps(name, source) for source in (256, 512, 1024))
    assert long - middle == pytest.approx(2 * (middle - short), rel=0.1)
    assert long > middle > short


@pytest.mark.parametrize("name", [*RECURRENT, "vaswani2017-base"])
def test_training_grows_no_faster_than_the_method_demands(name: str) -> None:
    made = model(name)
    short, middle, long = (training(made, words, words)[1]() for words in (32, 64, 128))
    linear = name in ("sutskever2014", "luong2015-local-m", "luong2015-local-p")
    assert long / middle < (2.1 if linear else 4.1)
    assert middle > 1.5 * short
