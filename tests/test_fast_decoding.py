"""A search on the device against the readable one: here in plain PyTorch, step by step, on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from support.search import assert_same_hypotheses, make_sources, reference_search
from torch import Tensor, nn

from regard.fast import quicken, rest
from regard.fast.decoding import way
from regard.fast.decoding.board import CHUNK, Wish
from regard.fast.decoding.finder import Finder, Room
from regard.fast.decoding.harvest import Record
from regard.fast.decoding.plain import PLAIN
from regard.fast.decoding.reading import Reading
from regard.models import build
from regard.models.seq2seq import Seq2Seq, Viewpoint
from regard.search import Hypothesis, search
from regard.symbols import EOS
from regard.training.optimizer import optimizer
from regard.training.settings import TrainingSettings

WORDS = 30
TRANSFORMER: dict[str, Any] = {"config": "vaswani2017-base", "size": 24, "layers": 2, "heads": 3}
LUONG: dict[str, Any] = {"config": "luong2015-global", "size": 12, "layers": 2}
FORMS: list[dict[str, Any]] = [
    {**TRANSFORMER, "norm": "pre"},
    {**TRANSFORMER, "norm": "post", "tie": "none"},
    {**TRANSFORMER, "norm": "pre", "positions": "learned", "max_positions": 9, "align_layer": 1, "align_head": 2},
    {**TRANSFORMER, "norm": "post", "positions": "none", "tie": "decoder"},
    LUONG,
    {**LUONG, "score": "dot", "layers": 1},
    {**LUONG, "score": "concat", "bidirectional": True, "layers": 1},
    {**LUONG, "input_feeding": False},
]


def model_of(form: dict[str, Any], spread: float = 0.5, seed: int = 0) -> Seq2Seq:
    """In double precision, with weights that make some words likelier than others."""
    torch.manual_seed(seed)
    made = build(source_size=20, target_size=WORDS, **form).double().eval()
    assert isinstance(made, Seq2Seq)
    for weight in made.parameters():
        nn.init.normal_(weight, std=spread)
    return made


def finder_of(model: Seq2Seq) -> Finder:
    return way.made(model, torch.float64, PLAIN)


def both(
    model: Seq2Seq, source: Tensor, lengths: Tensor, finder: Finder | None = None, **options: Any
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    """What the readable search finds, and the one on the device."""
    finder, model.shortcut = finder or finder_of(model), None
    readable = reference_search(model, source, lengths, **options)
    taken = []

    def shortcut(_: Seq2Seq, *asked: Any) -> Any:
        taken.append(asked)
        return finder(*asked)

    model.shortcut = shortcut
    quick = search(model, source, lengths, **options)
    model.shortcut = None
    assert taken
    return readable, quick


@pytest.mark.parametrize("beam", [1, 4, 5])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_found_is_what_the_readable_search_finds(form: dict[str, Any], beam: int) -> None:
    assert_same_hypotheses(
        *both(model_of(form), *make_sources(9, 1, 5, 20), beam=beam, n_best=min(beam, 2), max_length=14)
    )


@pytest.mark.parametrize("options", [
    {"length_penalty": 0.0, "attention": False},
    {"length_penalty": "average", "n_best": 4},
    {"length_penalty": -1.0, "n_best": 3},
    {"length_penalty": 2.0, "min_length": 7},
    {"max_length": 1, "n_best": 2},
    {"max_length": 6, "min_length": 6},
    {},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_so_it_does_whatever_is_asked(form: dict[str, Any], options: dict[str, Any]) -> None:
    assert_same_hypotheses(*both(model_of(form), *make_sources(3, 7, 2), beam=4, **options))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 6), st.booleans(),
    st.floats(0, 2), st.integers(1, 30), st.integers(0, 99),
)  # fmt: skip
def test_so_it_does_for_any_shape(
    lengths: list[int], beam: int, n_best: int, recurrent: bool, penalty: float, longest: int, seed: int
) -> None:
    model = model_of(LUONG if recurrent else FORMS[1], spread=0.3, seed=seed)
    found = both(
        model, *make_sources(*lengths, seed=seed), beam=beam, n_best=min(n_best, beam), length_penalty=penalty,
        max_length=longest,
    )  # fmt: skip
    assert_same_hypotheses(*found)


@pytest.mark.parametrize(
    ("lengths", "options", "order"),
    [
        ((20, 20, 20), {"min_length": 20, "max_length": 20}, "aararr"),  # 20 words are likely to be more than 16
        ((20, 20, 20), {"max_length": 6}, "ar"),  # 6 are all that there may be
        ((20, 3, 3, 3), {"min_length": 9, "max_length": 12}, "arar"),  # one of four would not fill the room
        ((20, 20, 20), {"min_length": 20, "max_length": 20, "attention": True}, "ararar"),  # looks are read in place
    ],
)
@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_the_next_chunk_begins_before_the_last_is_read(
    form: dict[str, Any], lengths: tuple[int, ...], options: dict[str, Any], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    advance, end = Room.advance, Reading.end
    monkeypatch.setattr(Room, "advance", lambda room: seen.append("a") or advance(room))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Reading, "end", lambda one: seen.append("r") or end(one))  # type: ignore[func-returns-value]
    assert_same_hypotheses(*both(model_of(form), *make_sources(*lengths), beam=2, **{"attention": False, **options}))
    assert "".join(seen) == order


def test_who_is_known_to_be_done_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Record.add

    def all_but_one(record: Record, slab: Any, looks: Any, who: Any) -> None:
        add(record, slab, looks, who)
        record.done[1:] = 1

    monkeypatch.setattr(Record, "add", all_but_one)
    rooms: list[int] = []
    advance = Room.advance
    monkeypatch.setattr(Room, "advance", lambda room: rooms.append(room.size.sentences) or advance(room))  # type: ignore[func-returns-value]
    finder, lengths = finder_of(model_of(LUONG)), [60] * 8
    source, sizes = make_sources(*lengths)
    with torch.inference_mode():
        finder.searched(source, sizes, Wish(2, 1, 40, [40] * 8, [1.0] * 41, False, lengths))
    assert rooms == [8, 8, 1, 1, 1], "one chunk is taken for nothing, no more"


@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_who_moves_to_a_room_of_another_search_takes_along_what_was_asked(form: dict[str, Any]) -> None:
    model = model_of(form)
    finder = finder_of(model)
    assert_same_hypotheses(*both(model, *make_sources(20), finder, beam=2, length_penalty=0.0, max_length=3))
    asked: dict[str, Any] = {"beam": 2, "n_best": 2, "length_penalty": 2.0, "min_length": 12}
    assert_same_hypotheses(*both(model, *make_sources(20, 1, 1, 1, 1, 1, 1, 1, 1), finder, **asked))
    small = next(room.board for (size, _), room in finder.rooms.items() if size.sentences == 1)
    assert small.wishes.tolist() == [12, 2]
    assert small.penalties[6] == pytest.approx((11 / 6) ** 2)


@pytest.mark.parametrize("longest", [3, 8, 20])
@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_a_chunk_that_was_taken_for_nothing_changes_nothing(
    form: dict[str, Any], longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(self: Finder, room: Room, sentences: int, taken: int) -> bool:
        return not self.weights.grows or taken + CHUNK <= room.size.capacity

    monkeypatch.setattr(Finder, "goes_on", always)
    model = model_of(form)
    finder = finder_of(model)
    for lengths in ((9, 1, 5, 20), (2, 3)):  # the second search finds what the first has left
        assert_same_hypotheses(
            *both(model, *make_sources(*lengths), finder, beam=3, max_length=longest, attention=False)
        )


def test_a_beam_wider_than_the_vocabulary() -> None:
    torch.manual_seed(0)
    model = build(source_size=20, target_size=6, **LUONG).double().eval()
    assert isinstance(model, Seq2Seq)
    assert_same_hypotheses(*both(model, *make_sources(3, 5), beam=8, n_best=8, max_length=4))


@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_sentences_move_where_targets_outgrow_a_room_and_where_most_are_done(form: dict[str, Any]) -> None:
    model, (source, lengths) = model_of(form, spread=0.3), make_sources(*[1] * 9, 16, 3)
    finder = finder_of(model)
    assert_same_hypotheses(*both(model, source, lengths, finder, beam=2, length_penalty=0.0, min_length=3))
    sizes = [size for size, _ in finder.rooms]
    assert len({size.sentences for size in sizes}) > 1
    assert not finder.weights.grows or {size.capacity for size in sizes} == {32, 64}


def test_a_room_serves_one_search_after_the_other() -> None:
    model = model_of(FORMS[0])
    finder = finder_of(model)
    for seed in range(3):
        assert_same_hypotheses(*both(model, *make_sources(9, 4, 2, seed=seed), finder, beam=3, max_length=9 + seed))
    assert len(finder.rooms) == 1


def test_another_viewpoint_is_another_room() -> None:
    model, given = model_of(FORMS[0]), make_sources(9, 4)
    finder = finder_of(model)
    for view in (Viewpoint(-1, None), Viewpoint(0, 1), Viewpoint(1, 2)):
        model.decoder.viewpoint = view
        assert_same_hypotheses(*both(model, *given, finder, beam=2, max_length=5))
    assert len(finder.rooms) == 3


def in_place(model: Seq2Seq) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-0.7)


def behind_the_back(model: Seq2Seq) -> None:
    for weight in model.parameters():
        weight.data.mul_(-0.7)


def by_learning(kind: str) -> Callable[[Seq2Seq], None]:
    """Fused optimizers do not count up the versions of what they write to."""

    def learn(model: Seq2Seq) -> None:
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        settings = TrainingSettings(optimizer=kind, learning_rate=0.5)  # type: ignore[arg-type]
        optimizer(model, settings).step()

    return learn


CHANGES = [in_place, behind_the_back, by_learning("adamw"), by_learning("sgd")]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", [FORMS[0], FORMS[2], LUONG, FORMS[6]], ids=str)
def test_weights_that_have_changed_are_taken_up(form: dict[str, Any], change: Callable[[Seq2Seq], None]) -> None:
    model, given = model_of(form), make_sources(5, 3)
    finder = finder_of(model)
    before, _ = both(model, *given, finder, beam=2, max_length=6)
    change(model)
    after, quick = both(model, *given, finder, beam=2, max_length=6)
    assert_same_hypotheses(after, quick)
    assert [some[0].log_prob for some in after] != [some[0].log_prob for some in before]


@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_in_half_precision_weights_are_copies_that_follow(form: dict[str, Any]) -> None:
    model, given = model_of(form).float(), make_sources(5, 3)
    finder = way.made(model, torch.bfloat16, PLAIN)
    wish = Wish(2, 1, 1, [6, 6], [1.0] * 7, False, [5, 3])
    before = finder(*given, wish)
    in_place(model)
    after = finder(*given, wish)
    assert after != before
    assert after == way.made(model, torch.bfloat16, PLAIN)(*given, wish)


def moved(model: Any) -> None:
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def replaced(model: Any) -> None:
    model.decoder = copy.deepcopy(model.decoder)


@pytest.mark.parametrize("change", [moved, replaced])
@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_weights_elsewhere_are_searched_with_by_another_finder(
    form: dict[str, Any], change: Callable[[Any], None]
) -> None:
    model, shortcut = model_of(form).float(), way.Shortcut()
    first = shortcut.finder(model, PLAIN)
    assert first is not None
    assert shortcut.finder(model, PLAIN) is first
    change(model)
    assert shortcut.finder(model, PLAIN) is not first


@pytest.mark.parametrize("form", [FORMS[0], LUONG], ids=str)
def test_damaged_weights_are_told_in_the_same_words(form: dict[str, Any]) -> None:
    model, (source, lengths) = model_of(form), make_sources(3, 2)
    with torch.no_grad():
        next(model.decoder.parameters())[7:] = torch.nan  # words: the first step reads none of them
    with pytest.raises(ArithmeticError) as readable:
        search(model, source, lengths, beam=2)
    finder = finder_of(model)
    model.shortcut = lambda _, *asked: finder(*asked)
    with pytest.raises(ArithmeticError, match=str(readable.value)):
        search(model, source, lengths, beam=2)


def test_hypotheses_that_were_cut_off_count_only_where_none_ended() -> None:
    model, given = model_of(LUONG, spread=0.3, seed=4), make_sources(3, 4, 5, 6, 7, 8)
    readable, quick = both(model, *given, beam=3, n_best=3, max_length=CHUNK + 1)
    assert_same_hypotheses(readable, quick)
    assert {one.tokens[-1] == EOS for some in quick for one in some} == {True, False}
    assert all(len({one.tokens[-1] == EOS for one in some}) == 1 for some in quick)


ASKED: list[dict[str, Any]] = [
    {"prefix": [[4], []]},
    {"force": [[], [[5]]]},
    {"forbid": [[7]]},
    {"no_repeat": 2},
    {"coverage_penalty": 0.2},
    {"rules": [lambda *_: None]},
]


@pytest.mark.parametrize("options", ASKED, ids=lambda options: next(iter(options)))
def test_whoever_asks_for_more_is_searched_for_readably(options: dict[str, Any]) -> None:
    model, given = model_of(LUONG), make_sources(3, 2)
    expected = search(model, *given, beam=2, **options)
    model.shortcut = lambda *_: pytest.fail("not this way")
    found = search(model, *given, beam=2, **options)
    assert [some[0].tokens for some in found] == [some[0].tokens for some in expected]
    assert search([model, model_of(LUONG)], *given, beam=2)


def test_nothing_asked_for_is_as_good_as_nothing_said() -> None:
    model, given, asked = model_of(LUONG), make_sources(3, 2), []
    model.shortcut = lambda *some: asked.append(some)
    search(model, *given, beam=2, prefix=[[], []], force=[[], []])
    assert len(asked) == 1


def test_a_model_that_learns_does_so_again_afterwards_and_is_searched_without_dropout() -> None:
    torch.manual_seed(0)
    made = build(source_size=20, target_size=WORDS, dropout=0.5, **TRANSFORMER)
    assert isinstance(made, Seq2Seq)
    model = made.double()
    assert_same_hypotheses(*both(model.train(), *make_sources(3, 5), beam=2, max_length=5))
    assert model.training


def test_which_models_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(isinstance(quicken(model_of(form)).shortcut, way.Shortcut) for form in FORMS)
    others: list[dict[str, Any]] = [
        {**LUONG, "cell": "gru"},
        {**LUONG, "residual": True},
        {**LUONG, "alignment": "local-m"},
        {**LUONG, "score": "location"},
        {**LUONG, "coverage": "linguistic"},
        {"config": "bahdanau2015", "size": 12},
    ]
    assert all(quicken(model_of(form)).shortcut is None for form in others)
    monkeypatch.setenv("REGARD_FAST", "0")
    assert quicken(model_of(LUONG)).shortcut is None


def biased(model: Any) -> None:
    model.decoder.W_s = nn.Linear(12, WORDS)


def heard(model: Any) -> None:
    model.encoder.register_forward_hook(lambda *_: None)


def dropping(model: Any) -> None:
    model.decoder.dropout.train()


@pytest.mark.parametrize(("change", "form"), [(biased, LUONG), (heard, LUONG), (heard, TRANSFORMER), (dropping, LUONG)])
def test_a_model_that_somebody_changes_later_is_not_taken_any_more(
    change: Callable[[Any], None], form: dict[str, Any]
) -> None:
    model, shortcut = model_of(form).float(), way.Shortcut()
    assert shortcut.finder(model, PLAIN) is not None
    change(model)
    assert shortcut.finder(model, PLAIN) is None


def test_without_a_gpu_the_search_is_the_readable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "FIRST", 0)
    monkeypatch.setattr(way, "parts", lambda: pytest.fail("there is no GPU"))
    model, given = quicken(model_of(LUONG)), make_sources(3, 2)
    found = search(model, *given)
    model.shortcut = None
    expected = search(model, *given)
    assert [[one[:3] for one in some] for some in found] == [[one[:3] for one in some] for some in expected]


def test_what_searches_keep_is_given_back() -> None:
    model = quicken(model_of(LUONG).float())
    assert model.shortcut.finder(model, PLAIN) is not None
    rest(model)
    assert not model.shortcut.finders


def test_a_copy_of_a_model_begins_anew() -> None:
    model = quicken(model_of(LUONG))
    model.shortcut.sentences = 7
    assert copy.deepcopy(model).shortcut.sentences == 0
