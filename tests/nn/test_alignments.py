"""Local and hard attention against loops in float64 NumPy, and the cost of a local step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import Array, softmax
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
    prefix_mask,
)
from regard.nn.memory import concat_steps

B, T, S, SIZE, D = 4, 9, 7, 6, 2
LENGTHS = torch.tensor([7, 3, 1, 0])
SCORES = [Dot, lambda: General(SIZE, SIZE), lambda: Concat(SIZE, SIZE, 5), lambda: Location(SIZE, 5)]


pytestmark = pytest.mark.usefixtures("seed")


def make_memory(length: int = S) -> Memory:
    keys = torch.randn(B, length, SIZE, dtype=torch.float64)
    return Memory(keys, keys, prefix_mask(LENGTHS, length))


def attend_by_loops(
    attention: Attention, query: Tensor, source: Memory, centre: Array, gaussian: bool
) -> tuple[Array, Array]:
    """Return weights (B, T, S) and contexts of a window of D around ⌊centre⌋."""
    score: Any = attention.score
    whole = score(query, score.project(source.keys), None).detach().numpy()
    weights = np.zeros((B, T, S))
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(T):
            middle = math.floor(centre[b, t])
            inside = [s for s in range(middle - D, middle + D + 1) if 0 <= s < length]
            for s, weight in zip(inside, softmax(whole[b, t, inside]), strict=True):
                sigma = D / 2
                weights[b, t, s] = weight * (math.exp(-((s - centre[b, t]) ** 2) / (2 * sigma**2)) if gaussian else 1)
    return weights, weights @ source.values.numpy()


@pytest.mark.parametrize("make", SCORES)
def test_local_m_attends_around_t_and_stays_inside_the_source(make: Any) -> None:
    attention = Attention(make(), LocalMonotonic(D)).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), make_memory()
    centre = np.minimum(np.arange(T)[None], np.maximum(LENGTHS.numpy()[:, None] - 1, -1)).astype(float)
    weights, context = attend_by_loops(attention, query, source, centre, gaussian=False)
    attended = attention(query, source)
    assert attended.weights.shape == (B, T, 2 * D + 1)
    np.testing.assert_allclose(attended.dense(S).detach().numpy(), weights, atol=1e-10)
    np.testing.assert_allclose(attended.context.detach().numpy(), context, atol=1e-10)


@pytest.mark.parametrize("make", SCORES)
def test_local_p_predicts_its_position_and_is_not_renormalised(make: Any) -> None:
    alignment = LocalPredictive(SIZE, D, 3)
    attention = Attention(make(), alignment).double()
    query, source = 3 * torch.randn(B, T, SIZE, dtype=torch.float64), make_memory()
    W, v = alignment.weight.detach().numpy(), alignment.v.detach().numpy()
    sigmoid = 1 / (1 + np.exp(-(np.tanh(query.numpy() @ W.T) @ v)))
    centre = LENGTHS.numpy()[:, None] * sigmoid
    weights, context = attend_by_loops(attention, query, source, centre, gaussian=True)
    attended = attention(query, source)
    np.testing.assert_allclose(attended.dense(S).detach().numpy(), weights, atol=1e-10)
    np.testing.assert_allclose(attended.context.detach().numpy(), context, atol=1e-10)
    assert (attended.weights.sum(-1)[0] < 1).all()


def test_the_gaussian_of_local_p_has_a_gradient_for_its_position() -> None:
    alignment = LocalPredictive(SIZE, D, 3).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), make_memory()
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
def test_local_attention_with_a_wide_window_equals_global_attention(make: Any) -> None:
    score = make()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), make_memory()
    local = Attention(score, LocalMonotonic(S + T)).double()(query, source)
    whole = Attention(score, Global()).double()(query, source)
    torch.testing.assert_close(local.dense(S), whole.weights)
    torch.testing.assert_close(local.context, whole.context)


@pytest.mark.parametrize("alignment", [Global(), LocalMonotonic(D), LocalPredictive(SIZE, D, 3), Hard().eval()])
def test_steps_padding_and_other_sources_do_not_change_attention(alignment: Alignment) -> None:
    attention = Attention(General(SIZE, SIZE), alignment).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64), make_memory()
    whole = attention(query, source)
    steps = concat_steps([attention(query[:, t : t + 1], attention.prepare(source), t) for t in range(T)])
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


class ElementCounter(TorchDispatchMode):
    """Counts the elements of the tensors that operations create."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else (result,)
        inputs = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        for tensor in outputs:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.elements += tensor.numel()
        return result


def count_elements(score: Score, alignment: Alignment, source_length: int) -> int:
    attention = Attention(score, alignment)
    keys = torch.randn(2, source_length, SIZE)
    source = attention.prepare(Memory(keys, keys, torch.ones(2, source_length, dtype=torch.bool)))
    counter = ElementCounter()
    with torch.no_grad(), counter:
        attention(torch.randn(2, 1, SIZE), source, 30)
    return counter.elements


@pytest.mark.parametrize("make", SCORES)
@pytest.mark.parametrize("alignment", [LocalMonotonic(D), LocalPredictive(SIZE, D, 3)])
def test_the_cost_of_a_local_step_does_not_depend_on_the_length(make: Any, alignment: Alignment) -> None:
    score = make()
    assert count_elements(score, alignment, 64) == count_elements(score, alignment, 4096)


