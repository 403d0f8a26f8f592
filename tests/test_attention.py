"""Attention over a memory, multi-head attention and positions, against NumPy and PyTorch."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from regard.nn import (
    Attended,
    Attention,
    Concat,
    Dot,
    General,
    Global,
    LearnedPositions,
    Location,
    Memory,
    MultiHeadAttention,
    NoPositions,
    SinusoidalPositions,
    joined,
    masked_softmax,
    prefix_mask,
)

B, T, S, SIZE = 3, 4, 6, 8
LENGTHS = torch.tensor([6, 2, 0])


def memory(size: int = SIZE) -> Memory:
    keys = torch.randn(B, S, size)
    return Memory(keys, keys, prefix_mask(LENGTHS, S))


def softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    raised = np.exp(scores - scores.max())
    return np.asarray(raised / raised.sum())


@pytest.mark.parametrize("score", [Dot(), General(SIZE, SIZE), Concat(SIZE, SIZE, 5), Location(SIZE, 20)])
def test_global_attention_is_a_softmax_over_the_real_positions(score: nn.Module) -> None:
    query, source = torch.randn(B, T, SIZE), memory()
    attended = Attention(score, Global())(query, source)  # type: ignore[arg-type]
    scores = score(query, score.project(source.keys), None).detach().numpy().astype(np.float64)  # type: ignore[operator]
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(T):
            weights = np.zeros(S)
            if length:
                weights[:length] = softmax(scores[b, t, :length])
            np.testing.assert_allclose(attended.weights[b, t].detach().numpy(), weights, atol=1e-6)
            np.testing.assert_allclose(
                attended.context[b, t].detach().numpy(), weights @ source.values[b].numpy(), atol=1e-5
            )


def test_padding_has_a_weight_of_exactly_zero_and_an_empty_row_has_no_gradient_that_is_not_a_number() -> None:
    query, keys = torch.randn(B, T, SIZE, requires_grad=True), torch.randn(B, S, SIZE, requires_grad=True)
    attended = Attention(Dot(), Global())(query, Memory(keys, keys, prefix_mask(LENGTHS, S)))
    assert not attended.weights[1, :, 2:].any()
    assert not attended.weights[2].any()
    assert not attended.context[2].any()
    attended.context.square().sum().backward()
    assert query.grad is not None
    assert keys.grad is not None
    assert query.grad.isfinite().all()
    assert keys.grad.isfinite().all()


def test_a_memory_of_any_magnitude() -> None:
    scores = torch.tensor([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]])
    weights = masked_softmax(scores, torch.tensor([[True, True, True], [True, True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))


def test_location_ignores_what_lies_past_its_maximum() -> None:
    attended = Attention(Location(SIZE, 3), Global())(torch.randn(B, T, SIZE), memory())
    assert not attended.weights[0, :, 3:].any()
    torch.testing.assert_close(attended.weights[0].sum(-1), torch.ones(T))


def test_keys_are_projected_once() -> None:
    class Counting(Concat):
        calls = 0

        def project(self, keys: Tensor) -> Tensor:
            self.calls += 1
            return super().project(keys)

    score = Counting(SIZE, SIZE, 5)
    attention = Attention(score, Global())
    prepared = attention.prepare(memory())
    for step in range(5):
        attention(torch.randn(B, 1, SIZE), prepared, step)
    assert score.calls == 1


class Around(nn.Module):
    """A window of three around a fixed place: what anybody may write."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor, None]:
        offsets = torch.arange(-1, 2) + self.place
        return offsets.expand(*query.shape[:2], 3), None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        return masked_softmax(scores, mask)


@pytest.mark.parametrize("place", [0, 1, 4, 5])
def test_an_alignment_of_ones_own_with_a_window(place: int) -> None:
    query, source = torch.randn(B, T, SIZE), memory()
    attended = Attention(Dot(), Around(place))(query, source)
    near = source.mask & (torch.arange(S).sub(place).abs() <= 1)
    expected = Attention(Dot(), Global())(query, source._replace(mask=near))
    torch.testing.assert_close(attended.context, expected.context)
    torch.testing.assert_close(attended.dense(S), expected.weights)
    assert attended.weights.shape == (B, T, 3)


