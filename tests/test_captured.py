"""What is recorded and played back: shapes, corners, copies and turns. The graphs themselves are tested on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.graphs import EagerGraph
from torch import Tensor
from torch.nn import functional as F

from regard.fast.captured import Captured, Form, Function, Graph
from regard.fast.recording import Places, attempted, rounded


class Missing(Graph):
    """Where there is no memory for one."""

    def record(self, function: Function, places: Places) -> Graph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    tried = EagerGraph.tried


FORM = Form(["BT-", "--", "BT"], ["BT-", "B", "BT"])


def look(x: Tensor, W: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Something with a matrix, a sum over T, and an output that no gradient comes to."""
    h = torch.tanh(F.linear(x, W)) * mask[..., None]
    return h, h.square().sum((1, 2)), mask & (h.sum(-1) > 0)


def given(B: int, T: int, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    x, W = torch.randn(B, T, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    return [x.requires_grad_(), W.requires_grad_(), torch.rand(B, T) < 0.8]


def value(outputs: Sequence[Tensor]) -> Tensor:
    return outputs[0].sin().sum() + outputs[1].square().sum()


def slopes(run: Any, tensors: list[Tensor]) -> list[Tensor]:
    outputs = run(tensors)
    return [*outputs, *torch.autograd.grad(value(outputs), tensors[:2])]


def plainly(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return look(*tensors)


def agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.fixture
def captured() -> Captured:
    return Captured(patience=2, most=3, make=EagerGraph)


def test_sizes_are_rounded_by_an_eighth_at_most() -> None:
    assert [rounded(size) for size in (1, 7, 8, 15, 16, 17, 30, 31, 33, 100, 128, 129, 512, 513)] == [
        *(1, 7, 8, 15, 16, 18, 30, 32, 36, 104, 128, 144, 512, 576)
    ]
    assert all(size <= rounded(size) <= size * 9 / 8 for size in range(1, 2000))


def test_a_shape_is_recorded_when_it_has_come_often_enough(captured: Captured) -> None:
    for B, T, graphs in ((17, 5, 0), (18, 5, 1), (17, 5, 1), (3, 5, 1), (3, 5, 2), (3, 6, 2), (3, 6, 3), (4, 6, 3)):
        tensors = given(B, T, seed=B + T)
        agree(slopes(lambda some: captured(look, None, FORM, some), tensors), slopes(plainly, tensors))
        assert len(captured.graphs) == graphs
    tensors = given(4, 6)
    agree(slopes(lambda some: captured(look, None, FORM, some), tensors), slopes(plainly, tensors))
    assert len(captured.graphs) == 3  # and no more


def test_what_was_handed_out_stays_as_it_is(captured: Captured) -> None:
    first, second = given(17, 5), given(18, 5, seed=1)
    captured(look, None, FORM, first)
    outputs = captured(look, None, FORM, first)
    found = [*outputs, *torch.autograd.grad(value(outputs), first[:2])]
    expected = [one.clone() for one in found]
    slopes(lambda some: captured(look, None, FORM, some), second)
    agree(found, expected)
    agree(found, slopes(plainly, first))


def test_forward_passes_before_a_backward_pass_do_not_disturb_it(captured: Captured) -> None:
    first, second = given(17, 5), given(18, 5, seed=1)
    captured(look, None, FORM, first)
    one, other = captured(look, None, FORM, first), captured(look, None, FORM, second)
    total = value(one) + value(other)
    found = torch.autograd.grad(total, [*first[:2], *second[:2]])
    agree(found, [*slopes(plainly, first)[3:], *slopes(plainly, second)[3:]])


def test_a_second_backward_pass_gives_the_same(captured: Captured) -> None:
    tensors = given(17, 5)
    captured(look, None, FORM, tensors)
    outputs = captured(look, None, FORM, tensors)
    total = value(outputs)
    once = torch.autograd.grad(total, tensors[:2], retain_graph=True)
    agree(torch.autograd.grad(total, tensors[:2]), once)
    agree(once, slopes(plainly, tensors)[3:])


def test_without_gradients_nothing_is_recorded(captured: Captured) -> None:
    with torch.no_grad():
        for _ in range(4):
            captured(look, None, FORM, given(3, 5))
    for _ in range(4):
        captured(look, None, FORM, [tensor.detach() for tensor in given(3, 5)])
    assert not captured.seen
    assert not captured.graphs


def test_each_key_and_each_kind_has_a_graph_of_its_own(captured: Captured) -> None:
    tensors = given(3, 5)
    frozen = [tensors[0], tensors[1].detach(), tensors[2]]
    for key, some in ((1, tensors), (2, tensors), (1, frozen)) * 2:
        captured(look, key, FORM, some)
    assert len(captured.graphs) == 3
    (slope,) = torch.autograd.grad(value(captured(look, 1, FORM, frozen)), frozen[:1])
    agree([slope], slopes(plainly, tensors)[3:4])


class Late(EagerGraph):
    """Where there is memory when it was given back."""

    tries = 0

    def record(self, function: Function, places: Places) -> Graph:
        Late.tries += 1
        if Late.tries == 1:
            raise RuntimeError("CUDA error: out of memory")  # in the driver's words
        return super().record(function, places)


def test_memory_that_is_spare_is_given_back_before_graphs_are_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(Late.tries))
    captured = Captured(patience=1, make=Late)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    captured(lambda one: (one * 2,), "", Form(["BT-"], ["BT-"]), [x])
    assert given_back == [1]
    assert (captured.able, len(captured.graphs)) == (True, 1)
    assert capsys.readouterr().err == ""

    def otherwise() -> None:
        raise RuntimeError("something else")

    assert attempted("all", otherwise, lambda: given_back.append(0)) is None
    assert given_back == [1, 0, 2], "which no memory would mend: what others have is forgotten, then given back"
    assert capsys.readouterr().err == "all goes on without CUDA graphs, and more slowly: something else\n"


def test_where_there_is_no_memory_it_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    captured = Captured(patience=1, make=Missing)
    for _ in range(3):
        tensors = given(3, 5)
        agree(slopes(lambda some: captured(look, None, FORM, some), tensors), slopes(plainly, tensors))
    assert capsys.readouterr().err == "training goes on without CUDA graphs, and more slowly: out of memory\n"
