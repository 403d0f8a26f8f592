"""The kernels of whole recurrent layers against the readable loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.graphs import EagerGraph
from torch import Tensor, nn

from regard.fast import gru, layer, quicken
from regard.fast.captured import Captured
from regard.fast.layer import KERNELS, kind, unrolled
from regard.models import build
from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent, State, parts
from regard.nn.cell import Cell
from regard.nn.recurrent import at_end, unroll

CELLS: dict[str, Callable[[int, int], Cell]] = {
    "elman": ElmanCell,
    "lstm": LSTMCell,
    "gru-torch": lambda inputs, size: GRUCell(inputs, size, "torch"),
    "gru-paper": GRUCell,
}
LENGTHS = ([5], [1], [3, 5, 5, 1], [0, 2, 4], [0, 0], [2, 2, 2])


def everything(run: Callable[..., tuple[Tensor, State]], name: str, lengths: list[int], given: bool) -> list[Tensor]:
    """Outputs, last state and all gradients of a layer over ragged sentences."""
    torch.manual_seed(0)
    cell = CELLS[name](3, 7).double()
    x = torch.randn(len(lengths), max(*lengths, 1), 3, dtype=torch.float64, requires_grad=True)
    begin = [torch.randn(len(lengths), 7, dtype=torch.float64, requires_grad=True) for _ in range(cell.tracks)]
    state = (begin[0] if cell.tracks == 1 else tuple(begin)) if given else None
    outputs, last = run(cell, x, torch.tensor(lengths), state)
    found = [outputs, *parts(last)]
    torch.autograd.backward(found, [torch.randn(part.shape, dtype=part.dtype) for part in found])
    leaves = [x, *cell.parameters(), *(begin if given else [])]
    return found + [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_a_kernel_gives_the_loops_numbers_and_gradients(name: str, lengths: list[int], given: bool) -> None:
    def kernel(cell: Cell, x: Tensor, lengths: Tensor, state: State | None) -> tuple[Tensor, State]:
        begin = (cell.zeros(x),) * cell.tracks if state is None else parts(state)
        return KERNELS["cuda"][name](cell, x, lengths, list(begin), list(cell.parameters()))

    for found, expected in zip(
        everything(kernel, name, lengths, given), everything(unroll, name, lengths, given), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", KERNELS["cpu"])
def test_on_a_cpu_some_have_a_loop_of_their_own_with_the_same_numbers(
    name: str, lengths: list[int], given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = everything(unroll, name, lengths, given)
    monkeypatch.setattr(layer, "unroll", None)
    for found, wanted in zip(everything(unrolled, name, lengths, given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_larger_shape_around_a_gru_changes_nothing() -> None:
    captured = Captured(patience=1, make=EagerGraph)

    def framed(cell: Cell, x: Tensor, lengths: Tensor, state: State | None) -> tuple[Tensor, State]:
        h = cell.zeros(x) if state is None else parts(state)[0]
        W, U, b_ih, b_hh = cell.parameters()
        (track,) = captured(gru.steps, "gru", gru.FORM, [x, h, W, U, b_ih + b_hh])
        return track * layer.real(x, lengths), at_end(track, lengths, h)

    lengths = [3, 19, 0, *range(1, 15)]
    for found, expected in zip(
        everything(framed, "gru-paper", lengths, True), everything(unroll, "gru-paper", lengths, True), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert captured.graphs


def test_a_gru_in_half_precision_keeps_its_state_in_single() -> None:
    torch.manual_seed(0)
    cell, x, lengths = GRUCell(6, 16), torch.randn(3, 40, 6), torch.tensor([40, 7, 1])
    exact, _ = unroll(cell, x, lengths, None)
    half = [weight.bfloat16() for weight in cell.parameters()]
    track, last = KERNELS["cuda"]["gru-paper"](cell, x.bfloat16(), lengths, [cell.zeros(x)], half)
    assert (track.dtype, parts(last)[0].dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(track.float(), exact, rtol=0.03, atol=0.03)
    W, U, b = torch.zeros(3, 1), torch.zeros(3, 1), torch.tensor([0.0, -8.0, 20.0])  # z is 0.0003, h̃ is 1
    (states,) = gru.steps(
        torch.zeros(1, 100, 1).bfloat16(), torch.full((1, 1), 0.5), *(one.bfloat16() for one in (W, U, b))
    )
    assert states[0, -1].item() > 0.51, "in half precision each of these steps would be lost"


def test_a_cell_without_a_kernel_goes_by_the_loop() -> None:
    assert all(kind(nn.GRUCell(2, 3)) not in kernels for kernels in KERNELS.values())
    x, lengths = torch.randn(2, 3, 2), torch.tensor([3, 1])
    for cell in (GRUCell(2, 3, "torch"), ElmanCell(2, 3), GRUCell(2, 3)):
        with torch.autocast("cpu", enabled=type(cell) is GRUCell and cell.form == "paper"):
            torch.testing.assert_close(unrolled(cell, x, lengths, None), unroll(cell, x, lengths, None), rtol=0, atol=0)


def test_faster_ways_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def ways() -> set[Callable[..., object]]:
        model = quicken(build("luong2015-global", 20, 20, size=8, layers=1))
        return {module.unroll for module in model.modules() if isinstance(module, Recurrent)}

    assert ways() == {unrolled}
    monkeypatch.setenv("REGARD_FAST", "0")
    assert ways() == {unroll}
