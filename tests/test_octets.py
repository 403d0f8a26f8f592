"""A Transformer in bytes, by kernels in C, against the readable one, rounded likewise.

Those for x86-64 are tested on other processors, too: their one instruction that these lack is spelt out there.
"""

from __future__ import annotations

import copy
import ctypes
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.commands import Command
from support.search import SEARCH_OPTIONS, Hypotheses, assert_same_hypotheses, make_sources, reference_search
from support.server import start_server
from support.training import corpus_files
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard.fast.cached import WIDEST
from regard.fast.compiled import MissingError
from regard.fast.octets import greedy, product, way
from regard.fast.octets.library import library
from regard.fast.octets.model import OctetModel
from regard.fast.octets.product import Linear, tried
from regard.fast.octets.way import kernels, lacking
from regard.fast.room import CHUNK
from regard.models import Seq2Seq, build
from regard.models.transformer import FeedForward
from regard.nn import MultiHeadAttention
from regard.runs import Run
from regard.search import BeamSearch, search, search_among
from regard.translate import engines, load

WORDS = 30
LANES = (0, 8, 16)
FORMS: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post", "tie": "none", "align_layer": 1},
    {"positions": "learned", "max_positions": 9, "align_layer": 1, "align_head": 2},
    {"norm": "post", "positions": "none", "tie": "decoder", "align_head": 3, "feedforward": 50},
    {"size": 15, "heads": 3, "feedforward": 7},
    {"size": 80, "heads": 2, "layers": 1},
]
FAR = 0.1  # a number that is nearly between two bytes may become either; all that follows from it is off by so much
NEAR = 1e-4  # of most rows no number is


@pytest.fixture(autouse=True)
def there(request: pytest.FixtureRequest) -> None:
    """On a processor that has products of bytes, if they are not spelt out."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("lanes"):
        return
    try:
        kernels()
    except MissingError as error:
        pytest.skip(str(error))


def model_of(seed: int = 0, spread: float = 0.4, **form: Any) -> Seq2Seq:
    """With weights that make some words likelier than others."""
    torch.manual_seed(seed)
    made = build("vaswani2017-base", 20, WORDS, **{"size": 24, "layers": 2, "heads": 3, **form}).eval()
    assert isinstance(made, Seq2Seq)
    for weight in made.parameters():
        nn.init.normal_(weight, std=spread)
    return made


class InBytes(TorchFunctionMode):
    """Every linear layer in here multiplies bytes, each row of weights and of x with a scale of its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, bias = (*args, None)[:3]
            made = nearest(x) @ nearest(weight).mT
            return (made if bias is None else made + bias.double()).float()
        return func(*args, **(kwargs or {}))


def nearest(x: Tensor) -> Tensor:
    """Each row in 255 steps up to its largest number."""
    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return (x * (127 / top)).round().double() * top / 127


def in_bytes(model: Seq2Seq) -> Any:
    """By the kernels; a search takes it for a model."""
    return way.in_bytes(model)


def readable(model: Seq2Seq, run: Callable[[Any], Hypotheses]) -> Hypotheses:
    """What a search finds with the model itself in bytes."""
    with InBytes():
        return run(model)


def alike(expected: Tensor, found: Tensor) -> None:
    """That most rows B,· are the same, and none is far off."""
    off = (found - expected).abs().flatten(1).amax(1)
    assert off.max() < FAR
    assert (off < NEAR).float().mean() > 0.5


def same(expected: Hypotheses, found: Hypotheses) -> None:
    """That what is found of most sources is the same, and nothing far off."""
    pairs = list(zip(expected, found, strict=True))
    best = [[one[0].score for one in both] for both in pairs]
    assert [one for _, one in best] == pytest.approx([one for one, _ in best], rel=FAR, abs=FAR)
    equal = [both for both in pairs if abs(both[0][0].score - both[1][0].score) < NEAR]
    assert 2 * len(equal) > len(pairs)
    for one, other in equal:
        assert_same_hypotheses([one[:1]], [other[:1]], 10 * NEAR)


