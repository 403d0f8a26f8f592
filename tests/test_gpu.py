"""The same on a GPU: numbers, training in bf16, and going on where a run was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import QUICK, files
from samples import translators
from test_fast_layer import CELLS
from test_fast_packed import batch, everything
from test_fast_packed import model as transformer

from regard.fast import quicken
from regard.fast.layer import unrolled
from regard.fast.packed import plain, way
from regard.fast.packed.spans import spans
from regard.models import build
from regard.nn import parts
from regard.nn.recurrent import unroll
from regard.search import search
from regard.symbols import BOS
from regard.training import train
from regard.translate import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU"),
]
NAMES = [name for name in translators() if name != "vaswani2017-big"]


def small(name: str) -> dict[str, Any]:
    return {**QUICK, **({"model.heads": 2} if name in ("vaswani2017-base", "default") else {})}


@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_gives_the_cpus_numbers(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 20, 30, size=16, layers=2).eval()
    with torch.no_grad():  # with the papers' first weights all words are equally likely, and the order is chance
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    source, lengths = torch.randint(4, 20, (3, 7)), torch.tensor([7, 4, 1])
    target = torch.randint(4, 30, (3, 5))
    target[:, 0] = BOS
    with torch.no_grad():
        expected = model(source, lengths, target)
        best = search(model, source, lengths, beam=4, n_best=2, max_length=8)
        model = model.cuda()
        found = model(source.cuda(), lengths.cuda(), target.cuda()).cpu()
        there = search(model, source.cuda(), lengths.cuda(), beam=4, n_best=2, max_length=8)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert [[hypothesis.tokens for hypothesis in row] for row in there] == [[h.tokens for h in row] for row in best]


@pytest.mark.parametrize("name", NAMES)
def test_training_in_bf16_goes_on_and_translates(name: str, corpus: Path, tmp_path: Path) -> None:
    first = {**small(name), "training.steps": 10}
    run = train(name, files(corpus, "train"), tmp_path / "run", dev=files(corpus, "dev"), **first)
    more: dict[str, Any] = {"training.steps": 24}
    run = train(name, None, run.folder, resume=True, **more)
    losses = [row["loss"] for row in run.metrics() if row["kind"] == "dev"]
    assert losses[-1] < losses[0]
    looks = load(run.folder).translate(["The dog sleeps ."])[0].alignment is not None
    assert looks == (name not in ("sutskever2014", "cho2014"))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_a_layers_kernel_gives_the_loops_numbers_and_gradients(name: str, dtype: torch.dtype, close: float) -> None:
    def everything(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        cell = CELLS[name](24, 40).cuda()
        x = torch.randn(5, 17, 24).cuda().requires_grad_()
        lengths = torch.tensor([17, 1, 9, 0, 3]).cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            outputs, last = run(cell, x, lengths, None)
        found = [outputs, *parts(last)]
        sum(part.float().square().sum() for part in found).backward()
        return [*found, x.grad, *(parameter.grad for parameter in cell.parameters())]

    torch.backends.cudnn.allow_tf32 = False
    fast = everything(unrolled)
    assert fast[0].dtype == dtype
    for found, expected in zip(fast, everything(unroll), strict=True):
        assert (found.float() - expected.float()).norm() <= close * expected.float().norm() + 1e-7


def test_a_model_takes_the_kernels_and_learns_as_without(corpus: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def losses(fast: str) -> list[float]:
        monkeypatch.setenv("REGARD_FAST", fast)
        changes: dict[str, Any] = {**QUICK, "training.precision": "fp32", "model.dropout": 0.0, "training.steps": 10}
        run = train("luong2015-global", files(corpus, "train"), tmp_path / fast, dev=files(corpus, "dev"), **changes)
        return [row["loss"] for row in run.metrics()]

    assert losses("1") == pytest.approx(losses("0"), rel=1e-3)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "FIRST", 0)


PACKED = (([5, 1, 3, 4], [2, 6, 1, 3]), ([1], [1]), ([40, 17, 33], [50, 64, 2]), ([150, 3], [140, 9]))


def errors(found: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    """How far each tensor is off, as a share of its length."""
    return torch.stack([(a.double() - b).norm() / (b.norm() + 1e-6) for a, b in zip(found, exact, strict=True)])


def exactly(norm: str, r_drop: float, given: Any) -> list[torch.Tensor]:
    """What double precision says."""
    made = transformer(norm, r_drop).double().cuda()
    return everything(made, made.summed(*given))


def close_but_for_bends(found: torch.Tensor) -> bool:
    """A hidden unit that is all but 0 may go either way, and changes its gradients by a thousandth."""
    return bool((found < 1e-5).float().mean() > 0.8 and found.max() < 5e-3)


@pytest.mark.parametrize("lengths", PACKED, ids=str)
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_packed_transformer_gives_the_readable_loss_and_gradients(norm: str, r_drop: float, lengths: Any) -> None:
    made = transformer(norm, r_drop).cuda()
    given = tuple(tensor.cuda() for tensor in batch(*lengths))
    exact = exactly(norm, r_drop, given)
    with torch.autocast("cuda", torch.bfloat16):
        loss = made.summed(*given)
    readable = errors(everything(made, loss), exact)
    quicken(made)
    assert close_but_for_bends(errors(everything(made, made.summed(*given)), exact))
    with torch.autocast("cuda", torch.bfloat16):
        loss = made.summed(*given)
    found = everything(made, loss)
    assert {each.dtype for each in found} == {torch.float32}
    packed = errors(found, exact)
    assert packed.mean() < 1.3 * readable.mean() + 1e-3  # bf16 is off by some hundredths either way


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_recorded_updates_are_the_readable_ones(norm: str, r_drop: float) -> None:
    made = transformer(norm, r_drop).cuda()
    lengths = (([29, 9, 26], [17, 20, 30]), ([29, 7, 28], [19, 20, 28]), ([28, 8, 27], [17, 20, 29]))
    batches = [tuple(tensor.cuda() for tensor in batch(*each)) for each in lengths]
    expected = [exactly(norm, r_drop, given) for given in batches]
    quicken(made)
    for _ in range(4):
        for given, exact in zip(batches, expected, strict=True):
            assert close_but_for_bends(errors(everything(made, made.summed(*given)), exact))
    assert isinstance(made.way, way.Packed)
    assert len(made.way.recorder.recordings) == 1


def test_two_losses_may_be_added_up_before_the_way_back() -> None:
    made = transformer("pre").cuda()
    one, other = (tuple(tensor.cuda() for tensor in batch([s, 3], [7, 5])) for s in (9, 4))
    double = transformer("pre").double().cuda()
    exact = everything(double, double.summed(*one) + 2 * double.summed(*other))
    quicken(made)
    for _ in range(5):
        assert close_but_for_bends(errors(everything(made, made.summed(*one) + 2 * made.summed(*other)), exact))


def test_recorded_dropout_is_drawn_anew_and_follows_the_seed() -> None:
    made = transformer("pre").cuda()
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.4
    given = tuple(tensor.cuda() for tensor in batch([5, 3], [7, 5]))
    quicken(made)
    for _ in range(5):
        made.summed(*given)
    assert isinstance(made.way, way.Packed)
    assert made.way.recorder.recordings
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append((made.summed(*given).item(), made.summed(*given).item()))
    assert losses[0] == losses[2]
    assert len({*losses[0], *losses[1]}) == 4


@pytest.mark.parametrize("r_drop", [0.0, 1.5])
def test_the_loss_of_an_output_layer_is_added_up_in_pieces(r_drop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.fast.packed import fused

    monkeypatch.setattr(fused, "LOGITS", 5 * 10_007)
    torch.manual_seed(0)
    h, weight = torch.randn(14, 24).cuda(), torch.randn(10_007, 24).cuda()
    targets = torch.tensor([4, 5, 0, 7, 10_006, 4, 9]).repeat(2).cuda()

    def gradients(losses: Any) -> list[torch.Tensor]:
        leaves = [h.clone().requires_grad_(), weight.clone().requires_grad_()]
        loss = losses(*leaves, targets, 0.1, r_drop)
        (loss * 0.25).backward()
        return [loss.detach(), *(leaf.grad for leaf in leaves)]

    torch.testing.assert_close(gradients(fused.losses), gradients(plain.losses), rtol=1e-4, atol=1e-5)


def test_dropout_drops_its_share_and_the_same_on_the_way_back() -> None:
    from regard.fast.packed import fused

    torch.manual_seed(0)
    x, weight = torch.randn(300, 40).cuda(), torch.ones(40).cuda()
    y = torch.randn(300, 40).cuda().requires_grad_()
    zero = torch.zeros(40).cuda()
    s, n = fused.add_norm(x, y, zero, weight, zero, 1e-5, 0.3, False)
    kept = (s - x) != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    torch.testing.assert_close(s, x + y.detach() * kept / 0.7)
    torch.autograd.backward([s, n], [torch.ones_like(s), torch.zeros_like(n)])
    torch.testing.assert_close(y.grad, kept / 0.7)


def test_sentences_beside_each_other_do_not_see_each_other() -> None:
    from regard.fast.packed import fused

    torch.manual_seed(0)
    rows = spans(torch.tensor([3, 5, 2]).cuda(), 10, 5)
    qkv = torch.randn(10, 3 * 24).cuda()
    first = fused.attend_self(qkv, rows, 3, True)
    qkv[8:] = torch.inf
    torch.testing.assert_close(fused.attend_self(qkv, rows, 3, True)[:8], first[:8], rtol=0, atol=0)


def test_a_transformer_learns_packed_as_it_does_readably(corpus: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def losses(fast: str) -> list[float]:
        monkeypatch.setenv("REGARD_FAST", fast)
        changes: dict[str, Any] = {**small("default"), "training.precision": "fp32", "model.dropout": 0.0}
        changes |= {"training.steps": 10, "loss.r_drop": 1.0}
        run = train("default", files(corpus, "train"), tmp_path / fast, dev=files(corpus, "dev"), **changes)
        return [row["loss"] for row in run.metrics()]

    assert losses("1") == pytest.approx(losses("0"), rel=1e-3)
    assert way.parts() is not None
