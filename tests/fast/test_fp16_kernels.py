"""fp16 kernels for ARM CPUs, matrix products and what is between them, against NumPy and PyTorch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.gemm import TORCH_GEMM
from regard.fast.kernels import build as native_build
from regard.fast.kernels import fp16
from regard.fast.kernels.fp16 import Fp16Gemm, PackedPanels, select_gemm, use_fp16_gemm
from regard.fast.training.linear_cross_entropy import LossFunction, compute_in_chunks, cross_entropy_inplace
from regard.fast.training.packed.ops import LinearFunction
from regard.fast.training.rnn_layer import LSTMFunction
from regard.fast.training.step_ops import AttentionGrads, AttentionStep, LSTMStep, StepOps, Window
from regard.models import build

# Error as a fraction of Σ |a||b|: both factors and each of up to 256 partial sums are rounded to eleven bits, and these
# errors rarely add up.
ROUNDING = 8 * 2**-11


@cache
def kernels() -> Fp16Gemm:
    """Return the kernels, compiled once per session, set up for small products too."""
    try:
        return Fp16Gemm(fp16.load_kernels(), min_operations=1)
    except native_build.KernelUnavailableError as error:  # an ARM processor without fp16 arithmetic
        pytest.skip(str(error))


@pytest.fixture
def fp16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels for all products within `use_fp16_gemm`, however small."""
    monkeypatch.setattr(fp16, "load_fp16_gemm", kernels)


def product_error(found: Tensor, a: Tensor, b: Tensor, before: Tensor | None = None) -> float:
    """Return the largest error of `before` + a b as a fraction of the sum of the absolute values of its terms."""
    left, right = a.double().numpy(), b.double().numpy()
    exact = left @ right + (0 if before is None else before.double().numpy())
    size = np.abs(left) @ np.abs(right) + (0 if before is None else np.abs(before.double().numpy()))
    return float((np.abs(found.double().numpy() - exact) / np.maximum(size, 1e-300)).max(initial=0))


def make_matrix(rows: int, columns: int, layout: str, scale: float = 1.0) -> Tensor:
    """Return a random matrix with the given memory layout."""
    shapes = {
        "rows": (rows, columns),
        "columns": (columns, rows),
        "padded": (rows, columns + 3),
        "strided": (rows, 2 * columns),
    }
    x = scale * torch.randn(shapes[layout])
    return {"rows": x, "columns": x.t(), "padded": x[:, :columns], "strided": x[:, ::2]}[layout]


LAYOUTS = st.sampled_from(["rows", "columns", "padded", "strided"])


