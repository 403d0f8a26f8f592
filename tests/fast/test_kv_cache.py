"""Decoders with a non-moving KV cache, and with the per-head layout for CUDA graphs, against the reference decoder."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from support.combinations import each_value, slow_after
from support.fast_models import TARGET_WORDS, add_hook, make_random_transformer
from support.search import SEARCH_OPTIONS, Hypotheses, assert_same_hypotheses, make_sources
from torch import Tensor, nn

from regard.export.onnx_engine import HeadMajorDecoder
from regard.fast import accelerate
from regard.fast.decoding.kv_cache import MAX_SHARED_BEAM, MIN_FREE_POSITIONS, KVCachedDecoder, make_cached_decoder
from regard.models import Seq2Seq, build
from regard.models.vaswani2017 import TransformerDecoder
from regard.search import BeamSearch, Hypothesis, SearchOptions, sample, search, search_restricted
from regard.search.ensemble import Ensemble

MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {"norm": "pre"},
    "post-norm": {"norm": "post", "tie": "none", "align_layer": 1},
    "learned-positions": {"positions": "learned", "max_positions": 9, "align_layer": 1, "align_head": 2},
    "no-positions": {"norm": "post", "positions": "none", "tie": "decoder", "align_head": 3},
    "imported": {
        "norm": "post",
        "activation": "swish",
        "scale_embedding": False,
        "decoder_layers": 1,
        "output_bias": True,
    },
}
LENGTH = st.integers(1, 12)


def assert_same_search(model: Seq2Seq, run: Callable[[Seq2Seq], Hypotheses]) -> None:
    """Check that `run` finds the same hypotheses with the reference decoder and with the cached one."""
    reference, fast = copy.copy(model), copy.copy(model)
    reference.acceleration.make_decoder, fast.acceleration.make_decoder = None, make_cached_decoder
    assert isinstance(Ensemble(fast).decoders[0], KVCachedDecoder)
    assert_same_hypotheses(run(reference), run(fast))


@pytest.mark.parametrize(("name", "beam"), each_value(list(MODELS), [1, 4, MAX_SHARED_BEAM + 1]))
def test_cached_decoder_finds_the_reference_hypotheses(name: str, beam: int) -> None:
    def run(model: Seq2Seq) -> Hypotheses:
        return search(
            model, *make_sources(9, 1, 5, 20), beam=beam, n_best=min(beam, 2), max_length=MIN_FREE_POSITIONS + 4
        )

    assert_same_search(make_random_transformer(**MODELS[name]), run)


@pytest.mark.parametrize("options", slow_after(2, SEARCH_OPTIONS), ids=str)
def test_cached_decoder_supports_every_search_option(options: dict[str, Any]) -> None:
    def run(model: Seq2Seq) -> Hypotheses:
        return search(model, *make_sources(3, 7, 2), beam=4, **options)

    assert_same_search(make_random_transformer(), run)


def search_with_cohorts(model: Seq2Seq, cohorts: list[tuple[list[int], int]], seed: int, **options: Any) -> Hypotheses:
    """Let sources of the given lengths join a search, each cohort followed by so many steps."""
    searching, found = BeamSearch(model, SearchOptions(**options)), dict[int, list[Hypothesis]]()
    for lengths, steps in cohorts:
        searching.add(*make_sources(*lengths, seed=seed))
        for _ in range(steps if searching.num_active else 0):
            found.update(searching.step() if searching.num_active else [])
    while searching.num_active:
        found.update(searching.step())
    return [found[number] for number in sorted(found)]


def test_sources_may_join_a_search_with_a_cached_decoder() -> None:
    cohorts = [([5, 9], 3), ([12, 1], 1), ([4], 0)]
    assert_same_search(
        make_random_transformer(),
        lambda model: search_with_cohorts(model, cohorts, 1, beam=3, max_length=MIN_FREE_POSITIONS + 1),
    )


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@given(
    st.lists(st.tuples(st.lists(LENGTH, min_size=1, max_size=4), st.integers(0, 6)), min_size=1, max_size=4),
    st.sampled_from((1, 2, 3, 5, MAX_SHARED_BEAM + 1)), st.sampled_from(list(MODELS)),
    st.integers(2, 2 * MIN_FREE_POSITIONS), st.integers(0, 99),
)  # fmt: skip
def test_sources_may_join_a_search_with_a_cached_decoder_at_any_step(
    cohorts: list[tuple[list[int], int]], beam: int, name: str, longest: int, seed: int
) -> None:
    model = make_random_transformer(seed, 0.3, **MODELS[name]).double()
    assert_same_search(model, lambda one: search_with_cohorts(one, cohorts, seed, beam=beam, max_length=longest))


@pytest.mark.parametrize("samples", [3, MAX_SHARED_BEAM + 4])
def test_cached_decoder_draws_the_reference_samples(samples: int) -> None:
    def run(model: Seq2Seq) -> Hypotheses:
        return sample(model, *make_sources(4, 6), samples=samples, max_length=9)

    assert_same_search(make_random_transformer(), run)


def test_cached_decoder_is_exact_in_an_ensemble_and_with_a_shortlist() -> None:
    other, words = make_random_transformer(1, norm="post"), range(3, TARGET_WORDS, 2)
    options: dict[str, Any] = {"beam": 3, "n_best": 2, "max_length": 9}
    model, sources = make_random_transformer(), make_sources(4, 6)
    assert_same_search(model, lambda one: search([one, other], *sources, **options))
    assert_same_search(model, lambda one: search_restricted(words, [one], *sources, **options))


def test_search_with_a_shortlist_uses_the_cached_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = list[TransformerDecoder]()
    monkeypatch.setattr(KVCachedDecoder, "__init__", lambda self, decoder: decoders.append(decoder))
    with pytest.raises(AttributeError):
        search_restricted(range(4, 9), [accelerate(make_random_transformer())], *make_sources(4, 6))
    assert [decoder.output.weight.shape[0] for decoder in decoders] == [9]


def check_step(decoders: tuple[Any, Any], states: tuple[Any, Any], tokens: Tensor) -> tuple[Any, Any]:
    """Take a step with both decoders, check that their outputs are the same, and return the new states."""
    (log_probs, state, attended), (expected, expected_state, expected_attended) = (
        decoder.step(state, tokens) for decoder, state in zip(decoders, states, strict=True)
    )
    for found, wanted in (
        (log_probs, expected),
        (attended.context, expected_attended.context),
        (attended.weights, expected_attended.weights),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    return state, expected_state


@pytest.mark.parametrize(("make_decoder", "name"), each_value([make_cached_decoder, HeadMajorDecoder], list(MODELS)))
@torch.inference_mode()
def test_decoder_states_are_selected_widened_reordered_and_joined(
    make_decoder: Callable[[Any], Any], name: str
) -> None:
    model = make_random_transformer(**MODELS[name]).double()
    decoders: Any = (make_decoder(model.decoder), model.decoder)
    encoded = model.encode(*make_sources(5, 3, 4))
    begun = decoders[0].start(encoded), decoders[1].start(encoded)

    def each(states: tuple[Any, Any], method: str, *given: Any) -> tuple[Any, Any]:
        one, other = (getattr(decoder, method)(state, *given) for decoder, state in zip(decoders, states, strict=True))
        return one, other

    after = check_step(decoders, begun, torch.tensor([4, 5, 6]))
    check_step(decoders, each(after, "select", torch.tensor([2, 0, 0])), torch.tensor([4, 5, 6]))
    for width in (2, MAX_SHARED_BEAM + 1):
        wide = each(after, "expand_beams", width)
        tokens = torch.arange(3 * width) % 7 + 4
        one = check_step(decoders, wide, tokens)
        rows = torch.arange(3 * width).view(3, width).flip(1).flatten()
        two = check_step(decoders, each(one, "reorder_beams", rows), tokens)
        check_step(decoders, one, tokens + 1)  # earlier states are unchanged …
        check_step(decoders, wide, tokens + 2)
        check_step(decoders, two, tokens)  # … and so is the later one
        three = check_step(decoders, each(two, "keep_rows", rows[width:], torch.tensor([1, 2])), tokens[width:])
        late = each(begun, "expand_beams", width)
        joined = decoders[0].concat_states(three[0], late[0]), decoders[1].concat_states(three[1], late[1])
        four = check_step(decoders, each(joined, "trim_padding", 5, 4), torch.arange(5 * width) % 7 + 4)
        fewer = each(four, "keep_rows", torch.arange(2 * width, 5 * width), torch.arange(2, 5))
        check_step(decoders, each(fewer, "trim_padding", 5, 1), tokens)


@pytest.mark.parametrize("make_decoder", [make_cached_decoder, HeadMajorDecoder])
@torch.inference_mode()
def test_cached_decoder_accepts_an_empty_source(make_decoder: Callable[[Any], Any]) -> None:
    model = make_random_transformer().double()
    decoders: Any = (make_decoder(model.decoder), model.decoder)
    encoded = model.encode(make_sources(3, 2)[0], torch.tensor([3, 0]))
    states = tuple(decoder.expand_beams(decoder.start(encoded), 2) for decoder in decoders)
    check_step(decoders, (states[0], states[1]), torch.tensor([4, 5, 6, 7]))


@torch.inference_mode()
def test_cached_keys_and_values_do_not_move_within_a_chunk() -> None:
    model = make_random_transformer()
    decoder = KVCachedDecoder(model.decoder)  # type: ignore[arg-type]
    state = decoder.expand_beams(decoder.start(model.encode(*make_sources(5, 3))), 4)
    addresses = []
    for _ in range(2 * MIN_FREE_POSITIONS):
        _, state, _ = decoder.step(state, torch.arange(8) + 4)
        state = decoder.reorder_beams(state, torch.tensor([1, 0, 0, 2, 7, 7, 5, 4]))
        addresses.append((state.cache.keys.data_ptr(), state.cache.values.data_ptr()))
    assert len(set(addresses)) == 2  # they moved once, when the first chunk was full
    assert addresses[0] == addresses[MIN_FREE_POSITIONS - 1]


def convert_to_bf16(model: Seq2Seq) -> None:
    model.to(torch.bfloat16)


def move_to_meta(model: Seq2Seq) -> None:
    model.to("meta")


def use_leaky_relu_in_decoder(model: Any) -> None:
    model.decoder.layers[0].feedforward[1] = nn.LeakyReLU()


def subclass_decoder(model: Seq2Seq) -> None:
    model.decoder.__class__ = type("OwnDecoder", (TransformerDecoder,), {})


@pytest.mark.parametrize(
    "change", [add_hook, use_leaky_relu_in_decoder, subclass_decoder, convert_to_bf16, move_to_meta]
)
def test_modified_decoder_takes_its_own_steps(change: Callable[[Seq2Seq], object]) -> None:
    model = accelerate(make_random_transformer())
    assert isinstance(Ensemble(model).decoders[0], KVCachedDecoder)
    change(model)
    assert Ensemble(model).decoders == [model.decoder]


def test_decoder_takes_its_own_steps_under_autocast() -> None:
    model = accelerate(make_random_transformer())
    with torch.autocast("cpu"):
        assert Ensemble(model).decoders == [model.decoder]


def test_cached_decoder_is_for_transformers_and_off_with_regard_fast_0(monkeypatch: pytest.MonkeyPatch) -> None:
    luong = accelerate(build("luong2015-global", 20, TARGET_WORDS, size=8, layers=1))
    assert Ensemble(luong).decoders == [luong.decoder]
    monkeypatch.setenv("REGARD_FAST", "0")
    model = accelerate(make_random_transformer())
    assert Ensemble(model).decoders == [model.decoder]


def pickle_and_load(model: Seq2Seq) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle_and_load])
def test_copied_model_searches_with_the_cached_decoder(make_copy: Callable[[Seq2Seq], Seq2Seq]) -> None:
    model = accelerate(make_random_transformer())
    found = search(make_copy(model), *make_sources(4, 6), beam=3, max_length=9)
    assert_same_hypotheses(search(model, *make_sources(4, 6), beam=3, max_length=9), found)
    assert isinstance(Ensemble(make_copy(model)).decoders[0], KVCachedDecoder)
