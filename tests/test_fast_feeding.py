"""The loop of a decoder with input feeding, as one function with its own way back, against the readable loop."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.graphs import EagerGraph
from torch import Tensor, nn

from regard.fast import gates, quicken
from regard.fast.captured import Captured
from regard.fast.feeding import way
from regard.fast.feeding.layout import arranged, drawn, prepared
from regard.fast.feeding.loop import Plan, fed, flat
from regard.fast.feeding.way import covers, looped, played, seen_through
from regard.models import build
from regard.models.luong import LuongDecoder, LuongState, one_by_one
from regard.nn import Attended

FORMS: dict[str, dict[str, Any]] = {
    "general": {},
    "dot": {"score": "dot"},
    "one layer": {"layers": 1},
    "three layers": {"layers": 3},
    "bidirectional": {"bidirectional": True},
    "narrow words": {"embedding": 3},
    "tied": {"tie": True},
    "location": {"score": "location"},
    "location, short": {"score": "location", "max_source": 3},
    "local-m": {"alignment": "local-m", "window": 1},
    "local-m, dot": {"alignment": "local-m", "window": 2, "score": "dot"},
    "local-p": {"alignment": "local-p", "window": 1},
    "local-p, wide": {"alignment": "local-p", "window": 3, "score": "dot", "layers": 1},
    "local-p, location": {"alignment": "local-p", "window": 2, "score": "location", "max_source": 4},
}
SHAPES: dict[str, tuple[list[int], int]] = {
    "ragged": ([5, 2, 0, 4], 6),
    "one place": ([1, 1], 3),
    "one step": ([3, 4], 1),
    "one row": ([4], 3),
    "one of each": ([1], 1),
    "no source": ([0, 0], 2),
}
OTHERS: dict[str, dict[str, Any]] = {
    "gru": {"cell": "gru"},
    "residual": {"residual": True},
    "coverage": {"coverage": "linguistic"},
    "concat": {"score": "concat"},
    "without feeding": {"input_feeding": False},
}
Run = Callable[[LuongDecoder, LuongState, Tensor], tuple[Tensor, Attended]]


def model_of(**form: Any) -> Any:
    """A small model whose weights are large enough for every part of it to matter."""
    torch.manual_seed(0)
    model = build("luong2015-global", 11, 13, **{"size": 6, "layers": 2, "dropout": 0.0, **form}).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def everything(model: Any, run: Run, lengths: list[int], steps: int) -> list[Tensor]:
    """Outputs, contexts, weights, and the gradients of every parameter, all three outputs having a say in them."""
    torch.manual_seed(1)
    source = torch.randint(4, 11, (len(lengths), max(*lengths, 1)))
    target = torch.randint(4, 13, (len(lengths), steps))
    model.decoder.loop = run
    model.zero_grad()
    decoded = model.decoder(model.encode(source, torch.tensor(lengths)), target)
    found = [decoded.logits, decoded.attended.context, decoded.attended.weights]
    torch.autograd.backward(found, [torch.randn(part.shape, dtype=part.dtype) for part in found])
    assert all(parameter.grad is not None for parameter in model.parameters())
    return found + [parameter.grad.clone() for parameter in model.parameters()]


def at_once(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
    """The fast loop, on a CPU too."""
    assert covers(decoder)
    return played(decoder, state, words, None)


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_the_fast_loop_gives_the_readable_ones_numbers_and_gradients(form: str, shape: str) -> None:
    model = model_of(**FORMS[form])
    expected = everything(model, one_by_one, *SHAPES[shape])
    agree(everything(model, at_once, *SHAPES[shape]), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_cpu_models_take_it_by_themselves_in_single_precision_too(shape: str) -> None:
    model = model_of().float()
    expected = everything(model, one_by_one, *SHAPES[shape])
    for one, other in zip(everything(quicken(model), looped, *SHAPES[shape]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_is_padding_gets_no_weight_at_all() -> None:
    _, context, weights, *_ = everything(model_of(), at_once, [5, 2, 0, 4], 3)
    assert torch.equal(weights[1, :, 2:], torch.zeros(3, 3, dtype=torch.float64))
    assert not weights[2].any()
    assert not context[2].any()
    torch.testing.assert_close(weights[[0, 1, 3]].sum(-1), torch.ones(3, 3, dtype=torch.float64))


class Played(nn.Module):
    """Dropout that was drawn beforehand, one call after the other."""

    def __init__(self, masks: list[Tensor]) -> None:
        super().__init__()
        self.masks = iter(masks)

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.masks)


@pytest.mark.parametrize("layers", [1, 3])
def test_dropout_is_where_the_readable_loop_has_it(layers: int) -> None:
    model = model_of(layers=layers, dropout=0.4)
    model.encoder.dropout = model.encoder.recurrent.dropout = nn.Identity()
    decoder, steps = model.decoder, 4
    kept, scales = drawn(decoder, torch.empty(3, steps, 6, dtype=torch.float64))
    assert len(kept) == layers + 1
    assert all(0 < mask.double().mean() < 1 for mask in kept)

    def played(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        masks = [mask.double() * scale for mask, scale in zip(kept, scales, strict=True)]
        decoder.dropout = Played([torch.cat((masks[0][:, t], masks[1][:, t]), -1) for t in range(steps)])  # type: ignore[assignment]
        decoder.recurrent.dropout = Played([mask[:, t] for t in range(steps) for mask in masks[2:]])  # type: ignore[assignment]
        return one_by_one(decoder, state, words)

    def given(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        tensors = flat(arranged(decoder, state, words * kept[0] * scales[0], kept[1:]))
        out, context, weights = fed(Plan(layers, scales[1:]), *tensors)
        return out, Attended(context, weights)

    agree(everything(model, given, [5, 2, 0], steps), everything(model, played, [5, 2, 0], steps))


def test_dropout_keeps_its_share_and_makes_up_for_the_rest() -> None:
    decoder = model_of(dropout=0.25).decoder
    kept, scales = drawn(decoder, torch.empty(50, 40, 6))
    assert [mask.shape for mask in kept] == [(50, 40, 6)] * 3
    assert all(float(mask.float().mean()) == pytest.approx(0.75, abs=0.02) for mask in kept)
    assert scales == pytest.approx([4 / 3] * 3)
    assert drawn(decoder.eval(), torch.empty(5, 4, 6)) == ([], ())
    decoder.train().dropout.p = decoder.recurrent.dropout.p = 1.0
    kept, scales = drawn(decoder, torch.empty(5, 4, 6))
    assert not any(mask.any() for mask in kept)
    assert scales == (0.0, 0.0, 0.0)


def test_a_seed_gives_the_same_dropout_again() -> None:
    model = model_of(dropout=0.4)
    agree(everything(model, at_once, [5, 2], 3), everything(model, at_once, [5, 2], 3))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"layers": 3, "dropout": 0.4, "bidirectional": True},
        {"score": "location", "max_source": 7},
        {"alignment": "local-m", "window": 3},
        {"alignment": "local-p", "window": 3, "dropout": 0.4},
    ],
    ids=str,
)
def test_a_larger_shape_around_it_changes_nothing(form: dict[str, Any]) -> None:
    model = model_of(**form)
    lengths = [3, 19, 0, *range(1, 15)]
    captured = Captured(patience=1, make=EagerGraph)
    found = everything(model, partial(played, captured=captured), lengths, 17)
    assert [graph.inputs[0].shape for graph in captured.graphs.values()] == [(18, 18, 6)]
    agree(found, everything(model, at_once, lengths, 17))


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_go_by_the_readable_loop(form: str) -> None:
    model = model_of(**OTHERS[form])
    assert not covers(model.decoder)
    agree(everything(model, looped, [5, 2], 3), everything(model, one_by_one, [5, 2], 3))


@pytest.mark.parametrize("alignment", ["local-m", "local-p"])
def test_a_window_that_is_small_beside_the_source_is_all_that_is_read(
    alignment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, taken = model_of(alignment=alignment, window=1), []

    def noticed(*given: Any) -> tuple[Tensor, Attended]:
        taken.append(given)
        return played(*given)

    monkeypatch.setattr(way, "played", noticed)
    for longest in (12, 13):
        agree(everything(model, looped, [longest, 5], 3), everything(model, one_by_one, [longest, 5], 3))
        assert len(taken) == 1


def test_a_gaussian_that_is_narrow_in_its_window_goes_by_the_readable_loop() -> None:
    model = model_of(alignment="local-p", window=3)
    model.decoder.attention.alignment.sigma = 0.2
    agree(everything(model, looped, [9, 5], 3), everything(model, one_by_one, [9, 5], 3))


def test_autocast_has_no_say_within_the_loop() -> None:
    model = model_of(alignment="local-p", window=3).float()

    def in_single_precision(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        plan, tensors = prepared(decoder, state, words)
        with torch.autocast("cpu", torch.bfloat16):
            out, context, weights, centre = fed(plan, *tensors)
        return out, seen_through(context, weights, centre, plan.window.reach)

    found = everything(model, in_single_precision, [9, 5], 3)
    for one, other in zip(found, everything(model, at_once, [9, 5], 3), strict=True):
        assert torch.equal(one, other)


def test_weights_that_do_not_learn_get_no_gradient() -> None:
    model = model_of()
    expected = everything(model, at_once, [5, 2, 3], 4)
    learnt = [parameter.grad for parameter in model.decoder.W_c.parameters()]
    model.zero_grad()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.decoder.W_c.weight.requires_grad_()
    torch.manual_seed(1)
    decoded = model.decoder(
        model.encode(torch.randint(4, 11, (3, 5)), torch.tensor([5, 2, 3])), torch.randint(4, 13, (3, 4))
    )
    found = [decoded.logits, decoded.attended.context, decoded.attended.weights]
    torch.autograd.backward(found, [torch.randn(part.shape, dtype=part.dtype) for part in found])
    agree(
        [model.decoder.W_c.weight.grad], [expected[3 + [*dict(model.named_parameters())].index("decoder.W_c.weight")]]
    )
    assert learnt
    assert model.decoder.embedding.weight.grad is None


def test_faster_loops_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def way() -> object:
        return quicken(build("luong2015-global", 20, 20, size=8, layers=1)).decoder.loop

    assert way() is looped
    monkeypatch.setenv("REGARD_FAST", "0")
    assert way() is one_by_one


def test_a_gpu_has_all_steps_that_there_are() -> None:
    """Read, not imported: there need be no Triton here."""
    text = Path(gates.__file__).with_name("kernels.py").read_text(encoding="utf-8")
    [kernels] = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == "Kernels"]
    had = {one.name for one in kernels.body if isinstance(one, ast.FunctionDef)}
    assert {name for name in vars(gates.Steps) if not name.startswith("_")} <= had
