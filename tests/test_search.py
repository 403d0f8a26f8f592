"""Search against enumeration and against the plain loop."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.models import Seq2Seq, build
from regard.models.tree import select
from regard.search import BeamSearch, Hypothesis, Phrase, Ranking, forced, sample, search, watch
from regard.search.beam import Beam
from regard.symbols import BOS, EOS, PAD

NAMES = ["bahdanau2015", "luong2015-global", "vaswani2017-base"]
VOCABULARY = 7
SOURCE = torch.tensor([[5, 4, 6, 3], [4, 3, 0, 0], [6, 6, 3, 0]])
LENGTHS = torch.tensor([4, 2, 3])


def model_of(name: str, seed: int = 0, sharp: float = 0.6) -> Seq2Seq:
    torch.manual_seed(seed)
    model: Seq2Seq = build(name, VOCABULARY, VOCABULARY, size=8, layers=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=sharp)
    return model


@torch.no_grad()
def log_prob_of(models: list[Seq2Seq], row: int, tokens: tuple[int, ...]) -> float:
    """Log-probability of a target by teacher forcing, the models' probabilities averaged."""
    source, lengths = SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1]
    target_in = torch.tensor([[BOS, *tokens[:-1]]])
    each = [model(source, lengths, target_in)[0].log_softmax(-1) for model in models]
    mean = torch.stack(each).exp().mean(0).log()
    return float(mean[torch.arange(len(tokens)), torch.tensor(tokens)].sum())


def all_targets(max_length: int) -> list[tuple[int, ...]]:
    """Every target that ends with EOS within the limit."""
    words = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
    return [(*middle, EOS) for length in range(max_length) for middle in itertools.product(words, repeat=length)]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_beam_as_wide_as_the_space_finds_the_best(name: str, penalty: float) -> None:
    model, limit = model_of(name), 4
    targets = all_targets(limit)
    found = search(model, SOURCE, LENGTHS, beam=4**limit, max_length=limit, n_best=5, length_penalty=penalty)
    for row, hypotheses in enumerate(found):
        scored = [
            (Ranking(penalty).by_length(log_prob_of([model], row, target), len(target)), target) for target in targets
        ]
        best = sorted(scored, reverse=True)[:5]
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == [target for _, target in best]
        np.testing.assert_allclose(
            [hypothesis.score for hypothesis in hypotheses], [score for score, _ in best], rtol=1e-4
        )


def plain_greedy(model: Seq2Seq, row: int, limit: int) -> tuple[list[int], list[Tensor]]:
    """The loop that anybody would write."""
    encoded = model.encode(SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1])
    tokens: list[int] = []
    looks: list[Tensor] = []
    state, token = model.decoder.start(encoded), BOS
    while token != EOS and len(tokens) < limit:
        log_probs, state, attended = model.decoder.step(state, torch.tensor([token]))
        log_probs[:, [PAD, BOS]] = -math.inf
        token = int(log_probs.argmax())
        tokens.append(token)
        assert attended is not None
        looks.append(attended.dense(int(LENGTHS[row]))[0, 0])
    return tokens, looks


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_beam_of_one_is_the_greedy_loop(name: str, penalty: float) -> None:
    for seed in range(5):
        model = model_of(name, seed, sharp=1.0)
        found = search(model, SOURCE, LENGTHS, beam=1, max_length=8, length_penalty=penalty)
        for row, [hypothesis] in enumerate(found):
            with torch.no_grad():
                tokens, looks = plain_greedy(model, row, 8)
            assert hypothesis.tokens == tokens
            assert hypothesis.attention is not None
            np.testing.assert_allclose(hypothesis.attention, torch.stack(looks).numpy(), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_sentence_is_the_same_alone_and_in_a_batch(name: str) -> None:
    for seed in range(5):
        model = model_of(name, seed, sharp=1.0)
        together = search(model, SOURCE, LENGTHS, beam=3, n_best=3)
        for row in range(len(SOURCE)):
            alone = search(model, SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1], beam=3, n_best=3)[0]
            same(alone, together[row])


