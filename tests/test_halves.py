"""Products in half precision on a CPU, and what lies between them, against NumPy and PyTorch's own operations."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from regard.fast import compiled, quicken
from regard.fast.gates import Squashing, Window
from regard.fast.halves import library, way
from regard.fast.halves.product import Halved, Panels
from regard.fast.halves.way import halved, multiplying
from regard.fast.lstm import Unrolled
from regard.fast.output.rows import Losses, entropy
from regard.fast.packed.lean import Linear
from regard.fast.products import EXACT
from regard.models import build

# Of Σ |a||b|: both factors are rounded to eleven bits, and so is each of up to 256 sums, which rarely err the same way.
FOLDER = Path(library.__file__).parent
ROUNDING = 8 * 2**-11


@cache
def ours() -> Halved:
    """The kernels, compiled once, to the cache of these tests; they make small products, too."""
    try:
        return Halved(library.library(), few=1)
    except compiled.MissingError as error:  # on a processor of ARM's without half precision
        pytest.skip(str(error))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products within `halved` are these, however small."""
    monkeypatch.setattr(way, "halves", ours)


def off(found: Tensor, a: Tensor, b: Tensor, before: Tensor | None = None) -> float:
    """How far a product is off, at its worst, of the sum of its terms' sizes."""
    left, right = a.double().numpy(), b.double().numpy()
    exact = left @ right + (0 if before is None else before.double().numpy())
    size = np.abs(left) @ np.abs(right) + (0 if before is None else np.abs(before.double().numpy()))
    return float((np.abs(found.double().numpy() - exact) / np.maximum(size, 1e-300)).max(initial=0))


def matrix(rows: int, columns: int, form: str, scale: float = 1.0) -> Tensor:
    """Random numbers, which may lie in memory in several ways."""
    shapes = {
        "rows": (rows, columns),
        "columns": (columns, rows),
        "apart": (rows, columns + 3),
        "strided": (rows, 2 * columns),
    }
    x = scale * torch.randn(shapes[form])
    return {"rows": x, "columns": x.t(), "apart": x[:, :columns], "strided": x[:, ::2]}[form]


