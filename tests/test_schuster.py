"""The bidirectional network and what it is compared with, against loops in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import build
from regard.models.schuster import Tagger
from regard.nn import ElmanCell, GRUCell, LSTMCell
from regard.recipes import override, read
from regard.symbols import PAD

Array = npt.NDArray[np.float64]
SOURCE, TARGET, SIZE = 17, 6, 5
B, S, F = 3, 7, 4
LENGTHS = torch.tensor([7, 4, 1])
NETWORKS: dict[str, dict[str, Any]] = {
    "brnn": {},
    "rnn": {},
    "rnn-delay": {"network": "rnn", "delay": 2},
    "tdnn": {},
    "mlp": {"window": 3},
    "brnn-deep": {"network": "brnn", "layers": 2, "residual": True, "cell": "gru"},
    "rnn-deep": {"network": "rnn", "layers": 3, "cell": "elman"},
    "tdnn-deep": {"network": "tdnn", "layers": 2, "window": 1},
    "mlp-deep": {"network": "mlp", "layers": 3, "residual": True},
}


def made(name: str = "brnn", **changes: Any) -> Tagger:
    """A small model in double precision, with weights large enough to tell one number from another."""
    settings = {"network": name, **NETWORKS[name], **changes}
    torch.manual_seed(7)
    model = build("schuster1997", SOURCE, TARGET, **{"size": SIZE, "embedding": 3, **settings}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        model.embedding.weight[PAD].zero_()
    assert isinstance(model, Tagger)
    return model


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(0, SOURCE, (B, S, F), generator=generator)
    target = torch.randint(1, TARGET, (B, S), generator=generator)
    past = torch.arange(S) >= LENGTHS[:, None]
    target[0, 2] = PAD  # a label that nobody knows
    return source.masked_fill(past[..., None], PAD), LENGTHS, target.masked_fill(past, PAD)


def array(tensor: Tensor) -> Array:
    return tensor.detach().numpy()


def words_of(model: Tagger, b: int) -> Array:
    """The sum of embeddings of each word of a sentence."""
    table, source = array(model.embedding.weight), batch()[0]
    return np.stack([sum(table[id] for id in source[b, t].tolist() if id) for t in range(int(LENGTHS[b]))])


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def states(cell: Any, words: Array) -> Array:
    """The LSTM, one word after the other."""
    W, U, b, c = (array(getattr(cell, name)) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h = memory = np.zeros(SIZE)
    found = []
    for x in words:
        i, f, g, o = np.split(W @ x + b + U @ h + c, 4)
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(memory)
        found.append(h)
    return np.stack(found)


def merged(model: Tagger, *parts: Array) -> Array:
    """c + V^f h^f_t + V^b h^b_t, each direction with its own half of V."""
    V = np.split(array(model.output.weight), len(parts), axis=1)
    return array(model.output.bias) + sum(part @ own.T for part, own in zip(parts, V, strict=True))


def test_a_brnn_reads_from_both_ends_and_merges_linearly() -> None:
    model: Any = made()
    logits = array(model(*batch()[:2]))
    for b, length in enumerate(LENGTHS.tolist()):
        words = words_of(model, b)
        forwards = states(model.network.ahead.forwards[0], words)
        backwards = states(model.network.back.forwards[0], words[::-1])[::-1]
        np.testing.assert_allclose(logits[b, :length], merged(model, forwards, backwards), atol=1e-12)


def test_the_directions_of_a_brnn_stay_apart_up_to_the_output() -> None:
    model: Any = made("brnn-deep")
    source, lengths, _ = batch()
    other = source.clone()
    other[0, 3] = (source[0, 3] + 1) % SOURCE
    words, changed = (model.embedding(ids).sum(2) for ids in (source, other))
    before, after = (model.network(x, lengths)[0] for x in (words, changed))
    differs = (before != after).any(-1)
    assert differs.all()
    forwards, backwards = ((before != after)[:, half].any(-1) for half in (slice(0, SIZE), slice(SIZE, None)))
    assert forwards.tolist() == [False] * 3 + [True] * 4
    assert backwards.tolist() == [True] * 4 + [False] * 3


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_an_rnn_answers_so_many_words_later(delay: int) -> None:
    model: Any = made("rnn", delay=delay)
    logits = array(model(*batch()[:2]))
    for b, length in enumerate(LENGTHS.tolist()):
        words = np.concatenate([words_of(model, b), np.zeros((delay, 3))])
        late = states(model.network.ahead.forwards[0], words)[delay:]
        np.testing.assert_allclose(logits[b, :length], merged(model, late), atol=1e-12)


def windowed(convolution: Any, below: Array) -> Array:
    """tanh(W [x_{t-w}; …; x_{t+w}] + b), each word's window put together by hand."""
    W, b = array(convolution.weight), array(convolution.bias)
    window = W.shape[2] // 2
    wide = np.concatenate([np.zeros((window, below.shape[1])), below, np.zeros((window, below.shape[1]))])
    rows = [
        np.tanh(b + sum(W[:, :, place] @ wide[t + place] for place in range(2 * window + 1))) for t in range(len(below))
    ]
    return np.stack(rows)


