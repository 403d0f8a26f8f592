"""Attention over a memory, multi-head attention and position encodings, against NumPy and PyTorch."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import softmax, to_array
from torch import Tensor, nn

from regard.models import decoder_state
from regard.nn import (
    Alignment,
    Attended,
    Attention,
    Concat,
    Dot,
    ElmanCell,
    General,
    Global,
    GRUCell,
    Hard,
    HierarchicalAttention,
    LearnedPositions,
    LinguisticCoverage,
    LocalMonotonic,
    LocalPredictive,
    Location,
    LSTMCell,
    Memory,
    MultiHeadAttention,
    NeuralCoverage,
    NoPositions,
    SinusoidalPositions,
    masked_softmax,
    prefix_mask,
)
from regard.nn.memory import concat_steps

B, T, S, SIZE = 3, 4, 6, 8
LENGTHS = torch.tensor([6, 2, 0])


pytestmark = pytest.mark.usefixtures("seed")


def make_memory(size: int = SIZE) -> Memory:
    keys = torch.randn(B, S, size)
    return Memory(keys, keys, prefix_mask(LENGTHS, S))


@pytest.mark.parametrize("score", [Dot(), General(SIZE, SIZE), Concat(SIZE, SIZE, 5), Location(SIZE, 20)])
def test_global_attention_is_a_softmax_over_unmasked_positions(score: nn.Module) -> None:
    query, source = torch.randn(B, T, SIZE), make_memory()
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


def test_padding_has_zero_weight_and_empty_rows_finite_gradients() -> None:
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


def test_masked_softmax_does_not_overflow() -> None:
    scores = torch.tensor([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]])
    weights = masked_softmax(scores, torch.tensor([[True, True, True], [True, True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))


def test_location_score_gives_no_weight_past_max_source() -> None:
    attended = Attention(Location(SIZE, 3), Global())(torch.randn(B, T, SIZE), make_memory())
    assert not attended.weights[0, :, 3:].any()
    torch.testing.assert_close(attended.weights[0].sum(-1), torch.ones(T))


def test_keys_are_projected_once_per_source() -> None:
    class Counting(Concat):
        calls = 0

        def project(self, keys: Tensor) -> Tensor:
            self.calls += 1
            return super().project(keys)

    score = Counting(SIZE, SIZE, 5)
    attention = Attention(score, Global())
    prepared = attention.prepare(make_memory())
    for step in range(5):
        attention(torch.randn(B, 1, SIZE), prepared, step)
    assert score.calls == 1


class FixedWindow(nn.Module):
    """User-defined alignment: a window of three around a fixed position."""

    def __init__(self, centre: int) -> None:
        super().__init__()
        self.centre = centre

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor, None]:
        offsets = torch.arange(-1, 2) + self.centre
        return offsets.expand(*query.shape[:2], 3), None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        return masked_softmax(scores, mask)


@pytest.mark.parametrize("centre", [0, 1, 4, 5])
def test_a_user_defined_alignment_may_have_a_window(centre: int) -> None:
    query, source = torch.randn(B, T, SIZE), make_memory()
    attended = Attention(Dot(), FixedWindow(centre))(query, source)
    near = source.mask & (torch.arange(S).sub(centre).abs() <= 1)
    expected = Attention(Dot(), Global())(query, source._replace(mask=near))
    torch.testing.assert_close(attended.context, expected.context)
    torch.testing.assert_close(attended.dense(S), expected.weights)
    assert attended.weights.shape == (B, T, 3)


def test_attention_of_single_steps_joins_to_that_of_all_steps() -> None:
    query, source = torch.randn(B, T, SIZE), make_memory()
    attention = Attention(Dot(), FixedWindow(2))
    whole = attention(query, source)
    steps = concat_steps([attention(query[:, t : t + 1], source, t) for t in range(T)])
    for field, expected in zip(steps, whole, strict=True):
        assert (field is None) == (expected is None)
        if field is not None:
            torch.testing.assert_close(field, expected)
    heads = MultiHeadAttention(SIZE, 2)
    whole = heads(query, source)
    torch.testing.assert_close(
        concat_steps([heads(query[:, t : t + 1], source) for t in range(T)]).weights, whole.weights
    )


def make_pytorch_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(ours.size, ours.heads, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_multi_head_attention_equals_the_one_of_pytorch(heads: int) -> None:
    ours = MultiHeadAttention(SIZE, heads)
    nn.init.normal_(ours.in_proj_bias)
    query, keys, values = torch.randn(B, T, SIZE), torch.randn(B, S, SIZE), torch.randn(B, S, SIZE)
    mask = prefix_mask(torch.tensor([6, 2, 1]), S)
    attended = ours(query, Memory(keys, values, mask))
    context, weights = make_pytorch_twin(ours)(query, keys, values, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(attended.context, context)
    torch.testing.assert_close(attended.weights, weights)
    torch.testing.assert_close(attended.dense(S), weights.mean(1))


def test_causal_attention_aligns_the_last_query_with_the_last_key() -> None:
    ours = MultiHeadAttention(SIZE, 2)
    x = torch.randn(B, S, SIZE)
    source = Memory(x, x, torch.ones(B, S, dtype=torch.bool))
    context, weights = make_pytorch_twin(ours)(
        x, x, x, attn_mask=torch.ones(S, S).triu(1).bool(), average_attn_weights=False
    )
    torch.testing.assert_close(ours(x, source, causal=True).context, context)
    last = ours(x[:, -2:], source, causal=True)
    torch.testing.assert_close(last.context, context[:, -2:])
    torch.testing.assert_close(last.weights, weights[:, :, -2:])


@pytest.mark.parametrize("count", [1, 2, S, S + 1])
def test_causal_queries_that_share_a_row_of_a_memory_are_masked_by_their_own_positions(count: int) -> None:
    ours = MultiHeadAttention(SIZE, 1).double()
    query, keys = torch.randn(6, count, SIZE).double(), torch.randn(2, S, SIZE).double()
    mask = prefix_mask(torch.tensor([6, 2]), S)
    found = ours(query, Memory(keys, keys, mask), causal=True)
    W_q, W_k, _ = to_array(ours.in_proj_weight).reshape(3, SIZE, SIZE)
    for row in range(6):
        for t in range(count):
            last = S - count + t  # the last query is at the last key
            real = (np.arange(S) <= last) & mask[row // 3].numpy()
            scores = to_array(keys[row // 3]) @ W_k.T @ (W_q @ to_array(query[row, t])) / math.sqrt(SIZE)
            expected = softmax(np.where(real, scores, -np.inf))
            np.testing.assert_allclose(to_array(found.weights[row, 0, t]), expected, atol=1e-12)


def test_multi_head_attention_over_an_empty_source_is_zero() -> None:
    ours = MultiHeadAttention(SIZE, 2)
    nn.init.ones_(ours.out_proj.bias)
    attended = ours(torch.randn(B, T, SIZE), make_memory())
    assert not attended.context[2].any()
    assert not attended.weights[2].any()


@pytest.mark.parametrize("heads", [3, 0, -1])
def test_number_of_heads_must_divide_the_size(heads: int) -> None:
    with pytest.raises(ValueError, match=f"{heads} heads, size 8"):
        MultiHeadAttention(8, heads)


@pytest.mark.parametrize("size", [6, 7])
def test_sinusoidal_positions_follow_the_equation_of_the_paper(size: int) -> None:
    x = torch.randn(2, 5, size)
    added = (SinusoidalPositions(size)(x, step=3) - x).numpy()
    for position in range(5):
        for i in range(size):
            angle = (position + 3) / 10000 ** ((i - i % 2) / size)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            np.testing.assert_allclose(added[:, position, i], expected, atol=1e-5)


def test_sinusoidal_positions_may_start_at_a_step_per_row() -> None:
    positions, x = SinusoidalPositions(6), torch.randn(2, 5, 6)
    per_row = positions(x, step=torch.tensor([4, 9]))
    torch.testing.assert_close(per_row, torch.cat((positions(x[:1], step=4), positions(x[1:], step=9))))


def test_learned_positions_repeat_the_last_vector() -> None:
    positions, x = LearnedPositions(3, 4), torch.randn(2, 5, 3)
    added = positions(x, step=2) - x
    for row in added:
        torch.testing.assert_close(row, positions.weight[[2, 3, 3, 3, 3]])
    per_row = positions(x, step=torch.tensor([0, 1])) - x
    torch.testing.assert_close(per_row[:, :2], positions.weight[torch.tensor([[0, 1], [1, 2]])])


def test_no_positions_change_nothing() -> None:
    x = torch.randn(2, 5, 3)
    assert torch.equal(NoPositions()(x, step=7), x)


def test_dense_weights_put_a_window_at_its_positions() -> None:
    weights = torch.tensor([[[0.2, 0.5, 0.0]]])
    attended = Attended(torch.zeros(1, 1, 1), weights, torch.tensor([[[2, 3, 4]]]))
    torch.testing.assert_close(attended.dense(4), torch.tensor([[[0.0, 0.0, 0.2, 0.5]]]))


def test_dense_weights_drop_positions_outside_the_source() -> None:
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])
    attended = Attended(torch.zeros(1, 1, 1), weights, torch.tensor([[[-1, 0, 1, 2]]]))
    torch.testing.assert_close(attended.dense(2), torch.tensor([[[0.2, 0.3]]]))
    assert attended.dense(0).shape == (1, 1, 0)


def test_dense_weights_are_cut_or_padded_to_the_source_length() -> None:
    weights = torch.rand(2, 3, 5)
    attended = Attended(torch.zeros(2, 3, 1), weights)
    torch.testing.assert_close(attended.dense(3), weights[..., :3])
    assert attended.dense(7).shape == (2, 3, 7)
    assert not attended.dense(7)[..., 5:].any()


@pytest.mark.parametrize(
    "attention",
    [
        *(
            Attention(General(SIZE, SIZE), alignment)
            for alignment in (Global(), LocalMonotonic(1), LocalPredictive(SIZE, 1, 3), Hard().eval())
        ),
        MultiHeadAttention(SIZE, 2),
    ],
    ids=["global", "local-m", "local-p", "hard", "multi-head"],
)
def test_queries_that_share_a_row_of_a_memory_equal_queries_with_copies(attention: nn.Module) -> None:
    keys, values = torch.randn(2, S, SIZE), torch.randn(2, S, SIZE)
    mask = prefix_mask(torch.tensor([6, 2]), S)
    shared = Memory(keys, values, mask)
    copied = Memory(keys.repeat_interleave(3, 0), values.repeat_interleave(3, 0), mask.repeat_interleave(3, 0))
    query = torch.randn(6, 2, SIZE)  # three hypotheses of each source, two positions
    for field, expected in zip(attention(query, shared), attention(query, copied), strict=True):
        assert (field is None) == (expected is None)
        if field is not None:
            torch.testing.assert_close(field, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Attention(Concat(SIZE, SIZE, 5), Global()),
        lambda: Attention(General(SIZE, SIZE), LocalMonotonic(1)),
        lambda: MultiHeadAttention(SIZE, 2),
    ],
    ids=["concat", "local-m", "multi-head"],
)
def test_a_memory_prepared_by_another_attention_is_refused(make: Callable[[], Any]) -> None:
    first, second = make(), make()
    source, query = make_memory(), torch.randn(B, 1, SIZE)
    prepared = first.prepare(source)
    assert first.prepare(prepared) is prepared
    torch.testing.assert_close(first(query, prepared).weights, first(query, source).weights)
    for use in (second.prepare, lambda memory: second(query, memory)):
        with pytest.raises(ValueError, match=f"prepared by another {type(first).__name__}"):
            use(prepared)
    second(query, source)


def test_a_copied_attention_reads_the_memory_that_was_copied_with_it() -> None:
    attention, query = Attention(General(SIZE, SIZE), Global()), torch.randn(B, 1, SIZE)
    with torch.no_grad():  # only such tensors can be copied
        prepared = attention.prepare(make_memory())
    copied, memory = copy.deepcopy((attention, prepared))
    torch.testing.assert_close(copied(query, memory).weights, attention(query, prepared).weights)
    for alone in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        torch.testing.assert_close(attention(query, alone).weights, attention(query, prepared).weights)


def test_selected_widened_and_joined_memories_keep_the_attention_that_prepared_them() -> None:
    attention = Attention(General(SIZE, SIZE), Global())
    prepared = attention.prepare(make_memory())
    rows = torch.tensor([1, 0])
    for memory in (
        decoder_state.select(prepared, rows),
        decoder_state.expand_beams(prepared, 2),
        decoder_state.reorder_beams(prepared, rows),
        decoder_state.trim_padding(prepared, 2),
        decoder_state.keep_rows(prepared, rows, rows),
        decoder_state.concat_states(prepared, prepared),
        decoder_state.steps_per_row(prepared),
    ):
        assert memory.owner is attention
    assert [name for name, _ in decoder_state.named_tensors(prepared)] == ["keys", "values", "mask", "projected"]


@pytest.mark.parametrize("alignment", [Global(), LocalMonotonic(1)])
def test_attention_over_an_empty_batch_is_empty(alignment: Alignment) -> None:
    keys = torch.zeros(0, S, SIZE)
    attended = Attention(Dot(), alignment)(torch.zeros(0, T, SIZE), Memory(keys, keys, torch.zeros(0, S) > 0))
    assert attended.context.shape == (0, T, SIZE)
    assert attended.dense(S).shape == (0, T, S)


def xavier(parameter: Tensor) -> float:
    return math.sqrt(6 / sum(parameter.shape))


@pytest.mark.parametrize(
    ("make", "bounds"),
    [
        (lambda: General(90, 60), {"weight": xavier}),
        (lambda: Location(60, 90), {"weight": xavier}),
        (lambda: Concat(60, 50, 400), {"query_weight": xavier, "key_weight": xavier, "v": 0.05}),
        (lambda: LocalPredictive(60, 2, 400), {"weight": xavier, "v": 0.05}),
        (lambda: LinguisticCoverage(900, 900), {"weight": xavier, "fertility_weight": xavier}),
        (lambda: NeuralCoverage(3, 3, 100, width=25), {"weight": 0.2}),
        (lambda: HierarchicalAttention(10, 400), {"words.context": 0.05, "sentences.context": 0.05}),
        (lambda: ElmanCell(50, 100), dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), 0.1)),
        (lambda: LSTMCell(50, 100), dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), 0.1)),
        (lambda: GRUCell(50, 100), dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), 0.1)),
        (lambda: MultiHeadAttention(60, 2), {"in_proj_weight": xavier, "in_proj_bias": 0.0, "out_proj.bias": 0.0}),
    ],
    ids=[
        "general",
        "location",
        "concat",
        "local-p",
        "linguistic coverage",
        "neural coverage",
        "hierarchical",
        "elman",
        "lstm",
        "gru",
        "multi-head",
    ],
)
def test_initial_weights_are_uniform_within_their_bounds(make: Callable[[], nn.Module], bounds: dict[str, Any]) -> None:
    module = make()
    for name, given in bounds.items():
        parameter = module.get_parameter(name)
        bound = given if isinstance(given, float) else given(parameter)
        low, high = parameter.min().item(), parameter.max().item()
        assert [low, high] == pytest.approx([-bound, bound], rel=0.1), name
        assert max(-low, high) <= bound + 1e-6, name
        if bound:
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name


def test_initial_learned_positions_have_the_mean_square_of_sinusoids() -> None:
    assert LearnedPositions(50, 400).weight.square().mean().item() == pytest.approx(0.5, rel=0.05)