def test_the_cost_of_a_global_step_grows_with_the_length() -> None:
    assert count_elements(Dot(), Global(), 4096) > 10 * count_elements(Dot(), Global(), 64)


def test_hard_attention_selects_the_most_likely_position() -> None:
    attention = Attention(Dot(), Hard()).double()
    query, source = torch.randn(B, T, SIZE, dtype=torch.float64, requires_grad=True), make_memory()
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
            chosen = int(soft.weights[b, t].argmax())
            assert best.weights[b, t].tolist() == [float(s == chosen) for s in range(S)]
            torch.testing.assert_close(best.context[b, t], source.values[b, chosen])
            torch.testing.assert_close(best.log_prob[b, t], soft.weights[b, t, chosen].log())
    best.log_prob.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    assert query.grad[0].any()
    assert not query.grad[3].any()


def test_hard_attention_samples_from_the_softmax_in_training() -> None:
    attention = Attention(Dot(), Hard()).train()
    query, keys = torch.randn(1, 1, SIZE).expand(1, 20_000, -1), torch.randn(1, 5, SIZE)
    source = Memory(keys, keys, prefix_mask(torch.tensor([4]), 5))
    drawn = attention(query, source)
    expected = Attention(Dot(), Global())(query, source).weights[0, 0]
    torch.testing.assert_close(drawn.weights[0].mean(0), expected, atol=0.02, rtol=0)
    assert not drawn.weights[..., 4].any()


def test_hard_attention_samples_each_query_and_skips_empty_sources() -> None:
    """Scores of 100 on one position make the sample certain."""
    chosen = torch.tensor([[2, 0, 1, 1], [0, 0, 0, 0], [1, 2, 2, 0]])
    keys = 100 * torch.eye(3).expand(3, 3, 3)
    source = Memory(keys, keys, prefix_mask(torch.tensor([3, 0, 3]), 3))
    drawn = Attention(Dot(), Hard()).train()(torch.eye(3)[chosen], source)
    expected = torch.eye(3)[chosen] * torch.tensor([1.0, 0.0, 1.0])[:, None, None]
    torch.testing.assert_close(drawn.weights, expected)
    torch.testing.assert_close(drawn.context, 100 * expected)
    torch.testing.assert_close(drawn.log_prob, torch.zeros(3, 4))


@pytest.mark.parametrize("window", [1, 3])
def test_the_gaussian_of_local_p_has_a_deviation_of_half_the_window(window: int) -> None:
    alignment = LocalPredictive(SIZE, window, 3).double()
    mask = torch.ones(1, 9, dtype=torch.bool)
    query = torch.zeros(1, 1, SIZE, dtype=torch.float64)  # sigmoid(0) = 1/2: the centre is 4.5
    positions, prior = alignment.window(query, mask, 0)
    expected = [math.exp(-((s - 4.5) ** 2) / (2 * (window / 2) ** 2)) for s in range(4 - window, 5 + window)]
    assert positions[0, 0].tolist() == list(range(4 - window, 5 + window))
    np.testing.assert_allclose(prior[0, 0].detach().numpy(), expected)


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_without_neighbours_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match=f"not {window}"):
        LocalMonotonic(window)
    with pytest.raises(ValueError, match=f"not {window}"):
        LocalPredictive(SIZE, window, 3)


def test_only_local_p_has_parameters() -> None:
    alignment = LocalPredictive(query_size=6, window=2, size=3)
    assert {name: tuple(p.shape) for name, p in alignment.named_parameters()} == {"weight": (3, 6), "v": (3,)}
    assert not list(nn.Module.parameters(LocalMonotonic(2)))


def test_local_p_position_is_exact_under_autocast() -> None:
    alignment = LocalPredictive(SIZE, D, 3)
    query, mask = torch.randn(2, 4, SIZE), torch.ones(2, 400, dtype=torch.bool)
    exact, prior = alignment.window(query, mask, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        positions, rough = alignment.window(query, mask, 0)
    assert torch.equal(positions, exact)
    torch.testing.assert_close(rough, prior)


def test_local_p_position_is_exact_in_a_bfloat16_model() -> None:
    rough = LocalPredictive(SIZE, D, 3).bfloat16()
    exact = LocalPredictive(SIZE, D, 3)
    exact.load_state_dict(rough.state_dict())
    query, mask = torch.randn(2, 4, SIZE).bfloat16(), torch.ones(2, 400, dtype=torch.bool)
    torch.testing.assert_close(rough.window(query, mask, 0), exact.window(query.float(), mask, 0))
    attended = Attention(Dot(), rough)(query, Memory(query, query, torch.ones(2, 4, dtype=torch.bool)))
    assert attended.context.dtype == torch.bfloat16


@pytest.mark.parametrize("alignment", [Global(), LocalMonotonic(D), LocalPredictive(SIZE, D, 3), Hard()])
def test_attention_over_a_source_of_length_zero_is_zero(alignment: Alignment) -> None:
    nothing = torch.zeros(2, 0, SIZE)
    attended = Attention(Dot(), alignment)(torch.randn(2, 3, SIZE), Memory(nothing, nothing, torch.ones(2, 0) > 0))
    torch.testing.assert_close(attended.context, torch.zeros(2, 3, SIZE))
    assert attended.dense(0).shape == (2, 3, 0)
    if attended.log_prob is not None:
        torch.testing.assert_close(attended.log_prob, torch.zeros(2, 3))