def same(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [hypothesis.tokens for hypothesis in left] == [hypothesis.tokens for hypothesis in right]
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose([one.log_prob, one.score], [other.log_prob, other.score], rtol=1e-4)
        assert one.attention is not None
        assert other.attention is not None
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_hypothesis_says_of_itself(name: str) -> None:
    model = model_of(name, 1)
    found = search(model, SOURCE, LENGTHS, beam=4, n_best=4, length_penalty=0.8, max_length=6)
    for row, hypotheses in enumerate(found):
        assert 1 <= len(hypotheses) <= 4
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for hypothesis in hypotheses:
            assert len(hypothesis.tokens) <= 6
            assert not {PAD, BOS} & set(hypothesis.tokens)
            assert EOS not in hypothesis.tokens[:-1]
            log_prob = log_prob_of([model], row, tuple(hypothesis.tokens))
            assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-4)
            assert hypothesis.score == pytest.approx(log_prob / ((5 + len(hypothesis.tokens)) / 6) ** 0.8, rel=1e-4)
            assert hypothesis.attention is not None
            assert hypothesis.attention.shape == (len(hypothesis.tokens), LENGTHS[row])


@pytest.mark.parametrize("name", NAMES)
def test_each_sentence_is_told_when_it_is_done(name: str) -> None:
    searching, told = BeamSearch(model_of(name), beam=3, n_best=2), list[tuple[int, list[list[int]]]]()
    searching.join(SOURCE, LENGTHS)
    while searching.open:
        told += [(index, [one.tokens for one in some]) for index, some in searching.step()]
    found = search(model_of(name), SOURCE, LENGTHS, beam=3, n_best=2)
    assert sorted(told) == [(index, [one.tokens for one in some]) for index, some in enumerate(found)]
    steps = {index: max(map(len, tokens)) for index, tokens in told}
    assert [steps[index] for index, _ in told] == sorted(steps.values()), "the short ones before the long ones"


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_search_that_is_watched_finds_the_same(name: str, beam: int) -> None:
    model = model_of(name)
    source, lengths = SOURCE[:1], LENGTHS[:1]
    best, beams = watch(model, source, lengths, beam=beam)
    assert best[0].tokens == search(model, source, lengths, beam=beam)[0][0].tokens
    for step, kept in enumerate(beams, 1):
        assert 1 <= len(kept) <= beam
        assert all(len(one.tokens) == step for one in kept)
        for one in kept:
            assert one.log_prob == pytest.approx(log_prob_of([model], 0, tuple(one.tokens)), abs=1e-4)
    assert best[0].tokens in [one.tokens for one in beams[len(best[0].tokens) - 1]]
    first = sorted(log_prob_of([model], 0, (token,)) for token in range(VOCABULARY) if token not in (PAD, BOS))
    assert [one.log_prob for one in beams[0]] == pytest.approx(first[::-1][:beam], abs=1e-4)


def test_what_is_cut_off_comes_back_only_where_nothing_ended() -> None:
    seen = set()
    for seed in range(20):
        for hypotheses in search(
            model_of("vaswani2017-base", seed, sharp=1.0), SOURCE, LENGTHS, beam=2, max_length=2, n_best=2
        ):
            ended = [hypothesis.tokens[-1] == EOS for hypothesis in hypotheses]
            assert all(ended) or not any(ended)
            assert all(len(hypothesis.tokens) == 2 for hypothesis in hypotheses if not any(ended))
            seen.add(any(ended))
    assert seen == {True, False}


def test_an_ensemble_averages_probabilities() -> None:
    models = [model_of(name, seed) for seed, name in enumerate(NAMES)]
    limit = 3
    found = search(models, SOURCE, LENGTHS, beam=4**limit, max_length=limit, length_penalty=0.0)
    for row, [hypothesis] in enumerate(found):
        best = max(all_targets(limit), key=lambda target: log_prob_of(models, row, target))
        assert tuple(hypothesis.tokens) == best
        assert hypothesis.log_prob == pytest.approx(log_prob_of(models, row, best), rel=1e-4)
    single = search(models[0], SOURCE, LENGTHS, beam=3, n_best=2)
    for left, right in zip(search([models[0], models[0]], SOURCE, LENGTHS, beam=3, n_best=2), single, strict=True):
        same(left, right)


