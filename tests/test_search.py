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
from regard.search import Hypothesis, penalised, search
from regard.search.beam import Sentence
from regard.symbols import BOS, EOS, PAD

NAMES = ["bahdanau2015", "luong2015-global", "vaswani2017-base"]
VOCABULARY = 7
SOURCE = torch.tensor([[5, 4, 6, 3], [4, 3, 0, 0], [6, 6, 3, 0]])
LENGTHS = torch.tensor([4, 2, 3])


def model_of(name: str, seed: int = 0, sharp: float = 0.6) -> Seq2Seq:
    torch.manual_seed(seed)
    model = build(name, VOCABULARY, VOCABULARY, size=8, layers=1).eval()
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
        scored = [(penalised(log_prob_of([model], row, target), len(target), penalty), target) for target in targets]
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


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam", [2, 3])
def test_stopping_early_changes_nothing(beam: int, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [model_of(name, seed, sharp=1.0) for seed in range(6) for name in NAMES]

    def found() -> list[list[Hypothesis]]:
        return [
            row for m in models for row in search(m, SOURCE, LENGTHS, beam=beam, max_length=9, length_penalty=penalty)
        ]

    early = found()
    monkeypatch.setattr(Sentence, "settled", lambda *_: False)
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


def test_bad_questions() -> None:
    model = model_of("bahdanau2015")
    with pytest.raises(ValueError, match="n_best 3, beam 2"):
        search(model, SOURCE, LENGTHS, beam=2, n_best=3)
    with pytest.raises(ValueError, match="not 0"):
        search(model, SOURCE, LENGTHS, max_length=0)
    assert search(model, SOURCE[:0], LENGTHS[:0]) == []
