"""Captioning models (Show, attend and tell) over grids of image features, against loops in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import Array, sigmoid, softmax, to_array
from torch import Tensor

from regard.errors import UserError
from regard.models import Seq2Seq, build
from regard.models.xu2015_caption import PatchNet, SpatialConv
from regard.models.xu2015_hard import attention_entropy
from regard.recipes.recipe import read_recipe
from regard.search import score_targets, search
from regard.special_tokens import BOS, EOS, PAD

WORDS, FEATURES, PATCH = 9, 5, 4
GRIDS = ((2, 3), (1, 4), (1, 1))  # rows and columns of the images in a batch
RECIPES = ("xu2015-soft-caption", "xu2015-hard-caption")
SMALL: dict[str, Any] = {
    "size": 6,
    "embedding": 4,
    "annotation": 7,
    "attention": 5,
    "channels": 3,
    "dropout": 0.0,
    "backbone": "none",
    "max_side": 6,
    "max_source": 12,
}
TARGET_IN = torch.tensor([[BOS, 5, 6, 7], [BOS, 8, PAD, PAD], [BOS, 4, 4, PAD]])
TARGET_OUT = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD], [4, 4, EOS, PAD]])


def make_model(name: str = RECIPES[0], features: int = FEATURES, **changes: Any) -> Seq2Seq:
    """Return a small model in double precision with large random weights."""
    torch.manual_seed(5)
    model: Seq2Seq = build(name, features, WORDS, **{**SMALL, **changes}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def make_grids(features: int = FEATURES) -> tuple[Tensor, Tensor]:
    """Return grids of different shapes with random numbers in the padding, and their lengths."""
    random = torch.Generator().manual_seed(2)
    lengths = torch.tensor([rows * columns for rows, columns in GRIDS])
    source = torch.randn(len(GRIDS), int(lengths.max()), features + 2, generator=random, dtype=torch.float64)
    source[..., -2:] = 0
    for row, (_, columns) in enumerate(GRIDS):
        for position in range(int(lengths[row])):
            source[row, position, -2:] = torch.tensor(divmod(position, columns))
    return source, lengths


def weight_of(module: Any) -> Array:
    return to_array(module.weight)


def test_soft_captioning_follows_the_equations_of_the_paper() -> None:
    """Annotations, first state, attention, gate, LSTM and output for the first word of the first image."""
    model: Any = make_model(places="learned")
    source, lengths = make_grids()
    decoded = model.decoder(model.encode(source, lengths), TARGET_IN)
    encoder, decoder = model.encoder, model.decoder
    x, coordinates = to_array(source[0, :, :-2]), source[0, :, -2:].long().tolist()
    E_r, E_c = to_array(encoder.places.rows), to_array(encoder.places.columns)
    embedded = np.stack([E_r[row] + E_c[column] for row, column in coordinates])
    a = x @ weight_of(encoder.backbone).T + to_array(encoder.backbone.bias) + embedded
    h, c = (np.tanh(weight_of(one) @ a.mean(0) + to_array(one.bias)) for one in decoder.bridge.maps)
    score = decoder.attention.score
    W_q, W_k, v = (to_array(getattr(score, name)) for name in ("query_weight", "key_weight", "v"))
    alpha = softmax(np.tanh(a @ W_k.T + W_q @ h) @ v)
    np.testing.assert_allclose(to_array(decoded.attended.weights[0, 0]), alpha, atol=1e-12)
    beta = sigmoid(weight_of(decoder.gate) @ h + to_array(decoder.gate.bias))
    z = beta * (alpha @ a)
    word = weight_of(decoder.embedding)[BOS]
    cell = decoder.recurrent.forwards[0]
    W_i, U_h, b_i, b_h = (to_array(getattr(cell, name)) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    i, f, g, o = np.split(W_i @ np.concatenate((word, z)) + b_i + U_h @ h + b_h, 4)
    h_1 = sigmoid(o) * np.tanh(sigmoid(f) * c + sigmoid(i) * np.tanh(g))
    out = decoder.output
    L_h = weight_of(out.L_h) @ h_1 + to_array(out.L_h.bias)
    logits = weight_of(out.L_o) @ (word + L_h + weight_of(out.L_z) @ z) + to_array(out.L_o.bias)
    np.testing.assert_allclose(to_array(decoded.logits[0, 0]), logits, atol=1e-12)


def test_hard_captioning_attends_to_the_most_likely_position() -> None:
    soft: Any = make_model()
    hard: Any = make_model(RECIPES[1])
    hard.load_state_dict(soft.state_dict(), strict=False)
    source, lengths = make_grids()
    first, second = (one.decoder(one.encode(source, lengths), TARGET_IN).attended for one in (soft, hard))
    torch.testing.assert_close(second.probabilities[:, 0], first.weights[:, 0])
    assert torch.equal(second.weights.argmax(-1), second.probabilities.argmax(-1))
    assert set(second.weights.unique().tolist()) == {0.0, 1.0}


def test_patch_network_is_two_convolutions_and_max_pooling() -> None:
    torch.manual_seed(4)
    net = PatchNet(2, 3).double()
    patch = torch.randn(1, 3 * PATCH**2, dtype=torch.float64)
    image = to_array(patch).reshape(PATCH, PATCH, 3)
    found = np.maximum(convolve(image, net.first, 1), 0)
    found = np.maximum(convolve(found, net.second, 2), 0).max((0, 1))
    expected = weight_of(net.project) @ found + to_array(net.project.bias)
    np.testing.assert_allclose(to_array(net(patch)[0]), expected, atol=1e-12)
    with pytest.raises(ValueError, match="square patches with 3 colour channels, not 47 numbers"):
        net(torch.zeros(1, 47, dtype=torch.float64))


def convolve(image: Array, layer: Any, stride: int) -> Array:
    """Return a 3×3 convolution of an image (height, width, channels) with zero padding, by loops."""
    kernel, bias = weight_of(layer), to_array(layer.bias)
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    found = np.zeros((-(-image.shape[0] // stride), -(-image.shape[1] // stride), len(bias)))
    for y, x in np.ndindex(*found.shape[:2]):
        window = padded[y * stride : y * stride + 3, x * stride : x * stride + 3]
        found[y, x] = [bias[k] + (window * kernel[k].transpose(1, 2, 0)).sum() for k in range(len(bias))]
    return found


def test_neighbour_layers_convolve_within_each_grid() -> None:
    torch.manual_seed(4)
    layer = SpatialConv(3).double()
    source, lengths = make_grids(1)
    x = torch.randn(*source.shape[:2], 3, dtype=torch.float64)
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    found = to_array(layer(x, *source[..., -2:].long().unbind(-1), mask))
    for row, (rows, columns) in enumerate(GRIDS):
        grid = to_array(x[row, : rows * columns]).reshape(rows, columns, 3)
        expected = grid + np.maximum(convolve(grid, layer.convolution, 1), 0)
        np.testing.assert_allclose(found[row, : rows * columns], expected.reshape(-1, 3), atol=1e-12)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"neighbours": 2},
    {"places": "sinusoid", "score": "general", "layers": 2, "residual": True},
    {"places": "none", "score": "location", "cell": "gru", "gate": False},
    {"backbone": "cnn", "neighbours": 1, "annotation": 6, "score": "dot"},
]
HARD: list[dict[str, Any]] = [
    {"estimator": "marginal", "decode": "marginal"},
    {"estimator": "soft-baseline"},
]
MODELS = [(RECIPES[0], one) for one in VARIANTS] + [(RECIPES[1], one) for one in VARIANTS + HARD]


def _count_features(changes: dict[str, Any]) -> int:
    return 3 * PATCH**2 if changes.get("backbone") == "cnn" else FEATURES


@pytest.mark.parametrize(("name", "changes"), MODELS)
def test_padding_and_other_images_do_not_change_a_caption(name: str, changes: dict[str, Any]) -> None:
    model: Any = make_model(name, _count_features(changes), **changes)
    source, lengths = make_grids(_count_features(changes))
    together = model.decoder(model.encode(source, lengths), TARGET_IN)
    for row, length in enumerate(lengths.tolist()):
        alone = model.decoder(model.encode(source[row : row + 1, :length], lengths[row : row + 1]), TARGET_IN[[row]])
        torch.testing.assert_close(together.logits[row], alone.logits[0], rtol=1e-9, atol=1e-9)
        weights = together.attended.weights[row]
        torch.testing.assert_close(weights[:, :length], alone.attended.weights[0], rtol=1e-9, atol=1e-9)
        assert (weights[:, length:] == 0).all()


@pytest.mark.parametrize(("name", "changes"), MODELS)
def test_every_parameter_gets_a_gradient(name: str, changes: dict[str, Any]) -> None:
    model = make_model(name, _count_features(changes), **changes).train()
    source, lengths = make_grids(_count_features(changes))
    torch.manual_seed(1)
    total = sum(model.loss(source, lengths, TARGET_IN, TARGET_OUT) for _ in range(5))  # hard attention samples
    assert isinstance(total, Tensor)
    total.backward()  # type: ignore[no-untyped-call]
    missing = [name for name, one in model.named_parameters() if one.grad is None or not one.grad.any()]
    unread = {"encoder.places.rows", "encoder.places.columns"} if changes.get("score") == "location" else set()
    assert set(missing) <= unread


@pytest.mark.parametrize("name", RECIPES)
def test_caption_search_agrees_with_teacher_forcing(name: str) -> None:
    model = make_model(name)
    source, lengths = make_grids()
    state, whole = model.decoder.start(model.encode(source, lengths)), model(source, lengths, TARGET_IN)
    for t in range(TARGET_IN.shape[1]):
        log_probs, state, _ = model.decoder.step(state, TARGET_IN[:, t])
        torch.testing.assert_close(log_probs, whole[:, t].log_softmax(-1))
    greedy = search(model, source, lengths, beam=1, max_length=8)
    for row, (best,) in enumerate(greedy):
        (alone,) = search(model, source[row : row + 1, : lengths[row]], lengths[row : row + 1], beam=1, max_length=8)
        assert best.tokens == alone[0].tokens
        assert best.attention is not None
        assert best.attention.shape == (len(best.tokens), int(lengths[row]))
    wide = search(model, source, lengths, beam=4, max_length=8, length_penalty=0.0)
    given = score_targets(model, source, lengths, [hypotheses[0].tokens for hypotheses in wide], length_penalty=0.0)
    for found, scored in zip(wide, given, strict=True):
        assert found[0].log_prob == pytest.approx(scored.hypothesis.log_prob)


def test_annotations_depend_on_other_positions_only_by_neighbours() -> None:
    source, lengths = make_grids()
    other = source.clone()
    other[0, 0, :-2] += 1
    for neighbours, changed in ((0, [0]), (1, [0, 1, 3, 4]), (2, [0, 1, 2, 3, 4, 5])):
        model = make_model(neighbours=neighbours)
        before, after = (model.encode(one, lengths).memory.values[0] for one in (source, other))
        assert (before != after).any(-1).nonzero().flatten().tolist() == changed


def shapes_of(name: str, **changes: Any) -> dict[str, tuple[int, ...]]:
    return {key: tuple(one.shape) for key, one in make_model(name, **changes).named_parameters()}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("changes", "key", "shape"),
    [
        ({"size": 8}, "decoder.gate.weight", (1, 8)),
        ({"embedding": 3}, "decoder.embedding.weight", (WORDS, 3)),
        ({"annotation": 9}, "encoder.backbone.weight", (9, FEATURES)),
        ({"annotation": None}, "encoder.backbone.weight", (6, FEATURES)),
        ({"attention": 3}, "decoder.attention.score.v", (3,)),
        ({"attention": None}, "decoder.attention.score.v", (6,)),
        ({"layers": 2}, "decoder.recurrent.forwards.1.weight_hh", (24, 6)),
        ({"cell": "gru"}, "decoder.recurrent.forwards.0.weight_hh", (18, 6)),
        ({"backbone": "cnn", "channels": 4}, "encoder.backbone.second.weight", (8, 4, 3, 3)),
        ({"neighbours": 2}, "encoder.neighbours.1.convolution.weight", (7, 7, 3, 3)),
        ({"places": "learned", "max_side": 11}, "encoder.places.rows", (11, 7)),
        ({"places": "sinusoid"}, "encoder.places.project.weight", (7, 7)),
        ({"score": "location", "max_source": 13}, "decoder.attention.score.weight", (13, 6)),
    ],
)
def test_options_set_the_shapes_of_the_parameters(
    name: str, changes: dict[str, Any], key: str, shape: tuple[int, ...]
) -> None:
    assert shapes_of(name, **changes)[key] == shape


@pytest.mark.parametrize("name", RECIPES)
def test_options_without_a_shape_change_the_output(name: str) -> None:
    source, lengths = make_grids()
    assert "decoder.gate.weight" not in shapes_of(name, gate=False)
    assert "encoder.places.rows" not in shapes_of(name, places="none")
    plain, residual = (make_model(name, layers=2, residual=on)(source, lengths, TARGET_IN) for on in (False, True))
    assert not torch.equal(plain, residual)
    tied: Any = make_model(name, tie=True)
    assert tied.decoder.embedding.weight is tied.decoder.output.L_o.weight
    dropped = make_model(name, dropout=0.5).train()
    assert not torch.equal(dropped.encode(source, lengths).memory.values, dropped.encode(source, lengths).memory.values)


def test_doubly_stochastic_penalty_follows_the_equation_of_the_paper() -> None:
    source, lengths = make_grids()
    batch = (source, lengths, TARGET_IN, TARGET_OUT)
    weighed, plain = make_model(doubly_stochastic=2.0), make_model(doubly_stochastic=0.0)
    weights = to_array(plain.decoder(plain.encode(source, lengths), TARGET_IN).attended.weights)
    penalty = 0.0
    for row, length in enumerate(lengths.tolist()):
        words = int((TARGET_OUT[row] != PAD).sum())
        penalty += ((1 - weights[row, :words, :length].sum(0)) ** 2).sum()
    assert (weighed.loss_sum(*batch) - plain.loss_sum(*batch)).item() == pytest.approx(2.0 * penalty)


def test_options_of_hard_attention_change_its_loss() -> None:
    source, lengths = make_grids()

    def loss(**changes: Any) -> float:
        model = make_model(RECIPES[1], **changes).train()
        torch.manual_seed(1)
        return model.loss(source, lengths, TARGET_IN, TARGET_OUT).item()

    default = loss()
    assert default == loss()
    for changes in ({"estimator": "marginal"}, {"soft_share": 0.0}, {"reward": 3.0}, {"entropy": 1.0}):
        assert loss(**changes) != default
    argmax, marginal = (
        make_model(RECIPES[1], decode=how)(source, lengths, TARGET_IN) for how in ("argmax", "marginal")
    )
    assert not torch.equal(argmax, marginal)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "vgg"}, "backbone"),
        ({"channels": 0}, "channels must be at least 1, not 0"),
        ({"annotation": 0}, "annotation must be at least 1, not 0"),
        ({"neighbours": -1}, "neighbours must be at least 0, not -1"),
        ({"neighbours": 7}, "neighbours must be at most max_side, 6, not 7"),
        ({"max_side": 0}, "max_side must be at least 1, not 0"),
        ({"places": "far"}, "places"),
        ({"score": "dot"}, "a dot product needs queries and keys of one size"),
    ],
)
def test_impossible_model_options_are_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_model(**changes)


@pytest.mark.parametrize("name", RECIPES)
def test_caption_recipes_have_no_translation_options(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe["task"] == "caption"
    assert "guided" not in recipe["loss"]
    assert "bidirectional" not in recipe["model"]


def test_a_grid_larger_than_max_side_is_refused() -> None:
    source, lengths = make_grids()
    with pytest.raises(ValueError, match="more than 2 rows or columns"):
        make_model(max_side=2).encode(source, lengths)


@pytest.mark.slow
def test_reinforce_learns_to_attend_to_the_informative_position() -> None:
    """One of six positions tells the next word: the entropy of the attention falls, its weight there rises."""
    torch.manual_seed(0)
    words, positions = WORDS - 4, 6
    wider = {"size": 24, "annotation": 16, "attention": 24, "places": "none"}
    model: Any = build(RECIPES[1], words, WORDS, **{**SMALL, **wider}).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows, lengths, entropies, hits = torch.arange(32), torch.full((32,), positions), [], []
    for _ in range(200):
        labels, informative = torch.randint(words, (32, 1)), torch.randint(positions, (32,))
        source = torch.zeros(32, positions, words + 2)
        source[rows, informative, labels[:, 0]] = 3.0
        word = labels + 4
        before, after = (torch.cat(pair, 1) for pair in ((word * 0 + BOS, word), (word, word * 0 + EOS)))
        optimizer.zero_grad()
        model.loss(source, lengths, before, after).backward()
        optimizer.step()
        with torch.no_grad():
            probabilities = model.decoder(model.encode(source, lengths), before).attended.probabilities[:, 0]
        entropies.append(float(attention_entropy(probabilities).mean()))
        hits.append(float(probabilities[rows, informative].mean()))
    first, last = np.mean(entropies[:10]), np.mean(entropies[-10:])
    assert last < 0.2 * first
    assert np.mean(hits[-10:]) > 2 * np.mean(hits[:10])
