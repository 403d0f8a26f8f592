"""A decoder whose past stays where it is against the readable one, and so one that has it by heads, for graphs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from support.search import SEARCH_OPTIONS, Hypotheses, assert_same_hypotheses, make_sources
from torch import Tensor, nn

from regard.fast import quicken
from regard.fast.cached import WIDEST, CachedDecoder, cached
from regard.fast.laid import LaidDecoder
from regard.fast.room import CHUNK
from regard.models import Seq2Seq, build
from regard.models.transformer import TransformerDecoder
from regard.search import BeamSearch, Hypothesis, sample, search, search_among
from regard.search.ensemble import Ensemble

WORDS = 30
FORM: dict[str, Any] = {"size": 24, "layers": 2, "heads": 3}
FORMS: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post", "tie": "none", "align_layer": 1},
    {"positions": "learned", "max_positions": 9, "align_layer": 1, "align_head": 2},
    {"norm": "post", "positions": "none", "tie": "decoder", "align_head": 3},
]
LENGTH = st.integers(1, 12)


def model_of(seed: int = 0, spread: float = 0.4, **form: Any) -> Seq2Seq:
    """With weights that make some words likelier than others."""
    torch.manual_seed(seed)
    made = build("vaswani2017-base", 20, WORDS, **{**FORM, **form}).eval()
    assert isinstance(made, Seq2Seq)
    for weight in made.parameters():
        nn.init.normal_(weight, std=spread)
    return made


def both(model: Seq2Seq, run: Callable[[Seq2Seq], Hypotheses]) -> tuple[Hypotheses, Hypotheses]:
    """What the readable decoder leads to, and the other."""
    readable, quick = copy.copy(model), copy.copy(model)
    readable.stepper, quick.stepper = None, cached
    assert isinstance(Ensemble(quick).decoders[0], CachedDecoder)
    return run(readable), run(quick)


@pytest.mark.parametrize("beam", [1, 4, WIDEST + 1])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_found_is_the_same(form: dict[str, Any], beam: int) -> None:
    def run(model: Seq2Seq) -> Hypotheses:
        return search(model, *make_sources(9, 1, 5, 20), beam=beam, n_best=min(beam, 2), max_length=CHUNK + 4)

    assert_same_hypotheses(*both(model_of(**form), run))


@pytest.mark.parametrize("options", SEARCH_OPTIONS, ids=str)
def test_so_it_is_whatever_is_asked(options: dict[str, Any]) -> None:
    assert_same_hypotheses(*both(model_of(), lambda model: search(model, *make_sources(3, 7, 2), beam=4, **options)))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.lists(LENGTH, min_size=1, max_size=4), st.integers(0, 6)), min_size=1, max_size=4),
    st.sampled_from((1, 2, 3, 5, WIDEST + 1)), st.integers(0, 3), st.integers(2, 2 * CHUNK), st.integers(0, 99),
)  # fmt: skip
def test_so_it_is_whoever_joins_at_whatever_step(
    cohorts: list[tuple[list[int], int]], beam: int, form: int, longest: int, seed: int
) -> None:
    def run(model: Seq2Seq) -> Hypotheses:
        searching, found = BeamSearch(model, beam=beam, max_length=longest), dict[int, list[Hypothesis]]()
        for lengths, steps in cohorts:
            searching.join(*make_sources(*lengths, seed=seed))
            for _ in range(steps if searching.open else 0):
                found.update(searching.step() if searching.open else [])
        while searching.open:
            found.update(searching.step())
        return [found[number] for number in sorted(found)]

    assert_same_hypotheses(*both(model_of(seed, 0.3, **FORMS[form]).double(), run))


@pytest.mark.parametrize("samples", [3, WIDEST + 4])
def test_the_same_is_drawn(samples: int) -> None:
    assert_same_hypotheses(
        *both(model_of(), lambda model: sample(model, *make_sources(4, 6), samples=samples, max_length=9))
    )


def test_an_ensemble_and_a_shortlist() -> None:
    other, words = model_of(1, norm="post"), range(3, WORDS, 2)
    options: dict[str, Any] = {"beam": 3, "n_best": 2, "max_length": 9}
    assert_same_hypotheses(*both(model_of(), lambda model: search([model, other], *make_sources(4, 6), **options)))
    assert_same_hypotheses(
        *both(model_of(), lambda model: search_among(words, [model], *make_sources(4, 6), **options))
    )


def test_a_model_among_some_words_takes_its_steps_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[TransformerDecoder]()
    monkeypatch.setattr(CachedDecoder, "__init__", lambda self, decoder: taken.append(decoder))
    with pytest.raises(AttributeError):
        search_among(range(4, 9), [quicken(model_of())], *make_sources(4, 6))
    assert [decoder.output.weight.shape[0] for decoder in taken] == [9]


def agreeing(decoders: tuple[Any, Any], states: tuple[Any, Any], tokens: Tensor) -> tuple[Any, Any]:
    """The states after a step in which both decoders say the same."""
    (log_probs, one, look), (expected, other, looked) = (
        decoder.step(state, tokens) for decoder, state in zip(decoders, states, strict=True)
    )
    for found, wanted in ((log_probs, expected), (look.context, looked.context), (look.weights, looked.weights)):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    return one, other


@pytest.mark.parametrize("twin", [cached, LaidDecoder])
@pytest.mark.parametrize("form", FORMS, ids=str)
@torch.inference_mode()
def test_states_do_what_states_do(twin: Callable[[Any], Any], form: dict[str, Any]) -> None:
    model = model_of(**form).double()
    decoders: Any = (twin(model.decoder), model.decoder)
    encoded = model.encode(*make_sources(5, 3, 4))
    begun = decoders[0].start(encoded), decoders[1].start(encoded)

    def each(states: tuple[Any, Any], name: str, *how: Any) -> tuple[Any, Any]:
        one, other = (getattr(decoder, name)(state, *how) for decoder, state in zip(decoders, states, strict=True))
        return one, other

    after = agreeing(decoders, begun, torch.tensor([4, 5, 6]))
    agreeing(decoders, each(after, "select", torch.tensor([2, 0, 0])), torch.tensor([4, 5, 6]))
    for width in (2, WIDEST + 1):
        wide = each(after, "widen", width)
        tokens = torch.arange(3 * width) % 7 + 4
        one = agreeing(decoders, wide, tokens)
        rows = torch.arange(3 * width).view(3, width).flip(1).flatten()
        two = agreeing(decoders, each(one, "reorder", rows), tokens)
        agreeing(decoders, one, tokens + 1)  # what was left behind is as it was …
        agreeing(decoders, wide, tokens + 2)
        agreeing(decoders, two, tokens)  # … and so is what went on
        three = agreeing(decoders, each(two, "keep", rows[width:], torch.tensor([1, 2])), tokens[width:])
        late = each(begun, "widen", width)
        both = decoders[0].join(three[0], late[0]), decoders[1].join(three[1], late[1])
        four = agreeing(decoders, each(both, "trim", 5, 4), torch.arange(5 * width) % 7 + 4)
        fewer = each(four, "keep", torch.arange(2 * width, 5 * width), torch.arange(2, 5))
        agreeing(decoders, each(fewer, "trim", 5, 1), tokens)


@pytest.mark.parametrize("twin", [cached, LaidDecoder])
@torch.inference_mode()
def test_a_source_without_a_word_shows_nothing(twin: Callable[[Any], Any]) -> None:
    model = model_of().double()
    decoders: Any = (twin(model.decoder), model.decoder)
    encoded = model.encode(make_sources(3, 2)[0], torch.tensor([3, 0]))
    states = tuple(decoder.widen(decoder.start(encoded), 2) for decoder in decoders)
    agreeing(decoders, (states[0], states[1]), torch.tensor([4, 5, 6, 7]))


@torch.inference_mode()
def test_words_so_far_stay_where_they_are() -> None:
    model = model_of()
    decoder = CachedDecoder(model.decoder)  # type: ignore[arg-type]
    state = decoder.widen(decoder.start(model.encode(*make_sources(5, 3))), 4)
    places = []
    for _ in range(2 * CHUNK):
        _, state, _ = decoder.step(state, torch.arange(8) + 4)
        state = decoder.reorder(state, torch.tensor([1, 0, 0, 2, 7, 7, 5, 4]))
        places.append((state.room.keys.data_ptr(), state.room.values.data_ptr()))
    assert len(set(places)) == 2  # they moved once, when the first chunk was full
    assert places[0] == places[CHUNK - 1]


def changed(**weights: Any) -> Callable[[Seq2Seq], object]:
    return lambda model: model.to(**weights)


def heard(model: Any) -> None:
    model.decoder.layers[0].register_forward_hook(lambda *_: None)


def gelu(model: Any) -> None:
    model.decoder.layers[0].feedforward[1] = nn.GELU()


def another(model: Seq2Seq) -> None:
    class Other(TransformerDecoder):
        """Somebody's own."""

    model.decoder.__class__ = Other


