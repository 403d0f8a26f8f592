"""The models that choose a label, against loops in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import build
from regard.recipes import override, read

Array = npt.NDArray[np.float64]
VOCABULARY, LABELS = 15, 4
SMALL: dict[str, dict[str, Any]] = {
    "lin2017": {"model.size": 3, "model.embedding": 5, "model.attention": 4, "model.hops": 2, "model.mlp": 7},
    "yang2016": {"model.size": 3, "model.embedding": 5, "model.attention": 4},
}
NAMES = list(SMALL)
FORMS = [(name, pooling) for name in NAMES for pooling in ("attention", "max", "mean")]
CHOICES = torch.tensor([1, 3, 0])


def made(name: str, **changes: Any) -> Any:
    """A small model in double precision, with weights that are large enough to tell one number from another."""
    dotted = {f"model.{key}": value for key, value in changes.items() if key != "loss"} | changes.get("loss", {})
    model = build(override(read(name), {**SMALL[name], "model.dropout": 0.0, **dotted}), VOCABULARY, LABELS).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model.eval()


def batch(name: str) -> tuple[Tensor, Tensor]:
    """Three texts: long, short, and one with nothing in it."""
    generator = torch.Generator().manual_seed(3)
    if name == "lin2017":
        lengths = torch.tensor([6, 2, 0])
        ids = torch.randint(4, VOCABULARY, (3, 6), generator=generator)
        return ids * (torch.arange(6) < lengths[:, None]), lengths
    lengths = torch.tensor([[4, 1, 3], [2, 0, 0], [0, 0, 0]])
    ids = torch.randint(4, VOCABULARY, (3, 3, 4), generator=generator)
    return ids * (torch.arange(4) < lengths[..., None]), lengths


def array(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max())
    return np.asarray(raised / raised.sum())


def lstm(cell: Any, words: Array) -> list[Array]:
    """h of each word."""
    h = c = np.zeros(cell.hidden_size)
    states = []
    for word in words:
        gates = array(cell.weight_ih) @ word + array(cell.bias_ih) + array(cell.weight_hh) @ h + array(cell.bias_hh)
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return states


def gru(cell: Any, words: Array) -> list[Array]:
    """h of each word, with the reset gate behind the product."""
    h = np.zeros(cell.hidden_size)
    states = []
    for word in words:
        x_r, x_z, x_n = np.split(array(cell.weight_ih) @ word + array(cell.bias_ih), 3)
        u_r, u_z, u_n = np.split(array(cell.weight_hh) @ h + array(cell.bias_hh), 3)
        r, z = sigmoid(x_r + u_r), sigmoid(x_z + u_z)
        h = (1 - z) * np.tanh(x_n + r * u_n) + z * h
        states.append(h)
    return states


def both_ways(step: Any, recurrent: Any, words: Array) -> Array:
    forwards = step(recurrent.forwards[0], words)
    backwards = step(recurrent.backwards[0], words[::-1])[::-1]
    return np.array([np.concatenate(pair) for pair in zip(forwards, backwards, strict=True)])


def linear(layer: Any, x: Array) -> Array:
    return np.asarray(array(layer.weight) @ x + array(layer.bias))


def attended(module: Any, states: Array) -> tuple[Array, Array]:
    weights = softmax(np.tanh(states @ array(module.W.weight).T + array(module.W.bias)) @ array(module.context))
    return weights @ states, weights


def test_lin_is_the_papers_equations() -> None:
    model = made("lin2017", penalty=1.0)
    ids, lengths = batch("lin2017")
    found = model(ids, lengths)
    loss = 0.0
    for row, length in enumerate(lengths.tolist()):
        A, M = np.zeros((2, 6)), np.zeros((2, 6))
        if length:
            H = both_ways(lstm, model.recurrent, array(model.embedding.weight)[ids[row, :length].numpy()])
            scores = array(model.pooling.W_s2.weight) @ np.tanh(array(model.pooling.W_s1.weight) @ H.T)
            A[:, :length] = np.stack([softmax(hop) for hop in scores])
            M = A[:, :length] @ H
        logits = linear(model.perceptron[4], np.maximum(linear(model.perceptron[1], M.ravel()), 0))
        np.testing.assert_allclose(array(found.logits[row]), logits, atol=1e-12)
        np.testing.assert_allclose(array(found.weights[row]), A, atol=1e-12)
        penalty = np.square(A @ A.T - np.eye(2)).sum()
        loss += penalty - np.log(softmax(logits)[CHOICES[row]])
    assert model.summed(ids, lengths, CHOICES).item() == pytest.approx(loss, abs=1e-10)
    assert model.count(ids, lengths, CHOICES).item() == 3
    assert found.sentence_weights is None


def test_yang_is_the_papers_equations() -> None:
    model = made("yang2016")
    ids, lengths = batch("yang2016")
    found = model(ids, lengths)
    loss = 0.0
    for row in range(3):
        sentences, v = [], np.zeros(6)
        for number, length in enumerate(lengths[row].tolist()):
            expected = np.zeros(4)
            if length:
                words = array(model.embedding.weight)[ids[row, number, :length].numpy()]
                vector, weights = attended(model.hierarchy.words, both_ways(gru, model.recurrent, words))
                sentences.append(vector)
                expected[:length] = weights
            np.testing.assert_allclose(array(found.weights[row, number]), expected, atol=1e-12)
        over = np.zeros(3)
        if sentences:
            states = both_ways(gru, model.hierarchy.sentence_encoder, np.array(sentences))
            v, over[: len(sentences)] = attended(model.hierarchy.sentences, states)
        np.testing.assert_allclose(array(found.sentence_weights[row]), over, atol=1e-12)
        logits = linear(model.output, v)
        np.testing.assert_allclose(array(found.logits[row]), logits, atol=1e-12)
        loss -= np.log(softmax(logits)[CHOICES[row]])
    assert model.summed(ids, lengths, CHOICES).item() == pytest.approx(loss, abs=1e-10)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_the_baselines_pool_in_the_place_of_attention(pooling: str) -> None:
    pools: dict[str, Callable[[Array], Array]] = {
        "max": lambda states: states.max(0),
        "mean": lambda states: states.mean(0),
    }
    pool = pools[pooling]
    lin, yang = made("lin2017", pooling=pooling), made("yang2016", pooling=pooling)
    ids, lengths = batch("lin2017")
    found = lin(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        words = array(lin.embedding.weight)[ids[row, :length].numpy()]
        M = pool(both_ways(lstm, lin.recurrent, words)) if length else np.zeros(6)
        logits = linear(lin.perceptron[4], np.maximum(linear(lin.perceptron[1], M), 0))
        np.testing.assert_allclose(array(found.logits[row]), logits, atol=1e-12)
    ids, lengths = batch("yang2016")
    nested = yang(ids, lengths)
    for row in range(3):
        each = [
            pool(both_ways(gru, yang.recurrent, array(yang.embedding.weight)[ids[row, number, :length].numpy()]))
            for number, length in enumerate(lengths[row].tolist())
            if length
        ]
        v = pool(both_ways(gru, yang.hierarchy.sentence_encoder, np.array(each))) if each else np.zeros(6)
        np.testing.assert_allclose(array(nested.logits[row]), linear(yang.output, v), atol=1e-12)
    assert found.weights is nested.weights is nested.sentence_weights is None
    plain = lin.summed(*batch("lin2017"), CHOICES)
    expected = torch.nn.functional.cross_entropy(found.logits, CHOICES, reduction="sum")
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize(("name", "pooling"), FORMS)
def test_padding_and_batch_mates_never_matter(name: str, pooling: str) -> None:
    model = made(name, pooling=pooling)
    ids, lengths = batch(name)
    together = model(ids, lengths)
    wider = torch.nn.functional.pad(ids, (0, 3), value=9)  # whatever stands behind the end
    more = [torch.nn.functional.pad(wider, (0, 0, 0, 2), value=9), torch.nn.functional.pad(lengths, (0, 2))]
    padded = model(*more) if name == "yang2016" else model(wider, lengths)
    torch.testing.assert_close(padded.logits, together.logits)
    for row in range(3):
        alone = model(ids[row : row + 1], lengths[row : row + 1])
        torch.testing.assert_close(alone.logits[0], together.logits[row])


@pytest.mark.parametrize("name", NAMES)
def test_masked_places_have_no_weight_at_all(name: str) -> None:
    model = made(name)
    ids, lengths = batch(name)
    found = model(ids, lengths)
    real = torch.arange(ids.shape[-1]) < lengths[..., None]
    places = real[:, None].expand_as(found.weights) if name == "lin2017" else real
    assert (found.weights[~places] == 0).all()
    sums = found.weights.sum(-1)
    torch.testing.assert_close(sums, places.any(-1).to(sums.dtype))
    if name == "yang2016":
        assert (found.sentence_weights[lengths == 0] == 0).all()
        torch.testing.assert_close(found.sentence_weights.sum(1), (lengths > 0).any(1).to(sums.dtype))


@pytest.mark.parametrize(("name", "pooling"), FORMS)
def test_every_weight_learns(name: str, pooling: str) -> None:
    model = made(name, pooling=pooling, layers=2).train()
    model.summed(*batch(name), CHOICES).backward()
    for weight, parameter in model.named_parameters():
        assert parameter.grad is not None, weight
        assert torch.isfinite(parameter.grad).all(), weight
        assert parameter.grad.any(), weight


@pytest.mark.parametrize("name", NAMES)
def test_texts_with_nothing_in_them_are_no_trouble(name: str) -> None:
    model = made(name).train()
    ids, lengths = (tensor[2:] for tensor in batch(name))
    loss = model.summed(ids, lengths, CHOICES[:1])
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_models_keys_change_what_they_say(name: str) -> None:
    assert made(name, size=4).recurrent.output_size == 8
    assert made(name, embedding=9).embedding.embedding_dim == 9
    assert made(name, embedding=None).embedding.embedding_dim == 3
    assert len(made(name, layers=3).recurrent.backwards) == 3
    kinds = {cell: type(made(name, cell=cell).recurrent.forwards[0]).__name__ for cell in ("gru", "lstm", "elman")}
    assert kinds == {"gru": "GRUCell", "lstm": "LSTMCell", "elman": "ElmanCell"}
    model, ids = made(name, dropout=0.5), batch(name)
    torch.manual_seed(1)
    still = [model(*ids).logits for _ in range(2)]
    torch.testing.assert_close(*still)
    model.train()
    moved = [model(*ids).logits[0] for _ in range(2)]
    assert not torch.allclose(*moved)


def test_lins_own_keys_change_what_they_say() -> None:
    ids = batch("lin2017")
    assert made("lin2017", hops=5)(*ids).weights.shape == (3, 5, 6)
    assert made("lin2017", attention=9).pooling.W_s1.out_features == 9
    assert made("lin2017", mlp=11).perceptron[1].out_features == 11
    none, one, three = (made("lin2017", penalty=weight).summed(*ids, CHOICES) for weight in (0.0, 1.0, 3.0))
    torch.testing.assert_close(three - none, 3 * (one - none))
    assert one > none


def test_yangs_own_key_is_the_width_of_both_context_vectors() -> None:
    for given, width in ((9, 9), (None, 6)):
        hierarchy = made("yang2016", attention=given).hierarchy
        assert len(hierarchy.words.context) == len(hierarchy.sentences.context) == width


@pytest.mark.parametrize("name", NAMES)
def test_label_smoothing_spreads_a_share_over_all_labels(name: str) -> None:
    ids = batch(name)
    plain, smooth = (made(name, loss={"loss.label_smoothing": share}) for share in (0.0, 0.2))
    logs = plain(*ids).logits.log_softmax(-1)
    right = logs[torch.arange(3), CHOICES].sum()
    difference = smooth.summed(*ids, CHOICES) - plain.summed(*ids, CHOICES)
    torch.testing.assert_close(difference, 0.2 * right - 0.2 * logs.mean(1).sum())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.hops": 0}, "hops must be at least 1, not 0"),
        ({"model.penalty": -1.0}, "penalty must be at least 0, not -1.0"),
        ({"model.pooling": "sum"}, "one of attention, max, mean, not 'sum'"),
        ({"model.dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"model.heads": 2}, "has no key 'model.heads'"),
        ({"loss.guided": 0.5}, "has no key 'loss.guided'"),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        build(override(read("lin2017"), changes), 9, 3)
    assert said in str(error.value)


def test_a_loss_that_labels_do_not_have_is_refused() -> None:
    recipe = read("yang2016") | {"loss": {"r_drop": 0.5}}
    with pytest.raises(UserError, match=r"has no loss\.r_drop, which is 0\.5"):
        build(recipe, 9, 3)


@pytest.mark.parametrize("name", NAMES)
def test_word_vectors_begin_small(name: str) -> None:
    torch.manual_seed(1)
    words = build(override(read(name), {"model.embedding": 50}), 2000, 3).embedding.weight.detach()
    assert float(words.std()) == pytest.approx(0.1, rel=0.05)
