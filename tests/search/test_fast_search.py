"""The choice between the search that a model has for its device and the reference search, and errors of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.combinations import slow_after
from support.fast_models import randomize
from support.search import make_sources
from torch import Tensor, nn

from regard.fast.decoding.search_trace import MAX_TARGET_LENGTH, SearchRequest, SearchTrace
from regard.models import Seq2Seq, build
from regard.search import SearchOptions, search
from regard.search.beam import find_fast_search_obstacle

WORDS = 11


def make_model(name: str, seed: int = 0, std: float = 0.5) -> Seq2Seq:
    torch.manual_seed(seed)
    model: Seq2Seq = build(name, 20, WORDS, size=16, layers=1).eval()
    randomize(model, std)
    return model


def test_search_of_an_empty_batch_returns_no_hypotheses() -> None:
    assert search(make_model("luong2015-global"), torch.zeros(0, 3, dtype=torch.long), torch.zeros(0).long()) == []


def make_counted_search() -> tuple[Seq2Seq, list[int]]:
    """Return a model with a search of its own, which leaves everything to the reference, and its calls."""
    model, calls = make_model("luong2015-global"), list[int]()

    def count(_: Seq2Seq, source: Tensor, lengths: Tensor, request: SearchRequest) -> None:
        calls.append(request.beam)

    model.acceleration.search = count
    return model, calls


@pytest.mark.parametrize(("fast", "calls"), [("1", [3]), ("0", [])])
def test_regard_fast_0_switches_a_models_own_search_off(
    fast: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = make_counted_search()
    monkeypatch.setenv("REGARD_FAST", fast)
    assert search(model, *make_sources(3, 2), beam=3)
    assert found == calls


def test_ensemble_uses_the_reference_search() -> None:
    model, calls = make_counted_search()
    assert search([model, make_model("vaswani2017-base", 1)], *make_sources(5, 2, 3), beam=3)
    assert not calls


@pytest.mark.parametrize(
    "options", [{"forbid": [[4]]}, {"no_repeat": 2}, {"coverage_penalty": 0.2}, {"prefix": [[5], []]}]
)
def test_options_unknown_to_fast_searches_use_the_reference(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.search.beam.search_fast", None)
    assert search(make_model("luong2015-global"), *make_sources(3, 2), **options)


@pytest.mark.parametrize(
    ("options", "sizes", "forced", "obstacle"),
    [
        ({}, [3], False, None),
        ({}, [], False, "no sources"),
        ({}, [3], True, "constraints"),
        ({"no_repeat": 2}, [3], False, "constraints"),
        ({"coverage_penalty": 0.1}, [3], False, "coverage penalty"),
        ({"max_length": MAX_TARGET_LENGTH + 1}, [3], False, str(MAX_TARGET_LENGTH)),
    ],
)
def test_reason_why_no_faster_search_runs_is_known(
    options: dict[str, Any], sizes: list[int], forced: bool, obstacle: str | None
) -> None:
    found = find_fast_search_obstacle(SearchOptions(**options), sizes, forced)
    assert found is None if obstacle is None else obstacle in str(found)


class TableModel:
    """A minimal decoder with constant log-probabilities, which overwrites the tokens it is given."""

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs, self.decoder = log_probs, self

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        return lengths

    def start(self, encoded: Tensor) -> Tensor:
        return encoded

    def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, None]:
        tokens.clamp_(max=4)
        return self.log_probs.expand(len(tokens), -1), state, None

    def select(self, state: Tensor, rows: Tensor) -> Tensor:
        return state[rows]


RANDOM_TABLE = torch.randn(WORDS, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("table", [RANDOM_TABLE, torch.tensor(-2.4).expand(WORDS)], ids=["random", "uniform"])
def test_search_and_decoder_do_not_overwrite_each_others_tensors(table: Tensor, beam: int) -> None:
    before, model = table.clone(), TableModel(table)
    search(model, *make_sources(3, 2), beam=beam, max_length=5)
    torch.testing.assert_close(table, before)


def test_attention_of_finished_sentences_is_not_stored() -> None:
    record = SearchTrace(100, 2)
    for who in (np.arange(100), np.array([7])):
        steps = np.zeros((3, 1, len(who), 2), np.int64)
        record.add_steps(who, list(steps), np.ones((1, len(who), 2, 50), np.float32))
    assert [weights.shape for _, weights in record.attention] == [(1, 100, 2, 50), (1, 1, 2, 50)]


@pytest.mark.parametrize("options", [{"prefix": [[]]}, {"prefix": []}, {"force": [[]]}], ids=str)
def test_constraints_for_another_number_of_sources_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for 2 sources"):
        search(make_model("luong2015-global"), *make_sources(3, 2), **options)


@pytest.mark.parametrize("seed", slow_after(1, [4, 0]), ids={4: "short-target", 0: "long-target"}.get)
def test_very_long_targets_use_the_reference_search(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.search.beam.search_fast", None)
    model = make_model("luong2015-global", seed)
    found = search(model, *make_sources(3, 2), beam=1, max_length=5000, length_penalty=0.0)
    assert all(len(some[0].tokens) <= 5000 for some in found)


def test_nan_weights_are_an_error() -> None:
    model = make_model("luong2015-global")
    nn.init.constant_(next(model.decoder.parameters()), float("nan"))
    with pytest.raises(ArithmeticError, match="step 1"):
        search(model, *make_sources(3, 2), beam=3)
