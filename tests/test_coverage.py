"""Coverage against NumPy: what was looked at reaches the score of what is looked at next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.models import build
from regard.nn import (
    Attention,
    Concat,
    Coverage,
    Dot,
    General,
    Global,
    GRUCell,
    LinguisticCoverage,
    LocalMonotonic,
    Memory,
    NeuralCoverage,
    Score,
    prefix_mask,
)

B, S, T, Q, K, SIZE = 2, 5, 4, 3, 3, 4
LENGTHS = torch.tensor([5, 3])
Array = NDArray[np.float64]


def array(tensor: torch.Tensor) -> Array:
    return np.asarray(tensor.detach(), dtype=np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def inputs() -> tuple[torch.Tensor, Memory]:
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(B, T, Q, generator=generator, dtype=torch.float64)
    keys = torch.randn(B, S, K, generator=generator, dtype=torch.float64)
    return query, Memory(keys, keys, prefix_mask(LENGTHS, S))


def looks(attention: Attention) -> list[Array]:
    """The weights of T steps, one after the other."""
    query, memory = inputs()
    memory = attention.prepare(memory)
    weights = []
    for t in range(T):
        attended = attention(query[:, t : t + 1], memory, t)
        memory = attention.follow(memory, query[:, t : t + 1], attended)
        weights.append(array(attended.dense(S)[:, 0]))
    return weights


def made(score: Score, coverage: Coverage | None) -> Attention:
    torch.manual_seed(2)
    attention = Attention(score, Global(), coverage).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    return attention


def test_linguistic_coverage_is_the_papers() -> None:
    score, coverage = Concat(Q, K, SIZE), LinguisticCoverage(K, SIZE, fertility=2.0)
    found = looks(made(score, coverage))
    query, memory = inputs()
    W, U, v, V = (array(p) for p in (score.query_weight, score.key_weight, score.v, coverage.weight))
    for b, length in enumerate(LENGTHS.tolist()):
        h = array(memory.keys[b, :length])
        fertility = 2.0 * sigmoid(h @ array(coverage.fertility_weight)[0])
        C = np.zeros(length)
        for t in range(T):
            e = np.array([v @ np.tanh(W @ array(query[b, t]) + U @ h[j] + V[:, 0] * C[j]) for j in range(length)])
            a = softmax(e)
            np.testing.assert_allclose(found[t][b, :length], a)
            C = C + a / fertility


def test_neural_coverage_is_a_gru_at_every_word() -> None:
    score, coverage = Concat(Q, K, SIZE), NeuralCoverage(Q, K, SIZE, width=2)
    found = looks(made(score, coverage))
    query, memory = inputs()
    W, U, v, V = (array(p) for p in (score.query_weight, score.key_weight, score.v, coverage.weight))
    cell = GRUCell(1 + K + Q, 2).double()
    cell.load_state_dict(coverage.cell.state_dict())
    for b, length in enumerate(LENGTHS.tolist()):
        C = np.zeros((length, 2))
        for t in range(T):
            h, asked = array(memory.keys[b, :length]), array(query[b, t])
            a = softmax(np.array([v @ np.tanh(W @ asked + U @ h[j] + V @ C[j]) for j in range(length)]))
            np.testing.assert_allclose(found[t][b, :length], a)
            read = np.concatenate((a[:, None], h, np.tile(asked, (length, 1))), 1)
            C = array(cell(torch.from_numpy(read), torch.from_numpy(C)))


@pytest.mark.parametrize("score", [Dot(), General(Q, K)])
def test_any_score_that_reads_keys_takes_it(score: Score) -> None:
    plain = looks(made(score, None))
    covered = looks(made(score, LinguisticCoverage(K, Q)))
    np.testing.assert_allclose(covered[0], plain[0])  # at first nothing is covered
    assert not np.allclose(covered[1], plain[1])


def test_a_window_sees_the_coverage_of_its_own_places() -> None:
    torch.manual_seed(0)
    score, coverage = Dot().double(), LinguisticCoverage(K, K).double()
    wide = looks(Attention(score, LocalMonotonic(S), coverage))
    everywhere = looks(Attention(score, Global(), coverage))
    for left, right in zip(wide, everywhere, strict=True):
        np.testing.assert_allclose(left, right)


def test_words_that_were_looked_at_can_be_left_alone() -> None:
    """With V_a C against the query's direction the second look goes elsewhere: what coverage is for."""
    coverage = LinguisticCoverage(K, K)
    with torch.no_grad():
        coverage.weight.fill_(-10.0)
        coverage.fertility_weight.zero_()
    keys = torch.tensor([[[3.0, 0, 0], [2.0, 0, 0], [1.0, 0, 0]]])
    attention = Attention(Dot(), Global(), coverage)
    memory = attention.prepare(Memory(keys, keys, torch.ones(1, 3, dtype=torch.bool)))
    query, order = torch.tensor([[[4.0, 0, 0]]]), []
    for step in range(3):
        attended = attention(query, memory, step)
        memory = attention.follow(memory, query, attended)
        order.append(int(attended.weights.argmax()))
    assert order == [0, 1, 2]


def test_without_coverage_nothing_is_kept() -> None:
    query, memory = inputs()
    attention = Attention(Dot(), Global())
    prepared = attention.prepare(memory)
    assert prepared.covered is None
    assert attention.follow(prepared, query[:, :1], attention(query[:, :1], prepared)) is prepared


def test_several_queries_at_once_would_not_see_each_other() -> None:
    query, memory = inputs()
    with pytest.raises(ValueError, match="one query at a time, not 4"):
        made(Dot(), LinguisticCoverage(K, K))(query, memory)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinguisticCoverage(K, SIZE, fertility=0.0), "more than 0, not 0.0"),
        (lambda: NeuralCoverage(Q, K, SIZE, width=0), "at least 1 number a word, not 0"),
    ],
)
def test_bad_coverage(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("kind", "width"), [("linguistic", 1), ("neural", 6)])
def test_a_recipe_hands_it_in(kind: str, width: int) -> None:
    model = build("bahdanau2015", 9, 9, size=8, coverage=kind, coverage_size=6)
    assert model.decoder.attention.coverage.weight.shape == (8, width)


def test_a_memory_that_another_attention_prepared_is_refused() -> None:
    query, memory = inputs()
    prepared = Attention(Dot(), Global()).prepare(memory)
    with pytest.raises(ValueError, match="without coverage"):
        made(Dot(), LinguisticCoverage(K, K))(query[:, :1], prepared)


def test_a_fertility_is_never_nothing() -> None:
    coverage = LinguisticCoverage(K, SIZE)
    with torch.no_grad():
        coverage.fertility_weight.fill_(-1000.0)
    covered = coverage.start(torch.ones(1, 2, K))
    after = coverage.after(covered, torch.tensor([[1.0, 0.0]]), torch.zeros(1, Q))
    assert after.amount.isfinite().all()