@pytest.mark.parametrize("change", [heard, gelu, another, changed(dtype=torch.bfloat16), changed(device="meta")])
def test_a_decoder_that_is_not_known_takes_its_own_steps(change: Callable[[Seq2Seq], object]) -> None:
    model = quicken(model_of())
    assert isinstance(Ensemble(model).decoders[0], CachedDecoder)
    change(model)
    assert Ensemble(model).decoders == [model.decoder]


def test_under_autocast_a_decoder_takes_its_own_steps() -> None:
    model = quicken(model_of())
    with torch.autocast("cpu"):
        assert Ensemble(model).decoders == [model.decoder]


def test_other_models_take_their_own_steps_and_so_do_all_where_faster_ways_are_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    luong = quicken(build("luong2015-global", 20, WORDS, size=8, layers=1))
    assert Ensemble(luong).decoders == [luong.decoder]
    monkeypatch.setenv("REGARD_FAST", "0")
    model = quicken(model_of())
    assert Ensemble(model).decoders == [model.decoder]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_searches_alike(copied: Callable[[Seq2Seq], Seq2Seq]) -> None:
    model = quicken(model_of())
    found = search(copied(model), *make_sources(4, 6), beam=3, max_length=9)
    assert_same_hypotheses(search(model, *make_sources(4, 6), beam=3, max_length=9), found)
    assert isinstance(Ensemble(copied(model)).decoders[0], CachedDecoder)
