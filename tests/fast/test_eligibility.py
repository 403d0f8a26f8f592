"""Hooks, replaced parts and own subclasses of a model switch the fast paths off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.fast_models import make_batch, use_leaky_relu
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.cuda_graphs.cache import PrecomputedGradients
from regard.fast.decoding.device import search as device_beam_search
from regard.fast.eligibility import HookMonitor, has_hooks_or_overrides
from regard.fast.selftest import runs_without_error
from regard.fast.training.packed import loss as packed_loss
from regard.models import build
from regard.models.base import CrossEntropy
from regard.models.rnn_common import DeepOutput
from regard.models.vaswani2017 import Residual, TransformerEmbedding
from regard.nn import LSTMCell, SinusoidalPositions

RECIPES: dict[str, dict[str, Any]] = {
    "luong2015-global": {"layers": 2, "score": "general"},
    "bahdanau2015": {},
    "sutskever2014": {"layers": 2},
    "cho2014": {},
    "default": {"layers": 1, "heads": 2},
}
PARTS = [
    *(("luong2015-global", name) for name in ("encoder", "decoder", "decoder.attention", "decoder.W_c", "decoder.W_s")),
    *(("luong2015-global", name) for name in ("decoder.dropout", "decoder.recurrent.forwards.1", "decoder.embedding")),
    ("luong2015-global", "encoder.recurrent.forwards.0"),
    *(("bahdanau2015", name) for name in ("decoder", "decoder.output", "decoder.output.W_o", "decoder.attention")),
    *(("cho2014", name) for name in ("decoder.output", "decoder.recurrent.forwards.0")),
    *(("sutskever2014", name) for name in ("decoder.output", "decoder.recurrent.forwards.0")),
    *(("default", name) for name in ("encoder", "decoder", "decoder.output", "decoder.layers.0.feedforward.1")),
    *(("default", f"encoder.embedding{name}") for name in ("", ".words", ".positions", ".dropout")),
    ("default", "decoder.embedding"),
]
BATCH = make_batch([5, 1, 3], [2, 7, 1], 19)


def make_model(recipe: str, dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return build(recipe, 19, 19, size=8, dropout=dropout, **RECIPES[recipe]).double().train()


def compute_loss(model: Any, fast: bool) -> float:
    return float((accelerate(model) if fast else model).loss_sum(*BATCH).detach())


@pytest.mark.parametrize(("recipe", "name"), PARTS)
def test_forward_hook_sees_the_same_outputs_with_fast_paths(recipe: str, name: str) -> None:
    def outputs(fast: bool) -> list[Any]:
        model, seen = make_model(recipe), []
        hook = lambda part, given, out: seen.append(out.shape if isinstance(out, Tensor) else len(out))  # noqa: E731
        model.get_submodule(name).register_forward_hook(hook)
        compute_loss(model, fast)
        return seen

    assert outputs(True) == outputs(False) != []


def test_hook_that_replaces_word_vectors_gets_gradients_of_the_padded_batch() -> None:
    model, vectors = accelerate(make_model("default")), list[Any]()

    def replace(part: nn.Module, given: Any, out: Tensor) -> Any:
        vectors.append(out.detach().requires_grad_())
        return vectors[-1]

    model.encoder.embedding.register_forward_hook(replace)
    model.loss_sum(*BATCH).backward()
    (found,) = vectors
    assert found.grad.shape == (3, 5, 8)
    assert found.grad[0].abs().amin() > 0


class NeighbourEmbedding(nn.Module):
    """A user's own embedding, in which a word has a part of the word before it."""

    def __init__(self, inner: TransformerEmbedding) -> None:
        super().__init__()
        self.inner, self.words = inner, inner.words

    def forward(self, ids: Tensor, step: int | Tensor = 0) -> Tensor:
        x: Tensor = self.inner(ids, step)
        return x + nn.functional.pad(x, (0, 0, 1, -1)) / 2


class NeighbourPositions(SinusoidalPositions):
    """A user's own positions, of which the same is true."""

    def forward(self, x: Tensor, step: int | Tensor = 0) -> Tensor:
        x = super().forward(x, step)
        return x + nn.functional.pad(x, (0, 0, 1, -1)) / 2


def replace_embedding(model: Any, half: str = "encoder") -> None:
    part = getattr(model, half)
    part.embedding = NeighbourEmbedding(part.embedding)


def replace_decoder_embedding(model: Any) -> None:
    replace_embedding(model, "decoder")


def replace_positions(model: Any) -> None:
    model.encoder.embedding.positions = NeighbourPositions(8)


