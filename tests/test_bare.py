"""A search with NumPy between two steps finds what the readable one does, for every recipe and whatever is asked."""

from __future__ import annotations

from itertools import chain
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.search import assert_same_hypotheses, make_sources, reference_search
from torch import Tensor, nn

from regard.fast import quicken
from regard.fast.decoding.harvest import Record
from regard.models import Seq2Seq, build
from regard.recipes import names, read
from regard.search import BeamSearch, Hypothesis, search
from regard.search.bare import note
from regard.symbols import EOS

WORDS = 11
RECIPES = [name for name in names() if read(name)["task"] == "translate"]


def model_of(name: str, seed: int = 0, spread: float = 0.5) -> Seq2Seq:
    torch.manual_seed(seed)
    made: Seq2Seq = build(name, 20, WORDS, size=16, layers=1).eval()
    for weight in made.parameters():
        nn.init.normal_(weight, std=spread)
    return made


def compared(models: Any, source: Tensor, lengths: Tensor, **options: Any) -> list[list[Hypothesis]]:
    """What is found, which is what the readable search finds."""
    found = search(models, source, lengths, **options)
    assert_same_hypotheses(reference_search(models, source, lengths, **options), found, tolerance=1e-6)
    return found


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_it_finds_what_the_readable_search_finds(name: str, beam: int) -> None:
    for seed in range(3):
        compared(quicken(model_of(name, seed)), *make_sources(9, 1, 5, 3), beam=beam, n_best=min(beam, 2), max_length=9)


@pytest.mark.parametrize("options", [
    {"length_penalty": 0.0, "attention": False},
    {"length_penalty": "average", "n_best": 4},
    {"length_penalty": -1.0, "n_best": 3},
    {"length_penalty": 2.0, "min_length": 7},
    {"max_length": 1, "n_best": 2},
    {"max_length": 6, "min_length": 6},
    {"beam": 2 * WORDS, "n_best": WORDS},
    {},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("double", [False, True])
def test_so_it_does_whatever_is_asked(options: dict[str, Any], double: bool) -> None:
    for name in ("luong2015-global", "vaswani2017-base"):
        made = model_of(name)
        compared(made.double() if double else made, *make_sources(3, 7, 2), **{"beam": 4, **options})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 6),
    st.floats(-1, 2), st.integers(1, 20), st.integers(0, 99), st.floats(0.1, 1.5),
)  # fmt: skip
def test_so_it_does_for_any_shape(
    lengths: list[int], beam: int, n_best: int, penalty: float, longest: int, seed: int, spread: float
) -> None:
    found = compared(
        model_of("luong2015-global", seed, spread),
        *make_sources(*lengths),
        beam=beam,
        n_best=min(beam, n_best),
        max_length=longest,
        length_penalty=penalty,
    )
    assert all(len(one.tokens) == longest or one.tokens[-1] == EOS for one in chain(*found))


def test_several_models_search_together() -> None:
    compared([model_of("luong2015-global"), model_of("vaswani2017-base", 1)], *make_sources(5, 2, 3), beam=3, n_best=2)


def test_no_sources_have_no_targets() -> None:
    assert search(model_of("luong2015-global"), torch.zeros(0, 3, dtype=torch.long), torch.zeros(0).long()) == []


@pytest.mark.parametrize(("fast", "readable"), [("1", 0), ("0", 1)])
def test_it_can_be_switched_off(fast: str, readable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, join = list[int](), BeamSearch.join

    def counted(searching: BeamSearch, source: Tensor, lengths: Tensor, **named: Any) -> None:
        joined.append(len(source))
        join(searching, source, lengths, **named)

    monkeypatch.setenv("REGARD_FAST", fast)
    monkeypatch.setattr(BeamSearch, "join", counted)
    search(model_of("luong2015-global"), *make_sources(3, 2))
    assert len(joined) == readable


@pytest.mark.parametrize(
    "options", [{"forbid": [[4]]}, {"no_repeat": 2}, {"coverage_penalty": 0.2}, {"prefix": [[5], []]}]
)
def test_what_it_knows_nothing_of_goes_the_readable_way(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.search.shortcut.searched", None)
    assert search(model_of("luong2015-global"), *make_sources(3, 2), **options)


class Table:
    """Thinks the same of every next token, changes what it is handed, and knows `start`, `step` and `select` alone."""

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


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("table", [torch.randn(WORDS).log_softmax(-1), torch.tensor(-2.4).expand(WORDS)])
def test_what_a_decoder_gives_out_stays_its_own_and_what_it_is_handed_is(table: Tensor, beam: int) -> None:
    before, model = table.clone(), Table(table)
    compared(model, *make_sources(3, 2), beam=beam, max_length=5)
    torch.testing.assert_close(table, before)


def test_of_sentences_that_are_done_no_attention_is_kept() -> None:
    record = Record(100, 2, 50)
    for who in (np.arange(100), np.array([7])):
        chosen = (np.zeros((len(who), 2)), *np.zeros((2, len(who), 2), np.int64))
        note(record, who, chosen, torch.ones(2 * len(who), 50))
    assert [one.seen.shape for one in record.looks] == [(1, 100, 2, 50), (1, 1, 2, 50)]


@pytest.mark.parametrize("options", [{"prefix": [[]]}, {"prefix": []}, {"force": [[]]}], ids=str)
def test_what_is_given_for_other_sources_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for 2 sources"):
        search(model_of("luong2015-global"), *make_sources(3, 2), **options)


def test_very_long_targets_are_left_to_the_readable_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.search.shortcut.searched", None)
    found = search(model_of("luong2015-global"), *make_sources(3, 2), beam=1, max_length=5000, length_penalty=0.0)
    assert all(len(some[0].tokens) <= 5000 for some in found)


def test_damaged_weights_are_told() -> None:
    model = model_of("luong2015-global")
    nn.init.constant_(next(model.decoder.parameters()), float("nan"))
    with pytest.raises(ArithmeticError, match="step 1"):
        search(model, *make_sources(3, 2), beam=3)
