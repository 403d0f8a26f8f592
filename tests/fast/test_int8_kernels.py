"""int8 kernels in C for Transformers against the reference implementation with the same rounding.

The kernels for x86-64 without VNNI are tested with vectors of 8 and 16 `lanes`; other processors emulate their dot
product.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, cast

import httpx
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from support.combinations import covering_pairs, each_value, slow_after
from support.commands import Command
from support.fast_models import TARGET_WORDS
from support.fast_models import make_random_transformer as make_model
from support.search import SEARCH_OPTIONS, Hypotheses, assert_same_hypotheses, make_sources, reference_search
from support.server import ask_in_process, start_server
from support.training import copy_run, corpus_files
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard.fast import selftest
from regard.fast.decoding import int8
from regard.fast.decoding.int8 import (
    Int8Linear,
    Int8Transformer,
    check_int8_gemm,
    find_int8_obstacle,
    load_int8_kernels,
    load_kernels,
)
from regard.fast.decoding.kv_cache import MAX_SHARED_BEAM, MIN_FREE_POSITIONS
from regard.fast.kernels.build import KernelUnavailableError
from regard.models import Seq2Seq, build
from regard.models.vaswani2017 import FeedForward
from regard.nn import MultiHeadAttention
from regard.runs import Run
from regard.search import BeamSearch, SearchOptions, search, search_restricted
from regard.serve.settings import Settings
from regard.translate import load
from regard.translate.backends.base import TorchBackend
from regard.translate.backends.ctranslate2 import CTranslate2Backend
from regard.translate.backends.exports import LoadedRun, export_ctranslate2

LANES = [0, 8, 16]  # 0: the kernels of this processor
each_lanes = pytest.mark.parametrize("lanes", slow_after(1, LANES))  # each further one is compiled
MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {"norm": "pre"},
    "post-norm": {"norm": "post", "tie": "none", "align_layer": 1},
    "learned-positions": {"positions": "learned", "max_positions": 9, "align_layer": 1, "align_head": 2},
    "no-positions": {"norm": "post", "positions": "none", "tie": "decoder", "align_head": 3, "feedforward": 50},
    "odd-size": {"size": 15, "heads": 3, "feedforward": 7},
    "imported": {
        "norm": "post",
        "activation": "swish",
        "output_bias": True,
        "scale_embedding": False,
        "decoder_layers": 1,
    },
    "wide": {"size": 80, "heads": 2, "layers": 1},
}
FAR = 0.1  # a number halfway between two int8 values may be rounded either way; what follows from it is off by so much
NEAR = 1e-4  # most rows contain no such number


@pytest.fixture(autouse=True)
def require_kernels(request: pytest.FixtureRequest) -> None:
    """Skip on processors without int8 products, unless they are emulated."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("lanes"):
        return
    try:
        load_int8_kernels()
    except KernelUnavailableError as error:
        pytest.skip(str(error))