@cache
def compiled_for(lanes: int) -> ctypes.CDLL:
    """Those of this processor, 0, or those of x86-64, which count in so many lanes."""
    return library("-DPLAIN", f"-DLANES={lanes}") if lanes else kernels()


@pytest.mark.parametrize("lanes", LANES)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(1, 41), st.integers(1, 70), st.integers(1, 120), st.booleans(), st.integers(0, 9))
def test_products_are_those_of_whole_numbers(
    lanes: int, rows: int, inside: int, outside: int, relu: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(rows, inside), torch.randn(outside, inside), torch.randn(outside)
    x[seed % rows] = 0.0
    y = Linear(compiled_for(lanes), weight, bias)(x, relu)
    expected = (nearest(x).numpy() @ nearest(weight).numpy().T) + bias.double().numpy()
    np.testing.assert_allclose(y.numpy(), np.maximum(expected, 0) if relu else expected, rtol=1e-5, atol=1e-4)


def test_products_that_are_wrong_or_slow_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "ratio", lambda *_: 0.9)
    assert tried(kernels()) == ""
    monkeypatch.setattr(product, "ratio", lambda *_: 3.0)
    assert tried(kernels()) == "in bytes products would take 3.00 times as long"
    monkeypatch.setattr(Linear, "__call__", lambda self, x: torch.zeros(1))
    assert tried(kernels()) == "kernels for bytes give wrong numbers here"


@pytest.mark.parametrize("usual", [torch.float64, torch.bfloat16])
def test_the_default_precision_has_no_say_in_a_trial(usual: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "ratio", lambda *_: 0.9)
    torch.set_default_dtype(usual)
    try:
        assert tried(kernels()) == ""
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_step_gives_what_the_readable_one_gives(form: dict[str, Any], lanes: int) -> None:
    model, (source, lengths) = model_of(spread=0.2, **form), make_sources(9, 1, 5, 33, 2)
    quick = OctetModel(model, compiled_for(lanes))
    other, tokens = quick.encode(source, lengths), torch.full((5,), 2)
    with torch.inference_mode():
        with InBytes():
            state = model.decoder.start(model.encode(source, lengths))
        for _ in range(CHUNK + 3):
            with InBytes():
                expected, state, look = model.decoder.step(state, tokens)
            found, other, seen = quick.decoder.step(other, tokens)
            alike(expected, found)
            assert look is not None
            alike(look.dense(33), seen.dense(33))
            torch.testing.assert_close(found.exp().sum(1), torch.ones(5))
            tokens = expected.argmax(1)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("beam", [1, 4, WIDEST + 1])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_found_is_the_same(form: dict[str, Any], beam: int, lanes: int) -> None:
    def run(model: Any) -> Hypotheses:
        return search(model, *make_sources(9, 1, 5, 20), beam=beam, n_best=min(beam, 2), max_length=CHUNK + 4)

    model = model_of(**form)
    same(readable(model, run), run(OctetModel(model, compiled_for(lanes))))


@pytest.mark.parametrize("options", [
    *SEARCH_OPTIONS, {"beam": 1, "attention": False, "min_length": 9}, {"beam": 1, "max_length": 1}
], ids=str)  # fmt: skip
def test_so_it_is_whatever_is_asked(options: dict[str, Any]) -> None:
    def run(model: Any) -> Hypotheses:
        return search(model, *make_sources(3, 7, 2), **{"beam": 4, **options})

    same(readable(model_of(), run), run(in_bytes(model_of())))


@pytest.mark.parametrize("beam", [1, 4])
def test_so_it_is_among_some_words(beam: int) -> None:
    def run(model: Any) -> Hypotheses:
        return search_among([4, 9, 11, 17, 18, 21, 29], [model], *make_sources(3, 7, 2), beam=beam)

    same(readable(model_of(), run), run(in_bytes(model_of())))


def test_a_greedy_search_by_kernels_alone_is_the_search_by_steps() -> None:
    """Rows leave as they end: those that are left are what they were."""
    quick, given_ = in_bytes(model_of(3)), make_sources(*range(1, 24))
    found = search(quick, *given_, beam=1)
    assert len({len(some[0].tokens) for some in found}) > 3
    assert_same_hypotheses(reference_search(quick, *given_, beam=1), found)


