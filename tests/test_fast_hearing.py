"""Whoever listens to a part of a model, or has put another in its place, meets with no faster way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_fast_output import batch
from torch import Tensor, nn

from regard.fast import quicken
from regard.fast.hearing import heard
from regard.fast.packed import way
from regard.fast.packed.replay import Replayed
from regard.fast.trial import succeeds
from regard.models import build
from regard.models.criterion import CrossEntropy, LossSettings
from regard.models.readout import DeepOutput

FORMS: dict[str, dict[str, Any]] = {
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
]
GIVEN = batch([5, 1, 3], [2, 7, 1])


def made(recipe: str, dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return build(recipe, 19, 19, size=8, dropout=dropout, **FORMS[recipe]).double().train()


def summed(model: Any, fast: bool) -> float:
    return float((quicken(model) if fast else model).summed(*GIVEN).detach())


@pytest.mark.parametrize(("recipe", "name"), PARTS)
def test_a_hook_sees_what_it_would_see(recipe: str, name: str) -> None:
    def seen(fast: bool) -> list[Any]:
        model, found = made(recipe), []
        hook = lambda part, given, got: found.append(got.shape if isinstance(got, Tensor) else len(got))  # noqa: E731
        model.get_submodule(name).register_forward_hook(hook)
        summed(model, fast)
        return found

    assert seen(True) == seen(False) != []


def test_a_hook_of_everybodys_is_heard() -> None:
    assert not heard(nn.Linear(2, 2))
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert heard(nn.Linear(2, 2))


class Twice(CrossEntropy):
    """Somebody's own."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().__call__(logits, targets)


@pytest.mark.parametrize("recipe", FORMS)
def test_a_criterion_of_ones_own_is_asked(recipe: str) -> None:
    model = quicken(made(recipe))
    once = summed(model, True)
    model.criterion = Twice(LossSettings())
    plain = made(recipe)
    plain.criterion = CrossEntropy(LossSettings())
    assert summed(model, True) == pytest.approx(2 * summed(plain, False))
    assert once == pytest.approx(summed(made(recipe), False))


class Sharp(DeepOutput):
    """Somebody's own."""

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        return 2 * super().forward(state, word, context)


def test_a_readout_of_ones_own_is_called() -> None:
    model = made("bahdanau2015")
    model.decoder.output.__class__ = Sharp
    assert summed(model, True) == pytest.approx(summed(model, False))
    readable = made("bahdanau2015")
    readable.decoder.output.__class__ = Sharp
    assert summed(model, True) == pytest.approx(summed(readable, False))


@pytest.mark.parametrize("recipe", FORMS)
def test_each_dropout_drops_when_it_is_in_training(recipe: str) -> None:
    def losses(training: bool) -> set[float]:
        model = quicken(made(recipe, dropout=0.5)).train(not training)
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.train(training)
        return {summed(model, True) for _ in range(3)}

    assert len(losses(training=False)) == 1
    assert len(losses(training=True)) == 3


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weights_that_are_made_of_others_are_made_each_time(norm: Callable[..., nn.Module]) -> None:
    models = [made("luong2015-global"), quicken(made("luong2015-global"))]
    for model in models:
        for recurrent in (model.encoder.recurrent, model.decoder.recurrent):
            norm(recurrent.forwards[0], "weight_hh")
        for _ in range(2):
            model.summed(*GIVEN).backward()
    slopes = [[weight.grad for weight in model.parameters()] for model in models]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("recipe", FORMS)
def test_a_model_may_ask_another_in_the_midst_of_its_loss(recipe: str) -> None:
    model, teacher = quicken(made(recipe)), quicken(made(recipe))
    told: list[float] = []
    model.encoder.register_forward_hook(lambda *_: told.append(summed(teacher, True)))
    assert summed(model, True) == pytest.approx(summed(teacher, True))
    assert told == [summed(teacher, True)]


def gelu(model: Any) -> None:
    model.encoder.layers[0].feedforward[1] = nn.GELU()


def listened(model: Any) -> None:
    model.decoder.register_forward_hook(lambda *_: None)


def own(model: Any) -> None:
    model.criterion = Twice(LossSettings())


def otherwise(model: Any) -> None:
    model.decoder.layers[0].forward = lambda *_: None


def another_output(model: Any) -> None:
    model.decoder.output = type("Own", (nn.Linear,), {})(8, 19, bias=False)


@pytest.mark.parametrize("change", [gelu, listened, own, otherwise, another_output])
def test_a_transformer_that_has_changed_is_not_known_any_more(change: Callable[[Any], None]) -> None:
    model = quicken(made("default"))
    packed = model.way
    assert isinstance(packed, way.Packed)
    assert packed.knows(model)
    before = packed.recorder
    assert packed.knows(model)
    assert packed.recorder is before
    change(model)
    assert not packed.knows(model)
    fresh = way.Packed()
    assert not fresh.knows(model)
    assert not fresh.knows(model)


def test_a_recorded_loss_has_no_second_derivative_rather_than_a_wrong_one() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = Replayed.apply((torch.tensor(1.0), torch.tensor([2.0, 3.0])), weight)  # type: ignore[no-untyped-call]
    (slope,) = torch.autograd.grad(loss * (weight**2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()  # type: ignore[no-untyped-call]


def test_kernels_that_fail_are_gone_without_and_memory_is_another_matter(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise ValueError("no such\n  instruction")

    def full() -> None:
        raise torch.OutOfMemoryError("out of it")

    assert succeeds("training", lambda: None)
    assert capsys.readouterr().err == ""
    assert not succeeds("training", fails)
    assert "training goes without kernels of its own: no such instruction" in capsys.readouterr().err
    with pytest.raises(torch.OutOfMemoryError):
        succeeds("training", full)
