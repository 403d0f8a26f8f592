"""The readable loops as functions of tensors, as CUDA graphs record them, against the loops as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.graphs import EagerGraph
from torch import Tensor, nn

from regard.fast import looping, quicken
from regard.fast.captured import Captured
from regard.fast.looping import Kept, Link, dropped, recorded, records, replayed
from regard.models import build, luong, stepping

PLAIN: dict[str, Any] = {
    "luong2015-global": luong.one_by_one,
    "bahdanau2015": stepping.one_by_one,
    "xu2015-soft": stepping.one_by_one,
    "xu2015-hard": stepping.one_by_one,
}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("bahdanau2015", {}),
    ("bahdanau2015", {"cell": "lstm", "layers": 2, "score": "general", "residual": True}),
    ("bahdanau2015", {"alignment": "local-p", "window": 2, "readout": "current"}),
    ("xu2015-soft", {}),
    ("xu2015-hard", {"layers": 2}),
    ("xu2015-hard", {"decode": "marginal"}),
    ("xu2015-soft", {"gate": False, "cell": "gru", "layers": 2, "alignment": "local-p", "window": 2}),
    ("luong2015-global", {"score": "concat", "cell": "gru", "layers": 2}),
    ("luong2015-global", {"score": "location", "max_source": 3, "layers": 1, "cell": "elman"}),
    ("luong2015-global", {"alignment": "local-m", "window": 1, "residual": True, "layers": 3}),
]
LENGTHS, STEPS = [3, 19, 0, *range(1, 15)], 9


def model_of(name: str, **form: Any) -> Any:
    torch.manual_seed(0)
    model = build(name, 11, 13, **{"size": 6, "dropout": 0.0, **form}).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def everything(model: Any, run: Any) -> list[Tensor]:
    """Outputs and all gradients."""
    torch.manual_seed(1)
    source = torch.randint(4, 11, (len(LENGTHS), max(LENGTHS)))
    target = torch.randint(4, 13, (len(LENGTHS), STEPS))
    model.decoder.loop = run
    model.zero_grad()
    decoded = model.decoder(model.encode(source, torch.tensor(LENGTHS)), target)
    found = [decoded.logits, *(field for field in decoded.attended if field is not None)]
    learns = [part for part in found if part.requires_grad]
    torch.autograd.backward(learns, [torch.randn(part.shape, dtype=part.dtype) for part in learns])
    slopes = [torch.zeros(1) if one.grad is None else one.grad.clone() for one in model.parameters()]
    return found + slopes


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "form"), FORMS, ids=str)
def test_a_loop_of_tensors_in_a_larger_shape_gives_the_loops_numbers(name: str, form: dict[str, Any]) -> None:
    model, captured, feeds = model_of(name, **form), Captured(patience=1, make=EagerGraph), name == "luong2015-global"
    run = partial(replayed, PLAIN[name], drops_input=feeds, captured=captured)
    model.train(name != "xu2015-hard")  # which otherwise draws
    expected = everything(model, PLAIN[name])
    for _ in range(2):
        agree(everything(model, run), expected)
    (graph,) = captured.graphs.values()
    assert graph.inputs[0].shape[:2] == (18, 9)


@pytest.mark.parametrize(
    ("name", "form"),
    [FORMS[7], ("xu2015-soft", {"layers": 2}), ("bahdanau2015", {"layers": 3}), ("bahdanau2015", {})],
    ids=str,
)
def test_dropout_is_where_the_loop_calls_it(name: str, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = model_of(name, **form, dropout=0.4), name == "luong2015-global"
    decoder = model.decoder
    rows = torch.empty(len(LENGTHS), STEPS)
    links = dropped(decoder, feeds)
    assert len(links) == len(decoder.recurrent.forwards) - 1 + feeds
    masks = {link: looping.drawn(rows, link) for link in links}  # links between layers share one

    def readable(decoder: Any, state: Any, words: Tensor) -> Any:
        before = decoder.dropout, decoder.recurrent.dropout
        scaled = {link: [masks[link][:, t] for t in range(STEPS)] for link in links}
        below = [link for link in links if not link.owner]
        above = [link for link in links if link.owner]
        if below:
            decoder.dropout = Kept((mask, 1 / 0.6) for mask in scaled[below[0]])
        decoder.recurrent.dropout = Kept((scaled[link][t], 1 / 0.6) for t in range(STEPS) for link in above)
        found = PLAIN[name](decoder, state, words)
        decoder.dropout, decoder.recurrent.dropout = before
        return found

    expected = everything(model, readable)
    monkeypatch.setattr(looping, "drawn", lambda words, link: masks[link])
    agree(everything(model, partial(replayed, PLAIN[name], drops_input=feeds, captured=None)), expected)
    agree(
        everything(model, partial(replayed, PLAIN[name], drops_input=feeds, captured=Captured(1, make=EagerGraph))),
        expected,
    )
    assert isinstance(decoder.dropout, nn.Dropout)
    assert isinstance(decoder.recurrent.dropout, nn.Dropout)
    assert not dropped(decoder.eval(), feeds)


@pytest.mark.parametrize("estimator", ["reinforce", "soft-baseline", "marginal"])
def test_places_are_drawn_by_lots(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lots = model_of("xu2015-hard", estimator=estimator), torch.rand(len(LENGTHS), STEPS)

    def readable(decoder: Any, state: Any, words: Tensor) -> Any:
        turns = iter(range(STEPS))

        def choose(probabilities: Tensor) -> Tensor:
            each = zip(probabilities[:, 0].detach().numpy(), lots[:, next(turns)].numpy(), strict=True)
            return torch.tensor([[np.searchsorted(np.cumsum(row), lot * row.sum(), "right")] for row, lot in each])

        decoder.attention.alignment.choose = choose
        found = stepping.one_by_one(decoder, state, words)
        del decoder.attention.alignment.choose
        return found

    expected = everything(model, readable)
    monkeypatch.setattr(looping, "shuffled", lambda words: lots)
    for captured in (None, Captured(1, make=EagerGraph)):
        agree(everything(model, partial(replayed, stepping.one_by_one, drops_input=False, captured=captured)), expected)
    assert "choose" not in vars(model.decoder.attention.alignment)


def test_a_place_is_drawn_as_often_as_it_is_likely() -> None:
    shares = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    lots = torch.cat((torch.zeros(1), (torch.arange(1000) + 0.5) / 1000, torch.ones(1)))
    places = looping.placed(shares.expand(1, len(lots), -1), lots[None])[0]
    assert places.bincount(minlength=6).tolist() == [0, 501, 0, 250, 251, 0]
    assert torch.equal(places, places.sort().values)


def test_without_gradients_training_draws_the_same_numbers() -> None:
    model = model_of("xu2015-hard", estimator="soft-baseline", dropout=0.4, layers=2)
    encoded = model.encode(torch.full((3, 5), 5), torch.tensor([5, 2, 4]))
    words = torch.randn(3, 4, 6, dtype=torch.float64)
    found = []
    for learns in (True, False):
        torch.manual_seed(3)
        with torch.set_grad_enabled(learns):
            state = model.decoder.start(encoded)
            found.append(
                replayed(stepping.one_by_one, model.decoder, state, words, False, Captured(1, make=EagerGraph))
            )
    torch.testing.assert_close(found[0][0], found[1][0])
    assert torch.equal(found[0][1].weights, found[1][1].weights)


def test_dropout_keeps_its_share() -> None:
    kept = looping.drawn(torch.empty(50, 40), Link("", 20, 0.25))
    assert kept.shape == (50, 40, 20)
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.01)


def test_forms_that_cannot_be_recorded_are_known() -> None:
    def known(**form: Any) -> bool:
        model = model_of("bahdanau2015", **form)
        encoded = model.encode(torch.full((2, 3), 5), torch.tensor([3, 2]))
        return records(model.decoder, model.decoder.start(encoded), torch.empty(2, 4, 6))

    assert known()
    assert not known(coverage="linguistic")


def test_a_model_takes_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(name: str) -> Any:
        return quicken(build(name, 20, 20, size=8)).decoder.loop

    for name in ("bahdanau2015", "xu2015-soft", "xu2015-hard"):
        assert (way(name).func, way(name).args) == (recorded, (PLAIN[name],))
    monkeypatch.setenv("REGARD_FAST", "0")
    for name, plain in PLAIN.items():
        assert way(name) is plain


def test_who_derives_a_decoder_keeps_its_steps() -> None:
    class Own(luong.LuongDecoder):
        def advance(self, state: Any, word: Tensor) -> Any:
            return super().advance(state, 2 * word)

    model = model_of("luong2015-global", layers=1)
    model.decoder.__class__ = Own
    assert quicken(model).decoder.loop is luong.one_by_one