def test_so_it_is_where_sentences_join_a_running_search() -> None:
    def run(model: Any) -> Hypotheses:
        going, found = BeamSearch(model, beam=3), dict[int, Any]()
        first, second = make_sources(5, 9), make_sources(12, 1, 4, seed=2)
        going.join(*first)
        for _ in range(3):
            found.update(going.step())
        going.join(*second)
        while going.open:
            found.update(going.step())
        return [found[number] for number in range(5)]

    same(readable(model_of(), run), run(in_bytes(model_of())))


def test_several_models_search_together() -> None:
    models = [model_of(seed) for seed in (0, 1)]

    def run(each: Any) -> Hypotheses:
        return search(each, *make_sources(4, 8), beam=3)

    with InBytes():
        expected = run(models)
    same(expected, run([in_bytes(model) for model in models]))


def test_a_source_without_a_word_gives_nothing() -> None:
    model = model_of()
    source, lengths = torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 0])
    with InBytes(), torch.inference_mode():
        expected, _, look = model.decoder.step(model.decoder.start(model.encode(source, lengths)), torch.tensor([2, 2]))
    quick = in_bytes(model)
    found, _, seen = quick.decoder.step(quick.encode(source, lengths), torch.tensor([2, 2]))
    alike(expected, found)
    assert look is not None
    assert not seen.weights[1].any()
    alike(look.weights, seen.weights)


def test_long_sources_and_many_of_them() -> None:
    """More words than go through the layers at a time, in one source and in all."""
    model, (source, lengths) = model_of(), make_sources(300, 7, 150, 1, 64, 64)

    def run(each: Any) -> Hypotheses:
        return search(each, source, lengths, beam=2, max_length=5)

    same(readable(model, run), run(in_bytes(model)))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("size", [1e10, 1e15, 1e30])
@pytest.mark.parametrize("beam", [1, 3])
def test_numbers_too_large_are_said_to_be(beam: int, size: float, norm: str, lanes: int) -> None:
    model = model_of(norm=norm)
    with torch.no_grad():
        model.decoder.get_parameter("layers.1.feedforward.0.weight").mul_(size)
        model.decoder.get_parameter("layers.1.feedforward.2.weight").mul_(size)
    with pytest.raises(ArithmeticError, match="step 1"):
        search(cast(Any, OctetModel(model, compiled_for(lanes))), *make_sources(3, 4), beam=beam)


def test_the_model_itself_stays_as_it_is() -> None:
    model = model_of()
    before = copy.deepcopy(model.state_dict())
    search(in_bytes(model), *make_sources(3, 4), beam=2)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def changed(change: Callable[[Seq2Seq], object]) -> Seq2Seq:
    model = model_of()
    change(model)
    return model


def wider(model: Seq2Seq) -> None:
    """A network of another width in one layer."""
    model.decoder.layers[1].feedforward = FeedForward(24, 130)  # type: ignore[index, union-attr]


@pytest.mark.parametrize(("change", "why"), [
    (Seq2Seq.double, "alone, in fp32"),
    (lambda model: model.decoder.register_forward_hook(lambda *_: None), "alone, in fp32"),
    (lambda model: setattr(model.encoder, "norm", nn.Tanh()), "alone, in fp32"),
    (lambda model: setattr(model.encoder, "norm", nn.ReLU()), "alone, in fp32"),
    (lambda model: setattr(model.decoder, "norm", nn.LayerNorm(24, bias=False)), "alone, in fp32"),
    (lambda model: model.decoder.layers[0].feedforward.__setitem__(1, nn.Identity()), "alone, in fp32"),
    (lambda model: setattr(model.encoder.layers[0], "attention", MultiHeadAttention(24, 2)), "alone, in fp32"),
    (lambda model: nn.init.constant_(next(model.parameters()), torch.nan), "weights that are not numbers"),
])  # fmt: skip
def test_what_kernels_do_not_know_they_leave_alone(change: Callable[[Seq2Seq], object], why: str) -> None:
    model = model_of()
    assert lacking(model) is None
    change(model)
    assert why in str(lacking(model))