@pytest.mark.parametrize("name", ["tdnn", "mlp", "tdnn-deep", "mlp-deep"])
def test_windows_go_over_the_words_with_the_same_weights(name: str) -> None:
    model: Any = made(name)
    logits = array(model(*batch()[:2]))
    for b, length in enumerate(LENGTHS.tolist()):
        below = words_of(model, b)
        for layer, convolution in enumerate(model.network.convolutions):
            above = windowed(convolution, below)
            below = above + below if model.network.residual and layer else above
        np.testing.assert_allclose(logits[b, :length], merged(model, below), atol=1e-12)


def seen(model: Tagger, changed: int) -> list[bool]:
    """The words of a sentence whose answer is another where one word is another."""
    source, lengths, _ = batch()
    other = source.clone()
    other[0, changed] = (source[0, changed] + 1) % SOURCE
    before, after = (model(ids, lengths)[0] for ids in (source, other))
    return [bool((left != right).any()) for left, right in zip(before, after, strict=True)]


@pytest.mark.parametrize(
    ("name", "changes", "reach"),
    [
        ("brnn", {}, (-9, 9)),
        ("rnn", {}, (-9, 0)),
        ("rnn", {"delay": 2}, (-9, 2)),
        ("tdnn", {"window": 1}, (-1, 1)),
        ("tdnn", {"window": 1, "layers": 2}, (-2, 2)),
        ("mlp", {"window": 1, "layers": 2}, (-1, 1)),
        ("mlp", {"window": 0}, (0, 0)),
    ],
)
def test_how_far_each_network_sees(name: str, changes: dict[str, Any], reach: tuple[int, int]) -> None:
    before, behind = reach
    assert seen(made(name, **changes), 3) == [before <= 3 - t <= behind for t in range(S)]


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_and_batch_mates_never_matter(name: str) -> None:
    model = made(name)
    source, lengths, target = batch()
    together = model(source, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = model(source[b : b + 1, :length], lengths[b : b + 1])
        torch.testing.assert_close(together[b, :length], alone[0], rtol=1e-12, atol=1e-12)
    noise = source.clone()
    noise[torch.arange(S) >= lengths[:, None]] = 3
    torch.testing.assert_close(model.summed(noise, lengths, target), model.summed(source, lengths, target))
    each = [model.summed(source[b : b + 1], lengths[b : b + 1], target[b : b + 1]) for b in range(B)]
    torch.testing.assert_close(model.summed(source, lengths, target), torch.stack(each).sum())


def test_the_sum_is_of_words_whose_label_is_known() -> None:
    model = made()
    source, lengths, target = batch()
    chances = model(source, lengths).log_softmax(-1).detach()
    known = [(b, t) for b in range(B) for t in range(S) if target[b, t] != PAD]
    by_hand = -sum(float(chances[b, t, target[b, t]]) for b, t in known)
    assert model.summed(source, lengths, target).item() == pytest.approx(by_hand, rel=1e-12)
    assert int(model.count(source, lengths, target)) == len(known) == 11


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = made(name).train()
    model.summed(*batch()).backward()  # type: ignore[no-untyped-call]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key
    table = model.embedding.weight.grad
    assert table is not None
    assert not table[PAD].any()


def test_a_sentence_without_a_word_gives_numbers() -> None:
    source = torch.zeros(2, 3, F, dtype=torch.long)
    for name in NETWORKS:
        assert made(name)(source, torch.tensor([0, 2])).isfinite().all()


# What each key of the model says.


def test_cells_and_sizes_are_those_that_are_asked_for() -> None:
    for chosen, sort in {"lstm": LSTMCell, "gru": GRUCell, "elman": ElmanCell}.items():
        for name in ("brnn", "rnn"):
            network: Any = made(name, cell=chosen, layers=2, size=6, embedding=4).network
            cells = list(network.ahead.forwards)
            assert [type(cell) for cell in cells] == [sort, sort]
            assert [cell.input_size for cell in cells] == [4, 6]
            assert network.output_size == (12 if name == "brnn" else 6)
    assert build("schuster1997", SOURCE, TARGET, size=9).embedding.embedding_dim == 9
    assert build("schuster1997", SOURCE, TARGET).embedding.embedding_dim == 100
    wide: Any = made("tdnn", window=4, layers=2, size=6).network
    assert [tuple(one.weight.shape) for one in wide.convolutions] == [(6, 3, 9), (6, 6, 9)]
    flat: Any = made("mlp", window=4, layers=2, size=6).network
    assert [tuple(one.weight.shape) for one in flat.convolutions] == [(6, 3, 9), (6, 6, 1)]


def test_with_one_layer_a_tdnn_and_an_mlp_are_one_function() -> None:
    tdnn, mlp = made("tdnn", window=2), made("mlp", window=2)
    mlp.load_state_dict(tdnn.state_dict())
    source, lengths, _ = batch()
    assert torch.equal(tdnn(source, lengths), mlp(source, lengths))


@pytest.mark.parametrize("name", ["brnn", "rnn", "tdnn", "mlp"])
def test_dropout_is_on_words_between_layers_and_before_the_output(name: str) -> None:
    source, lengths, _ = batch()
    for chosen in (0.0, 0.5):
        model = made(name, dropout=chosen, layers=2)
        places = {key for key, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p == chosen}
        stacks = {"brnn": {"network.ahead.dropout", "network.back.dropout"}, "rnn": {"network.ahead.dropout"}}
        assert places == {"dropout"} | stacks.get(name, {"network.dropout"})
        assert torch.equal(model(source, lengths), model(source, lengths)), "not where a model is used"
        model.train()
        assert torch.equal(model(source, lengths), model(source, lengths)) == (chosen == 0.0)
        read: list[Tensor] = []
        model.output.register_forward_pre_hook(lambda layer, inputs, read=read: read.append(inputs[0]))
        network: Any = model.network
        network.register_forward_pre_hook(lambda layer, inputs, read=read: read.append(inputs[0]))
        model(source, lengths)
        zeros = [float((one[0] == 0).double().mean()) for one in read]
        assert all(0.1 < share < 0.9 if chosen else share == 0 for share in zeros)


@pytest.mark.parametrize("name", ["rnn", "tdnn"])
def test_residual_layers_add_what_they_read(name: str) -> None:
    source, lengths, _ = batch()
    plain, added = (made(name, layers=2, residual=chosen) for chosen in (False, True))
    first = made(name, layers=1)
    first.load_state_dict({key: plain.state_dict()[key] for key in first.state_dict()})
    words = plain.embedding(source).sum(2) * (torch.arange(S) < lengths[:, None])[..., None]
    difference = added.network(words, lengths) - plain.network(words, lengths)
    torch.testing.assert_close(difference, first.network(words, lengths))


def test_the_loss_is_per_word_or_per_sentence_and_smoothed() -> None:
    source, lengths, target = batch()
    recipe = override(read("schuster1997"), {"model.size": SIZE, "loss.per": "sentence"})
    assert int(build(recipe, SOURCE, TARGET).count(source, lengths, target)) == B
    sums = []
    for share in (0.0, 0.3):
        torch.manual_seed(1)
        changed = override(recipe, {"loss.label_smoothing": share, "model.dropout": 0.0})
        model = build(changed, SOURCE, TARGET).double()
        sums.append(model.summed(source, lengths, target).item())
        chances = model(source, lengths).log_softmax(-1)[target != PAD].detach()
    right = float(chances.gather(1, target[target != PAD][:, None]).sum())
    assert sums[0] == pytest.approx(-right)
    assert sums[1] == pytest.approx(-0.7 * right - 0.3 * float(chances.mean(1).sum()))


def test_embeddings_begin_small_and_forget_gates_open() -> None:
    torch.manual_seed(0)
    model = build("schuster1997", 3000, TARGET)
    assert model.embedding.weight[1:].std().item() == pytest.approx(0.1, rel=0.01)
    for cell in (model.network.ahead.forwards[0], model.network.back.forwards[0]):
        i, f, g, o = cell.bias_ih.chunk(4)
        assert (f == 1).all()
        assert torch.cat((i, g, o)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.network": "cnn"}, "one of brnn, rnn, tdnn, mlp, not 'cnn'"),
        ({"model.size": 0}, "size must be at least 1"),
        ({"model.layers": 0}, "layers must be at least 1"),
        ({"model.dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"model.delay": -1}, "delay must be at least 0"),
        ({"model.window": -1}, "window must be at least 0"),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(override(read("schuster1997"), changes), SOURCE, TARGET)


def test_losses_of_models_that_translate_are_refused() -> None:
    for name in ("guided", "r_drop"):
        with pytest.raises(UserError, match="are of models that translate"):
            build({"model": {"kind": "schuster"}, "loss": {name: 1.0}}, SOURCE, TARGET)