@given(
    st.integers(1, 70), st.integers(1, 300), st.integers(1, 70), LAYOUTS, LAYOUTS, st.sampled_from([1e-12, 1.0, 1e9]),
    st.booleans(), st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=settings().max_examples // 2)
def test_fp16_products_are_those_of_numpy(
    m: int, k: int, n: int, left: str, right: str, scale: float, often: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    a, b = make_matrix(m, k, left, scale), make_matrix(k, n, right)
    assert product_error(kernels().mm(a, kernels().prepack(b) if often else b), a, b) < ROUNDING
    wide = torch.full((m, n + 5), 7.0)
    assert product_error(kernels().mm(a, b, out=wide[:, :n]), a, b) < ROUNDING
    assert (wide[:, n:] == 7).all(), "wrote beside the output"
    c = make_matrix(m, n, "padded", scale)
    before = c.clone()
    assert product_error(kernels().add_mm(c, a, b), a, b, before) < ROUNDING
    bias = scale * torch.randn(n)
    assert product_error(kernels().linear(a, b, bias), a, b, bias.expand(m, n)) < ROUNDING


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the number of PyTorch's threads, which the kernels share."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("k", [1023, 1024, 1025, 3000])
def test_long_sums_are_as_exact(k: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(9, k), torch.randn(k, 25)
    assert product_error(kernels().mm(a, b), a, b) < ROUNDING
    assert product_error(kernels().mm(a.abs(), b.abs()), a.abs(), b.abs()) < 0.02, (
        "terms of one sign: partial sums grow, and errors with them"
    )


def test_partial_sums_do_not_overflow_fp16() -> None:
    a, b = torch.full((8, 256), 65504.0), torch.full((256, 24), 1.999)
    assert torch.isfinite(kernels().mm(a, b)).all()
    assert product_error(kernels().mm(a, b), a, b) < 0.02


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(1, 90), st.integers(1, 60), st.integers(1, 60), LAYOUTS)
def test_gradients_of_a_linear_layer(rows: int, into: int, out: int, layout: str) -> None:
    torch.manual_seed(0)
    dy, x = make_matrix(rows, out, layout), torch.randn(rows, into)
    weight, bias = kernels().linear_grads(dy, x)
    assert product_error(weight, dy.t(), x) < ROUNDING
    torch.testing.assert_close(bias, dy.sum(0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_propagate_through_products(value: float) -> None:
    a, b = torch.randn(9, 40), torch.randn(40, 30)
    a[3, 7] = value
    found = kernels().mm(a, b)
    assert not torch.isfinite(found[3]).any()
    others = torch.cat((found[:3], found[4:]))
    assert torch.isfinite(others).all()
    if math.isnan(value):
        torch.testing.assert_close(others, torch.cat((a[:3], a[4:])) @ b, atol=0.1, rtol=0.01)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_products_of_empty_matrices_are_zero(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    found = kernels().mm(torch.randn(m, k), torch.randn(k, n))
    assert torch.equal(found, torch.zeros(m, n))


@pytest.mark.parametrize("left", [1e-36, 1e-20, 1e-5, 1e10, 1e30])
@pytest.mark.parametrize("right", [1e-30, 1.0, 1e5])
def test_products_of_tiny_and_huge_numbers_are_as_exact(left: float, right: float) -> None:
    torch.manual_seed(0)
    a, b = left * torch.randn(9, 50), right * torch.randn(50, 30)
    if left * right >= 1e-36:
        assert product_error(kernels().mm(a, b), a, b) < ROUNDING
    else:
        assert (kernels().mm(a, b).abs() < 1e-34).all()


def test_products_of_expanded_matrices() -> None:
    """A gradient of a sum is one number, or one row, expanded with stride 0."""
    torch.manual_seed(0)
    one, row, b = torch.tensor(2.0).expand(9, 40), torch.randn(40).expand(9, 40), torch.randn(40, 30)
    for a in (one, row):
        assert product_error(kernels().mm(a, b), a, b) < ROUNDING
        assert product_error(kernels().mm(b.t(), a.t()), b.t(), a.t()) < ROUNDING
        weight, bias = kernels().linear_grads(a, torch.ones(9, 3))
        torch.testing.assert_close(weight, a.t() @ torch.ones(9, 3), atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(bias, a.sum(0))


@pytest.mark.parametrize("rows", [0, 4])
def test_linear_layer_without_rows_and_with_expanded_gradients(rows: int) -> None:
    x, W, b = torch.ones(rows, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True), torch.ones(2)
    LinearFunction.apply(x, W, b.requires_grad_(), kernels()).sum().backward()  # type: ignore[no-untyped-call]
    assert b.grad is not None
    assert W.grad is not None
    assert (b.grad == rows).all()
    assert (W.grad == rows).all()


@pytest.mark.parametrize("rows", [0, 3])
def test_lstm_accepts_initial_states_of_any_layout(rows: int) -> None:
    torch.manual_seed(0)
    x, W, U, b = torch.randn(rows, 4, 5), torch.randn(8, 5), torch.randn(8, 2), torch.randn(8)
    for begin in (torch.randn(2, rows).t(), torch.tensor(0.5).expand(rows, 2)):
        found = []
        for by in (TORCH_GEMM, kernels()):
            given = [x.clone().requires_grad_(), begin.clone().requires_grad_(), begin.detach().requires_grad_()]
            states, cells = LSTMFunction.apply(*given, W, U, b, by)  # type: ignore[no-untyped-call]
            found.append([states, *torch.autograd.grad(states.sum() + cells[:, -1].sum(), given)])
        torch.testing.assert_close(found[1], found[0], atol=0.05, rtol=0.05)


def test_loss_accepts_transposed_inputs() -> None:
    torch.manual_seed(0)
    h, weight, targets = torch.randn(6, 9).t(), torch.randn(6, 30).t(), torch.randint(4, 30, (9,))
    found = []
    for by in (TORCH_GEMM, kernels()):
        given = [h.detach().requires_grad_(), weight.detach().requires_grad_()]
        compute = partial(compute_in_chunks, targets=targets, smoothing=0.1, has_grad=True, gemm=by)
        loss = LossFunction.apply(compute, *given, None)  # type: ignore[no-untyped-call]
        found.append([loss, *torch.autograd.grad(loss, given)])
    torch.testing.assert_close(found[1], found[0], atol=0.05, rtol=0.05)


def test_small_products_are_left_to_pytorch() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    default = Fp16Gemm(kernels().kernels)
    assert torch.equal(default.mm(a, default.prepack(b)), a @ b)
    assert isinstance(default.prepack(torch.randn(256, 256)), PackedPanels)
    weight, bias = default.linear_grads(a, a)
    torch.testing.assert_close([weight, bias], [a.t() @ a, a.sum(0)])


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_products_of_a_strided_row_or_column(shape: tuple[int, int]) -> None:
    a = torch.randn(20, 11)[: 3 * shape[0] : 3, : 2 * shape[1] : 2][: shape[0], : shape[1]]
    b = torch.randn(shape[1], 4)
    assert product_error(kernels().mm(a, b), a, b) < ROUNDING
    assert torch.allclose(kernels().linear_grads(a, torch.ones(shape[0], 2))[1], a.sum(0))


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(1, 9), st.integers(1, 70), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([0.1, 3.0, 60.0]))
def test_cross_entropy_is_that_of_the_reference(rows: int, words: int, smoothing: float, std: float) -> None:
    torch.manual_seed(rows)
    logits, targets = std * torch.randn(rows, words + 2)[:, :words], torch.randint(words, (rows, 1))
    here, there = logits.clone(), torch.cat((logits, torch.ones(rows, 2)), 1)[:, :words]
    torch.testing.assert_close(
        kernels().elementwise.cross_entropy(there, targets, smoothing),
        cross_entropy_inplace(here, targets, smoothing),
        atol=1e-5,
        rtol=1e-5,
    )
    torch.testing.assert_close(there, here, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("target", [9, -1, 400_000_000])
def test_targets_outside_the_vocabulary_are_an_error(target: int) -> None:
    with pytest.raises(IndexError, match=rf"targets from {min(target, 1)} to {max(target, 1)}, but there are 9 words"):
        kernels().elementwise.cross_entropy(torch.randn(2, 9), torch.tensor([[1], [target]]), 0.1)


def test_cross_entropy_accepts_int32_targets_and_infinite_logits() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 9), torch.tensor([[1], [2], [8]])
    logits[:, 4] = -math.inf
    expected = cross_entropy_inplace(logits.clone(), targets, 0.0)
    torch.testing.assert_close(kernels().elementwise.cross_entropy(logits, targets.int(), 0.0), expected)


def test_fp16_kernels_ignore_the_default_dtype() -> None:
    torch.manual_seed(0)
    a, b, logits, targets = torch.randn(9, 5), torch.randn(5, 7), torch.randn(2, 9), torch.tensor([[1], [2]])
    expected = cross_entropy_inplace(logits.clone(), targets, 0.1)
    torch.set_default_dtype(torch.float64)
    try:
        assert product_error(kernels().mm(a, b), a, b) < ROUNDING
        assert kernels().linear_grads(a, a)[1].dtype == torch.float32
        torch.testing.assert_close(kernels().elementwise.cross_entropy(logits, targets, 0.1), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_rows_of_zeros_stay_zero_beside_overflow() -> None:
    a, b = torch.full((3, 4), 2.0**124), torch.full((4, 3), 2.0**124)
    a[1] = 0
    assert (kernels().mm(a, b)[1] == 0).all()


def test_cross_entropy_of_nan_is_nan() -> None:
    logits = torch.randn(2, 9)
    logits[1, 4] = math.nan
    assert kernels().elementwise.cross_entropy(logits, torch.tensor([[1], [2]]), 0.0).isnan()


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (64, 128), (7, 30)])
def test_lstm_gates_are_those_of_the_reference(rows: int, size: int, dropout: bool) -> None:
    """Compare forward and backward on strided slices, as a loop over time passes them."""
    found: list[list[Tensor]] = []
    for steps in (StepOps(), kernels().elementwise):
        torch.manual_seed(0)
        pre, c = 3 * torch.randn(rows, 2, 4 * size)[:, 1], torch.randn(rows, 2, size)[:, 0]
        after, h, above = (torch.zeros(rows, 3, size)[:, 2] for _ in range(3))
        kept = (torch.rand(rows, size) > 0.3).float() if dropout else None
        step = LSTMStep(pre, c, after, kept, 1.4)
        steps.lstm_gates(step, h, above)
        d_above, d_h, d_c = torch.randn(rows, 2, size)[:, 1], torch.randn(rows, size), torch.randn(rows, size)
        d_pre = torch.zeros(rows, 2, 4 * size)[:, 1]
        steps.lstm_gates_backward(step, d_above, d_h, d_c, d_pre)
        found.append([pre, after, h, above, d_pre, d_c])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_nan_propagates_through_lstm_gates() -> None:
    pre, c, after, h = torch.zeros(1, 8), torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)
    pre[0, 0] = math.nan
    pre[0, 3] = math.inf
    kernels().elementwise.lstm_gates(LSTMStep(pre, c, after), h, h)
    assert h[0, 0].isnan()
    assert torch.isfinite(h[0, 1])


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (64, 128), (7, 30)])
def test_tanh_is_that_of_the_reference(rows: int, size: int, dropout: bool) -> None:
    found: list[list[Tensor]] = []
    for steps in (StepOps(), kernels().elementwise):
        torch.manual_seed(0)
        z, d_out, d_fed = 3 * torch.randn(rows, size), torch.randn(rows, 2, size)[:, 1], torch.randn(rows, size + 3)
        kept = torch.rand(rows, size) > 0.4 if dropout else None
        out, fed, d_z = torch.zeros(rows, 2, size)[:, 0], torch.zeros(rows, size + 1)[:, :size], torch.zeros(rows, size)
        steps.attentional_tanh(z, out, fed, kept, 1.7 if dropout else 1.0)
        steps.attentional_tanh_backward(d_out, out, d_fed[:, 3:], kept, 1.7 if dropout else 1.0, d_z)
        found.append([out, fed, d_z])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_tanh_is_exact_near_zero_too() -> None:
    z = torch.logspace(-6, 1, 5001).repeat(2, 1)
    z[1] *= -1
    out = torch.empty_like(z)
    kernels().elementwise.attentional_tanh(z, out, torch.empty_like(z), None, 1.0)
    np.testing.assert_allclose(out.double().numpy(), np.tanh(z.double().numpy()), rtol=3e-7)


def test_lstm_states_are_exact_near_zero_too() -> None:
    size = 1001
    g = torch.logspace(-6, 1, size)[None]
    pre, after, h = torch.zeros(1, 4 * size), torch.empty(1, size), torch.empty(1, size)
    pre[:, 2 * size : 3 * size] = g
    kernels().elementwise.lstm_gates(LSTMStep(pre, torch.zeros(1, size), after), h, h)
    cell = np.tanh(g.double().numpy()) / 2  # the gates are open by half
    np.testing.assert_allclose(after.double().numpy(), cell, rtol=4e-7)
    np.testing.assert_allclose(h.double().numpy(), np.tanh(cell) / 2, rtol=8e-7)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "steps", "positions", "size"), [(1, 1, 1, 1), (3, 5, 7, 18), (4, 9, 2, 32), (2, 6, 3, 45)]
)
def test_weighted_sums_over_steps_are_those_of_the_reference(
    rows: int, steps: int, positions: int, size: int, transposed: bool
) -> None:
    torch.manual_seed(0)
    weights, x = torch.randn(rows, steps, positions), torch.randn(rows, steps, size + 4)
    x = x.transpose(0, 1).contiguous().transpose(0, 1) if transposed else x
    found = kernels().elementwise.attention_weighted_sum(weights, x[..., 4:])
    torch.testing.assert_close(found, StepOps().attention_weighted_sum(weights, x[..., 4:]), atol=1e-5, rtol=1e-5)


