"""Recurrent networks against PyTorch's packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent, State, state_tensors

B, S, INPUT, H = 4, 6, 3, 5
LENGTHS = torch.tensor([6, 3, 1, 4])
KINDS: list[tuple[Callable[[int, int], nn.Module], Callable[..., nn.RNNBase]]] = [
    (LSTMCell, nn.LSTM),
    (partial(GRUCell, form="torch"), nn.GRU),
    (ElmanCell, nn.RNN),
]


pytestmark = pytest.mark.usefixtures("seed")


def make_twins(
    make: Callable[[int, int], nn.Module], theirs: Callable[..., nn.RNNBase], layers: int, bidirectional: bool
) -> tuple[Recurrent, nn.RNNBase]:
    ours = Recurrent(make, INPUT, H, layers, bidirectional)
    reference = theirs(INPUT, H, layers, batch_first=True, bidirectional=bidirectional)
    for layer in range(layers):
        for suffix, cells in (("", ours.forwards), ("_reverse", ours.backwards)):
            for name, parameter in cells[layer].named_parameters() if len(cells) else ():
                getattr(reference, f"{name}_l{layer}{suffix}").data.copy_(parameter.data)
    return ours, reference


def run_packed(reference: nn.RNNBase, x: Tensor, initial: Any = None) -> tuple[Tensor, tuple[Tensor, ...]]:
    run = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    outputs, final = reference(run, initial)
    whole, _ = pad_packed_sequence(outputs, batch_first=True, total_length=S)
    return whole, final if isinstance(final, tuple) else (final,)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("make", "theirs"), KINDS)
def test_network_equals_pytorch_on_packed_sequences(
    make: Callable[[int, int], nn.Module], theirs: Callable[..., nn.RNNBase], layers: int, bidirectional: bool
) -> None:
    ours, reference = make_twins(make, theirs, layers, bidirectional)
    x = torch.randn(B, S, INPUT)
    outputs, final = ours(x, LENGTHS)
    their_outputs, their_final = run_packed(reference, x)
    torch.testing.assert_close(outputs, their_outputs)
    assert_same_states(final, their_final, 2 if bidirectional else 1)


def assert_same_states(ours: list[State], theirs: tuple[Tensor, ...], directions: int) -> None:
    """Compare the state of each layer with PyTorch's h (and c) of shape (layers · directions, B, H)."""
    for layer, state in enumerate(ours):
        rows = [part[layer * directions : (layer + 1) * directions] for part in theirs]
        torch.testing.assert_close(state_tensors(state), tuple(torch.cat(list(row), -1) for row in rows))


@pytest.mark.parametrize(("make", "theirs"), KINDS)
def test_a_bidirectional_network_splits_its_initial_state(
    make: Callable[[int, int], nn.Module], theirs: Callable[..., nn.RNNBase]
) -> None:
    ours, reference = make_twins(make, theirs, 2, True)
    x = torch.randn(B, S, INPUT)
    initial = tuple(torch.randn(4, B, H) for _ in range(2 if theirs is nn.LSTM else 1))
    layers = [tuple(torch.cat((part[2 * n], part[2 * n + 1]), -1) for part in initial) for n in range(2)]
    outputs, final = ours(x, LENGTHS, [layer if len(layer) == 2 else layer[0] for layer in layers])
    their_outputs, their_final = run_packed(reference, x, initial if len(initial) == 2 else initial[0])
    torch.testing.assert_close(outputs, their_outputs)
    assert_same_states(final, their_final, 2)


@pytest.mark.parametrize("make", [LSTMCell, GRUCell, ElmanCell])
def test_repeated_step_equals_the_whole_sequence(make: Callable[[int, int], nn.Module]) -> None:
    network = Recurrent(make, INPUT, H, layers=2)
    x = torch.randn(B, S, INPUT)
    outputs, final = network(x, torch.full((B,), S))
    state = None
    for position in range(S):
        output, state = network.step(x[:, position], state)
        torch.testing.assert_close(output, outputs[:, position])
    torch.testing.assert_close(state, final)


def test_a_given_initial_state_is_used() -> None:
    network = Recurrent(LSTMCell, INPUT, H, layers=2, bidirectional=False)
    x = torch.randn(B, S, INPUT)
    whole, _ = network(x, torch.full((B,), S))
    _, middle = network(x[:, :2], torch.full((B,), 2))
    rest, _ = network(x[:, 2:], torch.full((B,), S - 2), middle)
    torch.testing.assert_close(rest, whole[:, 2:])


