"""Graphs of ONNX against the models they were made of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.commands import Command
from support.corpora import translation_recipes
from support.training import corpus_files

from regard.data.corpus import pairs
from regard.errors import UserError
from regard.fast.folding import fold
from regard.fast.graphs import export
from regard.fast.norms import spell_out
from regard.fast.onnx_runtime import OnnxModel
from regard.fast.states import ENCODER, STEP
from regard.models import build
from regard.runs import Run
from regard.search import BeamSearch, Hypothesis, sample, search, search_among
from regard.translate import engines, load
from regard.translate.shortlist import learned

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in translation_recipes() if name != "vaswani2017-big"},
    "linguistic coverage": ("bahdanau2015", {"coverage": "linguistic"}),
    "neural coverage": ("bahdanau2015", {"coverage": "neural"}),
    "elman": ("luong2015-global", {"cell": "elman"}),
    "gru": ("luong2015-global", {"cell": "gru"}),
    "two layers": ("luong2015-global", {"layers": 2}),
    "two layers of heads": ("default", {"layers": 2}),
    "tied": ("bahdanau2015", {"tie": True, "maxout": 16}),
    "nothing tied": ("vaswani2017-base", {"tie": "none"}),
}
QUICK = (
    "luong2015-local-p",
    "two layers of heads",
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
    for words in ([5, 9, 14, 20, 29], range(30)):
        for beam in (1, 4):
            same(*(search_among(words, [one], SOURCES, LENGTHS, beam=beam, n_best=beam) for one in (graphs, readable)))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("luong2015-global", {}),
        ("luong2015-global", {"tie": True}),
        *(pytest.param(name, {}, marks=pytest.mark.thorough) for name in ("bahdanau2015", "default")),
        pytest.param("bahdanau2015", {"tie": True, "embedding": 32}, marks=pytest.mark.thorough),
    ],
)
def test_bytes_are_smaller_and_nearly_the_same(name: str, form: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    readable: Any = build(name, 500, 500, size=64, layers=1, **form).eval()
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
    _, rows = small.opened
    assert {some.weights.itemsize for some in rows.values() if some.weights.ndim == 2} == {1}
    words = [0, 1, 2, 3, 5, 6, 7, 8, *range(90, 490, 7)]
    among, places = small.narrowed(words), torch.arange(4, 8)  # where the same tokens are now
    few = among.decoder.step(among.encode(SOURCES, LENGTHS), places)[0]
    torch.testing.assert_close(few, second[:, words].log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_an_encoders_lstm_is_bytes_too(tmp_path: Path) -> None:
    export(build("luong2015-global", 50, 50, size=16, layers=1).eval(), tmp_path, int8=True)
    nodes = {node.op_type for node in onnx.load(tmp_path / ENCODER).graph.node}
    assert "DynamicQuantizeLSTM" in nodes
    assert not {"LSTM", "Split"} & nodes  # weights are in their order already


def test_a_transformers_weights_are_all_bytes_and_no_step_takes_its_heads_apart(tmp_path: Path) -> None:
    export(model("two layers of heads"), tmp_path, int8=True)
    for name in (ENCODER, STEP):
        graph = onnx.load(tmp_path / name).graph
        weights = {weight.name for weight in graph.initializer}
        assert not [node.name for node in graph.node if node.op_type == "MatMul" and weights & set(node.input)]
    given = {one.name for one in graph.input if one.name.endswith(("keys", "values"))}
    assert len(given) == 8  # of two layers, over the source and over the words so far
    readers = [node for node in graph.node if given & set(node.input)]
    assert {node.op_type for node in readers} == {"Transpose", "MatMul", "Concat", "Shape"}
    turned = [node.attribute[0].ints for node in readers if node.op_type == "Transpose"]
    assert turned == [[0, 1, 3, 2]] * 2  # which a product does by itself


def test_a_source_without_a_word_shows_nothing_in_graphs(tmp_path: Path) -> None:
    readable = model("two layers of heads")
    export(readable, tmp_path)
    graphs, lengths = OnnxModel(readable, tmp_path), torch.tensor([9, 0])
    tokens = torch.tensor([5, 6])
    found = graphs.decoder.step(graphs.encode(SOURCES[:2], lengths), tokens)
    expected = readable.decoder.step(readable.decoder.start(readable.encode(SOURCES[:2], lengths)), tokens)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert found[2] is not None
    torch.testing.assert_close(found[2].weights, expected[2].weights, rtol=1e-4, atol=1e-4)
    assert not found[2].weights[1].any()


def test_norms_are_spelt_out_and_stay_so(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[N, 3, 4] x) => (float[N, 3, 4] y, float[N, 3, 4] z)
        <float[4] g = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}, float[3, 4] h = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}>
        { v = LayerNormalization <axis = -1, epsilon = 0.25> (x, g, b)
          y = LayerNormalization (v, g)
          z = LayerNormalization <axis = 1> (y, h, h) }
        """
    )
    x = np.random.default_rng(0).normal(5, 2, (2, 3, 4)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    spell_out(made.graph)
    onnx.checker.check_model(made)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(made.SerializeToString(), options)
    for graph in (made.graph, onnx.load(tmp_path / "optimized.onnx").graph):
        assert [node.op_type for node in graph.node].count("LayerNormalization") == 1  # over two dimensions
    for found, wanted in zip(onnx.reference.ReferenceEvaluator(made).run(None, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_what_is_known_beforehand_is_computed_beforehand_but_nothing_random_is() -> None:
    made = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[N, 2] x) => (float[3] y, float[3, 2] z, float[2, 3] r)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}, float[2, 3] spare = {0, 0, 0, 0, 0, 0}>
        { v = Transpose <perm = [1, 0]> (w)
          place = Squeeze (one)
          y = Gather <axis = 1> (v, place)
          z = Add (x, v)
          r = RandomNormalLike (w) }
        """
    )
    fold(made)
    assert [node.op_type for node in made.graph.node] == ["Gather", "Add", "RandomNormalLike"]
    known = {weight.name: onnx.numpy_helper.to_array(weight) for weight in made.graph.initializer}
    assert known.keys() == {"v", "place", "w"}
    assert known["place"].shape == ()
    np.testing.assert_array_equal(known["v"], [[1, 4], [2, 5], [3, 6]])


@pytest.fixture(scope="module")
def exported(fluent_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with its graphs; nobody changes it."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(fluent_run.folder, folder)
    for precision in ("fp32", "int8"):
        engines.exported(opened(folder), precision)
    return Run(folder)


def opened(folder: Path) -> engines.Opened:
    """A run, loaded."""
    translator = load(folder)
    return engines.Opened(Run(folder), translator.models[0], translator.tokenizers)


def test_graphs_leave_the_cores_to_the_search_between_two_steps(exported: Run) -> None:
    engine = load(exported.folder, engine="onnx").engines[0]
    assert isinstance(engine, OnnxModel)
    for graph in (engine.encoder, engine.decoder.session):
        options = graph.get_session_options()
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_run_translates_by_its_graphs(exported: Run, corpus: Path, regard: Command) -> None:
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:20]
    by_torch, by_graphs = (load(exported.folder, engine=engine, precision="fp32") for engine in ("torch", "onnx"))
    assert isinstance(by_graphs.engines[0], OnnxModel)
    made, expected = by_graphs.translate(texts), by_torch.translate(texts)
    assert [one.text for one in made] == [one.text for one in expected]
    assert all(one.alignment is not None for one in made)
    said = regard("translate", exported.folder, input=texts[0] + "\n")
    assert f"decoding by {exported.folder}/engines/onnx-int8" in said.stderr  # what is there, without being asked
    assert len(said.stdout.splitlines()) == 1
    assert not isinstance(load(exported.folder).engines[0], OnnxModel)  # figures and pictures are the model's own


def test_graphs_go_by_a_shortlist(exported: Run, corpus: Path, tmp_path: Path) -> None:
    run, texts = tmp_path / "run", corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:8]
    shutil.copytree(exported.folder, run)
    engines.noted(opened(run), learned(load(run), pairs(corpus_files(corpus, "dev"))))
    by_torch, by_graphs = (load(run, engine=one, precision="fp32", shortlist=True) for one in ("torch", "onnx"))
    assert isinstance(by_graphs.engines[0], OnnxModel)
    assert by_graphs.shortlist == by_torch.shortlist
    asked: list[dict[str, Any]] = [{}, {"force": ["Katze"]}, {"prefix": "die"}, {"beam": 1}]
    for options in asked:
        made, expected = (each.translate(texts, **options) for each in (by_graphs, by_torch))
        assert [one.tokens for one in made] == [one.tokens for one in expected]
        assert [one.score for one in made] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert isinstance(load(run, engine="auto", shortlist=True).engines[0], OnnxModel)  # in bytes


def test_graphs_are_made_where_they_are_asked_for(fluent_run: Run, regard: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(fluent_run.folder, run)
    refused = regard("translate", run, "--precision", "int8", input="The dog .\n")
    assert refused.returncode == 2
    made = f"regard: {run} has no graphs in int8 of its model: regard export {run} --precision int8 (without: "
    assert refused.stderr == f"{made}kernels know the Transformers of the recipes alone, in fp32 and unchanged)\n"
    assert regard("export", run).stderr.endswith("--engine onnx --precision fp32` goes by it\n")
    names = {path.name for path in (run / "engines").iterdir()}
    assert names == {"onnx-fp32"}
    assert {path.name for path in (run / "engines" / "onnx-fp32").iterdir()} == {ENCODER, engines.STAMP, STEP}


def test_graphs_of_another_model_are_not_used(
    exported: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(exported.folder, run)
    one = opened(run)
    assert one.ready("onnx", None) == one.place("onnx", "int8")
    assert one.ready("onnx", "fp32") == one.place("onnx", "fp32")
    config = Run(run).config()
    Run(run).write_config({**config, "model": {**config["model"], "dropout": 0.5}})
    assert one.ready("onnx", None) is None  # set up otherwise
    Run(run).write_config(config)
    assert one.ready("onnx", None)
    monkeypatch.setenv("REGARD_FAST", "0")
    assert engines.engaged("auto", None, one) is one.model
    monkeypatch.delenv("REGARD_FAST")
    with torch.no_grad():
        next(one.model.parameters()).add_(1.0)
    assert engines.engaged("auto", None, one) is one.model
    assert "is not of this model as it is now, or is damaged, and is not used" in capfd.readouterr().err


@pytest.mark.parametrize("harm", ["cut", "gone", "stamp"])
def test_damaged_graphs_are_not_used(harm: str, exported: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(exported.folder, run)
    shutil.rmtree(run / "engines" / "onnx-int8")
    folder = run / "engines" / "onnx-fp32"
    if harm == "cut":
        (folder / ENCODER).write_bytes((folder / ENCODER).read_bytes()[:100])
    elif harm == "gone":
        (folder / STEP).unlink()
    else:
        (folder / engines.STAMP).write_text("[", encoding="utf-8")
    one = opened(run)
    assert engines.engaged("auto", None, one) is one.model


def test_bytes_that_are_no_graph_are_named(exported: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(exported.folder, run)
    graph = run / "engines" / "onnx-fp32" / STEP
    graph.write_bytes(b"x" * graph.stat().st_size)
    with pytest.raises(UserError, match=r"onnx-fp32 is damaged .*: delete it, and export again"):
        load(run, engine="onnx", precision="fp32")


def test_without_onnxruntime_a_run_with_graphs_still_translates(
    exported: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    one = opened(exported.folder)
    assert engines.engaged("auto", None, one) is one.model
    assert "onnxruntime is not installed" in capfd.readouterr().err


@pytest.mark.thorough
def test_an_export_elsewhere_has_all_it_needs(fluent_run: Run, regard: Command, tmp_path: Path) -> None:
    out = tmp_path / "graphs"
    assert regard("export", fluent_run.folder, "--out", out).returncode == 0
    assert {ENCODER, STEP, "tokenizer"} <= {path.name for path in out.iterdir()}
    again = regard("export", fluent_run.folder, "--out", out)
    assert (again.returncode, again.stderr) == (2, f"regard: {out} is there already; --out is a new folder\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["export", "--to", "tflite"], "--to is onnx, ctranslate2 or shortlist, not 'tflite'"),
        (["export", "--precision", "int4"], "the precision is fp32 or int8, not 'int4'"),
        (
            ["translate", "--engine", "torch", "--precision", "int8"],
            "in int8: kernels know the Transformers of the recipes alone",
        ),
        (["export", "--to", "shortlist", "--precision", "int8"], "--precision is for --to onnx and ctranslate2"),
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
