"""Beam search, sampling and forced decoding against enumeration and plain loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.combinations import covering_pairs, each_value
from torch import Tensor

from regard.models import Seq2Seq, build
from regard.models.decoder_state import select
from regard.models.hypothesis import Scorer
from regard.search import BeamSearch, Hypothesis, SearchOptions, sample, score_targets, search
from regard.search.beam import TopKSelector
from regard.search.constraints import Phrase, PhraseProgress, min_length_with_phrases
from regard.search.scoring import search_with_trace
from regard.special_tokens import BOS, EOS, PAD

NAMES = ["bahdanau2015", "luong2015-global", "vaswani2017-base"]
VOCABULARY = 7
SOURCE = torch.tensor([[5, 4, 6, 3], [4, 3, 0, 0], [6, 6, 3, 0]])
LENGTHS = torch.tensor([4, 2, 3])


@cache
def make_model(name: str, seed: int = 0, std: float = 0.6) -> Seq2Seq:
    """Return a model with random weights; tests only read it."""
    torch.manual_seed(seed)
    model: Seq2Seq = build(name, VOCABULARY, VOCABULARY, size=8, layers=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    return model


@torch.no_grad()
def score_by_teacher_forcing(
    models: Sequence[Seq2Seq], row: int, targets: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """Return the log-probabilities of targets by teacher forcing, the models' probabilities averaged."""
    found: dict[tuple[int, ...], float] = {}
    for _, group in itertools.groupby(sorted(targets, key=len), len):
        target = torch.tensor(some := list(group))
        source, lengths = SOURCE[row, : LENGTHS[row]].expand(len(some), -1), LENGTHS[row].expand(len(some))
        target_in = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), 1)
        each = [model(source, lengths, target_in).log_softmax(-1) for model in models]
        mean = torch.stack(each).exp().mean(0).log()
        found |= zip(some, mean.gather(2, target[..., None]).sum((1, 2)).tolist(), strict=True)
    return found


