"""Search with a vocabulary shortlist: only its words are output, and their probabilities are renormalised."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from regard.fast.decoding.vocabulary import restrict_vocabulary
from regard.models import Seq2Seq, build
from regard.models.base import Decoder
from regard.search import search, search_restricted
from regard.search.constraints import Phrase
from regard.special_tokens import BOS, EOS, PAD, UNK

VOCABULARY, SHORTLIST = 30, [5, 9, 14, 20, 29]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
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
SOURCE = torch.randint(4, VOCABULARY, (4, 7), generator=torch.manual_seed(1))
LENGTHS = torch.tensor([7, 5, 1, 3])


@cache
def make_model(name: str) -> Seq2Seq:
    """Return a model with large random weights; tests only read it."""
    recipe, overrides = MODELS[name]
    torch.manual_seed(0)
    model: Seq2Seq = build(recipe, VOCABULARY, VOCABULARY, size=16, layers=1, **overrides).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


@torch.no_grad()
def compute_logits(model: Seq2Seq, row: int, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logits (T, V) of a given target by teacher forcing."""
    source, lengths = SOURCE[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1]
    return np.asarray(model(source, lengths, torch.tensor([[BOS, *tokens[:-1]]]))[0], np.float64)


@pytest.mark.parametrize("name", MODELS)
def test_a_shortlist_of_the_whole_vocabulary_changes_nothing(name: str) -> None:
    model = make_model(name)
    expected = search(model, SOURCE, LENGTHS, beam=3, n_best=2)
    found = search_restricted(range(VOCABULARY), [model], SOURCE, LENGTHS, beam=3, n_best=2)
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert (one.tokens, one.log_prob, one.score) == (other.tokens, other.log_prob, other.score)
            np.testing.assert_array_equal(one.attention, other.attention)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_probabilities_are_normalised_over_the_shortlist(name: str, beam: int) -> None:
    model, words = make_model(name), [PAD, UNK, BOS, EOS, *SHORTLIST]
    for row, some in enumerate(search_restricted(SHORTLIST, [model], SOURCE, LENGTHS, beam=beam, n_best=beam)):
        for one in some:
            assert set(one.tokens) <= {UNK, EOS, *SHORTLIST}
            logits = compute_logits(model, row, one.tokens)
            each = logits - np.log(np.exp(logits[:, words]).sum(1, keepdims=True))
            np.testing.assert_allclose(one.log_prob, each[range(len(one.tokens)), one.tokens].sum(), rtol=1e-4)
            if beam == 1:
                allowed = [UNK, EOS, *SHORTLIST]
                assert one.tokens == [allowed[index] for index in logits[:, allowed].argmax(1)]


def test_an_ensemble_uses_the_same_shortlist() -> None:
    models = [make_model("luong"), make_model("transformer")]
    expected = search(models, SOURCE, LENGTHS, beam=3)
    assert [[one.tokens for one in some] for some in expected] == [
        [one.tokens for one in some] for some in search_restricted(range(VOCABULARY), models, SOURCE, LENGTHS, beam=3)
    ]
    for some in search_restricted(SHORTLIST, models, SOURCE, LENGTHS, beam=3):
        assert set(some[0].tokens) <= {UNK, EOS, *SHORTLIST}


def test_constraints_hold_inside_and_outside_the_shortlist() -> None:
    model, ends = make_model("bahdanau"), frozenset({7, 9, EOS})
    options: dict[str, Any] = {
        "prefix": [[6, 9], [], [14], [8]],
        "force": [[[11, 12]], [Phrase((13,), ends)], [], [[5]]],
        "forbid": [[UNK], [20, 20], [25, 26], [5, 9]],
        "no_repeat": 2,
        "beam": 6,
    }
    few, whole = (
        (search_restricted(words, [model], SOURCE, LENGTHS, **options)) for words in (SHORTLIST, range(VOCABULARY))
    )
    assert [one[0].tokens for one in whole] == [one[0].tokens for one in search(model, SOURCE, LENGTHS, **options)], (
        "the constraints mean the same in both vocabularies"
    )
    first, second, third, fourth = (some[0].tokens for some in few)
    assert (first[:2], third[:1], fourth[:1]) == ([6, 9], [14], [8])
    assert (11, 12) in pairwise(first)
    assert second[second.index(13) + 1] in ends
    assert 5 in fourth
    for tokens in (first, second, third, fourth):
        pairs = list(pairwise(tokens))
        assert set(tokens) <= {EOS, 6, 8, 11, 12, 13, *SHORTLIST}
        assert not {(20, 20), (5, 9)} & set(pairs)
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("name", ["bahdanau", "transformer, all tied"])
def test_a_model_with_a_shortlist_shares_all_other_weights(name: str) -> None:
    model = make_model(name)
    whole = [weights.clone() for weights in model.parameters()]
    narrow = restrict_vocabulary(model, [*range(4), *SHORTLIST])
    own = {weights.data_ptr() for weights in model.parameters()}
    cut = [weights for weights in narrow.decoder.parameters() if weights.data_ptr() not in own]
    assert {len(weights) for weights in cut} == {4 + len(SHORTLIST)}
    assert len(cut) == (1 if "tied" in name else 3)  # tied: one matrix; otherwise two matrices and a bias
    assert narrow.encoder is model.encoder
    assert all(torch.equal(left, right) for left, right in zip(whole, model.parameters(), strict=True))


def test_a_shortlist_search_leaves_the_model_in_training_mode() -> None:
    model = deepcopy(make_model("luong")).train()
    assert restrict_vocabulary(model, [0, 1, 2, 3, 9]).training
    search_restricted(SHORTLIST, [model], SOURCE, LENGTHS, beam=2)
    assert all(part.training for part in model.modules())


def test_impossible_shortlist_searches_are_refused() -> None:
    model = deepcopy(make_model("xu"))
    with pytest.raises(ValueError, match="constraints of your own need the whole vocabulary"):
        search_restricted(SHORTLIST, [model], SOURCE, LENGTHS, constraints=[lambda *some: None])
    with pytest.raises(ValueError, match="prefix has 1 entries for 4 sources"):
        search_restricted(SHORTLIST, [model], SOURCE, LENGTHS, prefix=[[5]])
    model.decoder = Decoder()
    with pytest.raises(ValueError, match="Decoder has no vocabulary_layers, the layers with one row per token"):
        search_restricted(SHORTLIST, [model], SOURCE, LENGTHS)
    marginal = build("xu2015-hard", VOCABULARY, VOCABULARY, size=8, layers=1, decode="marginal")
    assert marginal.decoder.vocabulary_layers() == []
