"""The kernels of whole recurrent layers against the readable loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.fast import quicken
from regard.fast.layer import KERNELS, kind, unrolled
from regard.models import build
from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent, State, parts
from regard.nn.cell import Cell
from regard.nn.recurrent import unroll

CELLS: dict[str, Callable[[int, int], Cell]] = {
    "elman": ElmanCell,
    "lstm": LSTMCell,
    "gru-torch": lambda inputs, size: GRUCell(inputs, size, "torch"),
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
        return KERNELS[name](x, lengths, list(begin), list(cell.parameters()))

    for found, expected in zip(
        everything(kernel, name, lengths, given), everything(unroll, name, lengths, given), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_an_lstm_on_a_cpu_has_a_loop_of_its_own_with_the_same_numbers(lengths: list[int], given: bool) -> None:
    for found, expected in zip(
        everything(unrolled, "lstm", lengths, given), everything(unroll, "lstm", lengths, given), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_cell_without_a_kernel_goes_by_the_loop() -> None:
    assert kind(GRUCell(2, 3)) not in KERNELS
    assert kind(nn.GRUCell(2, 3)) not in KERNELS
    x, lengths = torch.randn(2, 3, 2), torch.tensor([3, 1])
    cell = GRUCell(2, 3)
    torch.testing.assert_close(unrolled(cell, x, lengths, None), unroll(cell, x, lengths, None), rtol=0, atol=0)


def test_faster_ways_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def ways() -> set[Callable[..., object]]:
        model = quicken(build("luong2015-global", 20, 20, size=8, layers=1))
        return {module.unroll for module in model.modules() if isinstance(module, Recurrent)}

    assert ways() == {unrolled}
    monkeypatch.setenv("REGARD_FAST", "0")
    assert ways() == {unroll}
