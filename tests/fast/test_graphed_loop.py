"""Reference decoder loops as functions of tensors, as CUDA graphs capture them, against the loops themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.combinations import slow_after
from support.fast_models import assert_all_close, randomize
from support.graphs import EagerGraph
from torch import Tensor, nn

from regard.fast import accelerate
from regard.fast.cuda_graphs.cache import GraphedFunctionCache
from regard.fast.training import graphed_loop
from regard.fast.training.graphed_loop import (
    DropoutSite,
    PredrawnDropout,
    find_dropout_sites,
    is_capturable,
    run_graphed,
    run_loop,
)
from regard.models import build, luong2015, rnn_common

CONCAT_GRU: tuple[str, dict[str, Any]] = ("luong2015-global", {"score": "concat", "cell": "gru", "layers": 2})
MODELS: list[tuple[str, dict[str, Any]]] = [  # one of each family
    ("bahdanau2015", {}),
    ("xu2015-soft", {}),
    ("xu2015-hard", {"layers": 2}),
    CONCAT_GRU,
]
MORE_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("bahdanau2015", {"cell": "lstm", "layers": 2, "score": "general", "residual": True}),
    ("bahdanau2015", {"alignment": "local-p", "window": 2, "readout": "current"}),
    ("xu2015-hard", {"decode": "marginal"}),
    ("xu2015-soft", {"gate": False, "cell": "gru", "layers": 2, "alignment": "local-p", "window": 2}),
    ("luong2015-global", {"score": "location", "max_source": 3, "layers": 1, "cell": "elman"}),
    ("luong2015-global", {"alignment": "local-m", "window": 1, "residual": True, "layers": 3}),
]
LENGTHS, STEPS = [3, 19, 0, *range(1, 15)], 9


def make_model(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    model = build(name, 11, 13, **{"size": 6, "dropout": 0.0, **options}).double()
    randomize(model, 0.5)
    return model


def run_decoder(model: Any, run: Any) -> list[Tensor]:
    """Return logits, attention and all gradients of a decoder whose loop is `run`."""
    torch.manual_seed(1)
    source = torch.randint(4, 11, (len(LENGTHS), max(LENGTHS)))
    target = torch.randint(4, 13, (len(LENGTHS), STEPS))
    model.decoder.unroll = run
    model.zero_grad()
    decoded = model.decoder(model.encode(source, torch.tensor(LENGTHS)), target)
    found = [decoded.logits, *(field for field in decoded.attended if field is not None)]
    differentiable = [part for part in found if part.requires_grad]
    torch.autograd.backward(differentiable, [torch.randn(part.shape, dtype=part.dtype) for part in differentiable])
    return found + [torch.zeros(1) if one.grad is None else one.grad.clone() for one in model.parameters()]


@pytest.mark.parametrize(
    ("name", "options"), [*MODELS, *(pytest.param(*model, marks=pytest.mark.slow) for model in MORE_MODELS)], ids=str
)
def test_captured_loop_has_the_outputs_and_gradients_of_the_loop(name: str, options: dict[str, Any]) -> None:
    model, captured, feeds = (
        make_model(name, **options),
        GraphedFunctionCache(min_calls=1, graph_type=EagerGraph),
        name == "luong2015-global",
    )
    run = partial(run_graphed, drops_input=feeds, graph_cache=captured)
    model.train(name != "xu2015-hard")  # hard attention samples in training mode
    expected = run_decoder(model, rnn_common.unroll_decoder)
    for _ in range(2):
        assert_all_close(run_decoder(model, run), expected)
    (graph,) = captured.graphs.values()
    assert graph.inputs[0].shape[:2] == (18, 9)


def test_captured_loop_follows_a_changed_window() -> None:
    model = make_model("bahdanau2015", alignment="local-p", window=2)
    run = partial(
        run_graphed,
        drops_input=False,
        graph_cache=GraphedFunctionCache(min_calls=1, graph_type=EagerGraph),
    )
    before = run_decoder(model, run)
    for name, value in (("sigma", 0.5), ("offsets", range(-1, 2))):
        setattr(model.decoder.attention.alignment, name, value)
        expected = run_decoder(model, rnn_common.unroll_decoder)
        assert not torch.allclose(before[0], expected[0])
        assert_all_close(run_decoder(model, run), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        CONCAT_GRU,
        ("bahdanau2015", {"layers": 3}),
        pytest.param("xu2015-soft", {"layers": 2}, marks=pytest.mark.slow),
        pytest.param("bahdanau2015", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_captured_loop_applies_dropout_where_the_loop_does(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = make_model(name, **options, dropout=0.4), name == "luong2015-global"
    decoder = model.decoder
    rows = torch.empty(len(LENGTHS), STEPS)
    links = find_dropout_sites(decoder, feeds)
    assert len(links) == len(decoder.recurrent.forwards) - 1 + feeds
    masks = {
        link: graphed_loop.draw_dropout_mask(rows, link) for link in links
    }  # equal links between layers have one entry

    def run_reference(decoder: Any, state: Any, words: Tensor) -> Any:
        before = decoder.dropout, decoder.recurrent.dropout
        scaled = {link: [masks[link][:, t] for t in range(STEPS)] for link in links}
        below = [link for link in links if not link.owner]
        above = [link for link in links if link.owner]
        if below:
            decoder.dropout = PredrawnDropout((mask, 1 / 0.6) for mask in scaled[below[0]])
        decoder.recurrent.dropout = PredrawnDropout((scaled[link][t], 1 / 0.6) for t in range(STEPS) for link in above)
        found = rnn_common.unroll_decoder(decoder, state, words)
        decoder.dropout, decoder.recurrent.dropout = before
        return found

    expected = run_decoder(model, run_reference)
    monkeypatch.setattr(graphed_loop, "draw_dropout_mask", lambda words, link: masks[link])
    assert_all_close(run_decoder(model, partial(run_graphed, drops_input=feeds, graph_cache=None)), expected)
    assert_all_close(
        run_decoder(
            model,
            partial(
                run_graphed,
                drops_input=feeds,
                graph_cache=GraphedFunctionCache(1, graph_type=EagerGraph),
            ),
        ),
        expected,
    )
    assert isinstance(decoder.dropout, nn.Dropout)
    assert isinstance(decoder.recurrent.dropout, nn.Dropout)
    assert not find_dropout_sites(decoder.eval(), feeds)


@pytest.mark.parametrize("estimator", slow_after(1, ["soft-baseline", "reinforce", "marginal"]))
def test_hard_attention_samples_by_given_random_numbers(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, uniform = make_model("xu2015-hard", estimator=estimator), torch.rand(len(LENGTHS), STEPS)

    def run_reference(decoder: Any, state: Any, words: Tensor) -> Any:
        turns = iter(range(STEPS))

        def choose(probabilities: Tensor) -> Tensor:
            each = zip(probabilities[:, 0].detach().numpy(), uniform[:, next(turns)].numpy(), strict=True)
            return torch.tensor([[np.searchsorted(np.cumsum(row), draw * row.sum(), "right")] for row, draw in each])

        decoder.attention.alignment.sample_or_argmax = choose
        found = rnn_common.unroll_decoder(decoder, state, words)
        del decoder.attention.alignment.sample_or_argmax
        return found

    expected = run_decoder(model, run_reference)
    monkeypatch.setattr(graphed_loop, "draw_uniforms", lambda words: uniform)
    for captured in (None, GraphedFunctionCache(1, graph_type=EagerGraph)):
        assert_all_close(
            run_decoder(model, partial(run_graphed, drops_input=False, graph_cache=captured)),
            expected,
        )
    assert "sample_or_argmax" not in vars(model.decoder.attention.alignment)


def test_positions_are_sampled_in_proportion_to_their_probability() -> None:
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    uniform = torch.cat((torch.zeros(1), (torch.arange(1000) + 0.5) / 1000, torch.ones(1)))
    positions = graphed_loop.sample_by_inverse_cdf(probabilities.expand(1, len(uniform), -1), uniform[None])[0]
    assert positions.bincount(minlength=6).tolist() == [0, 501, 0, 250, 251, 0]
    assert torch.equal(positions, positions.sort().values)


def test_random_numbers_are_the_same_with_and_without_gradients() -> None:
    model = make_model("xu2015-hard", estimator="soft-baseline", dropout=0.4, layers=2)
    encoded = model.encode(torch.full((3, 5), 5), torch.tensor([5, 2, 4]))
    words = torch.randn(3, 4, 6, dtype=torch.float64)
    found = []
    for enabled in (True, False):
        torch.manual_seed(3)
        with torch.set_grad_enabled(enabled):
            state = model.decoder.start(encoded)
            found.append(
                run_graphed(
                    model.decoder,
                    state,
                    words,
                    False,
                    GraphedFunctionCache(1, graph_type=EagerGraph),
                )
            )
    torch.testing.assert_close(found[0][0], found[1][0])
    assert torch.equal(found[0][1].weights, found[1][1].weights)


def test_dropout_mask_keeps_the_right_fraction() -> None:
    kept = graphed_loop.draw_dropout_mask(torch.empty(50, 40), DropoutSite("", 20, 0.25))
    assert kept.shape == (50, 40, 20)
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.01)


def test_loops_with_linguistic_coverage_are_not_captured() -> None:
    def can_be_captured(**options: Any) -> bool:
        model = make_model("bahdanau2015", **options)
        encoded = model.encode(torch.full((2, 3), 5), torch.tensor([3, 2]))
        return is_capturable(model.decoder, model.decoder.start(encoded), torch.empty(2, 4, 6))

    assert can_be_captured()
    assert not can_be_captured(coverage="linguistic")


def test_models_capture_their_loop_unless_regard_fast_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen_loop(name: str) -> Any:
        return accelerate(build(name, 20, 20, size=8)).decoder.unroll

    for name in ("bahdanau2015", "xu2015-soft", "xu2015-hard"):
        assert chosen_loop(name) is run_loop
    monkeypatch.setenv("REGARD_FAST", "0")
    for name in ("luong2015-global", "bahdanau2015", "xu2015-soft", "xu2015-hard"):
        assert chosen_loop(name) is rnn_common.unroll_decoder


def test_subclassed_decoder_keeps_its_own_steps() -> None:
    class OwnDecoder(luong2015.LuongDecoder):
        def step_from_embedding(self, state: Any, word: Tensor) -> Any:
            return super().step_from_embedding(state, 2 * word)

    model = make_model("luong2015-global", layers=1)
    model.decoder.__class__ = OwnDecoder
    assert accelerate(model).decoder.unroll is rnn_common.unroll_decoder
