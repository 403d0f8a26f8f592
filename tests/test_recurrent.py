"""Stacks of cells against PyTorch's packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent, hidden

B, S, INPUT, H = 4, 6, 3, 5
LENGTHS = torch.tensor([6, 3, 1, 4])
KINDS: list[tuple[Callable[[int, int], nn.Module], Callable[..., nn.RNNBase]]] = [
    (LSTMCell, nn.LSTM),
    (partial(GRUCell, form="torch"), nn.GRU),
    (ElmanCell, nn.RNN),
]


def twins(
    make: Callable[[int, int], nn.Module], theirs: Callable[..., nn.RNNBase], layers: int, both: bool
) -> tuple[Recurrent, nn.RNNBase]:
    ours = Recurrent(make, INPUT, H, layers, both)
    reference = theirs(INPUT, H, layers, batch_first=True, bidirectional=both)
    for layer in range(layers):
        for suffix, cells in (("", ours.forwards), ("_reverse", ours.backwards)):
            for name, parameter in cells[layer].named_parameters() if len(cells) else ():
                getattr(reference, f"{name}_l{layer}{suffix}").data.copy_(parameter.data)
    return ours, reference


def packed(reference: nn.RNNBase, x: Tensor) -> tuple[Tensor, Tensor]:
    run = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    outputs, final = reference(run)
    whole, _ = pad_packed_sequence(outputs, batch_first=True, total_length=S)
    return whole, final[0] if isinstance(final, tuple) else final


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("make", "theirs"), KINDS)
def test_is_pytorchs_packed_network(
    make: Callable[[int, int], nn.Module], theirs: Callable[..., nn.RNNBase], layers: int, both: bool
) -> None:
    ours, reference = twins(make, theirs, layers, both)
    x = torch.randn(B, S, INPUT)
    outputs, final = ours(x, LENGTHS)
    their_outputs, their_final = packed(reference, x)
    torch.testing.assert_close(outputs, their_outputs)
    directions = 2 if both else 1
    for layer in range(layers):
        rows = their_final[layer * directions : (layer + 1) * directions]
        torch.testing.assert_close(hidden(final[layer]), torch.cat(list(rows), -1))


@pytest.mark.parametrize("make", [LSTMCell, GRUCell, ElmanCell])
def test_step_by_step_is_all_at_once(make: Callable[[int, int], nn.Module]) -> None:
    network = Recurrent(make, INPUT, H, layers=2)
    x = torch.randn(B, S, INPUT)
    outputs, final = network(x, torch.full((B,), S))
    state = None
    for position in range(S):
        output, state = network.step(x[:, position], state)
        torch.testing.assert_close(output, outputs[:, position])
    torch.testing.assert_close(state, final)


def test_a_state_handed_in_is_taken_up() -> None:
    network = Recurrent(LSTMCell, INPUT, H, layers=2, bidirectional=False)
    x = torch.randn(B, S, INPUT)
    whole, _ = network(x, torch.full((B,), S))
    _, middle = network(x[:, :2], torch.full((B,), 2))
    rest, _ = network(x[:, 2:], torch.full((B,), S - 2), middle)
    torch.testing.assert_close(rest, whole[:, 2:])


def test_padding_is_never_read_in_either_direction() -> None:
    network = Recurrent(GRUCell, INPUT, H, bidirectional=True)
    x = torch.randn(B, S, INPUT)
    other = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = torch.randn(S - length, INPUT)
    torch.testing.assert_close(network(x, LENGTHS), network(other, LENGTHS))


def test_a_sentence_without_words_leaves_the_initial_state() -> None:
    network = Recurrent(LSTMCell, INPUT, H)
    initial = [(torch.randn(2, H), torch.randn(2, H))]
    outputs, final = network(torch.randn(2, S, INPUT), torch.tensor([0, 2]), initial)
    assert not outputs[0].any()
    torch.testing.assert_close(final[0][0][0], initial[0][0][0])
    torch.testing.assert_close(final[0][1][0], initial[0][1][0])
    _, fresh = network(torch.randn(2, S, INPUT), torch.tensor([0, 2]))
    assert not fresh[0][0][0].any()


def test_dropout_is_between_layers_only() -> None:
    x = torch.randn(B, S, INPUT)
    one, two = Recurrent(GRUCell, INPUT, H, 1, dropout=0.5), Recurrent(GRUCell, INPUT, H, 2, dropout=0.5)
    torch.testing.assert_close(one(x, LENGTHS), one(x, LENGTHS))
    assert not torch.allclose(two(x, LENGTHS)[0], two(x, LENGTHS)[0])


def test_dropout_leaves_the_residual_links_alone() -> None:
    network = Recurrent(GRUCell, INPUT, H, layers=2, dropout=0.9, residual=True)
    with torch.no_grad():
        for parameter in network.forwards[1].parameters():
            parameter.zero_()  # this layer gives nothing of its own
    first = Recurrent(GRUCell, INPUT, H)
    first.forwards[0].load_state_dict(network.forwards[0].state_dict())
    x = torch.randn(B, S, INPUT)
    torch.testing.assert_close(network(x, LENGTHS)[0], first(x, LENGTHS)[0])


def test_residual_layers_add_what_they_read() -> None:
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


def test_takes_pytorchs_own_cells() -> None:
    network, theirs = Recurrent(nn.LSTMCell, INPUT, H), Recurrent(LSTMCell, INPUT, H)
    network.load_state_dict(theirs.state_dict())
    x = torch.randn(B, S, INPUT)
    torch.testing.assert_close(network(x, LENGTHS), theirs(x, LENGTHS))


def test_bad_networks() -> None:
    with pytest.raises(ValueError, match="not 0"):
        Recurrent(GRUCell, INPUT, H, layers=0)
    with pytest.raises(ValueError, match="at least one position"):
        Recurrent(GRUCell, INPUT, H)(torch.randn(B, 0, INPUT), LENGTHS * 0)
    with pytest.raises(ValueError, match="whole sentence"):
        Recurrent(GRUCell, INPUT, H, bidirectional=True).step(torch.randn(B, INPUT), None)