def test_steps_are_joined_along_the_target() -> None:
    query, source = torch.randn(B, T, SIZE), memory()
    attention = Attention(Dot(), Around(2))
    whole = attention(query, source)
    steps = joined([attention(query[:, t : t + 1], source, t) for t in range(T)])
    for field, expected in zip(steps, whole, strict=True):
        assert (field is None) == (expected is None)
        if field is not None:
            torch.testing.assert_close(field, expected)
    heads = MultiHeadAttention(SIZE, 2)
    whole = heads(query, source)
    torch.testing.assert_close(joined([heads(query[:, t : t + 1], source) for t in range(T)]).weights, whole.weights)


def their_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(ours.size, ours.heads, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_multi_head_attention_is_pytorchs(heads: int) -> None:
    ours = MultiHeadAttention(SIZE, heads)
    nn.init.normal_(ours.in_proj_bias)
    query, keys, values = torch.randn(B, T, SIZE), torch.randn(B, S, SIZE), torch.randn(B, S, SIZE)
    mask = prefix_mask(torch.tensor([6, 2, 1]), S)
    attended = ours(query, Memory(keys, values, mask))
    context, weights = their_twin(ours)(query, keys, values, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(attended.context, context)
    torch.testing.assert_close(attended.weights, weights)
    torch.testing.assert_close(attended.dense(S), weights.mean(1))


def test_causal_attention_lines_the_last_query_up_with_the_last_key() -> None:
    ours = MultiHeadAttention(SIZE, 2)
    x = torch.randn(B, S, SIZE)
    source = Memory(x, x, torch.ones(B, S, dtype=torch.bool))
    context, weights = their_twin(ours)(x, x, x, attn_mask=torch.ones(S, S).triu(1).bool(), average_attn_weights=False)
    torch.testing.assert_close(ours(x, source, causal=True).context, context)
    last = ours(x[:, -2:], source, causal=True)
    torch.testing.assert_close(last.context, context[:, -2:])
    torch.testing.assert_close(last.weights, weights[:, :, -2:])


def test_multi_head_attention_over_nothing_is_zero() -> None:
    ours = MultiHeadAttention(SIZE, 2)
    nn.init.ones_(ours.out_proj.bias)
    attended = ours(torch.randn(B, T, SIZE), memory())
    assert not attended.context[2].any()
    assert not attended.weights[2].any()


def test_heads_must_divide_the_size() -> None:
    with pytest.raises(ValueError, match="3 heads, size 8"):
        MultiHeadAttention(8, 3)


@pytest.mark.parametrize("size", [6, 7])
def test_positions_are_sines_and_cosines_in_turn(size: int) -> None:
    x = torch.randn(2, 5, size)
    added = (SinusoidalPositions(size)(x, step=3) - x).numpy()
    for position in range(5):
        for i in range(size):
            angle = (position + 3) / 10000 ** ((i - i % 2) / size)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            np.testing.assert_allclose(added[:, position, i], expected, atol=1e-5)


def test_learnt_positions_are_a_vector_for_each_place_and_the_last_is_shared() -> None:
    places, x = LearnedPositions(3, 4), torch.randn(2, 5, 3)
    added = places(x, step=2) - x
    for row in added:
        torch.testing.assert_close(row, places.weight[[2, 3, 3, 3, 3]])
    of_each = places(x, step=torch.tensor([0, 1])) - x
    torch.testing.assert_close(of_each[:, :2], places.weight[torch.tensor([[0, 1], [1, 2]])])


def test_no_positions_leave_all_as_it_is() -> None:
    x = torch.randn(2, 5, 3)
    assert torch.equal(NoPositions()(x, step=7), x)


def test_dense_lays_a_window_back() -> None:
    weights = torch.tensor([[[0.2, 0.5, 0.0]]])
    attended = Attended(torch.zeros(1, 1, 1), weights, torch.tensor([[[2, 3, 4]]]))
    torch.testing.assert_close(attended.dense(4), torch.tensor([[[0.0, 0.0, 0.2, 0.5]]]))


def test_dense_has_as_many_columns_as_it_is_asked_for() -> None:
    weights = torch.rand(2, 3, 5)
    attended = Attended(torch.zeros(2, 3, 1), weights)
    torch.testing.assert_close(attended.dense(3), weights[..., :3])
    assert attended.dense(7).shape == (2, 3, 7)
    assert not attended.dense(7)[..., 5:].any()
