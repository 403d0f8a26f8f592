"""Local and hard alignments against loops in float64 NumPy, at the edges too, and what a local step costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.nn import (
    Alignment,
    Attention,
    Concat,
    Dot,
    General,
    Global,
    Hard,
    LocalMonotonic,
    LocalPredictive,
    Location,
    Memory,
    Score,
    joined,
    prefix_mask,
)

Array = npt.NDArray[np.float64]
B, T, S, SIZE, D = 4, 9, 7, 6, 2
LENGTHS = torch.tensor([7, 3, 1, 0])
SCORES = [Dot, lambda: General(SIZE, SIZE), lambda: Concat(SIZE, SIZE, 5), lambda: Location(SIZE, 5)]


def memory(length: int = S) -> Memory:
    keys = torch.randn(B, length, SIZE, dtype=torch.float64)
    return Memory(keys, keys, prefix_mask(LENGTHS, length))


def softmax(scores: Array) -> Array:
    finite = np.isfinite(scores)
    out = np.zeros_like(scores)
    if finite.any():
        raised = np.exp(scores[finite] - scores[finite].max())
        out[finite] = raised / raised.sum()
    return out


def by_hand(attention: Attention, query: Tensor, source: Memory, centre: Array, gaussian: bool) -> tuple[Array, Array]:
    """Weights B,T,S and contexts of a window of D around ⌊centre⌋, word by word."""
    score: Any = attention.score
    whole = score(query, score.project(source.keys), None).detach().numpy()
    weights = np.zeros((B, T, S))
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(T):
            middle = math.floor(centre[b, t])
            places = [s for s in range(middle - D, middle + D + 1) if 0 <= s < length]
            for s, weight in zip(places, softmax(whole[b, t, places]), strict=True):
                sigma = D / 2
                weights[b, t, s] = weight * (math.exp(-((s - centre[b, t]) ** 2) / (2 * sigma**2)) if gaussian else 1)
    return weights, weights @ source.values.numpy()


@pytest.mark.parametrize("make", SCORES)
def test_local_m_looks_around_t_and_stays_inside_the_sentence(make: Any) -> None:
    attention = Attention(make(), LocalMonotonic(D)).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), memory()
    centre = np.minimum(np.arange(T)[None], np.maximum(LENGTHS.numpy()[:, None] - 1, -1)).astype(float)
    weights, context = by_hand(attention, query, source, centre, gaussian=False)
    attended = attention(query, source)
    assert attended.weights.shape == (B, T, 2 * D + 1)
    np.testing.assert_allclose(attended.dense(S).detach().numpy(), weights, atol=1e-10)
    np.testing.assert_allclose(attended.context.detach().numpy(), context, atol=1e-10)


@pytest.mark.parametrize("make", SCORES)
def test_local_p_predicts_its_place_and_is_not_renormalised(make: Any) -> None:
    alignment = LocalPredictive(SIZE, D, 3)
    attention = Attention(make(), alignment).double()
    query, source = 3 * torch.randn(B, T, SIZE, dtype=torch.float64), memory()
    W, v = alignment.weight.detach().numpy(), alignment.v.detach().numpy()
    sigmoid = 1 / (1 + np.exp(-(np.tanh(query.numpy() @ W.T) @ v)))
    centre = LENGTHS.numpy()[:, None] * sigmoid
    weights, context = by_hand(attention, query, source, centre, gaussian=True)
    attended = attention(query, source)
    np.testing.assert_allclose(attended.dense(S).detach().numpy(), weights, atol=1e-10)
    np.testing.assert_allclose(attended.context.detach().numpy(), context, atol=1e-10)
    assert (attended.weights.sum(-1)[0] < 1).all()


def test_the_gaussian_changes_the_context_and_the_gradient_reaches_the_place() -> None:
    alignment = LocalPredictive(SIZE, D, 3).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), memory()
    attention = Attention(Dot(), alignment)
    attention(query, source).context.square().sum().backward()
    assert alignment.weight.grad is not None
    assert alignment.v.grad is not None
    assert alignment.weight.grad.abs().sum() > 0
    assert alignment.v.grad.abs().sum() > 0
    attended = attention(query, source)
    assert attended.positions is not None
    flat = Attention(Dot(), LocalMonotonic(D))(query, source)
    assert not torch.allclose(attended.context[0], flat.context[0])


@pytest.mark.parametrize("make", SCORES)
def test_a_window_wider_than_the_sentence_is_global(make: Any) -> None:
    score = make()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), memory()
    local = Attention(score, LocalMonotonic(S + T)).double()(query, source)
    whole = Attention(score, Global()).double()(query, source)
    torch.testing.assert_close(local.dense(S), whole.weights)
    torch.testing.assert_close(local.context, whole.context)


@pytest.mark.parametrize("alignment", [Global(), LocalMonotonic(D), LocalPredictive(SIZE, D, 3), Hard().eval()])
def test_steps_batch_mates_and_padding_do_not_matter(alignment: Alignment) -> None:
    attention = Attention(General(SIZE, SIZE), alignment).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), memory()
    whole = attention(query, source)
    steps = joined([attention(query[:, t : t + 1], attention.prepare(source), t) for t in range(T)])
    for field, expected in zip(steps, whole, strict=True):
        assert (field is None) == (expected is None)
        if field is not None:
            torch.testing.assert_close(field, expected)
    padding = torch.randn(B, 5, SIZE, dtype=torch.float64)
    keys = torch.cat((source.keys, padding), 1)
    padded = attention(query, Memory(keys, keys, prefix_mask(LENGTHS, S + 5)))
    torch.testing.assert_close(padded.context, whole.context)
    torch.testing.assert_close(padded.dense(S + 5)[..., :S], whole.dense(S))
    for row, length in enumerate(LENGTHS.tolist()[:3]):
        alone = source.keys[row : row + 1, :length]
        mask = torch.ones(1, length, dtype=torch.bool)
        found = attention(query[row : row + 1], Memory(alone, alone, mask))
        torch.testing.assert_close(found.context[0], whole.context[row])


class Produced(TorchDispatchMode):
    """Counts the numbers that operations make: what a step computes and stores."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        outputs = made if isinstance(made, tuple | list) else (made,)
        inputs = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        for tensor in outputs:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.numbers += tensor.numel()
        return made


