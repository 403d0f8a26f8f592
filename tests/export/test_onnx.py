"""ONNX exports against the models themselves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
import torch
from support.commands import Command
from support.corpora import translation_recipes
from support.fast_models import randomize
from support.search import assert_same_hypotheses
from support.training import copy_run, corpus_files

from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.export.onnx import export, fold
from regard.export.onnx_engine import ENCODER, STEP, OnnxModel
from regard.models import build
from regard.runs import Run
from regard.search import BeamSearch, Hypothesis, SearchOptions, sample, search, search_restricted
from regard.translate import load
from regard.translate.backends import exports
from regard.translate.backends.base import TorchBackend, choose_backend
from regard.translate.backends.exports import export_onnx
from regard.translate.shortlist import learn_shortlist

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in translation_recipes() if name != "vaswani2017-big"},
    "linguistic-coverage": ("bahdanau2015", {"coverage": "linguistic"}),
    "neural-coverage": ("bahdanau2015", {"coverage": "neural"}),
    "elman": ("luong2015-global", {"cell": "elman"}),
    "gru": ("luong2015-global", {"cell": "gru"}),
    "two-layers": ("luong2015-global", {"layers": 2}),
    "two-layer-transformer": ("default", {"layers": 2}),
    "tied": ("bahdanau2015", {"tie": True, "maxout": 16}),
    "untied": ("vaswani2017-base", {"tie": "none"}),
    "imported": (
        "vaswani2017-base",
        {"activation": "swish", "scale_embedding": False, "decoder_layers": 1, "output_bias": True},
    ),
}
SOURCES, LENGTHS = torch.randint(4, 20, (4, 9), generator=torch.Generator().manual_seed(1)), torch.tensor([9, 5, 1, 3])


@cache
def make_model(name: str) -> Any:
    """Return a random model of `MODELS`; read-only."""
    recipe, options = MODELS[name]
    heads = {"heads": 2} if recipe in ("default", "vaswani2017-base") else {}
    torch.manual_seed(0)
    model = build(recipe, 20, 30, **{"size": 16, "layers": 1, **heads, **options}).eval()
    randomize(model, 0.4)
    return model


def search_joining(model: Any) -> list[list[Hypothesis]]:
    """Search for sources that join one after the other while others are under way."""
    searching = BeamSearch(model, SearchOptions(beam=3, n_best=2, max_length=7))
    found: list[list[Hypothesis]] = [[] for _ in LENGTHS]
    for row, length in enumerate(LENGTHS.tolist()):
        searching.add(SOURCES[row : row + 1, :length], LENGTHS[row : row + 1])
        for index, some in searching.step():
            found[index] = some
    while searching.num_active:
        for index, some in searching.step():
            found[index] = some
    return found


@contextmanager
def tracing_once() -> Iterator[None]:
    """Trace graphs with equal layers and weights once, for fp32 and int8, because a trace takes several seconds."""
    traced = dict[Any, Any]()
    trace = torch.onnx.export

    def find_or_trace(module: Any, *given: Any, **options: Any) -> Any:
        weights = (tensor.numpy().tobytes() for tensor in module.state_dict().values())
        key = type(module), str(module), *weights
        if key not in traced:
            traced[key] = trace(module, *given, **options)
        return traced[key]

    with patch.object(torch.onnx, "export", find_or_trace):
        yield


@pytest.fixture(scope="module")
def exported_transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the Transformer `default` to the folders fp32 and int8; read-only."""
    folder = tmp_path_factory.mktemp("onnx")
    with tracing_once():
        for precision in ("fp32", "int8"):
            export(make_model("default"), folder / precision, int8=precision == "int8")
    return folder


def check_searches(model: Any, folder: Path) -> None:
    """Check that graphs find and draw what the model does, in a batch, joining a search, and with shortlists."""
    graphs: Any = OnnxModel(model, folder)

    def assert_same(run: Callable[[Any], list[list[Hypothesis]]]) -> None:
        assert_same_hypotheses(run(model), run(graphs), tolerance=1e-4)

    assert_same(lambda one: search(one, SOURCES, LENGTHS, beam=4, n_best=3, max_length=8))
    assert_same(lambda one: search(one, SOURCES, LENGTHS, beam=1))
    assert_same(search_joining)
    assert_same(lambda one: sample(one, SOURCES, LENGTHS, samples=2, seed=3, max_length=6))
    shortlists: list[Sequence[int]] = [[5, 9, 14, 20, 29], range(30)]
    for words, beam in product(shortlists, (1, 4)):
        options: dict[str, Any] = {"beam": beam, "n_best": beam}
        expected, found = (search_restricted(words, [one], SOURCES, LENGTHS, **options) for one in (model, graphs))
        assert_same_hypotheses(expected, found, tolerance=1e-4)


