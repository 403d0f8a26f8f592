"""Gradient estimators of hard attention against the enumeration of all positions, without sampling noise."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.models import build
from regard.models.xu2015_hard import HardAttentionModel
from regard.nn import hidden_state
from regard.special_tokens import BOS, EOS

SOURCE, LENGTHS = torch.tensor([[4, 5, 3]]), torch.tensor([3])
TARGET_IN, TARGET_OUT = torch.tensor([[BOS, 5]]), torch.tensor([[5, EOS]])
BATCH = (SOURCE, LENGTHS, TARGET_IN, TARGET_OUT)


def make_model(**overrides: Any) -> HardAttentionModel:
    torch.manual_seed(3)
    settings = {"size": 4, "dropout": 0.0, "soft_share": 0.0, "entropy": 0.0, "reward": 1.0, **overrides}
    model = build("xu2015-hard", 7, 7, **settings).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.8)
    assert isinstance(model, HardAttentionModel)
    return model


def force_positions(model: HardAttentionModel, positions: tuple[int, ...]) -> None:
    """Make the next steps attend to the given positions."""
    given = iter(positions)

    def choose(probabilities: Tensor) -> Tensor:
        return torch.full(probabilities.shape[:2], next(given))

    model.decoder.attention.alignment.sample_or_argmax = choose  # type: ignore[attr-defined]


def score_positions(model: HardAttentionModel, positions: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return log p(y | positions) and log p(positions)."""
    force_positions(model, positions)
    decoded = model.decoder(model.encode(SOURCE, LENGTHS), TARGET_IN)
    log_prob = decoded.logits.log_softmax(-1).gather(2, TARGET_OUT[..., None]).sum()
    return log_prob, decoded.attended.log_prob.sum()


def compute_gradients(model: HardAttentionModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}


@pytest.mark.parametrize("baseline", [0.0, -3.0])
@pytest.mark.parametrize("estimator", ["reinforce", "soft-baseline"])
def test_the_mean_of_the_gradient_estimates_is_the_exact_gradient(estimator: str, baseline: float) -> None:
    model = make_model(estimator=estimator)
    every = list(itertools.product(range(3), repeat=2))
    bound = torch.zeros((), dtype=torch.float64)
    for positions in every:
        log_prob, log_chosen = score_positions(model, positions)
        bound = bound - log_chosen.exp() * log_prob
    exact = compute_gradients(model, bound)
    mean = {name: torch.zeros_like(value) for name, value in exact.items()}
    total = 0.0
    for positions in every:
        probability = score_positions(model, positions)[1].exp().item()
        total += probability
        model.baseline.fill_(baseline)
        force_positions(model, positions * 2)  # the soft baseline runs the same steps again
        for name, value in compute_gradients(model, model.loss(*BATCH)).items():
            mean[name] += probability * value
    assert total == pytest.approx(1.0)
    for name, value in exact.items():
        torch.testing.assert_close(mean[name], value)


def test_marginal_likelihood_sums_over_all_positions() -> None:
    model = make_model(estimator="marginal")
    decoder = model.decoder
    encoded = model.encode(SOURCE, LENGTHS)
    state = decoder.start(encoded)
    expected = torch.zeros((), dtype=torch.float64)
    values = encoded.memory.values
    for t in range(2):
        word, before = decoder.embedding(TARGET_IN[:, t]), hidden_state(state.recurrent[-1])
        score: Any = decoder.attention.score
        alpha = score(before[:, None], score.project(encoded.memory.keys), None)[:, 0].softmax(-1)
        assert decoder.gate is not None
        beta = torch.sigmoid(decoder.gate(before))
        mean = (alpha[..., None] * values).sum(1)
        h, recurrent = decoder.recurrent.step(torch.cat((word, beta * mean), -1), state.recurrent)
        each = torch.stack([decoder.output(h, word, beta * values[:, s]).softmax(-1)[0] for s in range(3)])
        expected = expected - (alpha[0] @ each)[TARGET_OUT[0, t]].log()
        state = state._replace(recurrent=recurrent)
    torch.testing.assert_close(model.loss(*BATCH), expected)
    log_probs, _, _ = decoder.step(decoder.start(encoded), TARGET_IN[:, 0])
    torch.testing.assert_close(log_probs.exp().sum(), torch.ones((), dtype=torch.float64))


def test_the_baseline_is_a_saved_moving_average_of_rewards() -> None:
    model = make_model()
    log_prob, _ = score_positions(model, (1, 2))
    model.baseline.fill_(-2.0)
    force_positions(model, (1, 2))
    model.loss(*BATCH)
    torch.testing.assert_close(model.baseline, 0.9 * torch.tensor(-2.0).double() + 0.1 * log_prob.detach())
    assert "baseline" in model.state_dict()
    before = model.baseline.clone()
    model.eval()
    force_positions(model, (1, 2))
    model.loss(*BATCH)
    assert torch.equal(model.baseline, before)


def test_soft_fraction_of_one_equals_soft_attention() -> None:
    hard = make_model(soft_share=1.0)
    soft = build("xu2015-soft", 7, 7, size=4, dropout=0.0, doubly_stochastic=0.0).double()
    soft.load_state_dict({name: value for name, value in hard.state_dict().items() if name != "baseline"})
    torch.testing.assert_close(hard.loss(*BATCH), soft.loss(*BATCH))


def test_soft_fraction_of_a_half_samples_half_of_the_sentences() -> None:
    model = make_model(soft_share=0.5)
    torch.manual_seed(0)
    many = model.encode(SOURCE.expand(4000, -1), LENGTHS.expand(4000))
    soft = model.decoder.start(many).soft_mask
    assert soft is not None
    assert 0.45 < soft.double().mean().item() < 0.55


def test_entropy_bonus_lowers_the_loss() -> None:
    plain, rewarded = make_model(), make_model(entropy=0.3)
    losses = []
    for model in (plain, rewarded):
        force_positions(model, (0, 1))
        losses.append(model.loss(*BATCH))
    force_positions(plain, (0, 1))
    p = plain.decoder(plain.encode(SOURCE, LENGTHS), TARGET_IN).attended.probabilities
    torch.testing.assert_close(losses[0] - losses[1], 0.3 * -(p * p.log()).sum())


def test_the_soft_baseline_uses_the_dropout_mask_of_the_sample() -> None:
    """With one source word hard attention equals soft attention, so that the advantage is zero."""
    model = make_model(estimator="soft-baseline", dropout=0.5)
    source, lengths = torch.tensor([[4]]), torch.tensor([1])
    seen = []
    plain = model.compute_advantage

    def watched(*arguments: Any) -> Tensor:
        seen.append(plain(*arguments))
        return seen[-1]

    model.compute_advantage = watched  # type: ignore[method-assign, assignment]
    for _ in range(5):
        before = torch.get_rng_state()
        model.loss(source, lengths, TARGET_IN, TARGET_OUT)
        assert not torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(torch.stack(seen), torch.zeros(5, 1, 2, dtype=torch.float64))
