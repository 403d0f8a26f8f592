"""Sequence taggers (bidirectional, recurrent, time-delay and window networks) against loops in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import Array, run_lstm, to_array
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import build
from regard.models.schuster1997 import Tagger
from regard.nn import ElmanCell, GRUCell, LSTMCell
from regard.recipes.recipe import override, read_recipe
from regard.special_tokens import PAD

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


def make_tagger(name: str = "brnn", **changes: Any) -> Tagger:
    """Return a small model in double precision with large random weights."""
    settings = {"network": name, **NETWORKS[name], **changes}
    torch.manual_seed(7)
    model = build("schuster1997", SOURCE, TARGET, **{"size": SIZE, "embedding": 3, **settings}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        model.embedding.weight[PAD].zero_()
    assert isinstance(model, Tagger)
    return model


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(0, SOURCE, (B, S, F), generator=generator)
    target = torch.randint(1, TARGET, (B, S), generator=generator)
    past = torch.arange(S) >= LENGTHS[:, None]
    target[0, 2] = PAD  # an unknown label
    return source.masked_fill(past[..., None], PAD), LENGTHS, target.masked_fill(past, PAD)


def embed_words(model: Tagger, b: int) -> Array:
    """Return the sum of the feature embeddings of each word of a sentence."""
    table, source = to_array(model.embedding.weight), make_batch()[0]
    return np.stack([sum(table[id] for id in source[b, t].tolist() if id) for t in range(int(LENGTHS[b]))])


def merge_linearly(model: Tagger, *parts: Array) -> Array:
    """Return c + V^f h^f_t + V^b h^b_t, each direction with its own half of V."""
    V = np.split(to_array(model.output.weight), len(parts), axis=1)
    return to_array(model.output.bias) + sum(part @ own.T for part, own in zip(parts, V, strict=True))


def test_brnn_runs_in_both_directions_and_merges_them_linearly() -> None:
    model: Any = make_tagger()
    logits = to_array(model(*make_batch()[:2]))
    for b, length in enumerate(LENGTHS.tolist()):
        words = embed_words(model, b)
        forwards = run_lstm(model.network.ahead.forwards[0], words)
        backwards = run_lstm(model.network.back.forwards[0], words[::-1])[::-1]
        np.testing.assert_allclose(logits[b, :length], merge_linearly(model, forwards, backwards), atol=1e-12)


def test_directions_of_a_brnn_are_independent_up_to_the_output() -> None:
    model: Any = make_tagger("brnn-deep")
    source, lengths, _ = make_batch()
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
def test_rnn_with_a_delay_labels_a_word_so_many_words_later(delay: int) -> None:
    model: Any = make_tagger("rnn", delay=delay)
    logits = to_array(model(*make_batch()[:2]))
    for b, length in enumerate(LENGTHS.tolist()):
        words = np.concatenate([embed_words(model, b), np.zeros((delay, 3))])
        late = run_lstm(model.network.ahead.forwards[0], words)[delay:]
        np.testing.assert_allclose(logits[b, :length], merge_linearly(model, late), atol=1e-12)


def apply_window(convolution: Any, below: Array) -> Array:
    """Return tanh(W [x_{t-w}; …; x_{t+w}] + b) for each word."""
    W, b = to_array(convolution.weight), to_array(convolution.bias)
    window = W.shape[2] // 2
    wide = np.concatenate([np.zeros((window, below.shape[1])), below, np.zeros((window, below.shape[1]))])
    rows = [np.tanh(b + sum(W[:, :, k] @ wide[t + k] for k in range(2 * window + 1))) for t in range(len(below))]
    return np.stack(rows)


@pytest.mark.parametrize("name", ["tdnn", "mlp", "tdnn-deep", "mlp-deep"])
def test_window_networks_share_their_weights_over_positions(name: str) -> None:
    model: Any = make_tagger(name)
    logits = to_array(model(*make_batch()[:2]))
    for b, length in enumerate(LENGTHS.tolist()):
        below = embed_words(model, b)
        for layer, convolution in enumerate(model.network.convolutions):
            above = apply_window(convolution, below)
            below = above + below if model.network.residual and layer else above
        np.testing.assert_allclose(logits[b, :length], merge_linearly(model, below), atol=1e-12)


def find_affected_words(model: Tagger, changed: int) -> list[bool]:
    """Return for each word of a sentence whether its logits change with the word `changed`."""
    source, lengths, _ = make_batch()
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
def test_each_network_has_its_context_size(name: str, changes: dict[str, Any], reach: tuple[int, int]) -> None:
    before, behind = reach
    assert find_affected_words(make_tagger(name, **changes), 3) == [before <= 3 - t <= behind for t in range(S)]


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_and_other_sentences_do_not_change_the_logits(name: str) -> None:
    model = make_tagger(name)
    source, lengths, target = make_batch()
    together = model(source, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = model(source[b : b + 1, :length], lengths[b : b + 1])
        torch.testing.assert_close(together[b, :length], alone[0], rtol=1e-12, atol=1e-12)
    noise = source.clone()
    noise[torch.arange(S) >= lengths[:, None]] = 3
    torch.testing.assert_close(model.loss_sum(noise, lengths, target), model.loss_sum(source, lengths, target))
    each = [model.loss_sum(source[b : b + 1], lengths[b : b + 1], target[b : b + 1]) for b in range(B)]
    torch.testing.assert_close(model.loss_sum(source, lengths, target), torch.stack(each).sum())


def test_loss_sums_over_words_with_a_known_label() -> None:
    model = make_tagger()
    source, lengths, target = make_batch()
    log_probs = model(source, lengths).log_softmax(-1).detach()
    known = [(b, t) for b in range(B) for t in range(S) if target[b, t] != PAD]
    expected = -sum(float(log_probs[b, t, target[b, t]]) for b, t in known)
    assert model.loss_sum(source, lengths, target).item() == pytest.approx(expected, rel=1e-12)
    assert int(model.loss_count(source, lengths, target)) == len(known) == 11


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = make_tagger(name).train()
    model.loss_sum(*make_batch()).backward()  # type: ignore[no-untyped-call]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key
    table = model.embedding.weight.grad
    assert table is not None
    assert not table[PAD].any()


def test_an_empty_sentence_has_finite_logits() -> None:
    source = torch.zeros(2, 3, F, dtype=torch.long)
    for name in NETWORKS:
        assert make_tagger(name)(source, torch.tensor([0, 2])).isfinite().all()


def test_options_set_the_cells_and_sizes() -> None:
    for cell_name, cell_type in {"lstm": LSTMCell, "gru": GRUCell, "elman": ElmanCell}.items():
        for name in ("brnn", "rnn"):
            network: Any = make_tagger(name, cell=cell_name, layers=2, size=6, embedding=4).network
            cells = list(network.ahead.forwards)
            assert [type(cell) for cell in cells] == [cell_type, cell_type]
            assert [cell.input_size for cell in cells] == [4, 6]
            assert network.output_size == (12 if name == "brnn" else 6)
    assert build("schuster1997", SOURCE, TARGET, size=9).embedding.embedding_dim == 9
    assert build("schuster1997", SOURCE, TARGET).embedding.embedding_dim == 100
    wide: Any = make_tagger("tdnn", window=4, layers=2, size=6).network
    assert [tuple(one.weight.shape) for one in wide.convolutions] == [(6, 3, 9), (6, 6, 9)]
    flat: Any = make_tagger("mlp", window=4, layers=2, size=6).network
    assert [tuple(one.weight.shape) for one in flat.convolutions] == [(6, 3, 9), (6, 6, 1)]


def test_tdnn_and_mlp_with_one_layer_are_the_same_function() -> None:
    tdnn, mlp = make_tagger("tdnn", window=2), make_tagger("mlp", window=2)
    mlp.load_state_dict(tdnn.state_dict())
    source, lengths, _ = make_batch()
    assert torch.equal(tdnn(source, lengths), mlp(source, lengths))


@pytest.mark.parametrize("name", ["brnn", "rnn", "tdnn", "mlp"])
def test_dropout_acts_on_words_between_layers_and_before_the_output(name: str) -> None:
    source, lengths, _ = make_batch()
    for rate in (0.0, 0.5):
        model = make_tagger(name, dropout=rate, layers=2)
        modules = {key for key, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p == rate}
        stacks = {"brnn": {"network.ahead.dropout", "network.back.dropout"}, "rnn": {"network.ahead.dropout"}}
        assert modules == {"dropout"} | stacks.get(name, {"network.dropout"})
        assert torch.equal(model(source, lengths), model(source, lengths)), "no dropout in evaluation mode"
        model.train()
        assert torch.equal(model(source, lengths), model(source, lengths)) == (rate == 0.0)
        read: list[Tensor] = []
        model.output.register_forward_pre_hook(lambda layer, inputs, read=read: read.append(inputs[0]))
        network: Any = model.network
        network.register_forward_pre_hook(lambda layer, inputs, read=read: read.append(inputs[0]))
        model(source, lengths)
        zeros = [float((one[0] == 0).double().mean()) for one in read]
        assert all(0.1 < fraction < 0.9 if rate else fraction == 0 for fraction in zeros)


@pytest.mark.parametrize("name", ["rnn", "tdnn"])
def test_residual_layers_add_their_input_to_their_output(name: str) -> None:
    source, lengths, _ = make_batch()
    plain, added = (make_tagger(name, layers=2, residual=residual) for residual in (False, True))
    first = make_tagger(name, layers=1)
    first.load_state_dict({key: plain.state_dict()[key] for key in first.state_dict()})
    words = plain.embedding(source).sum(2) * (torch.arange(S) < lengths[:, None])[..., None]
    difference = added.network(words, lengths) - plain.network(words, lengths)
    torch.testing.assert_close(difference, first.network(words, lengths))


def test_loss_is_per_word_or_per_sentence_and_label_smoothed() -> None:
    source, lengths, target = make_batch()
    recipe = override(read_recipe("schuster1997"), {"model.size": SIZE, "loss.per": "sentence"})
    assert int(build(recipe, SOURCE, TARGET).loss_count(source, lengths, target)) == B
    sums = []
    for smoothing in (0.0, 0.3):
        torch.manual_seed(1)
        changed = override(recipe, {"loss.label_smoothing": smoothing, "model.dropout": 0.0})
        model = build(changed, SOURCE, TARGET).double()
        sums.append(model.loss_sum(source, lengths, target).item())
        log_probs = model(source, lengths).log_softmax(-1)[target != PAD].detach()
    right = float(log_probs.gather(1, target[target != PAD][:, None]).sum())
    assert sums[0] == pytest.approx(-right)
    assert sums[1] == pytest.approx(-0.7 * right - 0.3 * float(log_probs.mean(1).sum()))


def test_initial_embeddings_are_small_and_forget_biases_one() -> None:
    torch.manual_seed(0)
    model = build("schuster1997", 3000, TARGET)
    assert model.embedding.weight[1:].std().item() == pytest.approx(0.1, rel=0.01)
    for cell in (model.network.ahead.forwards[0], model.network.back.forwards[0]):
        i, f, g, o = cell.bias_ih.chunk(4)
        assert (f == 1).all()
        assert torch.cat((i, g, o)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.network": "cnn"}, "one of brnn, stacked, rnn, tdnn, mlp, not 'cnn'"),
        ({"model.size": 0}, "size must be at least 1"),
        ({"model.layers": 0}, "layers must be at least 1"),
        ({"model.dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"model.delay": -1}, "delay must be at least 0"),
        ({"model.window": -1}, "window must be at least 0"),
    ],
)
def test_impossible_model_options_are_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(override(read_recipe("schuster1997"), changes), SOURCE, TARGET)


def test_translation_losses_are_refused() -> None:
    for name in ("guided", "r_drop"):
        with pytest.raises(UserError, match="is for translation models"):
            build({"model": {"kind": "schuster"}, "loss": {name: 1.0}}, SOURCE, TARGET)


def test_probabilities_of_an_ensemble_of_taggers_are_averaged() -> None:
    torch.manual_seed(4)
    model = build("schuster1997", SOURCE, TARGET, size=SIZE, embedding=3, members=2, transitions=True).eval()
    source, lengths, target = make_batch()
    probabilities = [member(source, lengths).softmax(-1) for member in model.members]
    torch.testing.assert_close(model(source, lengths).exp(), (probabilities[0] + probabilities[1]) / 2)
    losses = [member.loss_sum(source, lengths, target) for member in model.members]
    torch.testing.assert_close(model.loss_sum(source, lengths, target), (losses[0] + losses[1]) / 2)
    assert int(model.loss_count(source, lengths, target)) == int((target != PAD).sum())
