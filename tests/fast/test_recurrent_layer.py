"""Kernels for whole recurrent layers against the reference loop over time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.combinations import covering_pairs
from support.fast_models import CELLS
from support.graphs import EagerGraph
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.cuda_graphs.cache import GraphedFunctionCache
from regard.fast.training import rnn_layer
from regard.fast.training.rnn_layer import LAYER_KERNELS, cell_kind, run_layer
from regard.models import build
from regard.nn import ElmanCell, GRUCell, Recurrent, State, prefix_mask, state_tensors
from regard.nn.recurrent import Cell, last_real_state, unroll_cell

LENGTHS = [[3, 5, 5, 1], [0, 2, 4], [5], [1], [0, 0], [2, 2, 2]]


def run_with_gradients(
    run: Callable[..., tuple[Tensor, State]], name: str, lengths: list[int], given: bool
) -> list[Tensor]:
    """Return outputs, last state and all gradients of a layer, from a `given` initial state or from zeros."""
    torch.manual_seed(0)
    cell = CELLS[name](3, 7).double()
    x = torch.randn(len(lengths), max(*lengths, 1), 3, dtype=torch.float64, requires_grad=True)
    begin = [
        torch.randn(len(lengths), 7, dtype=torch.float64, requires_grad=True) for _ in range(cell.num_state_tensors)
    ]
    state = (begin[0] if cell.num_state_tensors == 1 else tuple(begin)) if given else None
    outputs, last = run(cell, x, torch.tensor(lengths), state)
    found = [outputs, *state_tensors(last)]
    torch.autograd.backward(found, [torch.randn(part.shape, dtype=part.dtype) for part in found])
    leaves = [x, *cell.parameters(), *(begin if given else [])]
    return found + [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


@pytest.mark.parametrize(("name", "lengths", "given"), covering_pairs(list(CELLS), LENGTHS, [False, True]), ids=str)
def test_kernel_has_the_outputs_and_gradients_of_the_loop(name: str, lengths: list[int], given: bool) -> None:
    def kernel(cell: Cell, x: Tensor, lengths: Tensor, state: State | None) -> tuple[Tensor, State]:
        begin = (cell.zero_state(x),) * cell.num_state_tensors if state is None else state_tensors(state)
        return LAYER_KERNELS["cuda"][name](cell, x, lengths, list(begin), list(cell.parameters()))

    for found, expected in zip(
        run_with_gradients(kernel, name, lengths, given),
        run_with_gradients(unroll_cell, name, lengths, given),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "lengths", "given"), covering_pairs(list(LAYER_KERNELS["cpu"]), LENGTHS, [False, True]), ids=str
)
def test_cpu_loop_has_the_outputs_and_gradients_of_the_loop(
    name: str, lengths: list[int], given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_with_gradients(unroll_cell, name, lengths, given)
    monkeypatch.setattr(rnn_layer, "unroll_cell", None)
    for found, wanted in zip(run_with_gradients(run_layer, name, lengths, given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_padding_a_gru_to_the_shape_of_a_graph_changes_nothing() -> None:
    captured = GraphedFunctionCache(min_calls=1, graph_type=EagerGraph)

    def run_in_graph(cell: Cell, x: Tensor, lengths: Tensor, state: State | None) -> tuple[Tensor, State]:
        h = cell.zero_state(x) if state is None else state_tensors(state)[0]
        W, U, b_ih, b_hh = cell.parameters()
        (track,) = captured(rnn_layer.gru_sequence, "gru", rnn_layer.GRU_SHAPES, [x, h, W, U, b_ih + b_hh])
        return track * prefix_mask(lengths, x.shape[1])[..., None], last_real_state(track, lengths, h)

    lengths = [3, 19, 0, *range(1, 15)]
    for found, expected in zip(
        run_with_gradients(run_in_graph, "gru-paper", lengths, True),
        run_with_gradients(unroll_cell, "gru-paper", lengths, True),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert captured.graphs


def test_gru_in_bf16_keeps_its_state_in_fp32() -> None:
    torch.manual_seed(0)
    cell, x, lengths = GRUCell(6, 16), torch.randn(3, 40, 6), torch.tensor([40, 7, 1])
    exact, _ = unroll_cell(cell, x, lengths, None)
    half = [weight.bfloat16() for weight in cell.parameters()]
    track, last = LAYER_KERNELS["cuda"]["gru-paper"](cell, x.bfloat16(), lengths, [cell.zero_state(x)], half)
    assert (track.dtype, state_tensors(last)[0].dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(track.float(), exact, rtol=0.03, atol=0.03)
    W, U, b = torch.zeros(3, 1), torch.zeros(3, 1), torch.tensor([0.0, -8.0, 20.0])  # z is 0.0003, h̃ is 1
    (states,) = rnn_layer.gru_sequence(
        torch.zeros(1, 100, 1).bfloat16(), torch.full((1, 1), 0.5), *(one.bfloat16() for one in (W, U, b))
    )
    assert states[0, -1].item() > 0.51, "in bf16 each of these updates would be rounded away"


def test_cells_without_a_kernel_use_the_loop() -> None:
    assert all(cell_kind(nn.GRUCell(2, 3)) not in kernels for kernels in LAYER_KERNELS.values())
    x, lengths = torch.randn(2, 3, 2), torch.tensor([3, 1])
    for cell in (GRUCell(2, 3, "torch"), ElmanCell(2, 3), GRUCell(2, 3)):
        with torch.autocast("cpu", enabled=type(cell) is GRUCell and cell.form == "paper"):
            torch.testing.assert_close(
                run_layer(cell, x, lengths, None), unroll_cell(cell, x, lengths, None), rtol=0, atol=0
            )


def test_regard_fast_0_switches_layer_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen_loops() -> set[Callable[..., object]]:
        model = accelerate(build("luong2015-global", 20, 20, size=8, layers=1))
        return {module.unroll for module in model.modules() if isinstance(module, Recurrent)}

    assert chosen_loops() == {run_layer}
    monkeypatch.setenv("REGARD_FAST", "0")
    assert chosen_loops() == {unroll_cell}
