"""Text classification models against loops in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import Array, run_gru, run_lstm, softmax, to_array
from torch import Tensor

from regard.errors import UserError
from regard.models import build
from regard.recipes.recipe import override, read_recipe

VOCABULARY, LABELS = 15, 4
SMALL: dict[str, dict[str, Any]] = {
    "lin2017": {"model.size": 3, "model.embedding": 5, "model.attention": 4, "model.hops": 2, "model.mlp": 7},
    "yang2016": {"model.size": 3, "model.embedding": 5, "model.attention": 4},
}
NAMES = list(SMALL)
POOLINGS = [(name, pooling) for name in NAMES for pooling in ("attention", "max", "mean")]
CHOICES = torch.tensor([1, 3, 0])


def make_model(name: str, **changes: Any) -> Any:
    """Return a small model in double precision with large random weights."""
    dotted = {f"model.{key}": value for key, value in changes.items() if key != "loss"} | changes.get("loss", {})
    model = build(
        override(read_recipe(name), {**SMALL[name], "model.dropout": 0.0, **dotted}), VOCABULARY, LABELS
    ).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model.eval()


def make_batch(name: str) -> tuple[Tensor, Tensor]:
    """Return three texts: a long, a short and an empty one."""
    generator = torch.Generator().manual_seed(3)
    if name == "lin2017":
        lengths = torch.tensor([6, 2, 0])
        ids = torch.randint(4, VOCABULARY, (3, 6), generator=generator)
        return ids * (torch.arange(6) < lengths[:, None]), lengths
    lengths = torch.tensor([[4, 1, 3], [2, 0, 0], [0, 0, 0]])
    ids = torch.randint(4, VOCABULARY, (3, 3, 4), generator=generator)
    return ids * (torch.arange(4) < lengths[..., None]), lengths


def run_both_directions(step: Any, recurrent: Any, words: Array) -> Array:
    forwards = step(recurrent.forwards[0], words)
    backwards = step(recurrent.backwards[0], words[::-1])[::-1]
    return np.array([np.concatenate(pair) for pair in zip(forwards, backwards, strict=True)])


def apply_linear(layer: Any, x: Array) -> Array:
    return np.asarray(to_array(layer.weight) @ x + to_array(layer.bias))


def pool(module: Any, states: Array) -> tuple[Array, Array]:
    weights = softmax(
        np.tanh(states @ to_array(module.W.weight).T + to_array(module.W.bias)) @ to_array(module.context)
    )
    return weights @ states, weights


def test_lin2017_follows_the_equations_of_the_paper() -> None:
    model = make_model("lin2017", penalty=1.0)
    ids, lengths = make_batch("lin2017")
    found = model(ids, lengths)
    loss = 0.0
    for row, length in enumerate(lengths.tolist()):
        A, M = np.zeros((2, 6)), np.zeros((2, 6))
        if length:
            H = run_both_directions(
                run_lstm, model.recurrent, to_array(model.embedding.weight)[ids[row, :length].numpy()]
            )
            scores = to_array(model.pooling.W_s2.weight) @ np.tanh(to_array(model.pooling.W_s1.weight) @ H.T)
            A[:, :length] = np.stack([softmax(hop) for hop in scores])
            M = A[:, :length] @ H
        logits = apply_linear(model.perceptron[4], np.maximum(apply_linear(model.perceptron[1], M.ravel()), 0))
        np.testing.assert_allclose(to_array(found.logits[row]), logits, atol=1e-12)
        np.testing.assert_allclose(to_array(found.weights[row]), A, atol=1e-12)
        penalty = np.square(A @ A.T - np.eye(2)).sum()
        loss += penalty - np.log(softmax(logits)[CHOICES[row]])
    assert model.loss_sum(ids, lengths, CHOICES).item() == pytest.approx(loss, abs=1e-10)
    assert model.loss_count(ids, lengths, CHOICES).item() == 3
    assert found.sentence_weights is None


def test_yang2016_follows_the_equations_of_the_paper() -> None:
    model = make_model("yang2016")
    ids, lengths = make_batch("yang2016")
    found = model(ids, lengths)
    loss = 0.0
    for row in range(3):
        sentences, v = [], np.zeros(6)
        for number, length in enumerate(lengths[row].tolist()):
            expected = np.zeros(4)
            if length:
                words = to_array(model.embedding.weight)[ids[row, number, :length].numpy()]
                vector, weights = pool(model.hierarchy.words, run_both_directions(run_gru, model.recurrent, words))
                sentences.append(vector)
                expected[:length] = weights
            np.testing.assert_allclose(to_array(found.weights[row, number]), expected, atol=1e-12)
        sentence_weights = np.zeros(3)
        if sentences:
            states = run_both_directions(run_gru, model.hierarchy.sentence_encoder, np.array(sentences))
            v, sentence_weights[: len(sentences)] = pool(model.hierarchy.sentences, states)
        np.testing.assert_allclose(to_array(found.sentence_weights[row]), sentence_weights, atol=1e-12)
        logits = apply_linear(model.output, v)
        np.testing.assert_allclose(to_array(found.logits[row]), logits, atol=1e-12)
        loss -= np.log(softmax(logits)[CHOICES[row]])
    assert model.loss_sum(ids, lengths, CHOICES).item() == pytest.approx(loss, abs=1e-10)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_max_and_mean_pooling_replace_attention(pooling: str) -> None:
    pools: dict[str, Callable[[Array], Array]] = {
        "max": lambda states: states.max(0),
        "mean": lambda states: states.mean(0),
    }
    pool_states = pools[pooling]
    lin, yang = make_model("lin2017", pooling=pooling), make_model("yang2016", pooling=pooling)
    ids, lengths = make_batch("lin2017")
    found = lin(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        words = to_array(lin.embedding.weight)[ids[row, :length].numpy()]
        M = pool_states(run_both_directions(run_lstm, lin.recurrent, words)) if length else np.zeros(6)
        logits = apply_linear(lin.perceptron[4], np.maximum(apply_linear(lin.perceptron[1], M), 0))
        np.testing.assert_allclose(to_array(found.logits[row]), logits, atol=1e-12)
    ids, lengths = make_batch("yang2016")
    nested = yang(ids, lengths)
    for row in range(3):
        each = [
            pool_states(
                run_both_directions(
                    run_gru, yang.recurrent, to_array(yang.embedding.weight)[ids[row, number, :length].numpy()]
                )
            )
            for number, length in enumerate(lengths[row].tolist())
            if length
        ]
        v = (
            pool_states(run_both_directions(run_gru, yang.hierarchy.sentence_encoder, np.array(each)))
            if each
            else np.zeros(6)
        )
        np.testing.assert_allclose(to_array(nested.logits[row]), apply_linear(yang.output, v), atol=1e-12)
    assert found.weights is nested.weights is nested.sentence_weights is None
    plain = lin.loss_sum(*make_batch("lin2017"), CHOICES)
    expected = torch.nn.functional.cross_entropy(found.logits, CHOICES, reduction="sum")
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize(("name", "pooling"), POOLINGS)
def test_padding_and_other_texts_do_not_change_the_logits(name: str, pooling: str) -> None:
    model = make_model(name, pooling=pooling)
    ids, lengths = make_batch(name)
    together = model(ids, lengths)
    wider = torch.nn.functional.pad(ids, (0, 3), value=9)  # arbitrary tokens in the padding
    more = [torch.nn.functional.pad(wider, (0, 0, 0, 2), value=9), torch.nn.functional.pad(lengths, (0, 2))]
    padded = model(*more) if name == "yang2016" else model(wider, lengths)
    torch.testing.assert_close(padded.logits, together.logits)
    for row in range(3):
        alone = model(ids[row : row + 1], lengths[row : row + 1])
        torch.testing.assert_close(alone.logits[0], together.logits[row])


@pytest.mark.parametrize("name", NAMES)
def test_padding_has_no_attention_weight(name: str) -> None:
    model = make_model(name)
    ids, lengths = make_batch(name)
    found = model(ids, lengths)
    real = torch.arange(ids.shape[-1]) < lengths[..., None]
    positions = real[:, None].expand_as(found.weights) if name == "lin2017" else real
    assert (found.weights[~positions] == 0).all()
    sums = found.weights.sum(-1)
    torch.testing.assert_close(sums, positions.any(-1).to(sums.dtype))
    if name == "yang2016":
        assert (found.sentence_weights[lengths == 0] == 0).all()
        torch.testing.assert_close(found.sentence_weights.sum(1), (lengths > 0).any(1).to(sums.dtype))


@pytest.mark.parametrize(("name", "pooling"), POOLINGS)
def test_every_parameter_gets_a_gradient(name: str, pooling: str) -> None:
    model = make_model(name, pooling=pooling, layers=2).train()
    model.loss_sum(*make_batch(name), CHOICES).backward()
    for weight, parameter in model.named_parameters():
        assert parameter.grad is not None, weight
        assert torch.isfinite(parameter.grad).all(), weight
        assert parameter.grad.any(), weight


@pytest.mark.parametrize("name", NAMES)
def test_empty_texts_have_a_finite_loss_and_gradient(name: str) -> None:
    model = make_model(name).train()
    ids, lengths = (tensor[2:] for tensor in make_batch(name))
    loss = model.loss_sum(ids, lengths, CHOICES[:1])
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_options_common_to_classifiers_take_effect(name: str) -> None:
    assert make_model(name, size=4).recurrent.output_size == 8
    assert make_model(name, embedding=9).embedding.embedding_dim == 9
    assert make_model(name, embedding=None).embedding.embedding_dim == 3
    assert len(make_model(name, layers=3).recurrent.backwards) == 3
    kinds = {
        cell: type(make_model(name, cell=cell).recurrent.forwards[0]).__name__ for cell in ("gru", "lstm", "elman")
    }
    assert kinds == {"gru": "GRUCell", "lstm": "LSTMCell", "elman": "ElmanCell"}
    model, ids = make_model(name, dropout=0.5), make_batch(name)
    torch.manual_seed(1)
    repeated = [model(*ids).logits for _ in range(2)]
    torch.testing.assert_close(*repeated)
    model.train()
    dropped = [model(*ids).logits[0] for _ in range(2)]
    assert not torch.allclose(*dropped)


def test_options_of_lin2017_take_effect() -> None:
    ids = make_batch("lin2017")
    assert make_model("lin2017", hops=5)(*ids).weights.shape == (3, 5, 6)
    assert make_model("lin2017", attention=9).pooling.W_s1.out_features == 9
    assert make_model("lin2017", mlp=11).perceptron[1].out_features == 11
    none, one, three = (make_model("lin2017", penalty=weight).loss_sum(*ids, CHOICES) for weight in (0.0, 1.0, 3.0))
    torch.testing.assert_close(three - none, 3 * (one - none))
    assert one > none


def test_attention_option_of_yang2016_sets_both_context_vectors() -> None:
    for given, width in ((9, 9), (None, 6)):
        hierarchy = make_model("yang2016", attention=given).hierarchy
        assert len(hierarchy.words.context) == len(hierarchy.sentences.context) == width


@pytest.mark.parametrize("name", NAMES)
def test_label_smoothing_spreads_a_fraction_over_all_labels(name: str) -> None:
    ids = make_batch(name)
    plain, smooth = (make_model(name, loss={"loss.label_smoothing": fraction}) for fraction in (0.0, 0.2))
    logs = plain(*ids).logits.log_softmax(-1)
    right = logs[torch.arange(3), CHOICES].sum()
    difference = smooth.loss_sum(*ids, CHOICES) - plain.loss_sum(*ids, CHOICES)
    torch.testing.assert_close(difference, 0.2 * right - 0.2 * logs.mean(1).sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.hops": 0}, "hops must be at least 1, not 0"),
        ({"model.penalty": -1.0}, "penalty must be at least 0, not -1.0"),
        ({"model.pooling": "sum"}, "one of attention, max, mean, not 'sum'"),
        ({"model.dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"model.heads": 2}, "has no key 'model.heads'"),
        ({"loss.guided": 0.5}, "has no key 'loss.guided'"),
    ],
)
def test_impossible_model_options_are_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build(override(read_recipe("lin2017"), changes), 9, 3)
    assert message in str(error.value)


def test_a_translation_loss_is_refused() -> None:
    recipe = read_recipe("yang2016") | {"loss": {"r_drop": 0.5}}
    with pytest.raises(UserError, match=r"loss\.r_drop is 0\.5, but it is for translation models"):
        build(recipe, 9, 3)


@pytest.mark.parametrize("name", NAMES)
def test_word_embeddings_are_initialised_small(name: str) -> None:
    torch.manual_seed(1)
    words = build(override(read_recipe(name), {"model.embedding": 50}), 2000, 3).embedding.weight.detach()
    assert float(words.std()) == pytest.approx(0.1, rel=0.05)
