"""CUDA graph capture of functions, here with a stand-in for graphs: rounded shapes, copies and the order of passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.graphs import EagerGraph
from torch import Tensor
from torch.nn import functional as F

from regard.fast.cuda_graphs import cache
from regard.fast.cuda_graphs.buckets import round_up
from regard.fast.cuda_graphs.cache import ForwardBackwardGraph, GraphedFunctionCache, ShapeSpec, TensorFunction
from regard.fast.cuda_graphs.pool import StaticBuffers, try_capture


class OutOfMemoryGraph(ForwardBackwardGraph):
    """A graph for whose capture there is no memory."""

    def record(self, function: TensorFunction, buffers: StaticBuffers) -> ForwardBackwardGraph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    run_once = EagerGraph.run_once


FORM = ShapeSpec(["BT-", "--", "BT"], ["BT-", "B", "BT"])


def compute(x: Tensor, W: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Return a product, a sum over T, and an output without gradient."""
    h = torch.tanh(F.linear(x, W)) * mask[..., None]
    return h, h.square().sum((1, 2)), mask & (h.sum(-1) > 0)


def make_inputs(B: int, T: int, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    x, W = torch.randn(B, T, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    return [x.requires_grad_(), W.requires_grad_(), torch.rand(B, T) < 0.8]


def compute_loss(outputs: Sequence[Tensor]) -> Tensor:
    return outputs[0].sin().sum() + outputs[1].square().sum()


def run_with_gradients(run: Any, tensors: list[Tensor]) -> list[Tensor]:
    outputs = run(tensors)
    return [*outputs, *torch.autograd.grad(compute_loss(outputs), tensors[:2])]


def run_plainly(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return compute(*tensors)


def assert_all_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.fixture
def captured() -> GraphedFunctionCache:
    return GraphedFunctionCache(min_calls=2, max_graphs=3, graph_type=EagerGraph)


def test_sizes_are_rounded_up_by_an_eighth_at_most() -> None:
    assert [round_up(size) for size in (1, 7, 8, 15, 16, 17, 30, 31, 33, 100, 128, 129, 512, 513)] == [
        *(1, 7, 8, 15, 16, 18, 30, 32, 36, 104, 128, 144, 512, 576)
    ]
    assert all(size <= round_up(size) <= size * 9 / 8 for size in range(1, 2000))


def test_shape_is_captured_when_it_was_seen_often_enough(captured: GraphedFunctionCache) -> None:
    for B, T, graphs in ((17, 5, 0), (18, 5, 1), (17, 5, 1), (3, 5, 1), (3, 5, 2), (3, 6, 2), (3, 6, 3), (4, 6, 3)):
        tensors = make_inputs(B, T, seed=B + T)
        assert_all_close(
            run_with_gradients(lambda some: captured(compute, None, FORM, some), tensors),
            run_with_gradients(run_plainly, tensors),
        )
        assert len(captured.graphs) == graphs
    tensors = make_inputs(4, 6)
    assert_all_close(
        run_with_gradients(lambda some: captured(compute, None, FORM, some), tensors),
        run_with_gradients(run_plainly, tensors),
    )
    assert len(captured.graphs) == 3  # the maximum is reached


def test_frequent_shape_replaces_the_rarest_in_a_full_cache(captured: GraphedFunctionCache) -> None:
    for T, calls in ((3, 9), (4, 9), (5, 3), (6, 6)):
        for _ in range(calls):
            captured(compute, None, FORM, make_inputs(3, T))
    assert sorted(graph.inputs[0].shape[1] for graph in captured.graphs.values()) == [3, 4, 5]
    tensors = make_inputs(3, 6)
    for _ in range(2):
        assert_all_close(
            run_with_gradients(lambda some: captured(compute, None, FORM, some), tensors),
            run_with_gradients(run_plainly, tensors),
        )
        assert sorted(graph.inputs[0].shape[1] for graph in captured.graphs.values()) == [3, 4, 6]


def test_calls_are_counted_for_a_limited_number_of_shapes(
    captured: GraphedFunctionCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_KEYS", 4)
    for T in (3, 3, *range(4, 15)):
        captured(compute, None, FORM, make_inputs(3, T))
        assert len(captured.num_calls) <= 4
    assert len(captured.graphs) == 1


def test_outputs_survive_the_next_replay(captured: GraphedFunctionCache) -> None:
    first, second = make_inputs(17, 5), make_inputs(18, 5, seed=1)
    captured(compute, None, FORM, first)
    outputs = captured(compute, None, FORM, first)
    found = [*outputs, *torch.autograd.grad(compute_loss(outputs), first[:2])]
    expected = [one.clone() for one in found]
    run_with_gradients(lambda some: captured(compute, None, FORM, some), second)
    assert_all_close(found, expected)
    assert_all_close(found, run_with_gradients(run_plainly, first))


def test_backward_is_right_after_further_forward_passes(captured: GraphedFunctionCache) -> None:
    first, second = make_inputs(17, 5), make_inputs(18, 5, seed=1)
    captured(compute, None, FORM, first)
    one, other = captured(compute, None, FORM, first), captured(compute, None, FORM, second)
    total = compute_loss(one) + compute_loss(other)
    found = torch.autograd.grad(total, [*first[:2], *second[:2]])
    assert_all_close(found, [*run_with_gradients(run_plainly, first)[3:], *run_with_gradients(run_plainly, second)[3:]])


def test_second_backward_pass_gives_the_same_gradients(captured: GraphedFunctionCache) -> None:
    tensors = make_inputs(17, 5)
    captured(compute, None, FORM, tensors)
    outputs = captured(compute, None, FORM, tensors)
    total = compute_loss(outputs)
    once = torch.autograd.grad(total, tensors[:2], retain_graph=True)
    assert_all_close(torch.autograd.grad(total, tensors[:2]), once)
    assert_all_close(once, run_with_gradients(run_plainly, tensors)[3:])


def test_nothing_is_captured_without_gradients(captured: GraphedFunctionCache) -> None:
    with torch.no_grad():
        for _ in range(4):
            captured(compute, None, FORM, make_inputs(3, 5))
    for _ in range(4):
        captured(compute, None, FORM, [tensor.detach() for tensor in make_inputs(3, 5)])
    assert not captured.num_calls
    assert not captured.graphs


def test_each_key_and_each_set_of_gradients_has_its_own_graph(captured: GraphedFunctionCache) -> None:
    tensors = make_inputs(3, 5)
    frozen = [tensors[0], tensors[1].detach(), tensors[2]]
    for key, some in ((1, tensors), (2, tensors), (1, frozen)) * 2:
        captured(compute, key, FORM, some)
    assert len(captured.graphs) == 3
    (gradient,) = torch.autograd.grad(compute_loss(captured(compute, 1, FORM, frozen)), frozen[:1])
    assert_all_close([gradient], run_with_gradients(run_plainly, tensors)[3:4])


class SecondTryGraph(EagerGraph):
    """A graph for whose capture there is memory only at the second attempt."""

    tries = 0

    def record(self, function: TensorFunction, buffers: StaticBuffers) -> ForwardBackwardGraph:
        SecondTryGraph.tries += 1
        if SecondTryGraph.tries == 1:
            raise RuntimeError("CUDA error: out of memory")  # the message of the driver
        return super().record(function, buffers)


def test_cached_memory_is_freed_before_graphs_are_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(SecondTryGraph, "tries", 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(SecondTryGraph.tries))
    captured = GraphedFunctionCache(min_calls=1, graph_type=SecondTryGraph)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    captured(lambda one: (one * 2,), "", ShapeSpec(["BT-"], ["BT-"]), [x])
    assert freed == [1]
    assert (captured.pool.is_enabled, len(captured.graphs)) == (True, 1)
    assert capsys.readouterr().err == ""

    def fail() -> None:
        raise RuntimeError("something else")

    assert try_capture("all", fail, lambda: freed.append(0)) is None
    assert freed == [1, 0, 2], "another error: the caller forgets its graphs, then memory is freed"
    assert capsys.readouterr().err == "all continues without CUDA graphs, and more slowly: something else\n"


def test_running_out_of_memory_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    captured = GraphedFunctionCache(min_calls=1, graph_type=OutOfMemoryGraph)
    for _ in range(3):
        tensors = make_inputs(3, 5)
        assert_all_close(
            run_with_gradients(lambda some: captured(compute, None, FORM, some), tensors),
            run_with_gradients(run_plainly, tensors),
        )
    assert capsys.readouterr().err == "training continues without CUDA graphs, and more slowly: out of memory\n"
