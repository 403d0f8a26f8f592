"""Growth of activation memory with sentence length, counted in bytes saved for the backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.combinations import slow_after
from torch import Tensor

from benchmarks.scaling import build_small_model, list_distinct_tensors, make_training_run, record_saved_storages

TRAINED_RECIPES = [
    "bahdanau2015",
    "luong2015-local-m",
    "vaswani2017-base",
    "luong2015-global",
    "luong2015-local-p",
    "sutskever2014",
]


def saved_bytes_of_decoder_steps(name: str, source: int) -> int:
    """Return the bytes that 8 decoder steps save for the backward pass, without the encoded source."""
    made = build_small_model(name)
    state: Any = made.decoder.start(made.encode(torch.randint(4, 1000, (1, source)), torch.tensor([source])))
    there = {tensor.untyped_storage().data_ptr() for tensor in [*made.parameters(), *list_distinct_tensors(state)]}
    outputs: list[Tensor] = []
    with record_saved_storages() as held:
        for token in range(8):
            log_probs, state, _ = made.decoder.step(state, torch.tensor([5 + token]))
            outputs.append(log_probs)
        return sum(size for address, size in held.items() if address not in there)


@pytest.mark.parametrize("name", slow_after(1, ["luong2015-local-m", "luong2015-local-p", "sutskever2014"]))
def test_local_attention_memory_is_constant_in_source_length(name: str) -> None:
    assert saved_bytes_of_decoder_steps(name, 64) == pytest.approx(
        saved_bytes_of_decoder_steps(name, 2048), rel=0.15
    )  # the source mask takes a byte per token


@pytest.mark.parametrize("name", slow_after(1, ["vaswani2017-base", "bahdanau2015", "luong2015-global"]))
def test_global_attention_memory_is_linear_in_source_length(name: str) -> None:
    short, middle, long = (saved_bytes_of_decoder_steps(name, source) for source in (256, 512, 1024))
    assert long - middle == pytest.approx(2 * (middle - short), rel=0.1)
    assert long > middle > short


@pytest.mark.parametrize("name", slow_after(3, TRAINED_RECIPES))
def test_training_memory_grows_as_the_method_requires(name: str) -> None:
    made = build_small_model(name)
    short, middle, long = (make_training_run(made, words, words)[1]() for words in (32, 64, 128))
    linear = name in ("sutskever2014", "luong2015-local-m", "luong2015-local-p")
    assert long / middle < (2.1 if linear else 4.1)
    assert middle > 1.5 * short
