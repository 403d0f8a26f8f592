"""Score functions against float64 NumPy, over whole sources and over windows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.oracles import Array, to_array
from torch import Tensor, nn

from regard.nn import SCORES, Concat, Dot, General, Location, ScaledDot, Score
from regard.nn.scores import compute_projected_size, make_score

B, T, S, Q, K = 2, 3, 5, 4, 6


pytestmark = pytest.mark.usefixtures("seed")


def score_pairs(one: Callable[[Array, Array, int], float], query: Tensor, keys: Tensor) -> Array:
    """Return `one(q, k, position)` of every query and key (B, T, S)."""
    q, k = to_array(query), to_array(keys)
    return np.array(
        [[[one(q[b, t], k[b, s], s) for s in range(k.shape[1])] for t in range(q.shape[1])] for b in range(len(q))]
    )


def make_cases() -> list[tuple[str, nn.Module, int, Callable[[nn.Module], Callable[[Array, Array, int], float]]]]:
    torch.manual_seed(0)

    def general(score: nn.Module) -> Callable[[Array, Array, int], float]:
        W = to_array(score.weight)  # type: ignore[arg-type]
        return lambda q, k, s: float(q @ W @ k)

    def concat(score: nn.Module) -> Callable[[Array, Array, int], float]:
        W_q, W_k, v = to_array(score.query_weight), to_array(score.key_weight), to_array(score.v)  # type: ignore[arg-type]
        W_a = np.concatenate([W_q, W_k], 1)
        return lambda q, k, s: float(v @ np.tanh(W_a @ np.concatenate([q, k])))

    def location(score: nn.Module) -> Callable[[Array, Array, int], float]:
        W = to_array(score.weight)  # type: ignore[arg-type]
        return lambda q, k, s: float((W @ q)[s]) if s < len(W) else -np.inf

    return [
        ("dot", Dot(), Q, lambda _: lambda q, k, s: float(q @ k)),
        ("scaled", ScaledDot(), Q, lambda _: lambda q, k, s: float(q @ k) / math.sqrt(len(k))),
        ("general", General(Q, K), K, general),
        ("concat", Concat(Q, K, 7), K, concat),
        ("location", Location(Q, 9), K, location),
        ("location, long source", Location(Q, 3), K, location),
    ]


@pytest.mark.parametrize(
    ("name", "score", "key_size", "oracle"), make_cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_score_follows_its_equation(
    name: str, score: Score, key_size: int, oracle: Callable[[Score], Callable[[Array, Array, int], float]]
) -> None:
    query, keys = torch.randn(B, T, Q), torch.randn(B, S, key_size)
    found = score(query, score.project(keys), None)
    np.testing.assert_allclose(to_array(found), score_pairs(oracle(score), query, keys), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "score", "key_size", "oracle"), make_cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_score_over_a_window_equals_the_score_at_its_positions(
    name: str, score: Score, key_size: int, oracle: object
) -> None:
    query, keys = torch.randn(B, T, Q), torch.randn(B, S, key_size)
    positions = torch.randint(0, S, (B, T, 3))
    projected = score.project(keys)
    gathered = projected[torch.arange(B)[:, None, None], positions]
    whole = score(query, projected, None)
    torch.testing.assert_close(score(query, gathered, positions), whole.gather(2, positions))


@pytest.mark.parametrize(("queries", "keys"), [(4, 6), (6, 4)])
def test_dot_score_reports_sizes_that_differ(queries: int, keys: int) -> None:
    with pytest.raises(ValueError, match=rf"queries have {queries}, keys {keys}"):
        Dot()(torch.randn(B, T, queries), torch.randn(B, S, keys), None)


def test_score_weights_have_the_shapes_of_the_equations() -> None:
    assert General(Q, K).weight.shape == (Q, K)
    assert Concat(Q, K, 7).query_weight.shape == (7, Q)
    assert Concat(Q, K, 7).key_weight.shape == (7, K)
    assert Location(Q, 9).weight.shape == (9, Q)


def test_a_score_is_made_with_the_sizes_that_its_constructor_names() -> None:
    score = make_score(Location, query_size=Q, key_size=K, size=7, max_source=9)
    assert isinstance(score, Location)
    assert score.weight.shape == (9, Q)
    with pytest.raises(ValueError, match="any of query_size, but: missing a required argument: 'width'"):
        make_score(lambda width: Dot(), query_size=Q)


@pytest.mark.parametrize(("name", "expected"), [("dot", K), ("general", Q), ("concat", 7), ("location", K)])
def test_projected_size_is_the_width_of_projected_keys(name: str, expected: int) -> None:
    score = make_score(SCORES[name], query_size=Q, key_size=K, size=7, max_source=9)
    assert compute_projected_size(score, K) == expected