@pytest.mark.parametrize("fast", ["0", "1"])
@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam", [2, 3])
def test_stopping_early_changes_nothing(beam: int, penalty: float, fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_FAST", fast)
    models = [model_of(name, seed, sharp=1.0) for seed in range(6) for name in NAMES]

    def found() -> list[list[Hypothesis]]:
        return [
            row for m in models for row in search(m, SOURCE, LENGTHS, beam=beam, max_length=9, length_penalty=penalty)
        ]

    early = found()
    monkeypatch.setenv("REGARD_FAST", "0")
    monkeypatch.setattr(Beam, "settled", lambda *_: False)
    for left, right in zip(early, found(), strict=True):
        same(left, right)


def test_a_model_in_training_is_searched_without_dropout_and_left_in_training() -> None:
    model = build("luong2015-global", VOCABULARY, VOCABULARY, size=8, layers=2, dropout=0.5)
    first, second = (search(model, SOURCE, LENGTHS, beam=2) for _ in range(2))
    for left, right in zip(first, second, strict=True):
        same(left, right)
    assert model.training
    assert model.decoder.training


def test_weights_that_are_no_numbers_are_not_searched_in_silence() -> None:
    model = model_of("luong2015-global")
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith("W_s.weight"))[4] = math.nan
    with pytest.raises(ArithmeticError, match="not numbers"):
        search(model, SOURCE, LENGTHS)


def test_states_of_ones_own_kind_are_selected_or_refused() -> None:
    rows = torch.tensor([1, 1])
    shared = torch.arange(3)
    state: dict[str, Any] = {"a": [shared, (shared, 7, None)], "b": "word"}
    chosen = select(state, rows)
    assert chosen["a"][0] is chosen["a"][1][0]
    assert chosen["a"][0].tolist() == [1, 1]
    assert (chosen["a"][1][1:], chosen["b"]) == ((7, None), "word")
    with pytest.raises(TypeError, match="not object"):
        select([object()], rows)


WORDS = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
A, B = WORDS[0], WORDS[1]