FORMS = st.sampled_from(["rows", "columns", "apart", "strided"])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 300), st.integers(1, 70), FORMS, FORMS, st.sampled_from([1e-12, 1.0, 1e9]),
    st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_products_are_those_of_numpy(
    m: int, k: int, n: int, left: str, right: str, scale: float, often: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    a, b = matrix(m, k, left, scale), matrix(k, n, right)
    assert off(ours().mm(a, ours().often(b) if often else b), a, b) < ROUNDING
    there = torch.full((m, n + 5), 7.0)
    assert off(ours().mm(a, b, out=there[:, :n]), a, b) < ROUNDING
    assert (there[:, n:] == 7).all(), "nothing is written beside"
    c = matrix(m, n, "apart", scale)
    before = c.clone()
    assert off(ours().add(c, a, b), a, b, before) < ROUNDING
    bias = scale * torch.randn(n)
    assert off(ours().affine(a, b, bias), a, b, bias.expand(m, n)) < ROUNDING


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many of PyTorch's, which the kernels share."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("k", [1023, 1024, 1025, 3000])
def test_long_sums_lose_no_more(k: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(9, k), torch.randn(k, 25)
    assert off(ours().mm(a, b), a, b) < ROUNDING
    assert off(ours().mm(a.abs(), b.abs()), a.abs(), b.abs()) < 0.02, (
        "all of one sign: sums of 256 grow, and so do errors"
    )


def test_no_sum_of_halves_overflows() -> None:
    a, b = torch.full((8, 256), 65504.0), torch.full((256, 24), 1.999)
    assert torch.isfinite(ours().mm(a, b)).all()
    assert off(ours().mm(a, b), a, b) < 0.02


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(1, 60), st.integers(1, 60), FORMS)
def test_slopes_are_those_of_an_affine_map(rows: int, into: int, out: int, form: str) -> None:
    torch.manual_seed(0)
    dy, x = matrix(rows, out, form), torch.randn(rows, into)
    weight, bias = ours().slopes(dy, x)
    assert off(weight, dy.t(), x) < ROUNDING
    torch.testing.assert_close(bias, dy.sum(0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_lost(strange: float) -> None:
    a, b = torch.randn(9, 40), torch.randn(40, 30)
    a[3, 7] = strange
    found = ours().mm(a, b)
    assert not torch.isfinite(found[3]).any()
    others = torch.cat((found[:3], found[4:]))
    assert torch.isfinite(others).all()
    if math.isnan(strange):
        torch.testing.assert_close(others, torch.cat((a[:3], a[4:])) @ b, atol=0.1, rtol=0.01)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_matrices_without_numbers(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    found = ours().mm(torch.randn(m, k), torch.randn(k, n))
    assert torch.equal(found, torch.zeros(m, n))


@pytest.mark.parametrize("left", [1e-36, 1e-20, 1e-5, 1e10, 1e30])
@pytest.mark.parametrize("right", [1e-30, 1.0, 1e5])
def test_small_and_large_numbers_are_as_exact(left: float, right: float) -> None:
    torch.manual_seed(0)
    a, b = left * torch.randn(9, 50), right * torch.randn(50, 30)
    if left * right >= 1e-36:
        assert off(ours().mm(a, b), a, b) < ROUNDING
    else:
        assert (ours().mm(a, b).abs() < 1e-34).all()


def test_numbers_that_are_seen_many_times() -> None:
    """As gradients of a sum are: one number, or one row, in every place."""
    torch.manual_seed(0)
    one, row, b = torch.tensor(2.0).expand(9, 40), torch.randn(40).expand(9, 40), torch.randn(40, 30)
    for a in (one, row):
        assert off(ours().mm(a, b), a, b) < ROUNDING
        assert off(ours().mm(b.t(), a.t()), b.t(), a.t()) < ROUNDING
        weight, bias = ours().slopes(a, torch.ones(9, 3))
        torch.testing.assert_close(weight, a.t() @ torch.ones(9, 3), atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(bias, a.sum(0))


@pytest.mark.parametrize("rows", [0, 4])
def test_an_affine_map_of_nothing_and_gradients_that_are_one_number(rows: int) -> None:
    x, W, b = torch.ones(rows, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True), torch.ones(2)
    Linear.apply(x, W, b.requires_grad_(), ours()).sum().backward()  # type: ignore[no-untyped-call]
    assert b.grad is not None
    assert W.grad is not None
    assert (b.grad == rows).all()
    assert (W.grad == rows).all()


@pytest.mark.parametrize("rows", [0, 3])
def test_an_lstm_begins_with_whatever_lies_anywhere(rows: int) -> None:
    torch.manual_seed(0)
    x, W, U, b = torch.randn(rows, 4, 5), torch.randn(8, 5), torch.randn(8, 2), torch.randn(8)
    for begin in (torch.randn(2, rows).t(), torch.tensor(0.5).expand(rows, 2)):
        found = []
        for by in (EXACT, ours()):
            given = [x.clone().requires_grad_(), begin.clone().requires_grad_(), begin.detach().requires_grad_()]
            states, cells = Unrolled.apply(*given, W, U, b, by)  # type: ignore[no-untyped-call]
            found.append([states, *torch.autograd.grad(states.sum() + cells[:, -1].sum(), given)])
        torch.testing.assert_close(found[1], found[0], atol=0.05, rtol=0.05)


def test_a_loss_of_whatever_lies_anywhere() -> None:
    torch.manual_seed(0)
    h, weight, targets = torch.randn(6, 9).t(), torch.randn(6, 30).t(), torch.randint(4, 30, (9,))
    found = []
    for by in (EXACT, ours()):
        given = [h.detach().requires_grad_(), weight.detach().requires_grad_()]
        loss = Losses.apply(*given, None, targets, 0.1, True, by)  # type: ignore[no-untyped-call]
        found.append([loss, *torch.autograd.grad(loss, given)])
    torch.testing.assert_close(found[1], found[0], atol=0.05, rtol=0.05)


def test_small_products_are_pytorch_s() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    usual = Halved(library.library())
    assert torch.equal(usual.mm(a, usual.often(b)), a @ b)
    assert isinstance(usual.often(torch.randn(256, 256)), Panels)
    weight, bias = usual.slopes(a, a)
    torch.testing.assert_close([weight, bias], [a.t() @ a, a.sum(0)])


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_a_single_row_or_column_wherever_it_lies(shape: tuple[int, int]) -> None:
    a = torch.randn(20, 11)[: 3 * shape[0] : 3, : 2 * shape[1] : 2][: shape[0], : shape[1]]
    b = torch.randn(shape[1], 4)
    assert off(ours().mm(a, b), a, b) < ROUNDING
    assert torch.allclose(ours().slopes(a, torch.ones(shape[0], 2))[1], a.sum(0))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 70), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([0.1, 3.0, 60.0]))
def test_entropy_is_the_readable_one(rows: int, words: int, smoothing: float, spread: float) -> None:
    torch.manual_seed(rows)
    logits, targets = spread * torch.randn(rows, words + 2)[:, :words], torch.randint(words, (rows, 1))
    here, there = logits.clone(), torch.cat((logits, torch.ones(rows, 2)), 1)[:, :words]
    torch.testing.assert_close(
        ours().between.entropy(there, targets, smoothing), entropy(here, targets, smoothing), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(there, here, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("target", [9, -1, 400_000_000])
def test_targets_that_are_no_words_are_named(target: int) -> None:
    with pytest.raises(IndexError, match=rf"targets from {min(target, 1)} to {max(target, 1)}, but there are 9 words"):
        ours().between.entropy(torch.randn(2, 9), torch.tensor([[1], [target]]), 0.1)


def test_targets_may_be_shorter_numbers_and_words_forbidden() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 9), torch.tensor([[1], [2], [8]])
    logits[:, 4] = -math.inf
    expected = entropy(logits.clone(), targets, 0.0)
    torch.testing.assert_close(ours().between.entropy(logits, targets.int(), 0.0), expected)


def test_the_default_precision_has_no_say() -> None:
    torch.manual_seed(0)
    a, b, logits, targets = torch.randn(9, 5), torch.randn(5, 7), torch.randn(2, 9), torch.tensor([[1], [2]])
    expected = entropy(logits.clone(), targets, 0.1)
    torch.set_default_dtype(torch.float64)
    try:
        assert off(ours().mm(a, b), a, b) < ROUNDING
        assert ours().slopes(a, a)[1].dtype == torch.float32
        torch.testing.assert_close(ours().between.entropy(logits, targets, 0.1), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_zeros_stay_zeros_beside_what_is_too_large() -> None:
    a, b = torch.full((3, 4), 2.0**124), torch.full((4, 3), 2.0**124)
    a[1] = 0
    assert (ours().mm(a, b)[1] == 0).all()


def test_a_loss_that_is_no_number_is_none() -> None:
    logits = torch.randn(2, 9)
    logits[1, 4] = math.nan
    assert ours().between.entropy(logits, torch.tensor([[1], [2]]), 0.0).isnan()


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (64, 128), (7, 30)])
def test_gates_are_the_readable_ones(rows: int, size: int, dropout: bool) -> None:
    """There and back, to places that lie apart, as a loop's do."""
    found: list[list[Tensor]] = []
    for steps in (Squashing(), ours().between):
        torch.manual_seed(0)
        pre, c = 3 * torch.randn(rows, 2, 4 * size)[:, 1], torch.randn(rows, 2, size)[:, 0]
        after, h, above = (torch.zeros(rows, 3, size)[:, 2] for _ in range(3))
        kept = (torch.rand(rows, size) > 0.3).float() if dropout else None
        steps.lstm(pre, c, after, h, above, kept, 1.4)
        d_above, d_h, d_c = torch.randn(rows, 2, size)[:, 1], torch.randn(rows, size), torch.randn(rows, size)
        d_pre = torch.zeros(rows, 2, 4 * size)[:, 1]
        steps.lstm_back(pre, c, after, d_above, kept, 1.4, d_h, d_c, d_pre)
        found.append([pre, after, h, above, d_pre, d_c])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_gates_keep_what_is_no_number() -> None:
    pre, c, after, h = torch.zeros(1, 8), torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)
    pre[0, 0] = math.nan
    pre[0, 3] = math.inf
    ours().between.lstm(pre, c, after, h, h, None, 1.0)
    assert h[0, 0].isnan()
    assert torch.isfinite(h[0, 1])


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (64, 128), (7, 30)])
def test_tanh_is_the_readable_one(rows: int, size: int, dropped: bool) -> None:
    found: list[list[Tensor]] = []
    for steps in (Squashing(), ours().between):
        torch.manual_seed(0)
        z, d_out, d_fed = 3 * torch.randn(rows, size), torch.randn(rows, 2, size)[:, 1], torch.randn(rows, size + 3)
        kept = torch.rand(rows, size) > 0.4 if dropped else None
        out, fed, d_z = torch.zeros(rows, 2, size)[:, 0], torch.zeros(rows, size + 1)[:, :size], torch.zeros(rows, size)
        steps.squash(z, out, fed, kept, 1.7 if dropped else 1.0)
        steps.squash_back(d_out, out, d_fed[:, 3:], kept, 1.7 if dropped else 1.0, d_z)
        found.append([out, fed, d_z])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("rows", "steps", "places", "size"), [(1, 1, 1, 1), (3, 5, 7, 18), (4, 9, 2, 32), (2, 6, 3, 45)]
)
def test_sums_over_steps_are_the_readable_ones(rows: int, steps: int, places: int, size: int, apart: bool) -> None:
    torch.manual_seed(0)
    weights, x = torch.randn(rows, steps, places), torch.randn(rows, steps, size + 4)
    x = x.transpose(0, 1).contiguous().transpose(0, 1) if apart else x
    found = ours().between.gather(weights, x[..., 4:])
    torch.testing.assert_close(found, Squashing().gather(weights, x[..., 4:]), atol=1e-5, rtol=1e-5)