EMBEDDING_CHANGES = [replace_embedding, replace_decoder_embedding, replace_positions]


@pytest.mark.parametrize("change", EMBEDDING_CHANGES)
def test_embedding_that_is_not_position_wise_has_the_reference_loss(change: Callable[[Any], None]) -> None:
    plain, replaced_before, replaced_after = make_model("default"), make_model("default"), make_model("default")
    accelerate(replaced_after)
    for model in (plain, replaced_before, replaced_after):
        change(model)
    expected = compute_loss(plain, False)
    assert expected != pytest.approx(compute_loss(make_model("default"), False), rel=1e-4)
    assert compute_loss(replaced_before, True) == pytest.approx(expected)
    assert float(replaced_after.loss_sum(*BATCH).detach()) == pytest.approx(expected)
    assert not device_beam_search.is_supported(replaced_before)


def test_training_says_once_why_batches_are_padded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model("default")
    replace_embedding(model)
    hooked, luong, stock = make_model("default"), make_model("luong2015-global"), make_model("default")
    for one in (model, hooked, luong, stock):
        accelerate(one)
    hooked.encoder.embedding.register_forward_hook(lambda *_: None)
    for one in (model, hooked, luong, stock):
        one.loss_sum(*BATCH)
    monkeypatch.setattr(packed_loss, "find_obstacle", lambda _: pytest.fail("the reason is found once"))
    for one in (model, hooked, luong, stock):
        one.loss_sum(*BATCH)
    assert capsys.readouterr().err.splitlines() == [
        "training pads its batches, which is slower: encoder.embedding is of class NeighbourEmbedding",
        "training pads its batches, which is slower: a module has a hook, or a method that is not its class's own",
    ]