@cache
def score_all_targets(models: tuple[Seq2Seq, ...], row: int, max_length: int) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every target that ends with EOS within the limit."""
    return score_by_teacher_forcing(models, row, enumerate_targets(max_length))


def score_target(models: Sequence[Seq2Seq], row: int, tokens: tuple[int, ...]) -> float:
    return score_by_teacher_forcing(models, row, [tokens])[tokens]


def enumerate_targets(max_length: int) -> list[tuple[int, ...]]:
    """Return every target that ends with EOS within the limit."""
    words = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
    return [(*middle, EOS) for length in range(max_length) for middle in itertools.product(words, repeat=length)]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_beam_as_wide_as_the_search_space_finds_the_n_best(name: str, penalty: float) -> None:
    model, limit = make_model(name), 4
    found = search(model, SOURCE, LENGTHS, beam=4**limit, max_length=limit, n_best=5, length_penalty=penalty)
    for row, hypotheses in enumerate(found):
        log_probs = score_all_targets((model,), row, limit)
        scored = [(log_prob / ((5 + len(target)) / 6) ** penalty, target) for target, log_prob in log_probs.items()]
        best = sorted(scored, reverse=True)[:5]
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == [target for _, target in best]
        np.testing.assert_allclose(
            [hypothesis.score for hypothesis in hypotheses], [score for score, _ in best], rtol=1e-4
        )


def search_greedily(model: Seq2Seq, row: int, limit: int) -> tuple[list[int], list[Tensor]]:
    """Return the tokens and the attention of greedy search as a plain loop."""
    encoded = model.encode(SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1])
    tokens: list[int] = []
    attention: list[Tensor] = []
    state, token = model.decoder.start(encoded), BOS
    while token != EOS and len(tokens) < limit:
        log_probs, state, attended = model.decoder.step(state, torch.tensor([token]))
        log_probs[:, [PAD, BOS]] = -math.inf
        token = int(log_probs.argmax())
        tokens.append(token)
        assert attended is not None
        attention.append(attended.dense(int(LENGTHS[row]))[0, 0])
    return tokens, attention


@pytest.mark.parametrize(("name", "seed", "penalty"), covering_pairs(NAMES, range(5), [0.0, 1.0]))
def test_a_beam_of_one_is_greedy_search(name: str, seed: int, penalty: float) -> None:
    model = make_model(name, seed, std=1.0)
    found = search(model, SOURCE, LENGTHS, beam=1, max_length=8, length_penalty=penalty)
    for row, [hypothesis] in enumerate(found):
        with torch.no_grad():
            tokens, attention = search_greedily(model, row, 8)
        assert hypothesis.tokens == tokens
        assert hypothesis.attention is not None
        np.testing.assert_allclose(hypothesis.attention, torch.stack(attention).numpy(), atol=1e-5)


@pytest.mark.parametrize(("name", "seed"), each_value(NAMES, range(5)))
def test_a_source_has_the_same_hypotheses_alone_and_in_a_batch(name: str, seed: int) -> None:
    model = make_model(name, seed, std=1.0)
    together = search(model, SOURCE, LENGTHS, beam=3, n_best=3)
    for row in range(len(SOURCE)):
        alone = search(model, SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1], beam=3, n_best=3)[0]
        assert_same_list(alone, together[row])


def assert_same_list(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [hypothesis.tokens for hypothesis in left] == [hypothesis.tokens for hypothesis in right]
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose([one.log_prob, one.score], [other.log_prob, other.score], rtol=1e-4)
        assert one.attention is not None
        assert other.attention is not None
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_n_best_hypotheses_are_sorted_and_score_as_the_model_does(name: str) -> None:
    model = make_model(name, 1)
    found = search(model, SOURCE, LENGTHS, beam=4, n_best=4, length_penalty=0.8, max_length=6)
    for row, hypotheses in enumerate(found):
        assert 1 <= len(hypotheses) <= 4
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for hypothesis in hypotheses:
            assert len(hypothesis.tokens) <= 6
            assert not {PAD, BOS} & set(hypothesis.tokens)
            assert EOS not in hypothesis.tokens[:-1]
            log_prob = score_target((model,), row, tuple(hypothesis.tokens))
            assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-4)
            assert hypothesis.score == pytest.approx(log_prob / ((5 + len(hypothesis.tokens)) / 6) ** 0.8, rel=1e-4)
            assert hypothesis.attention is not None
            assert hypothesis.attention.shape == (len(hypothesis.tokens), LENGTHS[row])


@pytest.mark.parametrize("name", NAMES)
def test_incremental_search_returns_each_source_when_it_is_finished(name: str) -> None:
    searching, returned = (
        BeamSearch(make_model(name), SearchOptions(beam=3, n_best=2)),
        list[tuple[int, list[list[int]]]](),
    )
    searching.add(SOURCE, LENGTHS)
    while searching.num_active:
        returned += [(index, [one.tokens for one in some]) for index, some in searching.step()]
    found = search(make_model(name), SOURCE, LENGTHS, beam=3, n_best=2)
    assert sorted(returned) == [(index, [one.tokens for one in some]) for index, some in enumerate(found)]
    steps = {index: max(map(len, tokens)) for index, tokens in returned}
    assert [steps[index] for index, _ in returned] == sorted(steps.values()), "shorter targets are returned first"


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_traced_search_finds_the_same_and_reports_every_beam(name: str, beam: int) -> None:
    model = make_model(name)
    source, lengths = SOURCE[:1], LENGTHS[:1]
    best, beams = search_with_trace(model, source, lengths, beam=beam)
    assert best[0].tokens == search(model, source, lengths, beam=beam)[0][0].tokens
    for step, kept in enumerate(beams, 1):
        assert 1 <= len(kept) <= beam
        assert all(len(one.tokens) == step for one in kept)
        for one in kept:
            assert one.log_prob == pytest.approx(score_target((model,), 0, tuple(one.tokens)), abs=1e-4)
    assert best[0].tokens in [one.tokens for one in beams[len(best[0].tokens) - 1]]
    first = sorted(score_target((model,), 0, (token,)) for token in range(VOCABULARY) if token not in (PAD, BOS))
    assert [one.log_prob for one in beams[0]] == pytest.approx(first[::-1][:beam], abs=1e-4)


def test_traced_search_without_a_given_beam_finds_the_hypotheses_of_the_default_beam() -> None:
    inputs = make_model(NAMES[0]), SOURCE[1:2, : LENGTHS[1]], LENGTHS[1:2]
    (expected,) = search(*inputs, n_best=SearchOptions().beam)
    assert_same_list(search_with_trace(*inputs)[0], expected)


def test_unfinished_hypotheses_are_returned_only_if_none_ended() -> None:
    seen = set()
    for seed in range(20):
        for hypotheses in search(
            make_model("vaswani2017-base", seed, std=1.0), SOURCE, LENGTHS, beam=2, max_length=2, n_best=2
        ):
            ended = [hypothesis.tokens[-1] == EOS for hypothesis in hypotheses]
            assert all(ended) or not any(ended)
            assert all(len(hypothesis.tokens) == 2 for hypothesis in hypotheses if not any(ended))
            seen.add(any(ended))
    assert seen == {True, False}


def test_an_ensemble_averages_the_probabilities() -> None:
    models = tuple(make_model(name, seed) for seed, name in enumerate(NAMES))
    limit = 3
    found = search(models, SOURCE, LENGTHS, beam=4**limit, max_length=limit, length_penalty=0.0)
    for row, [hypothesis] in enumerate(found):
        log_prob, best = max((log_prob, target) for target, log_prob in score_all_targets(models, row, limit).items())
        assert tuple(hypothesis.tokens) == best
        assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-4)
    single = search(models[0], SOURCE, LENGTHS, beam=3, n_best=2)
    for left, right in zip(search([models[0], models[0]], SOURCE, LENGTHS, beam=3, n_best=2), single, strict=True):
        assert_same_list(left, right)


@pytest.mark.parametrize(("penalty", "beam", "fast"), each_value([-0.5, 0.0, 0.6, 1.5], [2, 3], ["0", "1"]))
def test_early_stopping_does_not_change_the_result(
    beam: int, penalty: float, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_FAST", fast)
    models = [make_model(name, seed, std=1.0) for seed in range(6) for name in NAMES]

    def found() -> list[list[Hypothesis]]:
        return [
            row for m in models for row in search(m, SOURCE, LENGTHS, beam=beam, max_length=9, length_penalty=penalty)
        ]

    early = found()
    monkeypatch.setenv("REGARD_FAST", "0")
    monkeypatch.setattr(TopKSelector, "is_done", lambda *_: False)
    for left, right in zip(early, found(), strict=True):
        assert_same_list(left, right)


def test_search_disables_dropout_and_restores_training_mode() -> None:
    model = build("luong2015-global", VOCABULARY, VOCABULARY, size=8, layers=2, dropout=0.5)
    first, second = (search(model, SOURCE, LENGTHS, beam=2) for _ in range(2))
    for left, right in zip(first, second, strict=True):
        assert_same_list(left, right)
    assert model.training
    assert model.decoder.training


def test_nan_weights_are_reported() -> None:
    model = deepcopy(make_model("luong2015-global"))
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith("W_s.weight"))[4] = math.nan
    with pytest.raises(ArithmeticError, match="NaN or inf"):
        search(model, SOURCE, LENGTHS)


def test_selecting_rows_keeps_the_structure_of_a_user_defined_decoder_state() -> None:
    rows = torch.tensor([1, 1])
    shared = torch.arange(3)
    state: dict[str, Any] = {"a": [shared, (shared, 7, None)], "b": "word"}
    chosen = select(state, rows)
    assert chosen["a"][0] is chosen["a"][1][0]
    assert chosen["a"][0].tolist() == [1, 1]
    assert (chosen["a"][1][1:], chosen["b"]) == ((7, None), "word")
    with pytest.raises(TypeError, match="not object"):
        select([object()], rows)


TOKENS = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
A, B = TOKENS[0], TOKENS[1]


def contains(target: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    return any(target[at : at + len(phrase)] == phrase for at in range(len(target)))


def repeats(target: tuple[int, ...], size: int) -> bool:
    grams = [target[at : at + size] for at in range(len(target) - size + 1)]
    return len(set(grams)) < len(grams)


CONSTRAINTS: dict[str, tuple[dict[str, Any], Callable[[tuple[int, ...]], bool]]] = {
    "minimum length": ({"min_length": 3}, lambda target: len(target) >= 3),
    "minimum length and no repeated bigram": (
        {"min_length": 4, "no_repeat": 2},
        lambda target: len(target) >= 4 and not repeats(target, 2),
    ),
    "no repeated token": ({"no_repeat": 1}, lambda target: not repeats(target, 1)),
    "no repeated bigram": ({"no_repeat": 2}, lambda target: not repeats(target, 2)),
    "forbidden sequences": (
        {"forbid": [[A], [B, TOKENS[2]]]},
        lambda target: not contains(target, (A,)) and not contains(target, (B, TOKENS[2])),
    ),
    "prefix": ({"prefix": [[B, B]] * 3}, lambda target: target[:2] == (B, B)),
    "one token": ({"force": [[[A]]] * 3}, lambda target: contains(target, (A,))),
    "overlapping phrases": ({"force": [[[A, B], [B]]] * 3}, lambda target: contains(target, (A, B))),
    "one token twice": ({"force": [[[A], [A]]] * 3}, lambda target: target.count(A) >= 2),
    "crossing phrases": (
        {"force": [[[B, A], [A, B]]] * 3},
        lambda target: contains(target, (B, A)) and contains(target, (A, B)),
    ),
    "phrase with ends": (
        {"force": [[Phrase((A,), frozenset([B, EOS]))]] * 3},
        lambda target: contains(target, (A, B)) or contains(target, (A, EOS)),
    ),
    "prefix, phrase and no repeated token": (
        {"prefix": [[B]] * 3, "force": [[[A]]] * 3, "no_repeat": 1},
        lambda target: target[0] == B and A in target and not repeats(target, 1),
    ),
}


@pytest.mark.parametrize(("constraint", "penalty"), each_value(list(CONSTRAINTS), [0.0, 0.6, "average"]))
def test_a_wide_beam_finds_the_best_targets_that_meet_constraints(constraint: str, penalty: Any) -> None:
    options, is_allowed = CONSTRAINTS[constraint]
    model, limit = make_model("luong2015-global"), 4
    found = search(model, SOURCE, LENGTHS, beam=4**limit, max_length=limit, n_best=4, length_penalty=penalty, **options)
    for row, hypotheses in enumerate(found):
        ranking, log_probs = Scorer(penalty), score_all_targets((model,), row, limit)
        scored = [
            (log_prob / ranking.length_divisor(len(target)), target)
            for target, log_prob in log_probs.items()
            if is_allowed(target)
        ]
        best = [target for _, target in sorted(scored, reverse=True)[:4]]
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == best


@pytest.mark.parametrize(("name", "beam"), each_value(NAMES, [1, 2, 5]))
def test_a_narrow_beam_contains_all_forced_phrases(name: str, beam: int) -> None:
    phrases = [[[A, B], [TOKENS[2]]], [], [[B, B, A]]]
    for seed in range(6):
        model = make_model(name, seed, std=1.0)
        found = search(model, SOURCE, LENGTHS, beam=beam, force=phrases, max_length=12)
        plain = search(model, SOURCE, LENGTHS, beam=beam, max_length=12)
        for row, [hypothesis] in enumerate(found):
            for phrase in phrases[row]:
                assert contains(tuple(hypothesis.tokens), tuple(phrase))
        assert_same_list(found[1], plain[1])  # a source without phrases is searched as without constraints


def test_constrained_search_is_the_same_alone_and_in_a_batch() -> None:
    phrases, prefixes = [[[A, B]], [[B]], []], [[], [A], [B, B]]
    model = make_model("vaswani2017-base", 3, std=1.0)
    options: dict[str, Any] = {"beam": 4, "n_best": 2, "no_repeat": 3, "coverage_penalty": 0.3}
    together = search(model, SOURCE, LENGTHS, force=phrases, prefix=prefixes, **options)
    for row in range(len(SOURCE)):
        source, lengths = SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1]
        assert_same_list(
            search(model, source, lengths, force=[phrases[row]], prefix=[prefixes[row]], **options)[0], together[row]
        )


def test_coverage_penalty_follows_the_equation_of_the_paper() -> None:
    model, limit = make_model("luong2015-global", 2), 3
    found = search(
        model, SOURCE, LENGTHS, beam=4 ** (limit + 1), max_length=limit, n_best=4 ** (limit + 1), coverage_penalty=0.7
    )
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == len(enumerate_targets(limit))
        for hypothesis in hypotheses:
            assert hypothesis.attention is not None
            covered = [min(float(hypothesis.attention[:, s].sum()), 1.0) for s in range(int(LENGTHS[row]))]
            expected = hypothesis.log_prob / ((5 + len(hypothesis.tokens)) / 6) ** 0.6 + 0.7 * sum(
                map(math.log, covered)
            )
            assert hypothesis.score == pytest.approx(expected, rel=1e-5)
    narrow = search(model, SOURCE, LENGTHS, beam=4 ** (limit + 1), max_length=limit, coverage_penalty=0.7)
    for left, right in zip(narrow, found, strict=True):  # early stopping takes the penalty into account
        assert_same_list(left, right[:1])


def test_coverage_penalty_is_refused_without_attention() -> None:
    model = make_model("sutskever2014")
    with pytest.raises(ValueError, match="needs a model with attention"):
        search(model, SOURCE, LENGTHS, coverage_penalty=0.2)


def test_forced_decoding_scores_like_the_search() -> None:
    models = tuple(make_model(name, seed) for seed, name in enumerate(NAMES))
    found = [row[0] for row in search(models, SOURCE, LENGTHS, beam=3, max_length=6, coverage_penalty=0.1)]
    scored = score_targets(models, SOURCE, LENGTHS, [hypothesis.tokens for hypothesis in found], coverage_penalty=0.1)
    assert_same_list([one.hypothesis for one in scored], found)
    for row, one in enumerate(scored):
        assert sum(one.log_probs) == pytest.approx(one.hypothesis.log_prob, rel=1e-5)
        for position, (log_prob, likeliest) in enumerate(zip(one.log_probs, one.is_top, strict=True)):
            before = tuple(one.hypothesis.tokens[:position])
            so_far = score_target(models, row, before) if before else 0.0
            extended = score_by_teacher_forcing(models, row, [(*before, token) for token in range(VOCABULARY)])
            others = [score - so_far for score in extended.values()]
            assert log_prob == pytest.approx(others[one.hypothesis.tokens[position]], abs=1e-4)
            assert likeliest == (others.index(max(others)) == one.hypothesis.tokens[position])
    for count in (2, 4):
        with pytest.raises(ValueError, match=f"{count} targets for 3 sources"):
            score_targets(models, SOURCE, LENGTHS, [[EOS]] * count)
    with pytest.raises(ValueError, match="non-empty"):
        score_targets(models, SOURCE, LENGTHS, [[EOS], [EOS], []])


def test_samples_follow_the_distribution_of_the_model() -> None:
    model, draws = make_model("bahdanau2015", 5), 4000
    drawn = sample(model, SOURCE[:1], LENGTHS[:1], samples=draws, max_length=1, seed=3)[0]
    counts = np.bincount([hypothesis.tokens[0] for hypothesis in drawn], minlength=VOCABULARY) / draws
    expected = np.array([math.exp(score_target((model,), 0, (token,))) for token in range(VOCABULARY)])
    expected[[PAD, BOS]] = 0
    np.testing.assert_allclose(counts, expected / expected.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"temperature": 0.5}, lambda p: p**2),
        ({"top_k": 2}, lambda p: np.where(p >= np.sort(p)[-2], p, 0)),
        ({"top_p": 0.6}, lambda p: np.where(np.array([p[p > q].sum() / p.sum() for q in p]) < 0.6, p, 0)),
    ],
)
def test_temperature_top_k_and_top_p_change_the_distribution(options: dict[str, Any], weights: Any) -> None:
    model, draws = make_model("bahdanau2015", 5), 4000
    drawn = sample(model, SOURCE[:1], LENGTHS[:1], samples=draws, max_length=1, **options)[0]
    counts = np.bincount([hypothesis.tokens[0] for hypothesis in drawn], minlength=VOCABULARY) / draws
    probabilities = np.array([math.exp(score_target((model,), 0, (token,))) for token in range(VOCABULARY)])
    probabilities[[PAD, BOS]] = 0
    expected = weights(probabilities)
    np.testing.assert_allclose(counts, expected / expected.sum(), atol=0.03)
    for hypothesis in drawn[:5]:  # the reported log-probability is that of the model
        assert hypothesis.log_prob == pytest.approx(score_target((model,), 0, tuple(hypothesis.tokens)), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_samples_depend_on_the_seed_and_not_on_the_batch(name: str) -> None:
    model = make_model(name, 4)
    together = sample(model, SOURCE, LENGTHS, samples=5, seed=7)
    for row in range(len(SOURCE)):
        alone = sample(model, SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1], samples=5, seed=7)[0]
        assert_same_list(alone, together[row])
    other = sample(model, SOURCE, LENGTHS, samples=5, seed=8)
    assert [[h.tokens for h in row] for row in other] != [[h.tokens for h in row] for row in together]


def test_impossible_beam_sizes_and_lengths_are_refused() -> None:
    model = make_model("bahdanau2015")
    with pytest.raises(ValueError, match="n_best 3, beam 2"):
        search(model, SOURCE, LENGTHS, beam=2, n_best=3)
    with pytest.raises(ValueError, match="n_best 0, beam 2"):
        search(model, SOURCE, LENGTHS, beam=2, n_best=0)
    with pytest.raises(ValueError, match="at least 1 and min_length: 0, 1"):
        search(model, SOURCE, LENGTHS, max_length=0)
    with pytest.raises(ValueError, match="at least 1 and min_length: 3, 5"):
        search(model, SOURCE, LENGTHS, max_length=3, min_length=5)
    assert search(model, SOURCE[:0], LENGTHS[:0]) == []
    assert sample(model, SOURCE[:0], LENGTHS[:0]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prefix": [[A, A], [], []], "max_length": 2},
            "a prefix of 2 tokens leaves no room for EOS within max_length 2",
        ),
        ({"prefix": [[EOS], [], []]}, "a prefix must not contain PAD"),
        ({"prefix": [[A]]}, "prefix has 1 entries for 3 sources"),
        ({"force": [[[A, A]], [], []], "max_length": 2}, "2 tokens to force do not fit, with EOS, into max_length 2"),
        (
            {"force": [[[A, A], [B]], [], []], "max_length": 3},
            "3 tokens to force do not fit, with EOS, into max_length 3",
        ),
        ({"force": [[[]], [], []]}, "must have tokens and no EOS"),
        ({"forbid": [[]]}, "an empty sequence"),
        ({"no_repeat": 0}, "no_repeat must be at least 1, not 0"),
    ],
)
def test_impossible_constraints_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(make_model("bahdanau2015"), SOURCE, LENGTHS, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "at least 0.001, not 0.0"),
        ({"top_k": 0}, "at least 1, not 0"),
        ({"top_p": 1.5}, "at most 1, not 1.5"),
        ({"top_p": 0.0}, "more than 0 and at most 1, not 0.0"),
        ({"samples": 0}, "at least 1, not 0"),
    ],
)
def test_impossible_sampling_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(make_model("bahdanau2015"), SOURCE, LENGTHS, **options)


@pytest.mark.parametrize(("name", "beam"), each_value(NAMES, [1, 2, 3, 5]))
def test_forced_phrases_with_a_common_beginning_are_all_contained(name: str, beam: int) -> None:
    phrases = [[[A, B], [A, TOKENS[2]], [A, TOKENS[3]]]] * 3
    for seed in range(4):
        found = search(make_model(name, seed, std=1.0), SOURCE, LENGTHS, beam=beam, force=phrases, max_length=14)
        for [hypothesis] in found:
            for phrase in phrases[0]:
                assert contains(tuple(hypothesis.tokens), tuple(phrase))


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_forced_phrases_are_followed_by_their_allowed_tokens(beam: int) -> None:
    phrases = [[Phrase((A, B), frozenset([TOKENS[2], EOS])), Phrase((TOKENS[3],), frozenset([A, EOS]))]] * 3
    for seed in range(6):
        found = search(make_model("luong2015-global", seed, std=1.0), SOURCE, LENGTHS, beam=beam, force=phrases)
        for [hypothesis] in found:
            tokens = tuple(hypothesis.tokens)
            if tokens[-1] == EOS:
                assert contains(tokens, (A, B, TOKENS[2])) or contains(tokens, (A, B, EOS))
                assert contains(tokens, (TOKENS[3], A)) or contains(tokens, (TOKENS[3], EOS))


def test_attention_may_be_left_out_of_the_result() -> None:
    model = make_model("luong2015-global")
    with_attention, without = (search(model, SOURCE, LENGTHS, attention=option) for option in (True, False))
    assert [row[0].tokens for row in with_attention] == [row[0].tokens for row in without]
    assert all(row[0].attention is None for row in without)
    assert sample(model, SOURCE, LENGTHS, attention=False)[0][0].attention is None


def test_samples_without_repetition_contain_no_token_twice() -> None:
    drawn = sample(make_model("bahdanau2015", 2), SOURCE, LENGTHS, samples=50, no_repeat=1, max_length=9)
    assert not any(repeats(tuple(hypothesis.tokens), 1) for row in drawn for hypothesis in row)


JOINING = [*NAMES, "luong2015-local-m", "sutskever2014", "cho2014", "xu2015-soft"]
JOINING_OPTIONS: list[dict[str, Any]] = [{}, {"n_best": 2, "no_repeat": 2}, {"min_length": 4, "forbid": [[4, 5]]}]


@pytest.mark.parametrize(("name", "options"), each_value(JOINING, JOINING_OPTIONS))
def test_sources_that_join_later_are_searched_as_if_alone(name: str, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (12,), generator=generator)
    sources = [torch.cat((torch.randint(4, 7, (n - 1,), generator=generator), torch.tensor([EOS]))) for n in lengths]
    model = make_model(name)
    searching, found, waiting = (
        BeamSearch(model, SearchOptions(beam=3, **options)),
        dict[int, list[Hypothesis]](),
        list(range(12)),
    )
    while waiting or searching.num_active:
        for number in waiting[:2] if len(found) % 3 != 1 or not searching.num_active else []:
            searching.add(sources[number][None], lengths[number : number + 1])
            waiting.remove(number)
        found.update(searching.step())
    for number, source in enumerate(sources):
        [alone] = search(model, source[None], lengths[number : number + 1], beam=3, **options)
        assert [one.tokens for one in found[number]] == [one.tokens for one in alone]
        for one, other in zip(found[number], alone, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert (one.attention is None) == (other.attention is None)
            if other.attention is not None and one.attention is not None:
                np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)


def test_constraints_of_joining_sources_apply_to_these_only() -> None:
    model = make_model("luong2015-global")
    searching, found = BeamSearch(model, SearchOptions(beam=4)), dict[int, list[Hypothesis]]()
    searching.add(SOURCE[:1], LENGTHS[:1], prefix=[[5, 5]])
    found.update(searching.step())
    searching.add(SOURCE[1:, :3], LENGTHS[1:], prefix=[[4], [6, 6, 4]], force=[[[6, 5]], []])
    while searching.num_active:
        found.update(searching.step())
    first = search(model, SOURCE[:1], LENGTHS[:1], beam=4, prefix=[[5, 5]])
    others = search(model, SOURCE[1:], LENGTHS[1:], beam=4, prefix=[[4], [6, 6, 4]], force=[[[6, 5]], []])
    for number, expected in enumerate([*first, *others]):
        assert [one.tokens for one in found[number]] == [one.tokens for one in expected]


def make_table_model(table: Tensor) -> Any:
    """Return a model with the same log-probabilities (V,) at every step; it has `start`, `step` and `select` only."""

    class Decoder:
        def start(self, encoded: Tensor) -> Tensor:
            return encoded

        def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, None]:
            return table.expand(len(tokens), -1), state, None

        def select(self, state: Tensor, rows: Tensor) -> Tensor:
            return state[rows]

    class Model:
        decoder = Decoder()

        def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
            return lengths

    return Model()


def make_table(**probabilities: float) -> Tensor:
    """Return log-probabilities of the tokens `A`, `B`, `C`, `D` and `EOS`; those of all others are -inf."""
    ids = dict(zip("ABCD", TOKENS, strict=True), EOS=EOS)
    table = torch.full((VOCABULARY,), -math.inf)
    for name, probability in probabilities.items():
        table[ids[name]] = math.log(probability)
    return table


def test_search_does_not_change_tensors_of_the_decoder() -> None:
    table = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    before = table.clone()
    options: dict[str, Any] = {"forbid": [[4]], "prefix": [[5], [], [6]]}
    found = search(make_table_model(table), SOURCE, LENGTHS, beam=2, max_length=3, **options)
    assert [hypotheses[0].tokens[0] for hypotheses in found][::2] == [5, 6]
    search(make_table_model(table), SOURCE, LENGTHS, beam=2, max_length=3, min_length=3)
    assert torch.equal(table, before)


@pytest.mark.parametrize("fast", ["0", "1"])
@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, [18, 14, 16]),  # twice the source and ten more
        ({"min_length": 9}, [18, 18, 18]),  # or twice the minimum
        ({"max_length": 3}, [3, 3, 3]),
        ({"max_length": 3, "min_length": 3}, [3, 3, 3]),
        ({"prefix": [[A], [], [B, B]]}, [19, 14, 18]),
        ({"force": [[[A]], [], [[B, B], [A]]]}, [19, 14, 19]),
        ({"prefix": [[A], [], []], "force": [[[B]], [[A]], []]}, [20, 15, 16]),
    ],
)
def test_a_target_without_eos_is_cut_at_the_length_limit(
    options: dict[str, Any], limits: list[int], fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_FAST", fast)
    endless = make_table_model(make_table(A=0.2, B=0.3, C=0.5))
    found = search(endless, SOURCE, LENGTHS, beam=1, **options)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == limits
    if not {"prefix", "force"} & options.keys():
        drawn = sample(endless, SOURCE, LENGTHS, samples=2, **options)
        assert [[len(one.tokens) for one in hypotheses] for hypotheses in drawn] == [[limit] * 2 for limit in limits]


def test_prefixes_and_phrases_may_fill_all_but_the_last_token() -> None:
    model = make_model("luong2015-global")
    for [hypothesis] in search(model, SOURCE, LENGTHS, prefix=[[A, B]] * 3, max_length=3):
        assert (hypothesis.tokens[:2], len(hypothesis.tokens)) == ([A, B], 3)
    for [hypothesis] in search(model, SOURCE, LENGTHS, force=[[[A, B], [B, A]]] * 3, max_length=4):
        assert hypothesis.tokens[:3] in ([A, B, A], [B, A, B])


def test_a_prefix_overrides_all_other_constraints() -> None:
    options: dict[str, Any] = {"no_repeat": 1, "forbid": [[A], [B, B]], "prefix": [[A, B, B, A]] * 3}
    for [hypothesis] in search(make_model("bahdanau2015"), SOURCE, LENGTHS, **options):
        assert hypothesis.tokens[:4] == [A, B, B, A]
        assert not {A, B} & set(hypothesis.tokens[4:])


def test_unfinished_targets_with_more_forced_tokens_come_first() -> None:
    endless = make_table_model(make_table(A=0.01, B=0.01, C=0.98))
    found = search(endless, SOURCE, LENGTHS, beam=3, n_best=3, max_length=3, force=[[[A, B]]] * 3)
    for hypotheses in found:
        assert contains(tuple(hypotheses[0].tokens), (A, B))
        assert not contains(tuple(hypotheses[-1].tokens), (A, B))
        assert hypotheses[0].score < hypotheses[-1].score


def test_a_user_defined_rule_sees_the_written_tokens_and_the_source() -> None:
    prefixes = [[A, B], [TOKENS[2]], [B, A]]

    def impose(log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        for row, number in enumerate(sentence.tolist()):
            if written.shape[1] < len(prefixes[number]):
                allowed = prefixes[number][written.shape[1]]
                log_probs[row, torch.arange(VOCABULARY) != allowed] = -math.inf

    model = make_model("luong2015-global", 3)
    options: dict[str, Any] = {"beam": 3, "n_best": 2, "max_length": 8}
    expected = search(model, SOURCE, LENGTHS, prefix=prefixes, **options)
    for left, right in zip(search(model, SOURCE, LENGTHS, constraints=[impose], **options), expected, strict=True):
        assert_same_list(left, right)


def search_by_loops(model: Seq2Seq, row: int, beam: int, limit: int, penalty: float) -> list[tuple[float, list[int]]]:
    """Return scores and targets of beam search without early stopping; an ended hypothesis makes the beam narrower."""
    going: list[tuple[int, ...]] = [()]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(limit):
        if len(ended) == beam or not going:
            break
        extended = [(*tokens, token) for tokens in going for token in (*TOKENS, EOS)]
        log_probs = score_by_teacher_forcing([model], row, extended)
        kept = sorted(extended, key=lambda tokens: -log_probs[tokens])[: beam - len(ended)]
        ended += [
            (log_probs[tokens] / ((5 + len(tokens)) / 6) ** penalty, tokens) for tokens in kept if tokens[-1] == EOS
        ]
        going = [tokens for tokens in kept if tokens[-1] != EOS]
    return [(score, list(tokens)) for score, tokens in sorted(ended, reverse=True)]


@pytest.mark.parametrize("fast", ["0", "1"])
@pytest.mark.parametrize(("seed", "beam"), [(0, 2), (1, 3), (2, 3), (3, 4)])
def test_beam_search_equals_a_plain_loop(seed: int, beam: int, fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_FAST", fast)
    model = make_model("luong2015-global", seed, std=1.0)
    for row, [found] in enumerate(search(model, SOURCE, LENGTHS, beam=beam, max_length=6, length_penalty=0.8)):
        expected = search_by_loops(model, row, beam, 6, 0.8)
        if expected:
            assert found.tokens == expected[0][1]
            assert found.score == pytest.approx(expected[0][0], rel=1e-4)
        else:
            assert found.tokens[-1] != EOS


def test_attention_of_an_ensemble_is_the_mean_over_models_with_attention() -> None:
    names = ["bahdanau2015", "sutskever2014", "luong2015-global"]
    models = [make_model(name, seed) for seed, name in enumerate(names)]
    for row, [hypothesis] in enumerate(search(models, SOURCE, LENGTHS, beam=3)):
        source, lengths = SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1]
        each = [
            score_targets(model, source, lengths, [hypothesis.tokens])[0].hypothesis.attention for model in models[::2]
        ]
        assert hypothesis.attention is not None
        np.testing.assert_allclose(hypothesis.attention, np.mean(np.stack(each), 0), atol=1e-5)  # type: ignore[arg-type]


def test_an_ensemble_averages_attention_of_one_alignment_offset() -> None:
    torch.manual_seed(0)
    shifted = build("vaswani2017-base", VOCABULARY, VOCABULARY, size=8, layers=1, heads=2, align_after=True).eval()
    plain, targets = make_model("bahdanau2015"), [[A, B, EOS], [B, EOS], [A, A, EOS]]
    for models in ([shifted, plain], [plain, shifted]):
        together, alone = (score_targets(some, SOURCE, LENGTHS, targets) for some in (models, models[0]))
        for left, right in zip(together, alone, strict=True):
            np.testing.assert_allclose(left.hypothesis.attention, right.hypothesis.attention, atol=1e-6)  # type: ignore[arg-type]


def test_ranking_bounds_the_score_of_every_continuation() -> None:
    penalties: list[Any] = [-0.5, 0.0, 0.6, 1.5, "average"]
    for penalty in penalties:
        ranking = Scorer(penalty)
        scores = [-4.0 / ranking.length_divisor(length) for length in range(1, 10)]
        assert ranking.upper_bound(-4.0, 9) == pytest.approx(max(scores))
    assert Scorer("average").length_divisor(7) == 7
    assert Scorer(0.5).length_divisor(7) == pytest.approx(math.sqrt(2))


def test_coverage_penalty_of_a_source_word_without_attention_is_finite() -> None:
    attention = np.array([[0.5, 0.0, 0.9], [0.25, 0.0, 0.9]], dtype=np.float32)
    found = Scorer(0.0, 2.0).score([A, EOS], -3.0, attention)
    assert found.score == pytest.approx(-3.0 + 2.0 * (math.log(0.75) + math.log(1e-6)), rel=1e-5)


def test_samples_are_sorted_and_include_unfinished_targets() -> None:
    model = make_table_model(make_table(A=0.5, B=0.3, EOS=0.2))
    for hypotheses in sample(model, SOURCE, LENGTHS, samples=40, max_length=3):
        assert len(hypotheses) == 40
        assert {one.tokens[-1] == EOS for one in hypotheses} == {True, False}
        assert all(len(one.tokens) == 3 for one in hypotheses if one.tokens[-1] != EOS)
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True) == [one.log_prob for one in hypotheses]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}])
def test_sampling_with_an_extreme_option_is_greedy_search(options: dict[str, Any]) -> None:
    model = make_model("luong2015-global", 2, std=1.0)
    greedy = search(model, SOURCE, LENGTHS, beam=1, length_penalty=0.0)
    for drawn, [best] in zip(sample(model, SOURCE, LENGTHS, samples=3, **options), greedy, strict=True):
        assert_same_list(drawn, [best] * 3)


@pytest.mark.parametrize(("top_p", "expected"), [(0.5, {A}), (0.51, {A, B}), (0.8, {A, B}), (0.81, {A, B, TOKENS[2]})])
def test_top_p_keeps_the_fewest_tokens_with_this_probability(top_p: float, expected: set[int]) -> None:
    model = make_table_model(make_table(A=0.5, B=0.3, C=0.2).double())
    drawn = sample(model, SOURCE[:1], LENGTHS[:1], samples=200, max_length=1, top_p=top_p)[0]
    assert {one.tokens[0] for one in drawn} == expected


tokens_ab = st.lists(st.sampled_from([A, B]), max_size=8).map(tuple)
phrases_ab = st.lists(st.lists(st.sampled_from([A, B]), min_size=1, max_size=3).map(tuple), max_size=3)


@given(tokens_ab, phrases_ab)
def test_progress_is_complete_when_all_phrases_are_contained(
    target: tuple[int, ...], wanted: list[tuple[int, ...]]
) -> None:
    distinct = [Phrase(tokens) for tokens in dict.fromkeys(wanted)]
    complete = all(contains(target, phrase.tokens) for phrase in distinct)
    assert PhraseProgress.of_tokens(target, distinct).is_complete(distinct) == complete


@given(tokens_ab, st.sampled_from([(A,), (B,), (A, B), (A, A), (A, B, A)]), st.sampled_from([(), (A,), (B,), (A, B)]))
def test_progress_is_complete_when_a_phrase_is_followed_by_one_of_its_ends(
    target: tuple[int, ...], tokens: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    """The phrase is at the end of the target or followed by one of its ends."""
    phrases, size = [Phrase(tokens, frozenset(ends))], len(tokens)
    complete = any(
        target[at : at + size] == tokens and (at + size == len(target) or target[at + size] in ends)
        for at in range(len(target) - size + 1)
    )
    assert PhraseProgress.of_tokens(target, phrases).is_complete(phrases) == complete


@given(tokens_ab, st.sampled_from([(A,), (A, A), (A, B)]), st.integers(1, 3))
def test_equal_phrases_need_as_many_separate_occurrences(
    target: tuple[int, ...], tokens: tuple[int, ...], count: int
) -> None:
    phrases = [Phrase(tokens)] * count
    text, phrase = ("".join("AB"[token == B] for token in some) for some in (target, tokens))
    assert PhraseProgress.of_tokens(target, phrases).is_complete(phrases) == (text.count(phrase) >= count)


@given(st.lists(st.sampled_from([A, B]), max_size=3).map(tuple), phrases_ab)
@example((A, B), [(A,)])  # the prefix contains the phrase, and does not end with it
def test_shortest_is_the_least_length_with_all_phrases(prefix: tuple[int, ...], wanted: list[tuple[int, ...]]) -> None:
    phrases = [Phrase(tokens) for tokens in wanted]
    lengths = (
        size
        for size in itertools.count(len(prefix))
        for rest in itertools.product((A, B), repeat=size - len(prefix))
        if all(contains((*prefix, *rest), tokens) for tokens in wanted)
    )
    assert min_length_with_phrases(prefix, phrases) == next(lengths)


def test_shortest_target_with_many_phrases_is_a_lower_bound() -> None:
    assert min_length_with_phrases([A] * 4, [Phrase((token,)) for token in [*TOKENS, *TOKENS]]) == 4
    assert min_length_with_phrases([A], [*[Phrase((token,)) for token in [*TOKENS, *TOKENS]], Phrase((A,) * 5)]) == 5
    assert min_length_with_phrases([], [Phrase((A, B))] * 6) == 2


def test_banks_count_ended_phrases_and_the_longest_begun_one() -> None:
    phrases = [Phrase((A, B)), Phrase((A, A, A)), Phrase((B,), frozenset([A]))]
    banks = {(): 0, (A,): 1, (A, A): 2, (A, A, B): 2, (A, A, B, B): 4, (A, A, B, A): 6, (A, A, A, A): 5}
    found = {tokens: PhraseProgress.of_tokens(tokens, phrases).find_bank(phrases) for tokens in banks}
    assert found == banks


def test_tokens_that_end_a_phrase_are_candidates_only_behind_all_of_its_tokens() -> None:
    phrases = [Phrase((A, B), frozenset([B])), Phrase((B,))]
    candidates = {(): [], (A,): [], (A, B): [{B}], (A, B, A): [], (A, B, B): []}
    found = {tokens: PhraseProgress.of_tokens(tokens, phrases).word_ends(phrases) for tokens in candidates}
    assert found == candidates


def test_unknown_search_option_is_named() -> None:
    with pytest.raises(TypeError, match="beams"):
        search(make_model(NAMES[0]), SOURCE, LENGTHS, beams=3)