def holds(target: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    return any(target[at : at + len(phrase)] == phrase for at in range(len(target)))


def repeats(target: tuple[int, ...], size: int) -> bool:
    grams = [target[at : at + size] for at in range(len(target) - size + 1)]
    return len(set(grams)) < len(grams)


CONSTRAINED: list[tuple[dict[str, Any], Any]] = [
    ({"min_length": 3}, lambda target: len(target) >= 3),
    ({"no_repeat": 1}, lambda target: not repeats(target, 1)),
    ({"no_repeat": 2}, lambda target: not repeats(target, 2)),
    ({"forbid": [[A], [B, WORDS[2]]]}, lambda target: not holds(target, (A,)) and not holds(target, (B, WORDS[2]))),
    ({"prefix": [[B, B]] * 3}, lambda target: target[:2] == (B, B)),
    ({"force": [[[A]]] * 3}, lambda target: holds(target, (A,))),
    ({"force": [[[A, B], [B]]] * 3}, lambda target: holds(target, (A, B))),
    ({"force": [[[A], [A]]] * 3}, lambda target: target.count(A) >= 2),
    ({"force": [[[B, A], [A, B]]] * 3}, lambda target: holds(target, (B, A)) and holds(target, (A, B))),
    (
        {"force": [[Phrase((A,), frozenset([B, EOS]))]] * 3},
        lambda target: holds(target, (A, B)) or holds(target, (A, EOS)),
    ),
    (
        {"prefix": [[B]] * 3, "force": [[[A]]] * 3, "no_repeat": 1},
        lambda target: target[0] == B and A in target and not repeats(target, 1),
    ),
]


@pytest.mark.parametrize("penalty", [0.0, 0.6, "average"])
@pytest.mark.parametrize(("options", "allowed"), CONSTRAINED, ids=[str(options) for options, _ in CONSTRAINED])
def test_a_wide_beam_finds_the_best_that_is_allowed(options: dict[str, Any], allowed: Any, penalty: Any) -> None:
    model, limit = model_of("luong2015-global"), 4
    targets = [target for target in all_targets(limit) if allowed(target)]
    found = search(model, SOURCE, LENGTHS, beam=4**limit, max_length=limit, n_best=4, length_penalty=penalty, **options)
    for row, hypotheses in enumerate(found):
        ranking = Ranking(penalty)
        scored = [(ranking.by_length(log_prob_of([model], row, target), len(target)), target) for target in targets]
        best = [target for _, target in sorted(scored, reverse=True)[:4]]
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == best


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_beam_holds_what_is_forced_too(name: str, beam: int) -> None:
    phrases = [[[A, B], [WORDS[2]]], [], [[B, B, A]]]
    for seed in range(6):
        model = model_of(name, seed, sharp=1.0)
        found = search(model, SOURCE, LENGTHS, beam=beam, force=phrases, max_length=12)
        plain = search(model, SOURCE, LENGTHS, beam=beam, max_length=12)
        for row, [hypothesis] in enumerate(found):
            for phrase in phrases[row]:
                assert holds(tuple(hypothesis.tokens), tuple(phrase))
        same(found[1], plain[1])  # a sentence with nothing to force is searched as ever


def test_one_constrained_sentence_is_the_same_alone_and_in_a_batch() -> None:
    phrases, prefixes = [[[A, B]], [[B]], []], [[], [A], [B, B]]
    model = model_of("vaswani2017-base", 3, sharp=1.0)
    options: dict[str, Any] = {"beam": 4, "n_best": 2, "no_repeat": 3, "coverage_penalty": 0.3}
    together = search(model, SOURCE, LENGTHS, force=phrases, prefix=prefixes, **options)
    for row in range(len(SOURCE)):
        source, lengths = SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1]
        same(search(model, source, lengths, force=[phrases[row]], prefix=[prefixes[row]], **options)[0], together[row])


def test_the_coverage_penalty_is_the_papers() -> None:
    model, limit = model_of("luong2015-global", 2), 3
    found = search(
        model, SOURCE, LENGTHS, beam=4 ** (limit + 1), max_length=limit, n_best=4 ** (limit + 1), coverage_penalty=0.7
    )
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == len(all_targets(limit))
        for hypothesis in hypotheses:
            assert hypothesis.attention is not None
            seen = [min(float(hypothesis.attention[:, s].sum()), 1.0) for s in range(int(LENGTHS[row]))]
            expected = hypothesis.log_prob / ((5 + len(hypothesis.tokens)) / 6) ** 0.6 + 0.7 * sum(map(math.log, seen))
            assert hypothesis.score == pytest.approx(expected, rel=1e-5)
    narrow = search(model, SOURCE, LENGTHS, beam=4 ** (limit + 1), max_length=limit, coverage_penalty=0.7)
    for left, right in zip(narrow, found, strict=True):  # stopping early knows of the penalty
        same(left, right[:1])


def test_a_coverage_penalty_needs_attention() -> None:
    model = model_of("sutskever2014")
    with pytest.raises(ValueError, match="needs a model with attention"):
        search(model, SOURCE, LENGTHS, coverage_penalty=0.2)


def test_forced_decoding_scores_what_search_found() -> None:
    models = [model_of(name, seed) for seed, name in enumerate(NAMES)]
    found = [row[0] for row in search(models, SOURCE, LENGTHS, beam=3, coverage_penalty=0.1)]
    judged = forced(models, SOURCE, LENGTHS, [hypothesis.tokens for hypothesis in found], coverage_penalty=0.1)
    same([one.hypothesis for one in judged], found)
    for row, one in enumerate(judged):
        assert sum(one.log_probs) == pytest.approx(one.hypothesis.log_prob, rel=1e-5)
        for place, (log_prob, likeliest) in enumerate(zip(one.log_probs, one.likeliest, strict=True)):
            before = tuple(one.hypothesis.tokens[:place])
            so_far = log_prob_of(models, row, before) if before else 0.0
            others = [log_prob_of(models, row, (*before, token)) - so_far for token in range(VOCABULARY)]
            assert log_prob == pytest.approx(others[one.hypothesis.tokens[place]], abs=1e-4)
            assert likeliest == (others.index(max(others)) == one.hypothesis.tokens[place])
    with pytest.raises(ValueError, match="2 targets for 3 sources"):
        forced(models, SOURCE, LENGTHS, [[EOS]] * 2)


