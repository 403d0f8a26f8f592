"""NumPy beam search against the reference beam search, for every translation recipe and every option."""

from __future__ import annotations

from itertools import chain
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.combinations import covering_pairs, each_value, slow_after
from support.corpora import translation_recipes
from support.fast_models import randomize
from support.search import LENGTH_OPTIONS, assert_same_hypotheses, make_sources, reference_search
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.decoding.numpy_search import MAX_TARGET_LENGTH, SearchTrace
from regard.models import Seq2Seq, build
from regard.search import BeamSearch, Hypothesis, SearchOptions, search
from regard.search.beam import find_fast_search_obstacle
from regard.special_tokens import EOS

WORDS = 11


def make_model(name: str, seed: int = 0, std: float = 0.5) -> Seq2Seq:
    torch.manual_seed(seed)
    model: Seq2Seq = build(name, 20, WORDS, size=16, layers=1).eval()
    randomize(model, std)
    return model


def check_search(models: Any, source: Tensor, lengths: Tensor, **options: Any) -> list[list[Hypothesis]]:
    """Search, check that the reference search finds the same, and return the hypotheses."""
    found = search(models, source, lengths, **options)
    assert_same_hypotheses(reference_search(models, source, lengths, **options), found, tolerance=1e-6)
    return found


@pytest.mark.parametrize("seed", slow_after(1, [0, 1, 2]))
@pytest.mark.parametrize(("name", "beam"), each_value(translation_recipes(), [1, 4]))
def test_numpy_search_finds_the_reference_hypotheses(name: str, beam: int, seed: int) -> None:
    options: dict[str, Any] = {"beam": beam, "n_best": min(beam, 2), "max_length": 9}
    check_search(accelerate(make_model(name, seed)), *make_sources(9, 1, 5, 3), **options)


@pytest.mark.parametrize(
    ("options", "name", "double"),
    covering_pairs(
        [*LENGTH_OPTIONS, {"beam": 2 * WORDS, "n_best": WORDS}],
        ["luong2015-global", "vaswani2017-base"],
        [False, True],
    ),
    ids=str,
)
def test_numpy_search_supports_penalties_and_length_limits(options: dict[str, Any], name: str, double: bool) -> None:
    model = make_model(name)
    check_search(model.double() if double else model, *make_sources(3, 7, 2), **{"beam": 4, **options})


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 6),
    st.floats(-1, 2), st.integers(1, 20), st.integers(0, 99), st.floats(0.1, 1.5),
)  # fmt: skip
def test_numpy_search_is_exact_for_random_shapes(
    lengths: list[int], beam: int, n_best: int, penalty: float, longest: int, seed: int, std: float
) -> None:
    found = check_search(
        make_model("luong2015-global", seed, std),
        *make_sources(*lengths),
        beam=beam,
        n_best=min(beam, n_best),
        max_length=longest,
        length_penalty=penalty,
    )
    assert all(len(one.tokens) == longest or one.tokens[-1] == EOS for one in chain(*found))


def test_numpy_search_accepts_an_ensemble() -> None:
    check_search(
        [make_model("luong2015-global"), make_model("vaswani2017-base", 1)], *make_sources(5, 2, 3), beam=3, n_best=2
    )


def test_search_of_an_empty_batch_returns_no_hypotheses() -> None:
    assert search(make_model("luong2015-global"), torch.zeros(0, 3, dtype=torch.long), torch.zeros(0).long()) == []


@pytest.mark.parametrize(("fast", "reference"), [("1", 0), ("0", 1)])
def test_regard_fast_0_switches_the_numpy_search_off(
    fast: str, reference: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, join = list[int](), BeamSearch.add

    def count(searching: BeamSearch, source: Tensor, lengths: Tensor, **named: Any) -> None:
        joined.append(len(source))
        join(searching, source, lengths, **named)

    monkeypatch.setenv("REGARD_FAST", fast)
    monkeypatch.setattr(BeamSearch, "add", count)
    search(make_model("luong2015-global"), *make_sources(3, 2))
    assert len(joined) == reference


@pytest.mark.parametrize(
    "options", [{"forbid": [[4]]}, {"no_repeat": 2}, {"coverage_penalty": 0.2}, {"prefix": [[5], []]}]
)
def test_options_unknown_to_the_numpy_search_use_the_reference(
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
    check_search(model, *make_sources(3, 2), beam=beam, max_length=5)
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