def test_other_models_are_left_alone() -> None:
    assert "Transformers of the recipes alone" in str(lacking(build("luong2015-global", 20, 20, size=8, layers=1)))


def test_a_layer_may_be_wider_than_the_first() -> None:
    def run(model: Any) -> Hypotheses:
        return search(model, *make_sources(3, 7, 2), beam=2)

    model = changed(wider)
    same(readable(model, run), run(in_bytes(model)))


@pytest.mark.parametrize("form", [
    lambda lengths: torch.stack((lengths, lengths), 1)[:, 0], torch.Tensor.int, lambda lengths: lengths * 3
], ids=["apart", "int32", "beyond the end"])  # fmt: skip
def test_lengths_in_any_form(form: Callable[[Tensor], Tensor]) -> None:
    quick, source = in_bytes(model_of()), torch.randint(4, 20, (300, 5))
    lengths = torch.full((300,), 5)
    expected = quick.encode(source, lengths)
    torch.testing.assert_close(quick.encode(source.int(), form(lengths)).values, expected.values, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [-1, WORDS, 10**7])
def test_ids_that_no_word_has_are_refused(bad: int) -> None:
    quick, given_ = in_bytes(model_of()), make_sources(3, 4)
    with pytest.raises(IndexError, match=f"ids are from 0 to {WORDS - 1}, not from {min(5, bad)} to {max(5, bad)}"):
        quick.decoder.step(quick.encode(*given_), torch.tensor([5, bad]))
    with pytest.raises(IndexError, match="ids are from 0 to 19"):
        quick.encode(torch.tensor([[5, bad]]), torch.tensor([2]))


def test_what_is_made_of_a_model_is_what_that_was() -> None:
    """Whatever it learns afterwards, and whether it drops words meanwhile."""
    model = model_of(dropout=0.5)
    quick, given_ = in_bytes(model), make_sources(3, 4)
    expected = search(quick, *given_, beam=1)
    model.train()
    for weight in model.parameters():
        nn.init.zeros_(weight)
    assert_same_hypotheses(expected, search(quick, *given_, beam=1), 0.0)


def test_it_is_in_single_precision_whatever_is_usual() -> None:
    quick, given_ = in_bytes(model_of()), make_sources(3, 4)
    for beam in (1, 3):
        expected = search(quick, *given_, beam=beam)
        torch.set_default_dtype(torch.float64)
        try:
            found = search(quick, *given_, beam=beam)
        finally:
            torch.set_default_dtype(torch.float32)
        assert_same_hypotheses(expected, found, 0.0)


def test_words_of_some_words() -> None:
    quick, (source, lengths) = in_bytes(model_of()), make_sources(3, 4)
    some, fewer = [0, 1, 2, 3, 9, 14, 20, 21], [0, 1, 2, 3, 5, 7]
    tokens = torch.tensor([2, 5])
    twice = quick.narrowed(some).narrowed(fewer)
    once = quick.narrowed([some[place] for place in fewer])
    found, expected = (one.decoder.step(one.encode(source, lengths), tokens)[0] for one in (twice, once))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_greedy_search_longer_than_what_is_made_room_for_at_first() -> None:
    quick, given_ = in_bytes(model_of(3)), make_sources(2, 30, 7)
    options: dict[str, Any] = {"beam": 1, "min_length": 2 * greedy.CHUNK + 1, "max_length": 3 * greedy.CHUNK + 2}
    found = search(quick, *given_, **options)
    assert max(len(some[0].tokens) for some in found) > 2 * greedy.CHUNK
    assert_same_hypotheses(reference_search(quick, *given_, **options), found)


def test_several_threads_may_use_it() -> None:
    quick, sources = in_bytes(model_of()), [make_sources(*range(1, size)) for size in range(2, 26)]

    def run(given_: Any) -> Hypotheses:
        return search(quick.narrowed(range(4, WORDS)) if len(given_[1]) % 2 else quick, *given_, beam=1, min_length=9)

    expected = list(map(run, sources))
    quick.decoder.embedder.made = torch.empty(0, 24)
    with ThreadPoolExecutor(6) as pool:
        for one, other in zip(pool.map(run, sources), expected, strict=True):
            assert_same_hypotheses(other, one, 0.0)


