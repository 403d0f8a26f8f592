"""Output layer and loss computed a few rows at a time against the reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.combinations import covering_pairs
from support.corpora import translation_recipes
from support.fast_models import add_bias, loss_and_gradients, make_batch, use_leaky_relu
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast import accelerate
from regard.fast.training import linear_cross_entropy
from regard.models import build
from regard.models.base import CrossEntropy, Seq2Seq, default_loss_sum
from regard.special_tokens import PAD

RECIPES: dict[str, dict[str, Any]] = {
    "luong2015-global": {"layers": 2, "tie": True},
    "luong2015-local-p": {"layers": 1},
    "bahdanau2015": {},
    "mino2017": {},
    "cho2014": {},
    "sutskever2014": {"layers": 2},
}
LENGTHS: dict[str, tuple[list[int], list[int]]] = {
    "ragged": ([5, 1, 3], [2, 7, 1]),
    "one-of-each": ([1], [1]),
    "even": ([3, 3], [4, 4]),
}


WORDS = 19


def make_model(recipe: str = "luong2015-global", **loss: Any) -> Seq2Seq:
    """Return a small model in training mode without dropout."""
    torch.manual_seed(0)
    model = build(recipe, WORDS, WORDS, size=6, dropout=0.0, **RECIPES[recipe])
    assert isinstance(model, Seq2Seq)
    model.criterion = CrossEntropy(**loss)
    return model.train()


@pytest.mark.parametrize(("recipe", "smoothing", "lengths"), covering_pairs(list(RECIPES), [0.0, 0.1], list(LENGTHS)))
def test_loss_by_rows_has_the_reference_value_and_gradients(
    recipe: str, smoothing: float, lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_cross_entropy, "MAX_LOGITS", WORDS * 3)  # three rows at a time, and a remainder
    model, given = make_model(recipe, label_smoothing=smoothing), make_batch(*LENGTHS[lengths], WORDS)
    assert linear_cross_entropy.is_supported(model)
    for kind, error in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        expected = loss_and_gradients(model.to(kind), default_loss_sum(model, *given, None))
        assert isinstance(accelerate(model).acceleration.loss_sum, linear_cross_entropy.ChunkedLoss)
        found = loss_and_gradients(model, model.loss_sum(*given) * 1.0)
        torch.testing.assert_close(found, expected, rtol=error, atol=error)


def test_loss_by_rows_covers_all_translation_recipes_but_xu2015() -> None:
    """Check a statement of docs/speed.md."""
    uncovered = {
        name
        for name in translation_recipes()
        if not linear_cross_entropy.is_supported(build(name, WORDS, WORDS, size=16))
    }
    assert uncovered == {"xu2015-soft", "xu2015-hard"}


def test_logits_of_a_batch_are_never_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cross_entropy, "MAX_LOGITS", WORDS * 2)
    model, shapes, entropy = accelerate(make_model()), [], linear_cross_entropy.cross_entropy_inplace

    def spy(logits: Tensor, *rest: Any) -> Tensor:
        shapes.append(logits.shape)
        return entropy(logits, *rest)

    monkeypatch.setattr(linear_cross_entropy, "cross_entropy_inplace", spy)
    model.loss_sum(*make_batch([5, 1, 3], [2, 4, 1], WORDS))
    assert shapes == [(2, WORDS)] * 3 + [(1, WORDS)]  # padding is left out


def test_large_logits_do_not_overflow() -> None:
    h, weight = (
        torch.tensor([[1.0, 0.0]], requires_grad=True),
        torch.tensor([[0.0, 0.0], [5000.0, 1.0], [-5000.0, 2.0]]),
    )
    for target in (1, 2):
        found = linear_cross_entropy.cross_entropy_in_chunks(h, weight, None, torch.tensor([target]), 0.1)
        expected = F.cross_entropy(h @ weight.t(), torch.tensor([target]), label_smoothing=0.1)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, h), torch.autograd.grad(expected, h))


def test_loss_of_padding_is_zero() -> None:
    h, weight = torch.randn(3, 2, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    loss = linear_cross_entropy.cross_entropy_in_chunks(h, weight, None, torch.full((3,), PAD), 0.1)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (h, weight)))


def test_loss_by_rows_equals_the_reference_without_gradients() -> None:
    model, given = make_model(), make_batch([3, 2], [2, 4], WORDS)
    with torch.no_grad():
        loss = accelerate(model).eval().loss_sum(*given)
        torch.testing.assert_close(loss, default_loss_sum(model, *given, None))
    assert not loss.requires_grad


def test_r_drop_guided_alignment_and_hooks_use_the_reference_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(linear_cross_entropy, "cross_entropy_in_chunks")
    given, guide = make_batch([3, 2], [2, 4], WORDS), torch.rand(2, 4, 3)
    model = accelerate(make_model(r_drop=1.0))
    torch.testing.assert_close(model.loss_sum(*given), default_loss_sum(model, *given, None), rtol=0, atol=0)
    model = accelerate(make_model(guided=0.5))
    torch.testing.assert_close(model.loss_sum(*given, guide), default_loss_sum(model, *given, guide), rtol=0, atol=0)
    shapes: list[torch.Size] = []
    model.decoder.W_s.register_forward_hook(lambda layer, read, logits: shapes.append(logits.shape))  # type: ignore[union-attr]
    model.loss_sum(*given)
    assert shapes == [(2, 4, WORDS)]


def test_transformer_that_cannot_be_packed_has_its_loss_by_rows() -> None:
    model = build("vaswani2017-base", WORDS, WORDS, size=8, layers=1, heads=2, dropout=0.0)
    assert isinstance(model, Seq2Seq)
    model.decoder.output = nn.Linear(8, WORDS)
    use_leaky_relu(model)  # which the packed loss does not support
    given = make_batch([3, 2], [2, 4], WORDS)
    expected = loss_and_gradients(model, model.loss_sum(*given))
    assert isinstance(accelerate(model).acceleration.loss_sum, linear_cross_entropy.ChunkedLoss)
    torch.testing.assert_close(loss_and_gradients(model, model.loss_sum(*given)), expected, rtol=1e-5, atol=1e-5)


def double_in_hook(model: Any) -> None:
    model.decoder.layers[0].register_forward_hook(lambda part, given, out: (2 * out[0], *out[1:]))


@pytest.mark.parametrize("change", [use_leaky_relu, add_bias, double_in_hook])
def test_transformer_modified_after_quicken_has_the_right_loss(change: Callable[[Seq2Seq], None]) -> None:
    model = accelerate(build("default", WORDS, WORDS, size=8, layers=1, heads=2, dropout=0.0)).double().train()
    change(model.double())
    model.double()
    given = make_batch(*LENGTHS["ragged"], WORDS)
    torch.testing.assert_close(model.loss_sum(*given), default_loss_sum(model, *given, None))