class Int8Products(TorchFunctionMode):
    """Round the factors of every linear layer to int8, with one scale for each row of weights and of x."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, bias = (*args, None)[:3]
            total = round_to_int8(x) @ round_to_int8(weight).mT
            return (total if bias is None else total + bias.double()).float()
        return func(*args, **(kwargs or {}))


def round_to_int8(x: Tensor) -> Tensor:
    """Round each row to 255 steps up to its largest absolute value."""
    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return (x * (127 / top)).round().double() * top / 127


def make_int8(model: Seq2Seq) -> Any:
    """Return the model with int8 kernels; a search accepts it as a model."""
    return int8.quantize_model(model)


def run_reference(model: Seq2Seq, run: Callable[[Any], Hypotheses]) -> Hypotheses:
    """Run a search with the model itself, its products rounded to int8."""
    with Int8Products():
        return run(model)


def assert_near(expected: Tensor, found: Tensor) -> None:
    """Check that most rows are the same and none is far off."""
    off = (found - expected).abs().flatten(1).amax(1)
    assert off.max() < FAR
    assert (off < NEAR).float().mean() > 0.5


def assert_near_hypotheses(expected: Hypotheses, found: Hypotheses) -> None:
    """Check that the hypotheses of most sources are the same and no score is far off."""
    pairs = list(zip(expected, found, strict=True))
    best = [[one[0].score for one in both] for both in pairs]
    assert [one for _, one in best] == pytest.approx([one for one, _ in best], rel=FAR, abs=FAR)
    equal = [both for both in pairs if abs(both[0][0].score - both[1][0].score) < NEAR]
    assert 2 * len(equal) > len(pairs)
    for one, other in equal:
        assert_same_hypotheses([one[:1]], [other[:1]], 10 * NEAR)


@cache
def compile_kernels(lanes: int) -> ctypes.CDLL:
    """Return the kernels of this processor, or those of x86-64 without VNNI for vectors of so many lanes."""
    without_vnni = ("-DPLAIN", "-U__AVX512VNNI__", "-U__AVXVNNI__")
    return load_kernels(*without_vnni, f"-DLANES={lanes}") if lanes else load_int8_kernels()


@each_lanes
@given(st.integers(1, 41), st.integers(1, 70), st.integers(1, 120), st.booleans(), st.integers(0, 9))
def test_int8_products_are_those_of_integers(
    lanes: int, rows: int, inside: int, outside: int, relu: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(rows, inside), torch.randn(outside, inside), torch.randn(outside)
    x[seed % rows] = 0.0
    y = Int8Linear(compile_kernels(lanes), weight, bias)(x, relu)
    expected = (round_to_int8(x).numpy() @ round_to_int8(weight).numpy().T) + bias.double().numpy()
    np.testing.assert_allclose(y.numpy(), np.maximum(expected, 0) if relu else expected, rtol=1e-5, atol=1e-4)


def test_wrong_or_slow_kernels_fail_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_: 0.9)
    assert check_int8_gemm(load_int8_kernels()) == ""
    monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_: 3.0)
    assert check_int8_gemm(load_int8_kernels()) == "int8 products take 3.00 times as long"
    monkeypatch.setattr(Int8Linear, "__call__", lambda self, x: torch.zeros(1))
    assert check_int8_gemm(load_int8_kernels()) == "the int8 kernels give wrong results here"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_self_test_ignores_the_default_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_: 0.9)
    torch.set_default_dtype(dtype)
    try:
        assert check_int8_gemm(load_int8_kernels()) == ""
    finally:
        torch.set_default_dtype(torch.float32)


@each_lanes
@pytest.mark.parametrize("name", slow_after(2, list(MODELS)))
def test_int8_step_has_the_outputs_of_the_reference(name: str, lanes: int) -> None:
    model, (source, lengths) = make_model(std=0.2, **MODELS[name]), make_sources(9, 1, 5, 33, 2)
    fast = Int8Transformer(model, compile_kernels(lanes))
    other, tokens = fast.encode(source, lengths), torch.full((5,), 2)
    with torch.inference_mode():
        with Int8Products():
            state = model.decoder.start(model.encode(source, lengths))
        for _ in range(MIN_FREE_POSITIONS + 3):
            with Int8Products():
                expected, state, expected_attended = model.decoder.step(state, tokens)
            found, other, attended = fast.decoder.step(other, tokens)
            assert_near(expected, found)
            assert expected_attended is not None
            assert_near(expected_attended.dense(33), attended.dense(33))
            torch.testing.assert_close(found.exp().sum(1), torch.ones(5))
            tokens = expected.argmax(1)


@each_lanes
@pytest.mark.parametrize(("name", "beam"), each_value(list(MODELS), [1, 4, MAX_SHARED_BEAM + 1]))
def test_int8_search_finds_the_reference_hypotheses(name: str, beam: int, lanes: int) -> None:
    def run(model: Any) -> Hypotheses:
        return search(
            model, *make_sources(9, 1, 5, 20), beam=beam, n_best=min(beam, 2), max_length=MIN_FREE_POSITIONS + 4
        )

    model = make_model(**MODELS[name])
    assert_near_hypotheses(run_reference(model, run), run(Int8Transformer(model, compile_kernels(lanes))))


@pytest.mark.parametrize(
    "options",
    slow_after(2, [{"beam": 1, "attention": False, "min_length": 9}, *SEARCH_OPTIONS, {"beam": 1, "max_length": 1}]),
    ids=str,
)
def test_int8_search_supports_every_search_option(options: dict[str, Any]) -> None:
    def run(model: Any) -> Hypotheses:
        return search(model, *make_sources(3, 7, 2), **{"beam": 4, **options})

    assert_near_hypotheses(run_reference(make_model(), run), run(make_int8(make_model())))


@pytest.mark.parametrize("beam", [1, 4])
def test_int8_search_with_a_shortlist_finds_the_reference_hypotheses(beam: int) -> None:
    def run(model: Any) -> Hypotheses:
        return search_restricted([4, 9, 11, 17, 18, 21, 29], [model], *make_sources(3, 7, 2), beam=beam)

    assert_near_hypotheses(run_reference(make_model(), run), run(make_int8(make_model())))


def test_greedy_search_in_c_is_the_search_by_steps() -> None:
    """Sentences that have ended leave the batch; the others must not change."""
    fast, sources = make_int8(make_model(3)), make_sources(*range(1, 24))
    found = search(fast, *sources, beam=1)
    assert len({len(some[0].tokens) for some in found}) > 3
    assert_same_hypotheses(reference_search(fast, *sources, beam=1), found)


def test_sources_may_join_a_running_int8_search() -> None:
    def run(model: Any) -> Hypotheses:
        searching, found = BeamSearch(model, SearchOptions(beam=3)), dict[int, Any]()
        first, second = make_sources(5, 9), make_sources(12, 1, 4, seed=2)
        searching.add(*first)
        for _ in range(3):
            found.update(searching.step())
        searching.add(*second)
        while searching.num_active:
            found.update(searching.step())
        return [found[number] for number in range(5)]

    assert_near_hypotheses(run_reference(make_model(), run), run(make_int8(make_model())))


def test_int8_models_search_as_an_ensemble() -> None:
    models = [make_model(seed) for seed in (0, 1)]

    def run(each: Any) -> Hypotheses:
        return search(each, *make_sources(4, 8), beam=3)

    with Int8Products():
        expected = run(models)
    assert_near_hypotheses(expected, run([make_int8(model) for model in models]))


def test_int8_model_accepts_an_empty_source() -> None:
    model = make_model()
    source, lengths = torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 0])
    with Int8Products(), torch.inference_mode():
        expected, _, expected_attended = model.decoder.step(
            model.decoder.start(model.encode(source, lengths)), torch.tensor([2, 2])
        )
    fast = make_int8(model)
    found, _, attended = fast.decoder.step(fast.encode(source, lengths), torch.tensor([2, 2]))
    assert_near(expected, found)
    assert expected_attended is not None
    assert not attended.weights[1].any()
    assert_near(expected_attended.weights, attended.weights)


def test_sources_longer_than_a_block_of_the_encoder() -> None:
    model, (source, lengths) = make_model(), make_sources(300, 7, 150, 1, 64, 64)

    def run(each: Any) -> Hypotheses:
        return search(each, source, lengths, beam=2, max_length=5)

    assert_near_hypotheses(run_reference(model, run), run(make_int8(model)))


@each_lanes
@pytest.mark.parametrize(("beam", "scale", "norm"), covering_pairs([1, 3], [1e10, 1e15, 1e30], ["pre", "post"]))
def test_overflow_in_the_kernels_is_an_error(beam: int, scale: float, norm: str, lanes: int) -> None:
    model = make_model(norm=norm)
    with torch.no_grad():
        model.decoder.get_parameter("layers.1.feedforward.0.weight").mul_(scale)
        model.decoder.get_parameter("layers.1.feedforward.2.weight").mul_(scale)
    with pytest.raises(ArithmeticError, match="step 1"):
        search(cast(Any, Int8Transformer(model, compile_kernels(lanes))), *make_sources(3, 4), beam=beam)


def test_int8_search_leaves_the_model_unchanged() -> None:
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    search(make_int8(model), *make_sources(3, 4), beam=2)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize(("change", "reason"), [
    (Seq2Seq.double, "unmodified Transformers"),
    (lambda model: model.decoder.register_forward_hook(lambda *_: None), "unmodified Transformers"),
    (lambda model: setattr(model.encoder, "norm", nn.Tanh()), "unmodified Transformers"),
    (lambda model: setattr(model.encoder, "norm", nn.ReLU()), "unmodified Transformers"),
    (lambda model: setattr(model.decoder, "norm", nn.LayerNorm(24, bias=False)), "unmodified Transformers"),
    (lambda model: model.decoder.layers[0].feedforward.__setitem__(1, nn.Identity()), "unmodified Transformers"),
    (lambda model: [layer.feedforward.__setitem__(1, nn.GELU()) for layer in model.encoder.layers], "unmodified"),
    (lambda model: setattr(model.encoder.layers[0], "attention", MultiHeadAttention(24, 2)), "unmodified Transformers"),
    (lambda model: nn.init.constant_(next(model.parameters()), torch.nan), "NaN or infinite weights"),
])  # fmt: skip
def test_modified_model_is_not_decoded_in_int8(change: Callable[[Seq2Seq], object], reason: str) -> None:
    model = make_model()
    assert find_int8_obstacle(model) is None
    change(model)
    assert reason in str(find_int8_obstacle(model))


def test_recurrent_model_is_not_decoded_in_int8() -> None:
    assert "int8 kernels support only" in str(find_int8_obstacle(build("luong2015-global", 20, 20, size=8, layers=1)))


def test_feedforward_layers_may_differ_in_width() -> None:
    def run(model: Any) -> Hypotheses:
        return search(model, *make_sources(3, 7, 2), beam=2)

    model = make_model()
    model.decoder.layers[1].feedforward = FeedForward(24, 130)  # type: ignore[index, union-attr]
    assert_near_hypotheses(run_reference(model, run), run(make_int8(model)))


@pytest.mark.parametrize("convert", [
    lambda lengths: torch.stack((lengths, lengths), 1)[:, 0], torch.Tensor.int, lambda lengths: lengths * 3
], ids=["strided", "int32", "beyond-the-end"])  # fmt: skip
def test_lengths_may_be_strided_int32_or_too_large(convert: Callable[[Tensor], Tensor]) -> None:
    fast, source = make_int8(make_model()), torch.randint(4, 20, (300, 5))
    lengths = torch.full((300,), 5)
    expected = fast.encode(source, lengths)
    torch.testing.assert_close(fast.encode(source.int(), convert(lengths)).values, expected.values, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [-1, TARGET_WORDS, 10**7])
def test_ids_outside_the_vocabulary_are_an_error(bad: int) -> None:
    fast, sources = make_int8(make_model()), make_sources(3, 4)
    with pytest.raises(
        IndexError, match=f"ids are from 0 to {TARGET_WORDS - 1}, not from {min(5, bad)} to {max(5, bad)}"
    ):
        fast.decoder.step(fast.encode(*sources), torch.tensor([5, bad]))
    with pytest.raises(IndexError, match="ids are from 0 to 19"):
        fast.encode(torch.tensor([[5, bad]]), torch.tensor([2]))


def test_int8_copy_does_not_follow_the_model() -> None:
    model = make_model(dropout=0.5)
    fast, sources = make_int8(model), make_sources(3, 4)
    expected = search(fast, *sources, beam=1)
    model.train()
    for weight in model.parameters():
        nn.init.zeros_(weight)
    assert_same_hypotheses(expected, search(fast, *sources, beam=1), 0.0)


def test_int8_search_ignores_the_default_dtype() -> None:
    fast, sources = make_int8(make_model()), make_sources(3, 4)
    for beam in (1, 3):
        expected = search(fast, *sources, beam=beam)
        torch.set_default_dtype(torch.float64)
        try:
            found = search(fast, *sources, beam=beam)
        finally:
            torch.set_default_dtype(torch.float32)
        assert_same_hypotheses(expected, found, 0.0)


def test_vocabulary_may_be_narrowed_twice() -> None:
    fast, (source, lengths) = make_int8(make_model()), make_sources(3, 4)
    first, second = [0, 1, 2, 3, 9, 14, 20, 21], [0, 1, 2, 3, 5, 7]
    tokens = torch.tensor([2, 5])
    twice = fast.restrict_vocabulary(first).restrict_vocabulary(second)
    once = fast.restrict_vocabulary([first[index] for index in second])
    found, expected = (one.decoder.step(one.encode(source, lengths), tokens)[0] for one in (twice, once))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_greedy_search_in_c_outgrows_its_first_buffers() -> None:
    fast, sources = make_int8(make_model(3)), make_sources(2, 30, 7)
    options: dict[str, Any] = {
        "beam": 1,
        "min_length": 2 * int8.GREEDY_CHUNK + 1,
        "max_length": 3 * int8.GREEDY_CHUNK + 2,
    }
    found = search(fast, *sources, **options)
    assert max(len(some[0].tokens) for some in found) > 2 * int8.GREEDY_CHUNK
    assert_same_hypotheses(reference_search(fast, *sources, **options), found)


def test_int8_model_may_be_used_by_several_threads() -> None:
    fast, batches = make_int8(make_model()), [make_sources(*range(1, size)) for size in range(2, 26)]

    def run(sources: Any) -> Hypotheses:
        return search(
            fast.restrict_vocabulary(range(4, TARGET_WORDS)) if len(sources[1]) % 2 else fast,
            *sources,
            beam=1,
            min_length=9,
        )

    expected = list(map(run, batches))
    fast.decoder.embedding_table.made = torch.empty(0, 24)
    with ThreadPoolExecutor(6) as pool:
        for one, other in zip(pool.map(run, batches), expected, strict=True):
            assert_same_hypotheses(other, one, 0.0)


@pytest.mark.parametrize("engine", slow_after(1, ["auto", "torch"]))
def test_translate_in_int8_needs_no_export(engine: str, transformer_run: Run, corpus: Path, regard: Command) -> None:
    text = corpus_files(corpus, "test")[0].read_text(encoding="utf-8")
    by_torch, by_kernels = (load(transformer_run.folder, precision=precision) for precision in ("fp32", "int8"))
    assert isinstance(by_kernels.backend.models[0], Int8Transformer)
    expected = [one.text for one in by_kernels.translate(text.splitlines(), beam=3)]
    done = regard(
        "translate", transformer_run.folder, "--engine", engine, "--precision", "int8", "--beam", 3, input=text
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)
    assert (f"decoding {transformer_run.folder} in int8" in done.stderr) == (engine == "auto")
    exact = [one.text for one in by_torch.translate(text.splitlines(), beam=3)]
    assert sum(map(str.__eq__, exact, expected)) > 0.8 * len(exact)


def test_int8_kernels_are_preferred_to_an_export_if_requested(transformer_run: Run, tmp_path: Path) -> None:
    run = copy_run(transformer_run, tmp_path / "run").folder
    opened = LoadedRun(Run(run), *(lambda own: (own.models[0], own.tokenizers))(load(run)))
    export_ctranslate2(opened, "int8")
    exported, own = load(run, engine="auto"), load(run, engine="auto", precision="int8")
    assert isinstance(exported.backend, CTranslate2Backend)
    assert isinstance(exported.backend.models[0], Seq2Seq)  # for search options that CTranslate2 lacks
    assert type(own.backend) is TorchBackend
    assert isinstance(own.backend.models[0], Int8Transformer)


@pytest.mark.parametrize(
    "options",
    slow_after(2, [{"beam": 1}, {"forbid": ["Hund"]}, {"beam": 4, "n_best": 2}, {"prefix": "Der"}, {"sample": 2}]),
    ids=str,
)
def test_translate_in_int8_supports_search_options(options: dict[str, Any], transformer_run: Run, corpus: Path) -> None:
    texts = ["", *corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:9]]
    found = load(transformer_run.folder, precision="int8").translate(texts, alignments=True, **options)
    assert len(found) == len(texts)
    assert all(one.text and one.alignment is not None for one in found[1:])


def test_service_decodes_in_int8(transformer_run: Run, corpus: Path) -> None:
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:20]
    expected = [one.text for one in load(transformer_run.folder, precision="int8").translate(texts, beam=2)]

    async def ask(client: httpx.AsyncClient) -> Any:
        return (await client.post("/translate", json={"q": texts, "source": "en", "target": "de"})).json()

    settings = Settings(precision="int8", beam=2)
    assert ask_in_process(f"{transformer_run.folder}=en-de", settings, ask)["translatedText"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_service_decodes_in_int8_in_any_process(transformer_run: Run, corpus: Path, processes: int) -> None:
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:60]
    expected = [one.text for one in load(transformer_run.folder, precision="int8").translate(texts, beam=2)]
    exact = [one.text for one in load(transformer_run.folder).translate(texts, beam=2)]
    with start_server(
        f"{transformer_run.folder}=en-de", "--precision", "int8", "--beam", 2, "--processes", processes
    ) as server:
        found = server.translate(texts)["translatedText"]
    assert found == expected
    assert exact != expected, "fp32 gives the same translations: the test shows nothing"


def test_regard_fast_0_decodes_in_fp32_and_says_so(
    transformer_run: Run, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_FAST", "0")
    done = regard("translate", transformer_run.folder, "--precision", "int8", input="The dog .\n")
    assert (done.returncode, done.stderr) == (0, "decoding in fp32: REGARD_FAST is 0\n")


def test_processor_without_int8_products_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "cc -U__ARM_FEATURE_DOTPROD -U__AVX2__")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(KernelUnavailableError, match=r"^this CPU, or its compiler, has neither AVX2 nor SDOT$"):
        load_kernels()


def test_int8_without_a_compiler_refers_to_export(
    transformer_run: Run, regard: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    other = f"regard export {transformer_run.folder} --precision int8"
    for engine, message in (
        (
            "torch",
            f"torch does not decode {transformer_run.folder} in int8: there is no C compiler no-such-compiler",
        ),
        (
            "auto",
            f"{transformer_run.folder} has no int8 export of its model; run: {other} (no int8 kernels: there is no C",
        ),
    ):
        done = regard(
            "translate", transformer_run.folder, "--engine", engine, "--precision", "int8", input="The dog .\n"
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert message in done.stderr
        assert other in done.stderr
