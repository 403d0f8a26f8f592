"""An output layer and its loss, some rows at a time, against the readable way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast import quicken
from regard.fast.output import rows
from regard.fast.output import way as output
from regard.models import build, seq2seq
from regard.models.criterion import CrossEntropy, LossSettings
from regard.models.seq2seq import Seq2Seq
from regard.recipes import names, read
from regard.symbols import PAD

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
    "one of each": ([1], [1]),
    "even": ([3, 3], [4, 4]),
}


def batch(sources: list[int], targets: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sentences of the given lengths."""
    torch.manual_seed(1)

    def padded(lengths: list[int]) -> Tensor:
        ids = torch.randint(4, 19, (len(lengths), max(lengths)))
        return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)

    return padded(sources), torch.tensor(sources), padded(targets), padded(targets)


def model(recipe: str = "luong2015-global", **loss: Any) -> Seq2Seq:
    """A small model without dropout."""
    torch.manual_seed(0)
    made = build(recipe, 19, 19, size=6, dropout=0.0, **RECIPES[recipe])
    assert isinstance(made, Seq2Seq)
    made.criterion = CrossEntropy(LossSettings(**loss))
    return made.train()


def everything(made: Seq2Seq, loss: Tensor) -> list[Tensor]:
    """The loss and all gradients."""
    made.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(weight.grad for weight in made.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_loss_and_its_gradients_are_the_readable_ones(
    recipe: str, smoothing: float, lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LOGITS", 19 * 3)  # three rows at a time, and some that are left
    made, given = model(recipe, label_smoothing=smoothing), batch(*LENGTHS[lengths])
    assert output.covers(made)
    for kind, error in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        expected = everything(made.to(kind), seq2seq.added_up(made, *given, None))
        assert isinstance(quicken(made).way, output.Thin)
        found = everything(made, made.summed(*given) * 1.0)
        torch.testing.assert_close(found, expected, rtol=error, atol=error)


def test_all_recipes_that_translate_go_this_way_but_those_of_xu() -> None:
    """As docs/speed.md says; Transformers have one of their own besides."""
    translating = [name for name in names() if read(name)["task"] == "translate"]
    left = {name for name in translating if not output.covers(build(name, 19, 19, size=16))}
    assert left == {"xu2015-soft", "xu2015-hard"}


def test_logits_are_never_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LOGITS", 19 * 2)
    made, seen, entropy = quicken(model()), [], rows.entropy

    def spy(logits: Tensor, *rest: Any) -> Tensor:
        seen.append(logits.shape)
        return entropy(logits, *rest)

    monkeypatch.setattr(rows, "entropy", spy)
    made.summed(*batch([5, 1, 3], [2, 4, 1]))
    assert seen == [(2, 19)] * 3 + [(1, 19)]  # what is padding is not among them


def test_large_logits_do_not_overflow_and_unlikely_words_have_a_loss() -> None:
    h, weight = (
        torch.tensor([[1.0, 0.0]], requires_grad=True),
        torch.tensor([[0.0, 0.0], [5000.0, 1.0], [-5000.0, 2.0]]),
    )
    for target in (1, 2):
        found = rows.losses(h, weight, None, torch.tensor([target]), 0.1)
        expected = F.cross_entropy(h @ weight.t(), torch.tensor([target]), label_smoothing=0.1)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, h), torch.autograd.grad(expected, h))


def test_targets_that_are_all_padding_have_no_loss() -> None:
    h, weight = torch.randn(3, 2, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    loss = rows.losses(h, weight, None, torch.full((3,), PAD), 0.1)
    assert loss.item() == 0
    assert not any(slope.any() for slope in torch.autograd.grad(loss, (h, weight)))


def test_without_learning_there_are_no_gradients() -> None:
    made, given = model(), batch([3, 2], [2, 4])
    with torch.no_grad():
        loss = quicken(made).eval().summed(*given)
        torch.testing.assert_close(loss, seq2seq.added_up(made, *given, None))
    assert not loss.requires_grad


def test_r_drop_guides_and_listeners_go_the_readable_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rows, "losses")
    given, guide = batch([3, 2], [2, 4]), torch.rand(2, 4, 3)
    made = quicken(model(r_drop=1.0))
    torch.testing.assert_close(made.summed(*given), seq2seq.added_up(made, *given, None), rtol=0, atol=0)
    made = quicken(model(guided=0.5))
    torch.testing.assert_close(made.summed(*given, guide), seq2seq.added_up(made, *given, guide), rtol=0, atol=0)
    heard: list[torch.Size] = []
    made.decoder.W_s.register_forward_hook(lambda layer, read, given: heard.append(given.shape))  # type: ignore[union-attr]
    made.summed(*given)
    assert heard == [(2, 4, 19)]


def test_a_transformer_that_is_not_known_within_has_its_loss_by_rows() -> None:
    made = build("vaswani2017-base", 19, 19, size=8, layers=1, heads=2, dropout=0.0)
    assert isinstance(made, Seq2Seq)
    made.decoder.output = nn.Linear(8, 19)
    given = batch([3, 2], [2, 4])
    expected = everything(made, made.summed(*given))
    assert isinstance(quicken(made).way, output.Thin)
    torch.testing.assert_close(everything(made, made.summed(*given)), expected, rtol=1e-5, atol=1e-5)


def replaced(made: Seq2Seq) -> None:
    layers: Any = made.encoder
    layers.layers[0].feedforward[1] = nn.GELU()


def biased(made: Seq2Seq) -> None:
    decoder: Any = made.decoder
    decoder.output = nn.Linear(8, 19)


def doubled(made: Seq2Seq) -> None:
    decoder: Any = made.decoder
    decoder.layers[0].register_forward_hook(lambda part, given, out: (2 * out[0], *out[1:]))


@pytest.mark.parametrize("change", [replaced, biased, doubled])
def test_a_transformer_that_somebody_changes_later_is_taken_as_it_is(change: Callable[[Seq2Seq], None]) -> None:
    made = quicken(build("default", 19, 19, size=8, layers=1, heads=2, dropout=0.0)).double().train()
    change(made.double())
    made.double()
    given = batch(*LENGTHS["ragged"])
    torch.testing.assert_close(made.summed(*given), seq2seq.added_up(made, *given, None))
