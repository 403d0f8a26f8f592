"""Input-feeding decoder loop with a hand-written backward pass against the reference loop."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.combinations import each_value, slow_after
from support.fast_models import assert_all_close, randomize
from support.graphs import EagerGraph
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.cuda_graphs.cache import GraphedFunctionCache
from regard.fast.training import luong as way
from regard.fast.training import step_ops
from regard.fast.training.luong import (
    _collect_inputs,
    _draw_dropout_masks,
    _gather_window,
    is_supported,
    prepare_inputs,
    run_input_feeding_loop,
    run_luong_loop,
)
from regard.fast.training.luong_loop import LoopConfig, flatten_inputs, run_input_feeding
from regard.models import build
from regard.models.luong2015 import LuongDecoder, LuongState
from regard.models.rnn_common import unroll_decoder
from regard.nn import Attended

MODELS: dict[str, dict[str, Any]] = {
    "general": {},
    "dot": {"score": "dot"},
    "one-layer": {"layers": 1},
    "three-layers": {"layers": 3},
    "bidirectional": {"bidirectional": True},
    "narrow-embedding": {"embedding": 3},
    "tied": {"tie": True},
    "location": {"score": "location"},
    "location-short": {"score": "location", "max_source": 3},
    "local-m": {"alignment": "local-m", "window": 1},
    "local-m-dot": {"alignment": "local-m", "window": 2, "score": "dot"},
    "local-p": {"alignment": "local-p", "window": 1},
    "local-p-wide": {"alignment": "local-p", "window": 3, "score": "dot", "layers": 1},
    "local-p-location": {"alignment": "local-p", "window": 2, "score": "location", "max_source": 4},
}
SHAPES: dict[str, tuple[list[int], int]] = {
    "ragged": ([5, 2, 0, 4], 6),
    "one-source-word": ([1, 1], 3),
    "one-step": ([3, 4], 1),
    "one-sentence": ([4], 3),
    "one-of-each": ([1], 1),
    "empty-source": ([0, 0], 2),
}
UNCOVERED_MODELS: dict[str, dict[str, Any]] = {
    "gru": {"cell": "gru"},
    "residual": {"residual": True},
    "coverage": {"coverage": "linguistic"},
    "concat": {"score": "concat"},
    "no-input-feeding": {"input_feeding": False},
}
Run = Callable[[LuongDecoder, LuongState, Tensor], tuple[Tensor, Attended]]


def make_model(**options: Any) -> Any:
    torch.manual_seed(0)
    model = build("luong2015-global", 11, 13, **{"size": 6, "layers": 2, "dropout": 0.0, **options}).double()
    randomize(model, 0.5)
    return model


def run_decoder(model: Any, run: Run, lengths: list[int], steps: int) -> list[Tensor]:
    """Return logits, contexts, attention weights, and the gradients of every parameter with respect to all three."""
    torch.manual_seed(1)
    source = torch.randint(4, 11, (len(lengths), max(*lengths, 1)))
    target = torch.randint(4, 13, (len(lengths), steps))
    model.decoder.unroll = run
    model.zero_grad()
    decoded = model.decoder(model.encode(source, torch.tensor(lengths)), target)
    found = [decoded.logits, decoded.attended.context, decoded.attended.weights]
    torch.autograd.backward(found, [torch.randn(part.shape, dtype=part.dtype) for part in found])
    assert all(parameter.grad is not None for parameter in model.parameters())
    return found + [parameter.grad.clone() for parameter in model.parameters()]


def run_fast(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
    """Run the fast loop, whatever the device."""
    assert is_supported(decoder)
    return run_input_feeding_loop(decoder, state, words, None)


@pytest.mark.parametrize(("name", "shape"), each_value(list(MODELS), list(SHAPES)))
def test_fast_loop_has_the_outputs_and_gradients_of_the_reference(name: str, shape: str) -> None:
    model = make_model(**MODELS[name])
    expected = run_decoder(model, unroll_decoder, *SHAPES[shape])
    assert_all_close(run_decoder(model, run_fast, *SHAPES[shape]), expected)


@pytest.mark.parametrize("shape", slow_after(1, list(SHAPES)))
def test_models_use_the_fast_loop_on_a_cpu_in_fp32(shape: str) -> None:
    model = make_model().float()
    expected = run_decoder(model, unroll_decoder, *SHAPES[shape])
    for one, other in zip(run_decoder(accelerate(model), run_luong_loop, *SHAPES[shape]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_fast_loop_gives_padding_no_attention() -> None:
    _, context, weights, *_ = run_decoder(make_model(), run_fast, [5, 2, 0, 4], 3)
    assert torch.equal(weights[1, :, 2:], torch.zeros(3, 3, dtype=torch.float64))
    assert not weights[2].any()
    assert not context[2].any()
    torch.testing.assert_close(weights[[0, 1, 3]].sum(-1), torch.ones(3, 3, dtype=torch.float64))


class PredrawnDropout(nn.Module):
    """Dropout with the masks of successive calls given in advance."""

    def __init__(self, masks: list[Tensor]) -> None:
        super().__init__()
        self.masks = iter(masks)

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.masks)


@pytest.mark.parametrize("layers", slow_after(1, [3, 1]))
def test_fast_loop_applies_dropout_where_the_reference_does(layers: int) -> None:
    model = make_model(layers=layers, dropout=0.4)
    model.encoder.dropout = model.encoder.recurrent.dropout = nn.Identity()
    decoder, steps = model.decoder, 4
    kept, scales = _draw_dropout_masks(decoder, torch.empty(3, steps, 6, dtype=torch.float64))
    assert len(kept) == layers + 1
    assert all(0 < mask.double().mean() < 1 for mask in kept)

    def run_reference(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        masks = [mask.double() * scale for mask, scale in zip(kept, scales, strict=True)]
        decoder.dropout = PredrawnDropout([torch.cat((masks[0][:, t], masks[1][:, t]), -1) for t in range(steps)])  # type: ignore[assignment]
        decoder.recurrent.dropout = PredrawnDropout([mask[:, t] for t in range(steps) for mask in masks[2:]])  # type: ignore[assignment]
        return unroll_decoder(decoder, state, words)

    def run_with_masks(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        tensors = flatten_inputs(_collect_inputs(decoder, state, words * kept[0] * scales[0], kept[1:]))
        out, context, weights = run_input_feeding(LoopConfig(layers, scales[1:]), *tensors)
        return out, Attended(context, weights)

    assert_all_close(
        run_decoder(model, run_with_masks, [5, 2, 0], steps), run_decoder(model, run_reference, [5, 2, 0], steps)
    )


def test_dropout_masks_keep_the_right_fraction_and_rescale() -> None:
    decoder = make_model(dropout=0.25).decoder
    kept, scales = _draw_dropout_masks(decoder, torch.empty(50, 40, 6))
    assert [mask.shape for mask in kept] == [(50, 40, 6)] * 3
    assert all(float(mask.float().mean()) == pytest.approx(0.75, abs=0.02) for mask in kept)
    assert scales == pytest.approx([4 / 3] * 3)
    assert _draw_dropout_masks(decoder.eval(), torch.empty(5, 4, 6)) == ([], ())
    decoder.train().dropout.p = decoder.recurrent.dropout.p = 1.0
    kept, scales = _draw_dropout_masks(decoder, torch.empty(5, 4, 6))
    assert not any(mask.any() for mask in kept)
    assert scales == (0.0, 0.0, 0.0)


def test_seed_determines_the_dropout_of_the_fast_loop() -> None:
    model = make_model(dropout=0.4)
    assert_all_close(run_decoder(model, run_fast, [5, 2], 3), run_decoder(model, run_fast, [5, 2], 3))


@pytest.mark.parametrize(
    "options",
    slow_after(
        2,
        [
            {"layers": 3, "dropout": 0.4, "bidirectional": True},
            {"alignment": "local-p", "window": 3, "dropout": 0.4},
            {},
            {"score": "location", "max_source": 7},
            {"alignment": "local-m", "window": 3},
        ],
    ),
    ids=str,
)
def test_padding_to_the_shape_of_a_graph_changes_nothing(options: dict[str, Any]) -> None:
    model = make_model(**options)
    lengths = [3, 19, 0, *range(1, 15)]
    captured = GraphedFunctionCache(min_calls=1, graph_type=EagerGraph)
    found = run_decoder(model, partial(run_input_feeding_loop, graph_cache=captured), lengths, 17)
    assert [graph.inputs[0].shape for graph in captured.graphs.values()] == [(18, 18, 6)]
    assert_all_close(found, run_decoder(model, run_fast, lengths, 17))


@pytest.mark.parametrize("name", UNCOVERED_MODELS)
def test_other_models_use_the_reference_loop(name: str) -> None:
    model = make_model(**UNCOVERED_MODELS[name])
    assert not is_supported(model.decoder)
    assert_all_close(run_decoder(model, run_luong_loop, [5, 2], 3), run_decoder(model, unroll_decoder, [5, 2], 3))


@pytest.mark.parametrize("alignment", ["local-m", "local-p"])
def test_reference_loop_reads_small_windows_of_long_sources(alignment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = make_model(alignment=alignment, window=1), []

    def count(*given: Any) -> tuple[Tensor, Attended]:
        calls.append(given)
        return run_input_feeding_loop(*given)

    monkeypatch.setattr(way, "run_input_feeding_loop", count)
    for longest in (12, 13):
        assert_all_close(
            run_decoder(model, run_luong_loop, [longest, 5], 3), run_decoder(model, unroll_decoder, [longest, 5], 3)
        )
        assert len(calls) == 1


def test_narrow_gaussian_uses_the_reference_loop() -> None:
    model = make_model(alignment="local-p", window=3)
    model.decoder.attention.alignment.sigma = 0.2
    assert_all_close(run_decoder(model, run_luong_loop, [9, 5], 3), run_decoder(model, unroll_decoder, [9, 5], 3))


def test_fast_loop_ignores_autocast() -> None:
    model = make_model(alignment="local-p", window=3).float()

    def run_under_autocast(decoder: LuongDecoder, state: LuongState, words: Tensor) -> tuple[Tensor, Attended]:
        plan, tensors = prepare_inputs(decoder, state, words)
        with torch.autocast("cpu", torch.bfloat16):
            out, context, weights, centre = run_input_feeding(plan, *tensors)
        return out, _gather_window(context, weights, centre, plan.window.radius)

    found = run_decoder(model, run_under_autocast, [9, 5], 3)
    for one, other in zip(found, run_decoder(model, run_fast, [9, 5], 3), strict=True):
        assert torch.equal(one, other)


def test_frozen_weights_get_no_gradient() -> None:
    model = make_model()
    expected = run_decoder(model, run_fast, [5, 2, 3], 4)
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
    assert_all_close(
        [model.decoder.W_c.weight.grad], [expected[3 + [*dict(model.named_parameters())].index("decoder.W_c.weight")]]
    )
    assert model.decoder.embedding.weight.grad is None


def test_regard_fast_0_switches_the_fast_loop_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen_loop() -> object:
        return accelerate(build("luong2015-global", 20, 20, size=8, layers=1)).decoder.unroll

    assert chosen_loop() is run_luong_loop
    monkeypatch.setenv("REGARD_FAST", "0")
    assert chosen_loop() is unroll_decoder


def test_gpu_kernels_implement_every_step_of_the_loop() -> None:
    # Parsed, not imported: Triton need not be installed here.
    text = (Path(step_ops.__file__).parents[1] / "kernels" / "triton" / "rnn.py").read_text(encoding="utf-8")
    [kernels] = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == "TritonStepOps"]
    implemented = {one.name for one in kernels.body if isinstance(one, ast.FunctionDef)}
    product = {"attention_weighted_sum"}  # one product of PyTorch, which needs no kernel
    assert {name for name in vars(step_ops.StepOps) if not name.startswith("_")} - product <= implemented


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lstm_gates_have_the_gradients_of_autograd_in_each_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    pre, c = torch.randn(5, 12).to(dtype), torch.randn(5, 3)
    d_above, d_h, d_c = torch.randn(5, 3).to(dtype), torch.randn(5, 3).to(dtype), torch.randn(5, 3)
    x, before = pre.clone().float().requires_grad_(), c.clone().requires_grad_()
    i, f, g, o = x.chunk(4, 1)
    cell = f.sigmoid() * before + i.sigmoid() * g.tanh()
    output = o.sigmoid() * cell.tanh()
    expected = torch.autograd.grad([output, cell], [x, before], [d_above.float() + d_h.float(), d_c])
    after, h, d_pre = torch.empty(5, 3), torch.empty(5, 3, dtype=dtype), torch.empty_like(pre)
    step, steps = step_ops.LSTMStep(pre, c, after), step_ops.StepOps()
    steps.lstm_gates(step, h, h)
    steps.lstm_gates_backward(step, d_above, d_h, d_c, d_pre)
    close = 1e-6 if dtype == torch.float32 else 1e-2
    for found, wanted in zip((after, h, d_pre, d_c), (cell, output, *expected), strict=True):
        torch.testing.assert_close(found.float(), wanted.detach(), atol=close, rtol=close)
