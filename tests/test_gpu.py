"""The same on a GPU: numbers, training in bf16, and going on where a run was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import QUICK, files
from samples import translators
from test_fast_layer import CELLS

from regard.fast.layer import unrolled
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