@pytest.mark.parametrize("patched_first", [True, False])
@pytest.mark.parametrize(
    ("recipe", "kind", "name"),
    [
        ("default", nn.LayerNorm, "forward"),
        ("default", Residual, "sublayer_input"),
        ("luong2015-global", LSTMCell, "forward"),
    ],
)
def test_patched_class_is_noticed(
    recipe: str, kind: type, name: str, patched_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, model = getattr(kind, name), accelerate(make_model(recipe))
    if not patched_first:
        model.loss_sum(*BATCH)

    def doubled(part: nn.Module, *given: Any) -> Any:
        found = method(part, *given)
        return tuple(2 * one for one in found) if isinstance(found, tuple) else 2 * found

    before = compute_loss(make_model(recipe), False)
    monkeypatch.setattr(kind, name, doubled)
    expected = compute_loss(make_model(recipe), False)
    assert expected != pytest.approx(before, rel=1e-4)
    assert float(model.loss_sum(*BATCH).detach()) == pytest.approx(expected)


def test_method_in_place_of_a_deleted_attribute_is_noticed() -> None:
    part: Any = nn.Linear(2, 2)
    part.note = 1
    listeners = HookMonitor([part])
    assert not listeners.has_hooks_or_overrides()
    del part.note
    part.forward = lambda x: x
    assert listeners.has_hooks_or_overrides()


def test_global_forward_hook_is_noticed() -> None:
    assert not has_hooks_or_overrides(nn.Linear(2, 2))
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert has_hooks_or_overrides(nn.Linear(2, 2))


class DoubledLoss(CrossEntropy):
    """A user's own criterion."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().__call__(logits, targets)


@pytest.mark.parametrize("recipe", RECIPES)
def test_own_criterion_is_called(recipe: str) -> None:
    model = accelerate(make_model(recipe))
    loss = compute_loss(model, True)
    model.criterion = DoubledLoss()
    plain = make_model(recipe)
    plain.criterion = CrossEntropy()
    assert compute_loss(model, True) == pytest.approx(2 * compute_loss(plain, False))
    assert loss == pytest.approx(compute_loss(make_model(recipe), False))


class DoubledOutput(DeepOutput):
    """A user's own output layer."""

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        return 2 * super().forward(state, word, context)


def test_own_output_layer_is_called() -> None:
    model = make_model("bahdanau2015")
    model.decoder.output.__class__ = DoubledOutput
    assert compute_loss(model, True) == pytest.approx(compute_loss(model, False))
    reference = make_model("bahdanau2015")
    reference.decoder.output.__class__ = DoubledOutput
    assert compute_loss(model, True) == pytest.approx(compute_loss(reference, False))


@pytest.mark.parametrize("recipe", RECIPES)
def test_dropout_layers_follow_their_own_training_flag(recipe: str) -> None:
    def losses(training: bool) -> set[float]:
        model = accelerate(make_model(recipe, dropout=0.5)).train(not training)
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.train(training)
        return {compute_loss(model, True) for _ in range(3)}

    assert len(losses(training=False)) == 1
    assert len(losses(training=True)) == 3


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weight_norm_is_applied_in_every_pass(norm: Callable[..., nn.Module]) -> None:
    models = [make_model("luong2015-global"), accelerate(make_model("luong2015-global"))]
    for model in models:
        for recurrent in (model.encoder.recurrent, model.decoder.recurrent):
            norm(recurrent.forwards[0], "weight_hh")
        for _ in range(2):
            model.loss_sum(*BATCH).backward()
    torch.testing.assert_close(*([weight.grad for weight in model.parameters()] for model in models))


@pytest.mark.parametrize("recipe", RECIPES)
def test_hook_may_compute_the_loss_of_another_model(recipe: str) -> None:
    model, teacher = accelerate(make_model(recipe)), accelerate(make_model(recipe))
    losses: list[float] = []
    model.encoder.register_forward_hook(lambda *_: losses.append(compute_loss(teacher, True)))
    assert compute_loss(model, True) == pytest.approx(compute_loss(teacher, True))
    assert losses == [compute_loss(teacher, True)]


def add_hook(model: Any) -> None:
    model.decoder.register_forward_hook(lambda *_: None)


def replace_criterion(model: Any) -> None:
    model.criterion = DoubledLoss()


def patch_forward(model: Any) -> None:
    model.decoder.layers[0].forward = lambda *_: None


def replace_output(model: Any) -> None:
    model.decoder.output = type("Own", (nn.Linear,), {})(8, 19, bias=False)


@pytest.mark.parametrize(
    "change", [use_leaky_relu, add_hook, replace_criterion, patch_forward, replace_output, *EMBEDDING_CHANGES]
)
def test_modified_transformer_is_not_packed(change: Callable[[Any], None]) -> None:
    model = accelerate(make_model("default"))
    packed = model.acceleration.loss_sum
    assert isinstance(packed, packed_loss.PackedLoss)
    assert packed._find_supported_model(model)
    recorder = packed.graph_cache
    assert packed._find_supported_model(model)
    assert packed.graph_cache is recorder
    change(model)
    assert not packed._find_supported_model(model)
    fresh = packed_loss.PackedLoss()
    assert not fresh._find_supported_model(model)
    assert not fresh._find_supported_model(model)


def change_eps(model: Any) -> None:
    model.decoder.layers[0].around_attention.norm.eps = 1.0


def change_scale(model: Any) -> None:
    model.encoder.embedding.scale = 0.5


def change_heads(model: Any) -> None:
    model.encoder.layers[0].attention.heads = 1


def change_norm(model: Any) -> None:
    model.encoder.layers[0].around_attention.is_pre_norm ^= True  # the other residual connections are not changed


def change_class(model: Any) -> None:
    model.encoder.layers[0].feedforward[0].__class__ = type("Own", (nn.Linear,), {})


@pytest.mark.parametrize("change", [change_eps, change_scale, change_heads, change_norm, change_class])
def test_changed_constants_discard_the_captured_losses_of_a_transformer(change: Callable[[Any], None]) -> None:
    model = accelerate(make_model("default"))
    model.loss_sum(*BATCH)
    packed = model.acceleration.loss_sum
    assert isinstance(packed, packed_loss.PackedLoss)
    recorder = packed.graph_cache
    assert packed._find_supported_model(model)
    assert packed.graph_cache is recorder
    change(model)
    loss = float(model.loss_sum(*BATCH).detach())
    assert packed.graph_cache is not recorder
    plain = make_model("default")
    change(plain)
    assert loss == pytest.approx(compute_loss(plain, False))


def test_second_derivative_of_a_replayed_loss_is_an_error() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = PrecomputedGradients.apply((torch.tensor(1.0), torch.tensor([2.0, 3.0])), weight)  # type: ignore[no-untyped-call]
    (gradient,) = torch.autograd.grad(loss * (weight**2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()  # type: ignore[no-untyped-call]


def test_failing_kernels_are_reported_and_running_out_of_memory_is_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise ValueError("no such\n  instruction")

    def run_out_of_memory() -> None:
        raise torch.OutOfMemoryError("out of it")

    assert runs_without_error("training", lambda: None)
    assert capsys.readouterr().err == ""
    assert not runs_without_error("training", fail)
    assert "training runs without Triton kernels: no such instruction" in capsys.readouterr().err
    with pytest.raises(torch.OutOfMemoryError):
        runs_without_error("training", run_out_of_memory)