def test_products_with_a_known_bound_are_as_exact() -> None:
    torch.manual_seed(0)
    a, b = torch.rand(70, 300) - 0.5, torch.randn(300, 50)
    for most in (0.5, 1.0):
        assert product_error(kernels().mm(a, b, max_abs=most), a, b) < ROUNDING
        assert (
            product_error(
                kernels().add_mm(torch.zeros(300, 50), a.t(), b[:70], max_abs=most), a.t(), b[:70], torch.zeros(300, 50)
            )
            < ROUNDING
        )
    a[3, 5] = torch.nan
    assert kernels().mm(a, b, max_abs=1.0).isnan().sum() == 50


@pytest.mark.parametrize("window", [None, Window(2), Window(3, 1.5)])
@pytest.mark.parametrize(("rows", "source", "size", "width"), [(1, 1, 1, 1), (5, 7, 6, 9), (9, 33, 64, 40)])
def test_attention_is_that_of_the_reference(
    rows: int, source: int, size: int, width: int, window: Window | None
) -> None:
    found: list[list[Tensor]] = []
    for steps in (StepOps(), kernels().elementwise):
        torch.manual_seed(0)
        query, keys, values = (
            torch.randn(rows, 2, size)[:, 1],
            torch.randn(rows, source, size),
            torch.randn(rows, source, width),
        )
        mask = torch.rand(rows, source) > 0.4
        mask[0] = False  # an empty sentence
        weights, context = torch.zeros(rows, 2, source)[:, 0], torch.zeros(rows, 3, width)[:, 1]
        centre = None if window is None else torch.rand(rows) * source
        step = AttentionStep(keys, values, mask, weights, centre, window or Window())
        steps.attention(step, query, context)
        d_context, d_weights, d_query = torch.randn(rows, width), torch.randn(rows, source), torch.randn(rows, size)
        d_scores, d_all, d_centre = torch.zeros(rows, 2, source)[:, 1], torch.zeros(rows, size), torch.zeros(rows)
        d_position = d_centre if window is not None and window.sigma else None
        steps.attention_backward(step, AttentionGrads(d_context, d_weights, d_query, d_scores, d_all, d_position))
        found.append([weights, context, d_scores, d_all, d_centre])
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