def test_numbers_of_a_known_size_need_not_be_looked_through() -> None:
    """A bound leaves as many digits as there are below it; what is no number stays that."""
    torch.manual_seed(0)
    a, b = torch.rand(70, 300) - 0.5, torch.randn(300, 50)
    for most in (0.5, 1.0):
        assert off(ours().mm(a, b, most=most), a, b) < ROUNDING
        assert (
            off(ours().add(torch.zeros(300, 50), a.t(), b[:70], most=most), a.t(), b[:70], torch.zeros(300, 50))
            < ROUNDING
        )
    a[3, 5] = torch.nan
    assert ours().mm(a, b, most=1.0).isnan().sum() == 50


@pytest.mark.parametrize("window", [None, Window(2), Window(3, 1.5)])
@pytest.mark.parametrize(("rows", "source", "size", "width"), [(1, 1, 1, 1), (5, 7, 6, 9), (9, 33, 64, 40)])
def test_looks_are_the_readable_ones(rows: int, source: int, size: int, width: int, window: Window | None) -> None:
    found: list[list[Tensor]] = []
    for steps in (Squashing(), ours().between):
        torch.manual_seed(0)
        query, keys, values = (
            torch.randn(rows, 2, size)[:, 1],
            torch.randn(rows, source, size),
            torch.randn(rows, source, width),
        )
        mask = torch.rand(rows, source) > 0.4
        mask[0] = False  # a sentence without words
        weights, context = torch.zeros(rows, 2, source)[:, 0], torch.zeros(rows, 3, width)[:, 1]
        centre = None if window is None else torch.rand(rows) * source
        look = (centre, window or Window())
        steps.look(query, keys, values, mask, weights, context, *look)
        d_context, d_weights, d_query = torch.randn(rows, width), torch.randn(rows, source), torch.randn(rows, size)
        d_scores, d_all, d_centre = torch.zeros(rows, 2, source)[:, 1], torch.zeros(rows, size), torch.zeros(rows)
        bent = d_centre if window is not None and window.sigma else None
        steps.look_back(d_context, d_weights, weights, keys, values, d_query, d_scores, d_all, *look, bent)
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


