"""The wide and deep classifier: n-grams, ensemble, word dropout."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.ngrams import NUM_AFFIXES, NgramHasher
from regard.errors import UserError
from regard.models import build
from regard.nn import NgramLinear
from regard.special_tokens import UNK

VOCABULARY, LABELS, BUCKETS = 15, 4, 32
NGRAMS = torch.tensor([[1, 5, 9], [2, 31, 0], [0, 0, 0]])
LENGTHS = torch.tensor([5, 2, 0])
CHOICES = torch.tensor([1, 3, 0])


def make_model(**changes: Any) -> Any:
    """Return a small model in double precision with random weights."""
    sizes: dict[str, Any] = {"size": 6, "embedding": 5, "buckets": BUCKETS, "members": 2}
    model = build("default-classification", VOCABULARY, LABELS, **{**sizes, **changes}).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
        model.ngrams.weight.weight[0] = 0.0
    return model.eval()


def make_ids() -> Tensor:
    ids = torch.randint(4, VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(3))
    return ids * (torch.arange(5) < LENGTHS[:, None])


def test_ngrams_of_a_text_are_hashed_once_each() -> None:
    found, _ = NgramHasher(2, 3, 1 << 20).hash_text("No no, Ann")
    # start, no, comma, ann, end, and five pairs of neighbours; " No", "No ", " no", "no ", " , ", " An", "Ann", "nn "
    assert len(found) == 5 + 5 + 8
    assert found.tolist() == sorted(found)
    assert min(found) > 0
    assert NgramHasher(2, 3, 1 << 20).hash_text("No no, Ann")[0].tolist() == found.tolist()
    assert len(NgramHasher(0, 0, 8).hash_text("a b")[0]) == len(NgramHasher(2, 5, 8).hash_text(" ")[0]) == 0
    assert set(NgramHasher(2, 5, 8).hash_text("many words share seven buckets")[0]) <= set(range(1, 8))


def test_ngrams_belong_to_the_word_that_they_begin_with() -> None:
    _, found = NgramHasher(3, 0, 1 << 20).hash_text("who won who")
    # start, its pair and triple, who, won, "who won", "who won who"; "won who", "won who end"; "who end", end
    assert sorted(found) == [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_pairs_of_words_skip_what_is_between() -> None:
    plain, skipping = (NgramHasher(2, 0, 1 << 20, max_skipped=skipped) for skipped in (0, 1))

    def find_pairs(text: str) -> set[int]:
        return set(skipping.hash_text(text)[0]) - set(plain.hash_text(text)[0])

    assert find_pairs("which red river") & find_pairs("which long river")
    assert not find_pairs("which red river") & find_pairs("river or which")


def test_words_that_begin_and_end_alike_share_affixes() -> None:
    hasher = NgramHasher(2, 3, 8, 1 << 20)
    rows = torch.tensor(hasher.hash_affixes("Singing singling, ring")).view(-1, NUM_AFFIXES)
    assert len(rows) == 4
    assert (rows[0] == rows[1]).tolist() == [True, True, False], "the shapes Aa and a differ"
    assert (rows[1] == rows[3]).tolist() == [False, True, True]


def test_linear_model_of_ngrams_is_a_normalised_sum() -> None:
    layer = NgramLinear(BUCKETS, LABELS, scale=3.0)
    with torch.no_grad():
        layer.weight.weight[1:] = torch.randn(BUCKETS - 1, LABELS)
        layer.bias.copy_(torch.randn(LABELS))
    rows = layer.weight.weight
    expected = [(rows[1] + rows[5] + rows[9]) * 3 / 3**0.5, (rows[2] + rows[31]) * 3 / 2**0.5, 0 * rows[0]]
    torch.testing.assert_close(layer(NGRAMS), torch.stack(expected) + layer.bias)


def test_dropout_of_ngrams_keeps_the_expected_sum() -> None:
    layer = NgramLinear(BUCKETS, LABELS, dropout=0.4)
    with torch.no_grad():
        layer.weight.weight[1:] = 1.0
    torch.manual_seed(1)
    mean = torch.stack([layer(NGRAMS) for _ in range(500)]).mean(0)
    torch.testing.assert_close(mean, layer.eval()(NGRAMS), rtol=0.1, atol=0.05)


def test_probabilities_of_the_members_are_averaged() -> None:
    model, ids = make_model(), make_ids()
    wide = model.ngrams(NGRAMS)
    members = [(member(ids, LENGTHS, None)[0] + wide).softmax(-1) for member in model.members]
    torch.testing.assert_close(model(ids, LENGTHS, NGRAMS).logits.softmax(-1), (members[0] + members[1]) / 2)


def test_each_member_learns_its_own_error() -> None:
    model, ids = make_model(), make_ids()
    logits = [member(ids, LENGTHS, None)[0] + model.ngrams(NGRAMS) for member in model.members]
    losses = [F.cross_entropy(one, CHOICES, reduction="sum", label_smoothing=0.1) for one in logits]
    torch.testing.assert_close(model.loss_sum(ids, LENGTHS, CHOICES, NGRAMS), (losses[0] + losses[1]) / 2)
    assert int(model.loss_count(ids, LENGTHS, CHOICES, NGRAMS)) == 3


def test_ngrams_weigh_as_much_as_the_attention_to_their_word() -> None:
    model, ids = make_model(ngram_attention=0.5, members=1), make_ids()
    affixes, positions = None, torch.tensor([[0, 4, 4], [1, 7, 0], [0, 0, 0]])
    logits, weights, _ = model(ids, LENGTHS, NGRAMS, affixes, positions)
    mean, rows = weights.mean(1), model.ngrams.weight.weight
    first = (rows[1] * (1 + 5 * mean[0, 0]) + (rows[5] + rows[9]) * (1 + 5 * mean[0, 4])) / 2 / 3**0.5
    second = (rows[2] * (1 + 2 * mean[1, 1]) / 2 + rows[31]) / 2**0.5  # word 7 is behind the last that is read
    branch = model.members[0](ids, LENGTHS, None)[0]
    expected = branch[:2] + torch.stack((first, second)) * model.ngrams.scale + model.ngrams.bias
    torch.testing.assert_close(logits[:2], expected.log_softmax(-1))


@pytest.mark.parametrize("changes", [{}, {"network": "brnn"}, {"pooling": "max"}, {"members": 1}])
def test_padding_changes_neither_logits_nor_attention(changes: dict[str, Any]) -> None:
    model, ids = make_model(**changes), make_ids()
    together = model(ids, LENGTHS, NGRAMS)
    wider = model(F.pad(ids, (0, 3), value=9), LENGTHS, F.pad(NGRAMS, (0, 2)))
    torch.testing.assert_close(wider.logits, together.logits)
    assert torch.isfinite(together.logits).all(), "of an empty text, too"
    if together.weights is not None:
        torch.testing.assert_close(wider.weights[..., :5], together.weights)
        assert not wider.weights[..., 5:].any()


def test_word_dropout_makes_words_unknown_in_training_only() -> None:
    model, ids = make_model(word_dropout=0.999, dropout=0.0, embedding_dropout=0.0, members=1), make_ids()
    unknown = torch.where(ids > 0, UNK, 0)
    expected, plain = model(unknown, LENGTHS).logits, model(ids, LENGTHS).logits
    torch.manual_seed(1)
    torch.testing.assert_close(model.train()(ids, LENGTHS).logits, expected)
    assert not torch.allclose(plain, expected)


def test_every_parameter_gets_a_gradient() -> None:
    model = make_model(dropout=0.0, embedding_dropout=0.0, word_dropout=0.0, ngram_dropout=0.0).train()
    affixes = make_ids()[..., None].expand(-1, -1, NUM_AFFIXES)
    model.loss_sum(make_ids(), LENGTHS, CHOICES, NGRAMS, affixes).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"affix_buckets": 1}, "model: affix_buckets must be 0 or at least 2, not 1"),
        ({"buckets": 1}, "buckets must be at least 2, not 1"),
        ({"members": 0}, "members must be at least 1, not 0"),
        ({"network": "cnn"}, "model.network is one of brnn, stacked, rnn, tdnn, mlp, not 'cnn'"),
    ],
)
def test_impossible_options_are_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make_model(**changes)
