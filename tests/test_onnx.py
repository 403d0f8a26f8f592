"""Graphs of ONNX against the models they were made of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from conftest import Command, files
from samples import translators

from regard.errors import UserError
from regard.fast.graphs import ENCODER, STEP, export
from regard.fast.onnx_runtime import OnnxModel
from regard.models import build
from regard.runs import Run
from regard.search import BeamSearch, Hypothesis, sample, search
from regard.translate import engines, load

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in translators() if name != "vaswani2017-big"},
    "linguistic coverage": ("bahdanau2015", {"coverage": "linguistic"}),
    "neural coverage": ("bahdanau2015", {"coverage": "neural"}),
    "elman": ("luong2015-global", {"cell": "elman"}),
    "gru": ("luong2015-global", {"cell": "gru"}),
    "two layers": ("luong2015-global", {"layers": 2}),
    "two layers of heads": ("default", {"layers": 2}),
}
QUICK = (
    "luong2015-local-p",
    "xu2015-hard",
    "cho2014",
    "vaswani2017-base",
    "neural coverage",
    "two layers of heads",
    "gru",
)
SOURCES, LENGTHS = torch.randint(4, 20, (4, 9), generator=torch.manual_seed(1)), torch.tensor([9, 5, 1, 3])


def model(form: str) -> Any:
    """A model that has something to say."""
    name, changes = FORMS[form]
    heads = {"heads": 2} if name in ("default", "vaswani2017-base") else {}
    torch.manual_seed(0)
    made = build(name, 20, 30, **{"size": 16, "layers": 1, **heads, **changes}).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.4)
    return made


def same(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    """Asserts that tokens, scores and attention are the same."""
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)
        assert (one.attention is None) == (other.attention is None)
        if one.attention is not None and other.attention is not None:
            np.testing.assert_allclose(one.attention, other.attention, atol=1e-4)


def rolled(searched: Any) -> list[list[Hypothesis]]:
    """What is found where sources come in one after the other, while others are under way."""
    searching = BeamSearch(searched, beam=3, n_best=2, max_length=7)
    found: list[list[Hypothesis]] = [[] for _ in LENGTHS]
    for row, length in enumerate(LENGTHS.tolist()):
        searching.join(SOURCES[row : row + 1, :length], LENGTHS[row : row + 1])
        for index, some in searching.step():
            found[index] = some
    while searching.open:
        for index, some in searching.step():
            found[index] = some
    return found


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form in QUICK else pytest.mark.thorough) for form in FORMS]
)
def test_graphs_find_what_the_model_finds(form: str, tmp_path: Path) -> None:
    readable = model(form)
    export(readable, tmp_path)
    graphs: Any = OnnxModel(readable, tmp_path)
    wishes: dict[str, Any] = {"beam": 4, "n_best": 3, "max_length": 8}
    same(search(graphs, SOURCES, LENGTHS, **wishes), search(readable, SOURCES, LENGTHS, **wishes))
    same(search(graphs, SOURCES, LENGTHS, beam=1), search(readable, SOURCES, LENGTHS, beam=1))
    same(rolled(graphs), rolled(readable))
    drawn = [sample(one, SOURCES, LENGTHS, samples=2, seed=3, max_length=6) for one in (graphs, readable)]
    same(*drawn)


@pytest.mark.parametrize("name", ["luong2015-global", "bahdanau2015", "default"])
def test_bytes_are_smaller_and_nearly_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    readable: Any = build(name, 500, 500, size=64, layers=1).eval()
    sizes = {}
    for kind, int8 in (("fp32", False), ("int8", True)):
        export(readable, tmp_path / kind, int8)
        sizes[kind] = (tmp_path / kind / STEP).stat().st_size
        onnx.checker.check_model(str(tmp_path / kind / ENCODER))
    assert sizes["int8"] < 0.7 * sizes["fp32"]
    whole, small = (OnnxModel(readable, tmp_path / kind) for kind in ("fp32", "int8"))
    tokens = torch.tensor([5, 6, 7, 8])
    first, second = (one.decoder.step(one.encode(SOURCES, LENGTHS), tokens)[0] for one in (whole, small))
    assert 0 < (first - second).abs().max() < 0.1


def test_a_run_is_exported_and_translates_by_it(able: Run, corpus: Path, regard: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(able.folder, run)
    texts = files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:20]
    expected = [made.text for made in load(run).translate(texts)]
    done = regard("export", run, "--to", "onnx")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in engines.place(run, "onnx", "fp32").iterdir()) == [ENCODER, engines.STAMP, STEP]
    translator = load(run)
    assert isinstance(translator.engines[0], OnnxModel)  # from now on, without being asked for
    made = translator.translate(texts)
    assert [one.text for one in made] == expected
    assert all(one.alignment is not None for one in made)
    assert load(run, engine="torch").engines[0] is not translator.engines[0]
    said = regard("translate", run, "--engine", "onnx", "--precision", "int8", input="\n".join(texts[:3]) + "\n")
    assert len(said.stdout.splitlines()) == 3, said.stderr
    assert "engines/onnx-int8: made in" in said.stderr
    again = regard("translate", run, "--engine", "onnx", "--precision", "int8", input="\n".join(texts[:3]) + "\n")
    assert (again.stdout, again.stderr) == (said.stdout, "")


def test_graphs_of_other_weights_are_not_used(able: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(able.folder, run)
    readable = load(run, engine="torch").models[0]
    folder = engines.exported(readable, engines.place(run, "onnx", "fp32"), "fp32")
    assert engines.fresh(folder, readable)
    with torch.no_grad():
        next(readable.parameters()).add_(1.0)
    assert not engines.fresh(folder, readable)
    assert engines.engaged("auto", None, run, readable) is readable
    (folder / engines.STAMP).write_text("[", encoding="utf-8")
    assert not engines.fresh(folder, readable)


def test_an_export_elsewhere_has_all_it_needs(able: Run, regard: Command, tmp_path: Path) -> None:
    out = tmp_path / "graphs"
    assert regard("export", able.folder, "--out", out).returncode == 0
    assert {ENCODER, STEP, "tokenizer"} <= {path.name for path in out.iterdir()}
    again = regard("export", able.folder, "--out", out)
    assert (again.returncode, again.stderr) == (2, f"regard: {out} is there already; --out is a new folder\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["export", "--to", "tflite"], "--to is onnx or ctranslate2, not 'tflite'"),
        (["export", "--precision", "int4"], "the precision is fp32 or int8, not 'int4'"),
        (
            ["translate", "--engine", "torch", "--precision", "int8"],
            "int8 is a precision of the engines onnx",
        ),
        (["translate", "--precision", "bf16"], "the precision is fp32 or int8, not 'bf16'"),
        (["translate", "--engine", "ray", "--precision", "int8"], "--precision is not for --engine ray"),
    ],
)
def test_what_no_engine_has_is_refused(run: Run, regard: Command, options: list[str], message: str) -> None:
    done = regard(options[0], run.folder, *options[1:], input="The dog .\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_what_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"onnx is not installed: pip install 'regard\[export\]'"):
        load(run.folder, engine="onnx")