def cost(score: Score, alignment: Alignment, source_length: int) -> int:
    attention = Attention(score, alignment)
    keys = torch.randn(2, source_length, SIZE)
    source = attention.prepare(Memory(keys, keys, torch.ones(2, source_length, dtype=torch.bool)))
    counter = Produced()
    with torch.no_grad(), counter:
        attention(torch.randn(2, 1, SIZE), source, 30)
    return counter.numbers


@pytest.mark.parametrize("make", SCORES)
@pytest.mark.parametrize("alignment", [LocalMonotonic(D), LocalPredictive(SIZE, D, 3)])
def test_a_local_step_costs_the_same_at_any_length(make: Any, alignment: Alignment) -> None:
    score = make()
    assert cost(score, alignment, 64) == cost(score, alignment, 4096)


def test_a_global_step_does_not() -> None:
    assert cost(Dot(), Global(), 4096) > 10 * cost(Dot(), Global(), 64)


def test_hard_attention_takes_one_place() -> None:
    attention = Attention(Dot(), Hard()).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64, requires_grad=True), memory()
    soft = Attention(Dot(), Global())(query, source)
    best = attention.eval()(query, source)
    assert best.probabilities is not None
    assert best.log_prob is not None
    torch.testing.assert_close(best.probabilities, soft.weights)
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(T):
            if not length:
                assert not best.weights[b, t].any()
                assert best.log_prob[b, t] == 0
                continue
            place = int(soft.weights[b, t].argmax())
            assert best.weights[b, t].tolist() == [float(s == place) for s in range(S)]
            torch.testing.assert_close(best.context[b, t], source.values[b, place])
            torch.testing.assert_close(best.log_prob[b, t], soft.weights[b, t, place].log())
    best.log_prob.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    assert query.grad[0].any()
    assert not query.grad[3].any()


def test_hard_attention_draws_from_the_softmax_while_training() -> None:
    torch.manual_seed(0)
    attention = Attention(Dot(), Hard()).train()
    query, keys = torch.randn(1, 1, SIZE).expand(1, 20_000, -1), torch.randn(1, 5, SIZE)
    source = Memory(keys, keys, prefix_mask(torch.tensor([4]), 5))
    drawn = attention(query, source)
    expected = Attention(Dot(), Global())(query, source).weights[0, 0]
    torch.testing.assert_close(drawn.weights[0].mean(0), expected, atol=0.02, rtol=0)
    assert not drawn.weights[..., 4].any()


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_has_two_sides(window: int) -> None:
    with pytest.raises(ValueError, match=f"not {window}"):
        LocalMonotonic(window)
    with pytest.raises(ValueError, match=f"not {window}"):
        LocalPredictive(SIZE, window, 3)


def test_parameters_of_local_p() -> None:
    alignment = LocalPredictive(query_size=6, window=2, size=3)
    assert {name: tuple(p.shape) for name, p in alignment.named_parameters()} == {"weight": (3, 6), "v": (3,)}
    assert not list(nn.Module.parameters(LocalMonotonic(2)))


def test_local_p_knows_its_place_in_half_precision_too() -> None:
    alignment = LocalPredictive(SIZE, D, 3)
    query, mask = torch.randn(2, 4, SIZE), torch.ones(2, 400, dtype=torch.bool)
    exact, prior = alignment.window(query, mask, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        positions, rough = alignment.window(query, mask, 0)
    assert torch.equal(positions, exact)
    torch.testing.assert_close(rough, prior)


def test_local_p_knows_its_place_in_a_model_of_half_precision() -> None:
    rough = LocalPredictive(SIZE, D, 3).bfloat16()
    exact = LocalPredictive(SIZE, D, 3)
    exact.load_state_dict(rough.state_dict())
    query, mask = torch.randn(2, 4, SIZE).bfloat16(), torch.ones(2, 400, dtype=torch.bool)
    torch.testing.assert_close(rough.window(query, mask, 0), exact.window(query.float(), mask, 0))
    attended = Attention(Dot(), rough)(query, Memory(query, query, torch.ones(2, 4, dtype=torch.bool)))
    assert attended.context.dtype == torch.bfloat16


@pytest.mark.parametrize("alignment", [Global(), LocalMonotonic(D), LocalPredictive(SIZE, D, 3), Hard()])
def test_a_batch_without_a_single_position(alignment: Alignment) -> None:
    nothing = torch.zeros(2, 0, SIZE)
    attended = Attention(Dot(), alignment)(torch.randn(2, 3, SIZE), Memory(nothing, nothing, torch.ones(2, 0) > 0))
    torch.testing.assert_close(attended.context, torch.zeros(2, 3, SIZE))
    assert attended.dense(0).shape == (2, 3, 0)
