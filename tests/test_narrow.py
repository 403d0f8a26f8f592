"""A search among some words: nothing else is written, and of these the model thinks what it always did."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from regard.fast.narrow import narrowed
from regard.models import Seq2Seq, build
from regard.models.seq2seq import Decoder
from regard.search import Phrase, search, search_among
from regard.symbols import BOS, EOS, PAD, UNK

SIZE, WORDS = 30, [5, 9, 14, 20, 29]
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "luong": ("luong2015-global", {}),
    "luong, tied": ("luong2015-local-p", {"tie": True}),
    "bahdanau": ("bahdanau2015", {}),
    "bahdanau, tied": ("bahdanau2015", {"tie": True, "maxout": 16}),
    "cho": ("cho2014", {}),
    "sutskever": ("sutskever2014", {}),
    "xu": ("xu2015-hard", {}),
    "transformer, all tied": ("default", {"heads": 2}),
    "transformer": ("vaswani2017-base", {"heads": 2, "tie": "none"}),
}
SOURCE = torch.randint(4, SIZE, (4, 7), generator=torch.manual_seed(1))
LENGTHS = torch.tensor([7, 5, 1, 3])


def model_of(form: str, seed: int = 0) -> Seq2Seq:
    """A model that has something to say."""
    name, changes = FORMS[form]
    torch.manual_seed(seed)
    model: Seq2Seq = build(name, SIZE, SIZE, size=16, layers=1, **changes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


@torch.no_grad()
def logits_of(model: Seq2Seq, row: int, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The readable model's, of a target that it is made to write: T,V."""
    source, lengths = SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1]
    return np.asarray(model(source, lengths, torch.tensor([[BOS, *tokens[:-1]]]))[0], np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_among_all_words_all_is_as_ever(form: str) -> None:
    model = model_of(form)
    expected = search(model, SOURCE, LENGTHS, beam=3, n_best=2)
    found = search_among(range(SIZE), [model], SOURCE, LENGTHS, beam=3, n_best=2)
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert (one.tokens, one.log_prob, one.score) == (other.tokens, other.log_prob, other.score)
            np.testing.assert_array_equal(one.attention, other.attention)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("form", FORMS)
def test_probabilities_are_the_models_own_among_the_words(form: str, beam: int) -> None:
    model, words = model_of(form), [PAD, UNK, BOS, EOS, *WORDS]
    for row, some in enumerate(search_among(WORDS, [model], SOURCE, LENGTHS, beam=beam, n_best=beam)):
        for one in some:
            assert set(one.tokens) <= {UNK, EOS, *WORDS}
            logits = logits_of(model, row, one.tokens)
            each = logits - np.log(np.exp(logits[:, words]).sum(1, keepdims=True))
            np.testing.assert_allclose(one.log_prob, each[range(len(one.tokens)), one.tokens].sum(), rtol=1e-4)
            if beam == 1:
                open_to_it = [UNK, EOS, *WORDS]
                assert one.tokens == [open_to_it[place] for place in logits[:, open_to_it].argmax(1)]


def test_several_models_share_the_words() -> None:
    models = [model_of("luong"), model_of("transformer")]
    expected = search(models, SOURCE, LENGTHS, beam=3)
    assert [[one.tokens for one in some] for some in expected] == [
        [one.tokens for one in some] for some in search_among(range(SIZE), models, SOURCE, LENGTHS, beam=3)
    ]
    for some in search_among(WORDS, models, SOURCE, LENGTHS, beam=3):
        assert set(some[0].tokens) <= {UNK, EOS, *WORDS}


def test_what_is_asked_for_comes_whether_it_is_among_the_words_or_not() -> None:
    model, ends = model_of("bahdanau"), frozenset({7, 9, EOS})
    options: dict[str, Any] = {
        "prefix": [[6, 9], [], [14], [8]],
        "force": [[[11, 12]], [Phrase((13,), ends)], [], [[5]]],
        "forbid": [[UNK], [20, 20], [25, 26], [5, 9]],
        "no_repeat": 2,
        "beam": 6,
    }
    few, whole = ((search_among(words, [model], SOURCE, LENGTHS, **options)) for words in (WORDS, range(SIZE)))
    assert [one[0].tokens for one in whole] == [
        one[0].tokens for one in search(model, SOURCE, LENGTHS, **options)
    ]  # so all of it means the same
    first, second, third, fourth = (some[0].tokens for some in few)
    assert (first[:2], third[:1], fourth[:1]) == ([6, 9], [14], [8])
    assert (11, 12) in pairwise(first)
    assert second[second.index(13) + 1] in ends
    assert 5 in fourth
    for tokens in (first, second, third, fourth):
        pairs = list(pairwise(tokens))
        assert set(tokens) <= {EOS, 6, 8, 11, 12, 13, *WORDS}
        assert not {(20, 20), (5, 9)} & set(pairs)
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("form", ["bahdanau", "transformer, all tied"])
def test_a_narrow_model_has_nothing_else_of_its_own(form: str) -> None:
    model = model_of(form)
    whole = [weights.clone() for weights in model.parameters()]
    narrow = narrowed(model, [*range(4), *WORDS])
    own = {weights.data_ptr() for weights in model.parameters()}
    cut = [weights for weights in narrow.decoder.parameters() if weights.data_ptr() not in own]
    assert {len(weights) for weights in cut} == {4 + len(WORDS)}
    assert len(cut) == (1 if "tied" in form else 3)  # a matrix; or two, and a bias
    assert narrow.encoder is model.encoder
    assert all(torch.equal(left, right) for left, right in zip(whole, model.parameters(), strict=True))


def test_a_model_stays_as_it_is_set() -> None:
    model = model_of("luong").train()
    assert narrowed(model, [0, 1, 2, 3, 9]).training
    search_among(WORDS, [model], SOURCE, LENGTHS, beam=2)
    assert all(part.training for part in model.modules())


def test_what_cannot_be_is_refused() -> None:
    model = model_of("xu")
    with pytest.raises(ValueError, match="rules of one's own go with the whole vocabulary"):
        search_among(WORDS, [model], SOURCE, LENGTHS, rules=[lambda *some: None])
    with pytest.raises(ValueError, match="prefix has 1 entries for 4 sources"):
        search_among(WORDS, [model], SOURCE, LENGTHS, prefix=[[5]])
    model.decoder = Decoder()
    with pytest.raises(ValueError, match="Decoder does not say which of its layers have a row for each word"):
        search_among(WORDS, [model], SOURCE, LENGTHS)
    marginal = build("xu2015-hard", SIZE, SIZE, size=8, layers=1, decode="marginal")
    assert marginal.decoder.vocabulary() == []
