"""Coverage models against NumPy: past attention changes the score of the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import Array, sigmoid, softmax, to_array

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


pytestmark = pytest.mark.usefixtures("seed")


def make_inputs() -> tuple[torch.Tensor, Memory]:
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(B, T, Q, generator=generator, dtype=torch.float64)
    keys = torch.randn(B, S, K, generator=generator, dtype=torch.float64)
    return query, Memory(keys, keys, prefix_mask(LENGTHS, S))


def attend_in_steps(attention: Attention) -> list[Array]:
    """Return the weights (B, S) of T successive steps."""
    query, memory = make_inputs()
    memory = attention.prepare(memory)
    weights = []
    for t in range(T):
        attended = attention(query[:, t : t + 1], memory, t)
        memory = attention.update_coverage(memory, query[:, t : t + 1], attended)
        weights.append(to_array(attended.dense(S)[:, 0]))
    return weights


def make_attention(score: Score, coverage: Coverage | None) -> Attention:
    torch.manual_seed(2)
    attention = Attention(score, Global(), coverage).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    return attention


def test_linguistic_coverage_follows_the_equations_of_the_paper() -> None:
    score, coverage = Concat(Q, K, SIZE), LinguisticCoverage(K, SIZE, fertility=2.0)
    found = attend_in_steps(make_attention(score, coverage))
    query, memory = make_inputs()
    W, U, v, V = (to_array(p) for p in (score.query_weight, score.key_weight, score.v, coverage.weight))
    for b, length in enumerate(LENGTHS.tolist()):
        h = to_array(memory.keys[b, :length])
        fertility = 2.0 * sigmoid(h @ to_array(coverage.fertility_weight)[0])
        C = np.zeros(length)
        for t in range(T):
            e = np.array([v @ np.tanh(W @ to_array(query[b, t]) + U @ h[j] + V[:, 0] * C[j]) for j in range(length)])
            a = softmax(e)
            np.testing.assert_allclose(found[t][b, :length], a)
            C = C + a / fertility


def test_neural_coverage_is_a_gru_at_every_source_position() -> None:
    score, coverage = Concat(Q, K, SIZE), NeuralCoverage(Q, K, SIZE, width=2)
    found = attend_in_steps(make_attention(score, coverage))
    query, memory = make_inputs()
    W, U, v, V = (to_array(p) for p in (score.query_weight, score.key_weight, score.v, coverage.weight))
    cell = GRUCell(1 + K + Q, 2).double()
    cell.load_state_dict(coverage.cell.state_dict())
    for b, length in enumerate(LENGTHS.tolist()):
        C = np.zeros((length, 2))
        for t in range(T):
            h, q = to_array(memory.keys[b, :length]), to_array(query[b, t])
            a = softmax(np.array([v @ np.tanh(W @ q + U @ h[j] + V @ C[j]) for j in range(length)]))
            np.testing.assert_allclose(found[t][b, :length], a)
            read = np.concatenate((a[:, None], h, np.tile(q, (length, 1))), 1)
            C = to_array(cell(torch.from_numpy(read), torch.from_numpy(C)))


@pytest.mark.parametrize("score", [Dot(), General(Q, K)])
def test_coverage_works_with_every_score_that_reads_keys(score: Score) -> None:
    plain = attend_in_steps(make_attention(score, None))
    covered = attend_in_steps(make_attention(score, LinguisticCoverage(K, Q)))
    np.testing.assert_allclose(covered[0], plain[0])  # coverage starts at zero
    assert not np.allclose(covered[1], plain[1])


def test_local_attention_reads_the_coverage_at_its_window() -> None:
    torch.manual_seed(0)
    score, coverage = Dot().double(), LinguisticCoverage(K, K).double()
    wide = attend_in_steps(Attention(score, LocalMonotonic(S), coverage))
    everywhere = attend_in_steps(Attention(score, Global(), coverage))
    for left, right in zip(wide, everywhere, strict=True):
        np.testing.assert_allclose(left, right)


def test_negative_coverage_weights_move_attention_to_new_positions() -> None:
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
        memory = attention.update_coverage(memory, query, attended)
        order.append(int(attended.weights.argmax()))
    assert order == [0, 1, 2]


def test_attention_without_coverage_leaves_the_memory_unchanged() -> None:
    query, memory = make_inputs()
    attention = Attention(Dot(), Global())
    prepared = attention.prepare(memory)
    assert prepared.coverage is None
    assert attention.update_coverage(prepared, query[:, :1], attention(query[:, :1], prepared)) is prepared


def test_coverage_refuses_several_queries_at_once() -> None:
    query, memory = make_inputs()
    with pytest.raises(ValueError, match="one query at a time, not 4"):
        make_attention(Dot(), LinguisticCoverage(K, K))(query, memory)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinguisticCoverage(K, SIZE, fertility=0.0), "greater than 0, not 0.0"),
        (lambda: NeuralCoverage(Q, K, SIZE, width=0), "must be at least 1, not 0"),
    ],
)
def test_impossible_coverage_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_default_fertility_is_two_and_default_width_ten() -> None:
    assert LinguisticCoverage(K, SIZE).fertility == 2.0
    assert NeuralCoverage(Q, K, SIZE).weight.shape == (SIZE, 10)
    assert NeuralCoverage(Q, K, SIZE, width=1).weight.shape == (SIZE, 1)


@pytest.mark.parametrize(("kind", "width"), [("linguistic", 1), ("neural", 6)])
def test_a_recipe_option_adds_coverage(kind: str, width: int) -> None:
    model = build("bahdanau2015", 9, 9, size=8, coverage=kind, coverage_size=6)
    assert model.decoder.attention.coverage.weight.shape == (8, width)


def test_a_memory_prepared_without_coverage_is_refused() -> None:
    query, memory = make_inputs()
    prepared = Attention(Dot(), Global()).prepare(memory)._replace(owner=None)  # as if projected by hand
    with pytest.raises(ValueError, match="without coverage"):
        make_attention(Dot(), LinguisticCoverage(K, K))(query[:, :1], prepared)


def test_fertility_never_becomes_zero() -> None:
    coverage = LinguisticCoverage(K, SIZE)
    with torch.no_grad():
        coverage.fertility_weight.fill_(-1000.0)
    covered = coverage.start(torch.ones(1, 2, K))
    after = coverage.update(covered, torch.tensor([[1.0, 0.0]]), torch.zeros(1, Q))
    assert after.amount.isfinite().all()