LUONG: dict[str, Any] = {"config": "luong2015-global", "size": 24, "layers": 2}
MODELS: list[dict[str, Any]] = [
    LUONG,
    {**LUONG, "config": "luong2015-local-p", "layers": 1},
    {"config": "sutskever2014", "size": 20, "layers": 2},
    {"config": "vaswani2017-base", "size": 24, "layers": 2, "heads": 3},
    {"config": "default", "size": 24, "layers": 1, "heads": 2},
]


def compute_gradients(model: Any, seed: int) -> dict[str, Tensor]:
    """Return the gradients of a batch with ragged lengths."""
    torch.manual_seed(seed)
    lengths = torch.tensor([7, 1, 5])
    source = torch.randint(4, 40, (3, 7)) * (torch.arange(7) < lengths[:, None])
    target = torch.randint(4, 40, (3, 6))
    model.zero_grad()
    model.loss_sum(source, lengths, target[:, :-1], target[:, 1:]).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.usefixtures("fp16_products")
@pytest.mark.parametrize("options", MODELS, ids=lambda options: options["config"])
def test_fp16_gradients_are_near_those_of_fp32(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = accelerate(build(source_size=40, target_size=40, dropout=0.0, **options))
    exact = compute_gradients(model, 1)
    with use_fp16_gemm():
        rough = compute_gradients(model, 1)
    changed = 0
    for name, gradient in exact.items():
        error = (rough[name] - gradient).norm()
        assert error <= 0.06 * gradient.norm() + 1e-6, name  # in so small a batch one ReLU may change its sign
        changed += bool(error > 0)
    assert changed > len(exact) / 2, "the kernels were not used"


@pytest.mark.usefixtures("fp16_products")
def test_backward_outside_the_context_uses_the_products_of_forward() -> None:
    torch.manual_seed(0)
    model = accelerate(build(source_size=40, target_size=40, **LUONG))
    source, lengths = torch.randint(4, 40, (2, 5)), torch.tensor([5, 5])
    with use_fp16_gemm():
        loss = model.loss_sum(source, lengths, source, source)
        assert select_gemm(torch.zeros(1)) is not TORCH_GEMM
    assert select_gemm(torch.zeros(1)) is TORCH_GEMM
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


@pytest.mark.usefixtures("fp16_products")
def test_fp64_products_stay_exact() -> None:
    with use_fp16_gemm():
        assert select_gemm(torch.zeros(1, dtype=torch.float64)) is TORCH_GEMM
        assert isinstance(select_gemm(torch.zeros(1)), Fp16Gemm)


def test_kernels_use_pytorch_threads_with_identical_results(threads: int) -> None:
    path = native_build.find_torch_openmp()
    assert path is not None
    assert ctypes.CDLL(path).omp_get_max_threads() == threads
    torch.manual_seed(0)
    a, b = torch.randn(65, 300), torch.randn(300, 130)
    found = kernels().mm(a, b)
    torch.set_num_threads(1)
    assert torch.equal(found, kernels().mm(a, b)), threads


def test_mismatched_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="a product of 2 × 3 and 4 × 5 is not 2 × 5"):
        kernels().mm(torch.zeros(2, 3), torch.zeros(4, 5))
    with pytest.raises(ValueError, match="a product of 2 × 3 and 3 × 5 is not 2 × 4"):
        kernels().mm(torch.zeros(2, 3), torch.zeros(3, 5), out=torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"not torch\.float64 on cpu"):
        kernels().mm(torch.zeros(2, 3).double(), torch.zeros(3, 5))


def test_prepacked_matrix_gives_the_same_product() -> None:
    b = torch.randn(5, 30)
    panels = kernels().prepack(b)
    assert isinstance(panels, PackedPanels)
    assert torch.equal(kernels().mm(torch.eye(5), panels), kernels().mm(torch.eye(5), b))


def test_linear_layers_of_pytorch_stay_in_fp32() -> None:
    layer, x = nn.Linear(3, 4), torch.randn(2, 3)
    expected = layer(x)
    with use_fp16_gemm():
        assert torch.equal(layer(x), expected)