def test_samples_are_drawn_from_the_models_distribution() -> None:
    """All targets of at most two tokens, EOS included, against how often each is drawn."""
    model, draws = model_of("bahdanau2015", 5), 4000
    found = search(model, SOURCE, LENGTHS, beam=4, max_length=1)  # the model's own first-step probabilities
    assert found
    drawn = sample(model, SOURCE[:1], LENGTHS[:1], samples=draws, max_length=1, seed=3)[0]
    counts = np.bincount([hypothesis.tokens[0] for hypothesis in drawn], minlength=VOCABULARY) / draws
    expected = np.array([math.exp(log_prob_of([model], 0, (token,))) for token in range(VOCABULARY)])
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
def test_what_is_drawn_from(options: dict[str, Any], weights: Any) -> None:
    model, draws = model_of("bahdanau2015", 5), 4000
    drawn = sample(model, SOURCE[:1], LENGTHS[:1], samples=draws, max_length=1, **options)[0]
    counts = np.bincount([hypothesis.tokens[0] for hypothesis in drawn], minlength=VOCABULARY) / draws
    probabilities = np.array([math.exp(log_prob_of([model], 0, (token,))) for token in range(VOCABULARY)])
    probabilities[[PAD, BOS]] = 0
    expected = weights(probabilities)
    np.testing.assert_allclose(counts, expected / expected.sum(), atol=0.03)
    for hypothesis in drawn[:5]:  # whatever was drawn from, the log-probability is the model's
        assert hypothesis.log_prob == pytest.approx(log_prob_of([model], 0, tuple(hypothesis.tokens)), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_does_not_depend_on_the_batch(name: str) -> None:
    model = model_of(name, 4)
    together = sample(model, SOURCE, LENGTHS, samples=5, seed=7)
    for row in range(len(SOURCE)):
        alone = sample(model, SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1], samples=5, seed=7)[0]
        same(alone, together[row])
    other = sample(model, SOURCE, LENGTHS, samples=5, seed=8)
    assert [[h.tokens for h in row] for row in other] != [[h.tokens for h in row] for row in together]