def test_padding_does_not_change_the_output_in_either_direction() -> None:
    network = Recurrent(GRUCell, INPUT, H, bidirectional=True)
    x = torch.randn(B, S, INPUT)
    other = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = torch.randn(S - length, INPUT)
    torch.testing.assert_close(network(x, LENGTHS), network(other, LENGTHS))


def test_an_empty_sequence_keeps_the_initial_state() -> None:
    network = Recurrent(LSTMCell, INPUT, H)
    initial = [(torch.randn(2, H), torch.randn(2, H))]
    outputs, final = network(torch.randn(2, S, INPUT), torch.tensor([0, 2]), initial)
    assert not outputs[0].any()
    torch.testing.assert_close(final[0][0][0], initial[0][0][0])
    torch.testing.assert_close(final[0][1][0], initial[0][1][0])
    _, fresh = network(torch.randn(2, S, INPUT), torch.tensor([0, 2]))
    assert not fresh[0][0][0].any()


def test_a_sequence_of_one_position_is_one_step() -> None:
    network, x = Recurrent(LSTMCell, INPUT, H, layers=2), torch.randn(B, 1, INPUT)
    outputs, final = network(x, torch.ones(B, dtype=torch.long))
    expected, state = network.step(x[:, 0], None)
    torch.testing.assert_close(outputs[:, 0], expected)
    torch.testing.assert_close(final, state)


def test_dropout_acts_between_layers_only() -> None:
    x = torch.randn(B, S, INPUT)
    one, two = Recurrent(GRUCell, INPUT, H, 1, dropout=0.5), Recurrent(GRUCell, INPUT, H, 2, dropout=0.5)
    torch.testing.assert_close(one(x, LENGTHS), one(x, LENGTHS))
    assert not torch.allclose(two(x, LENGTHS)[0], two(x, LENGTHS)[0])
    torch.testing.assert_close(one.step(x[:, 0], None), one.step(x[:, 0], None))
    assert not torch.allclose(two.step(x[:, 0], None)[0], two.step(x[:, 0], None)[0])


def test_dropout_does_not_act_on_residual_connections() -> None:
    network = Recurrent(GRUCell, INPUT, H, layers=2, dropout=0.9, residual=True)
    with torch.no_grad():
        for parameter in network.forwards[1].parameters():
            parameter.zero_()  # the output of this layer is zero
    first = Recurrent(GRUCell, INPUT, H)
    first.forwards[0].load_state_dict(network.forwards[0].state_dict())
    x = torch.randn(B, S, INPUT)
    torch.testing.assert_close(network(x, LENGTHS)[0], first(x, LENGTHS)[0])
    torch.testing.assert_close(network.step(x[:, 0], None)[0], first.step(x[:, 0], None)[0])


def test_residual_layers_add_their_input_to_their_output() -> None:
    network = Recurrent(GRUCell, INPUT, H, layers=3, residual=True)
    x = torch.randn(B, S, INPUT)
    outputs, _ = network(x, LENGTHS)
    layers = [Recurrent(GRUCell, INPUT if layer == 0 else H, H) for layer in range(3)]
    expected = x
    for layer, single in enumerate(layers):
        single.forwards[0].load_state_dict(network.forwards[layer].state_dict())
        given, _ = single(expected, LENGTHS)
        expected = given + expected if layer else given
    torch.testing.assert_close(outputs, expected)
    state = None
    for position in range(S):
        output, state = network.step(x[:1, position], state)
    torch.testing.assert_close(output, outputs[:1, -1])


def test_cells_of_pytorch_may_be_used() -> None:
    network, theirs = Recurrent(nn.LSTMCell, INPUT, H), Recurrent(LSTMCell, INPUT, H)
    network.load_state_dict(theirs.state_dict())
    x = torch.randn(B, S, INPUT)
    torch.testing.assert_close(network(x, LENGTHS), theirs(x, LENGTHS))


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        Recurrent(GRUCell, INPUT, H, layers=0)
    with pytest.raises(ValueError, match="at least one position"):
        Recurrent(GRUCell, INPUT, H)(torch.randn(B, 0, INPUT), LENGTHS * 0)
    with pytest.raises(ValueError, match="whole sentence"):
        Recurrent(GRUCell, INPUT, H, bidirectional=True).step(torch.randn(B, INPUT), None)