@pytest.mark.slow
def test_onnx_graphs_of_a_transformer_find_what_the_model_finds(exported_transformer: Path) -> None:
    check_searches(make_model("default"), exported_transformer / "fp32")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "default"])
def test_onnx_graphs_find_what_the_model_finds(name: str, tmp_path: Path) -> None:
    export(make_model(name), tmp_path)
    check_searches(make_model(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("luong2015-global", {"tie": True}),
        ("luong2015-global", {}),
        ("bahdanau2015", {}),
        ("default", {}),
        ("bahdanau2015", {"tie": True, "embedding": 32}),
    ],
)
def test_int8_graphs_are_smaller_and_nearly_as_exact(recipe: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = build(recipe, 500, 500, size=64, layers=1, **options).eval()
    sizes = {}
    with tracing_once():
        for kind, int8 in (("fp32", False), ("int8", True)):
            export(model, tmp_path / kind, int8)
            sizes[kind] = (tmp_path / kind / STEP).stat().st_size
            onnx.checker.check_model(str(tmp_path / kind / ENCODER))
    assert sizes["int8"] < 0.7 * sizes["fp32"]
    whole, small = (OnnxModel(model, tmp_path / kind) for kind in ("fp32", "int8"))
    tokens = torch.tensor([5, 6, 7, 8])
    first, second = (one.decoder.step(one.encode(SOURCES, LENGTHS), tokens)[0] for one in (whole, small))
    assert 0 < (first - second).abs().max() < 0.1
    _, rows = small.open_step
    assert {some.weights.itemsize for some in rows.values() if some.weights.ndim == 2} == {1}
    words = [0, 1, 2, 3, 5, 6, 7, 8, *range(90, 490, 7)]
    narrow, indices = small.restrict_vocabulary(words), torch.arange(4, 8)  # of the same tokens
    few = narrow.decoder.step(narrow.encode(SOURCES, LENGTHS), indices)[0]
    torch.testing.assert_close(few, second[:, words].log_softmax(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_lstm_of_an_encoder_is_quantized(tmp_path: Path) -> None:
    export(build("luong2015-global", 50, 50, size=16, layers=1).eval(), tmp_path, int8=True)
    nodes = {node.op_type for node in onnx.load(tmp_path / ENCODER).graph.node}
    assert "DynamicQuantizeLSTM" in nodes
    assert not {"LSTM", "Split"} & nodes  # weights are exported in the order of the operator


def check_quantized_transformer(folder: Path, layers: int) -> None:
    """Check that all weights are int8 and that no step splits or joins the heads of its caches."""
    for name in (ENCODER, STEP):
        graph = onnx.load(folder / name).graph
        weights = {weight.name for weight in graph.initializer}
        assert not [node.name for node in graph.node if node.op_type == "MatMul" and weights & set(node.input)]
    given = {one.name for one in graph.input if one.name.endswith(("keys", "values"))}
    assert len(given) == 4 * layers  # in self-attention and cross-attention
    readers = [node for node in graph.node if given & set(node.input)]
    assert {node.op_type for node in readers} == {"Transpose", "MatMul", "Concat", "Shape"}
    permutations = [node.attribute[0].ints for node in readers if node.op_type == "Transpose"]
    assert permutations == [[0, 1, 3, 2]] * layers  # fused into the product


@pytest.mark.slow
def test_transformer_is_quantized_with_its_caches_by_head(exported_transformer: Path) -> None:
    check_quantized_transformer(exported_transformer / "int8", layers=1)


@pytest.mark.slow
def test_two_layer_transformer_is_quantized_with_its_caches_by_head(tmp_path: Path) -> None:
    export(make_model("two-layer-transformer"), tmp_path, int8=True)
    check_quantized_transformer(tmp_path, layers=2)


@pytest.mark.slow
def test_int8_graphs_are_the_same_without_an_export_in_fp32_before(exported_transformer: Path, tmp_path: Path) -> None:
    export(make_model("default"), tmp_path, int8=True)
    for name in (ENCODER, STEP):
        assert (tmp_path / name).read_bytes() == (exported_transformer / "int8" / name).read_bytes(), name


@pytest.mark.slow
def test_onnx_graphs_accept_an_empty_source(exported_transformer: Path) -> None:
    model = make_model("default")
    graphs, lengths = OnnxModel(model, exported_transformer / "fp32"), torch.tensor([9, 0])
    tokens = torch.tensor([5, 6])
    found = graphs.decoder.step(graphs.encode(SOURCES[:2], lengths), tokens)
    expected = model.decoder.step(model.decoder.start(model.encode(SOURCES[:2], lengths)), tokens)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert found[2] is not None
    torch.testing.assert_close(found[2].weights, expected[2].weights, rtol=1e-4, atol=1e-4)
    assert not found[2].weights[1].any()


def test_constants_are_folded_but_not_random_numbers() -> None:
    graph_model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[N, 2] x) => (float[3] y, float[3, 2] z, float[2, 3] r)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}, float[2, 3] spare = {0, 0, 0, 0, 0, 0}>
        { v = Transpose <perm = [1, 0]> (w)
          index = Squeeze (one)
          y = Gather <axis = 1> (v, index)
          z = Add (x, v)
          r = RandomNormalLike (w) }
        """
    )
    graph_model = fold(graph_model)
    assert [node.op_type for node in graph_model.graph.node] == ["Add", "RandomNormalLike"]
    known = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph_model.graph.initializer}
    assert known.keys() == {"v", "y", "w"}
    np.testing.assert_array_equal(known["v"], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(known["y"], [4, 5, 6])


@pytest.fixture(scope="module")
def exported_run(fluent_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Copy a run and export it in fp32 and int8; read-only."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    copy_run(fluent_run, folder)
    with tracing_once():
        for precision in ("fp32", "int8"):
            export_onnx(open_run(folder), precision)
    return Run(folder)


def open_run(folder: Path) -> exports.LoadedRun:
    """Load a run as its engines need it."""
    translator = load(folder)
    return exports.LoadedRun(Run(folder), translator.models[0], translator.tokenizers)


def test_onnx_sessions_do_not_spin_between_steps(exported_run: Run) -> None:
    engine = load(exported_run.folder, engine="onnx").backend.models[0]
    assert isinstance(engine, OnnxModel)
    for graph in (engine.encoder, engine.decoder.session):
        options = graph.get_session_options()
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_run_translates_with_its_onnx_graphs(exported_run: Run, corpus: Path, regard: Command) -> None:
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:20]
    by_torch, by_graphs = (load(exported_run.folder, engine=engine, precision="fp32") for engine in ("torch", "onnx"))
    assert isinstance(by_graphs.backend.models[0], OnnxModel)
    found, expected = by_graphs.translate(texts), by_torch.translate(texts)
    assert [one.text for one in found] == [one.text for one in expected]
    assert all(one.alignment is not None for one in found)
    done = regard("translate", exported_run.folder, input=texts[0] + "\n")
    assert (
        f"decoding with {exported_run.folder}/engines/onnx-int8" in done.stderr
    )  # chosen by default, since it is there
    assert len(done.stdout.splitlines()) == 1
    assert not isinstance(
        load(exported_run.folder).backend.models[0], OnnxModel
    )  # plots and scores use the model itself


def test_onnx_graphs_use_the_shortlist_of_the_run(
    exported_run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run, texts = tmp_path / "run", corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:8]
    copy_run(exported_run, run)
    exports.export_shortlist(open_run(run), learn_shortlist(load(run), read_all_pairs(corpus_files(corpus, "dev"))))
    by_torch, by_graphs = (load(run, engine=one, precision="fp32", shortlist=True) for one in ("torch", "onnx"))
    assert isinstance(by_graphs.backend.models[0], OnnxModel)
    assert isinstance(by_graphs.backend, TorchBackend)
    assert isinstance(by_torch.backend, TorchBackend)
    assert by_graphs.backend.shortlist == by_torch.backend.shortlist
    requests: list[dict[str, Any]] = [{}, {"force": ["Katze"]}, {"prefix": "die"}, {"beam": 1}]
    for options in requests:
        found, expected = (each.translate(texts, **options) for each in (by_graphs, by_torch))
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert isinstance(load(run, engine="auto", shortlist=True).backend.models[0], OnnxModel)  # in int8
    monkeypatch.setattr(exports, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    assert isinstance(load(run, engine="onnx", precision="fp32").backend.models[0], OnnxModel)
    with pytest.raises(UserError, match=r"onnxscript is not installed: pip install 'regard\[export\]'"):
        load(run, engine="onnx", precision="fp32", shortlist=True)
    assert not isinstance(load(run, engine="auto", shortlist=True).backend.models[0], OnnxModel)
    assert "is not used: onnxscript is not installed (pip install 'regard[export]')" in capfd.readouterr().err


def test_int8_without_an_export_refers_to_export(fluent_run: Run, regard: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copy_run(fluent_run, run)
    refused = regard("translate", run, "--precision", "int8", input="The dog .\n")
    assert refused.returncode == 2
    message = (
        f"regard: {run} has no int8 export of its model; run: regard export {run} --precision int8 (no int8 kernels: "
    )
    assert (
        refused.stderr
        == f"{message}the int8 kernels support only the unmodified Transformers of the recipes, in fp32)\n"
    )


@pytest.mark.slow
def test_export_writes_onnx_graphs_to_the_run(fluent_run: Run, regard: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copy_run(fluent_run, run)
    assert regard("export", run).stderr.endswith("--engine onnx --precision fp32\n")
    names = {path.name for path in (run / "engines").iterdir()}
    assert names == {"onnx-fp32", ".lock"}
    assert {path.name for path in (run / "engines" / "onnx-fp32").iterdir()} == {ENCODER, exports.MANIFEST_FILE, STEP}


def test_stale_onnx_graphs_are_not_used(
    exported_run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    copy_run(exported_run, run)
    one = open_run(run)
    assert one.find_export("onnx", None) == one.get_export_folder("onnx", "int8")
    assert one.find_export("onnx", "fp32") == one.get_export_folder("onnx", "fp32")
    config = Run(run).read_config()
    Run(run).write_config({**config, "model": {**config["model"], "dropout": 0.5}})
    assert one.find_export("onnx", None) is None  # another configuration
    Run(run).write_config(config)
    assert one.find_export("onnx", None)
    monkeypatch.setenv("REGARD_FAST", "0")
    assert choose_backend("auto", None, [one]).models[0] is one.model
    monkeypatch.delenv("REGARD_FAST")
    with torch.no_grad():
        next(one.model.parameters()).add_(1.0)
    assert choose_backend("auto", None, [one]).models[0] is one.model
    assert "is not used: it is outdated or damaged; export it again" in capfd.readouterr().err


@pytest.mark.parametrize("damage", ["truncated", "missing", "stamp"])
def test_damaged_onnx_graphs_are_not_used(damage: str, exported_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copy_run(exported_run, run)
    shutil.rmtree(run / "engines" / "onnx-int8")
    folder = run / "engines" / "onnx-fp32"
    if damage == "truncated":
        (folder / ENCODER).write_bytes((folder / ENCODER).read_bytes()[:100])
    elif damage == "missing":
        (folder / STEP).unlink()
    else:
        (folder / exports.MANIFEST_FILE).write_text("[", encoding="utf-8")
    one = open_run(run)
    assert choose_backend("auto", None, [one]).models[0] is one.model


def test_file_that_is_no_onnx_graph_is_named(exported_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copy_run(exported_run, run)
    graph = run / "engines" / "onnx-fp32" / STEP
    graph.write_bytes(b"x" * graph.stat().st_size)
    message = r"onnx-fp32 cannot be loaded \(.+\); if it is damaged, delete it and export again"
    with pytest.raises(UserError, match=message):
        load(run, engine="onnx", precision="fp32")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("Failed to allocate")])
def test_export_that_does_not_fit_into_memory_is_not_called_damaged(error: Exception) -> None:
    assert str(exports.make_load_error(Path("run"), error)).startswith("not enough memory to load run (")


def test_run_with_onnx_graphs_translates_without_onnxruntime(
    exported_run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    one = open_run(exported_run.folder)
    assert choose_backend("auto", None, [one]).models[0] is one.model
    assert "onnxruntime is not installed" in capfd.readouterr().err


@pytest.mark.slow
def test_export_to_another_folder_is_complete(fluent_run: Run, regard: Command, tmp_path: Path) -> None:
    out = tmp_path / "graphs"
    assert regard("export", fluent_run.folder, "--out", out).returncode == 0
    assert {ENCODER, STEP, "tokenizer"} <= {path.name for path in out.iterdir()}
    again = regard("export", fluent_run.folder, "--out", out)
    assert (again.returncode, again.stderr) == (2, f"regard: {out} already exists; --out must be a new folder\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["export", "--to", "tflite"], "--to must be onnx, ctranslate2, huggingface or shortlist, not 'tflite'"),
        (["export", "--precision", "int4"], "the precision must be fp32 or int8, not 'int4'"),
        (
            ["translate", "--engine", "torch", "--precision", "int8"],
            "in int8: the int8 kernels support only the unmodified Transformers of the recipes",
        ),
        (["export", "--to", "shortlist", "--precision", "int8"], "--precision is for --to onnx and ctranslate2"),
        (["translate", "--precision", "bf16"], "the precision must be fp32 or int8, not 'bf16'"),
        (["translate", "--engine", "ray", "--precision", "int8"], "--precision is not for --engine ray"),
    ],
)
def test_unsupported_engine_options_are_refused(run: Run, regard: Command, options: list[str], message: str) -> None:
    done = regard(options[0], run.folder, *options[1:], input="The dog .\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_missing_onnx_package_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"onnx is not installed: pip install 'regard\[export\]'"):
        load(run.folder, engine="onnx")