def slopes(model: Any, seed: int) -> dict[str, Tensor]:
    """The gradients of a batch with ragged lengths."""
    torch.manual_seed(seed)
    lengths = torch.tensor([7, 1, 5])
    source = torch.randint(4, 40, (3, 7)) * (torch.arange(7) < lengths[:, None])
    target = torch.randint(4, 40, (3, 6))
    model.zero_grad()
    model.summed(source, lengths, target[:, :-1], target[:, 1:]).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("form", MODELS, ids=str)
def test_a_model_learns_by_them_what_it_learns_without(form: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = quicken(build(source_size=40, target_size=40, dropout=0.0, **form))
    exact = slopes(model, 1)
    with halved():
        rough = slopes(model, 1)
    changed = 0
    for name, slope in exact.items():
        error = (rough[name] - slope).norm()
        assert error <= 0.06 * slope.norm() + 1e-6, name  # in so small a batch one unit may bend the other way
        changed += bool(error > 0)
    assert changed > len(exact) / 2, "they were taken"


@pytest.mark.usefixtures("chosen")
def test_the_way_back_is_by_those_that_went_there() -> None:
    torch.manual_seed(0)
    model = quicken(build(source_size=40, target_size=40, **LUONG))
    source, lengths = torch.randint(4, 40, (2, 5)), torch.tensor([5, 5])
    with halved():
        loss = model.summed(source, lengths, source, source)
        assert multiplying(torch.zeros(1)) is not EXACT
    assert multiplying(torch.zeros(1)) is EXACT
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


@pytest.mark.usefixtures("chosen")
def test_double_precision_stays_what_it_is() -> None:
    with halved():
        assert multiplying(torch.zeros(1, dtype=torch.float64)) is EXACT
        assert isinstance(multiplying(torch.zeros(1)), Halved)


def test_threads_are_those_of_pytorch(threads: int) -> None:
    """As many as PyTorch was told to have; and the same sums, whoever makes them."""
    path = compiled.shared_threads()
    assert path is not None
    assert ctypes.CDLL(path).omp_get_max_threads() == threads
    torch.manual_seed(0)
    a, b = torch.randn(65, 300), torch.randn(300, 130)
    found = ours().mm(a, b)
    torch.set_num_threads(1)
    assert torch.equal(found, ours().mm(a, b)), threads


def test_what_was_compiled_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    first = compiled.kept(FOLDER, compiled.FLAGS)
    stamp = first.stat().st_mtime_ns
    assert compiled.kept(FOLDER, compiled.FLAGS) == first
    assert first.stat().st_mtime_ns == stamp
    monkeypatch.setattr(compiled, "processor", lambda: "another")
    assert compiled.kept(FOLDER, compiled.FLAGS) != first


def test_matrices_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="a product of 2 × 3 and 4 × 5 is not 2 × 5"):
        ours().mm(torch.zeros(2, 3), torch.zeros(4, 5))
    with pytest.raises(ValueError, match="a product of 2 × 3 and 3 × 5 is not 2 × 4"):
        ours().mm(torch.zeros(2, 3), torch.zeros(3, 5), out=torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"not torch\.float64 on cpu"):
        ours().mm(torch.zeros(2, 3).double(), torch.zeros(3, 5))


def test_panels_are_of_a_matrix_that_is_multiplied_often() -> None:
    b = torch.randn(5, 30)
    panels = ours().often(b)
    assert isinstance(panels, Panels)
    assert torch.equal(ours().mm(torch.eye(5), panels), ours().mm(torch.eye(5), b))


def test_a_layer_of_pytorch_s_own_is_left_alone() -> None:
    layer, x = nn.Linear(3, 4), torch.randn(2, 3)
    expected = layer(x)
    with halved():
        assert torch.equal(layer(x), expected)