def test_bad_questions() -> None:
    model = model_of("bahdanau2015")
    with pytest.raises(ValueError, match="n_best 3, beam 2"):
        search(model, SOURCE, LENGTHS, beam=2, n_best=3)
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
        ({"prefix": [[EOS], [], []]}, "a prefix holds words"),
        ({"prefix": [[A]]}, "prefix has 1 entries for 3 sources"),
        ({"force": [[[A, A]], [], []], "max_length": 2}, "2 tokens to force do not fit, with EOS, into max_length 2"),
        (
            {"force": [[[A, A], [B]], [], []], "max_length": 3},
            "3 tokens to force do not fit, with EOS, into max_length 3",
        ),
        ({"force": [[[]], [], []]}, "holds words and no EOS"),
        ({"forbid": [[]]}, "is empty"),
        ({"no_repeat": 0}, "at least 1 token, not 0"),
    ],
)
def test_bad_constraints(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(model_of("bahdanau2015"), SOURCE, LENGTHS, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "more than 0, not 0.0"),
        ({"top_k": 0}, "at least 1, not 0"),
        ({"top_p": 1.5}, "at most 1, not 1.5"),
        ({"samples": 0}, "at least 1, not 0"),
    ],
)
def test_bad_draws(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(model_of("bahdanau2015"), SOURCE, LENGTHS, **options)


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_phrases_that_begin_alike_all_come(name: str, beam: int) -> None:
    phrases = [[[A, B], [A, WORDS[2]], [A, WORDS[3]]]] * 3
    for seed in range(4):
        found = search(model_of(name, seed, sharp=1.0), SOURCE, LENGTHS, beam=beam, force=phrases, max_length=14)
        for [hypothesis] in found:
            for phrase in phrases[0]:
                assert holds(tuple(hypothesis.tokens), tuple(phrase))


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_phrases_end_as_they_should(beam: int) -> None:
    phrases = [[Phrase((A, B), frozenset([WORDS[2], EOS])), Phrase((WORDS[3],), frozenset([A, EOS]))]] * 3
    for seed in range(6):
        found = search(model_of("luong2015-global", seed, sharp=1.0), SOURCE, LENGTHS, beam=beam, force=phrases)
        for [hypothesis] in found:
            tokens = tuple(hypothesis.tokens)
            if tokens[-1] == EOS:
                assert holds(tokens, (A, B, WORDS[2])) or holds(tokens, (A, B, EOS))
                assert holds(tokens, (WORDS[3], A)) or holds(tokens, (WORDS[3], EOS))


def test_what_nobody_asks_for_is_not_kept() -> None:
    model = model_of("luong2015-global")
    with_looks, without = (search(model, SOURCE, LENGTHS, attention=wanted) for wanted in (True, False))
    assert [row[0].tokens for row in with_looks] == [row[0].tokens for row in without]
    assert all(row[0].attention is None for row in without)
    assert sample(model, SOURCE, LENGTHS, attention=False)[0][0].attention is None


def test_nothing_drawn_repeats_itself() -> None:
    drawn = sample(model_of("bahdanau2015", 2), SOURCE, LENGTHS, samples=50, no_repeat=1, max_length=9)
    assert not any(repeats(tuple(hypothesis.tokens), 1) for row in drawn for hypothesis in row)


@pytest.mark.parametrize("options", [{}, {"n_best": 2, "no_repeat": 2}, {"min_length": 4, "forbid": [[4, 5]]}])
@pytest.mark.parametrize("name", [*NAMES, "luong2015-local-m", "sutskever2014", "cho2014", "xu2015-soft"])
def test_who_comes_later_is_searched_as_if_alone(name: str, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (12,), generator=generator)
    sources = [torch.cat((torch.randint(4, 7, (n - 1,), generator=generator), torch.tensor([EOS]))) for n in lengths]
    model = model_of(name)
    searching, found, waiting = BeamSearch(model, beam=3, **options), dict[int, list[Hypothesis]](), list(range(12))
    while waiting or searching.open:
        for number in waiting[:2] if len(found) % 3 != 1 or not searching.open else []:
            searching.join(sources[number][None], lengths[number : number + 1])
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


def test_prefixes_and_phrases_are_those_of_who_brought_them() -> None:
    model = model_of("luong2015-global")
    searching, found = BeamSearch(model, beam=4), dict[int, list[Hypothesis]]()
    searching.join(SOURCE[:1], LENGTHS[:1], prefix=[[5, 5]])
    found.update(searching.step())
    searching.join(SOURCE[1:, :3], LENGTHS[1:], prefix=[[4], [6, 6, 4]], force=[[[6, 5]], []])
    while searching.open:
        found.update(searching.step())
    first = search(model, SOURCE[:1], LENGTHS[:1], beam=4, prefix=[[5, 5]])
    others = search(model, SOURCE[1:], LENGTHS[1:], beam=4, prefix=[[4], [6, 6, 4]], force=[[[6, 5]], []])
    for number, expected in enumerate([*first, *others]):
        assert [one.tokens for one in found[number]] == [one.tokens for one in expected]


def test_what_a_decoder_gives_out_stays_its_own() -> None:
    table = torch.randn(VOCABULARY).log_softmax(-1)

    class Decoder:
        """Thinks the same of every next token, and knows `start`, `step` and `select` alone."""

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

    before = table.clone()
    model: Any = Model()
    found = search(model, SOURCE, LENGTHS, beam=2, max_length=3, forbid=[[4]], prefix=[[5], [], [6]])
    assert [hypotheses[0].tokens[0] for hypotheses in found][::2] == [5, 6]
    torch.testing.assert_close(table, before)