def test_a_run_is_translated_in_bytes_without_being_exported(
    transformer_run: Run, corpus: Path, regard: Command
) -> None:
    text = corpus_files(corpus, "test")[0].read_text(encoding="utf-8")
    by_torch, by_kernels = (load(transformer_run.folder, precision=precision) for precision in ("fp32", "int8"))
    assert isinstance(by_kernels.engines[0], OctetModel)
    expected = [one.text for one in by_kernels.translate(text.splitlines(), beam=3)]
    for engine in ("auto", "torch"):
        done = regard(
            "translate", transformer_run.folder, "--engine", engine, "--precision", "int8", "--beam", 3, input=text
        )
        assert (done.returncode, done.stdout.splitlines()) == (0, expected)
        assert (f"decoding {transformer_run.folder} in int8" in done.stderr) == (engine == "auto")
    exact = [one.text for one in by_torch.translate(text.splitlines(), beam=3)]
    assert sum(map(str.__eq__, exact, expected)) > 0.8 * len(exact)


def test_it_is_preferred_to_what_was_exported_and_alone_where_asked_for(transformer_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(transformer_run.folder, run)
    opened = engines.Opened(Run(run), *(lambda own: (own.models[0], own.tokenizers))(load(run)))
    engines.rewritten(opened, "int8")
    exported, own = load(run, engine="auto"), load(run, engine="auto", precision="int8")
    assert exported.runtime is not None
    assert isinstance(exported.engines[0], Seq2Seq)  # for what CTranslate2 has no search for
    assert own.runtime is None
    assert isinstance(own.engines[0], OctetModel)


@pytest.mark.parametrize("asked", [
    {"beam": 1}, {"beam": 4, "n_best": 2}, {"forbid": ["Hund"]}, {"prefix": "Der"}, {"sample": 2}
], ids=str)  # fmt: skip
def test_whatever_a_translation_may_be_asked_for(asked: dict[str, Any], transformer_run: Run, corpus: Path) -> None:
    texts = ["", *corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:9]]
    found = load(transformer_run.folder, precision="int8").translate(texts, alignments=True, **asked)
    assert len(found) == len(texts)
    assert all(one.text and one.alignment is not None for one in found[1:])


@pytest.mark.parametrize("processes", [0, 1])
def test_a_service_decodes_in_bytes(transformer_run: Run, corpus: Path, processes: int) -> None:
    texts = corpus_files(corpus, "test")[0].read_text(encoding="utf-8").splitlines()[:60]
    expected = [one.text for one in load(transformer_run.folder, precision="int8").translate(texts, beam=2)]
    exact = [one.text for one in load(transformer_run.folder).translate(texts, beam=2)]
    with start_server(
        f"{transformer_run.folder}=en-de", "--precision", "int8", "--beam", 2, "--processes", processes
    ) as server:
        found = server.translate(texts)["translatedText"]
    assert found == expected
    assert exact != expected, "else nothing would be seen"


def test_where_fast_ways_are_switched_off_it_says_so(
    transformer_run: Run, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_FAST", "0")
    done = regard("translate", transformer_run.folder, "--precision", "int8", input="The dog .\n")
    assert (done.returncode, done.stderr) == (0, "decoding in fp32: REGARD_FAST is 0\n")


def test_a_processor_without_products_of_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "cc -U__ARM_FEATURE_DOTPROD -U__AVX512VNNI__ -U__AVXVNNI__")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingError, match=r"^this processor, or its compiler, has no products of bytes$"):
        library()


def test_without_a_compiler_graphs_are_what_is_left(
    transformer_run: Run, regard: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    other = f"regard export {transformer_run.folder} --precision int8"
    for engine, why in (
        (
            "torch",
            f"torch does not decode {transformer_run.folder} in int8: there is no C compiler no-such-compiler",
        ),
        (
            "auto",
            f"{transformer_run.folder} has no graphs in int8 of its model: {other} (without: there is no C compiler",
        ),
    ):
        done = regard(
            "translate", transformer_run.folder, "--engine", engine, "--precision", "int8", input="The dog .\n"
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert why in done.stderr
        assert other in done.stderr
