"""Learning rate schedules, and the checks of training settings."""

from __future__ import annotations

import math
import re

import pytest

from regard.config import parse_settings
from regard.training import TrainingSettings
from regard.training.optimizer import compute_learning_rate


def test_inverse_sqrt_is_the_schedule_of_the_transformer_paper() -> None:
    size, warmup = 512, 4000
    peak = size**-0.5 * warmup**-0.5
    settings = TrainingSettings(schedule="inverse-sqrt", warmup=warmup, learning_rate=peak)
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        paper = size**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert compute_learning_rate(settings, step, 0.0) == pytest.approx(paper)


@pytest.mark.parametrize(
    ("epoch", "factor"), [(0.0, 1), (4.99, 1), (5.0, 1 / 2), (5.9, 1 / 2), (6.0, 1 / 4), (9.99, 1 / 32)]
)
def test_luong_schedule_halves_every_epoch_from_the_fifth_on(epoch: float, factor: float) -> None:
    settings = TrainingSettings(schedule="halving", warmup=0, learning_rate=1.0, halve_after=5, halve_every=1)
    assert compute_learning_rate(settings, 1234, epoch) == factor


def test_sutskever_schedule_halves_every_half_epoch() -> None:
    settings = TrainingSettings(schedule="halving", warmup=0, learning_rate=0.7, halve_after=5, halve_every=0.5)
    assert compute_learning_rate(settings, 1, 7.49) == pytest.approx(0.7 / 32)


def test_cosine_schedule_falls_from_the_peak_to_zero() -> None:
    settings = TrainingSettings(schedule="cosine", warmup=10, learning_rate=2.0, steps=110)
    assert compute_learning_rate(settings, 5, 0) == pytest.approx(1.0)
    assert compute_learning_rate(settings, 10, 0) == pytest.approx(2.0)
    assert compute_learning_rate(settings, 60, 0) == pytest.approx(1.0)
    assert compute_learning_rate(settings, 35, 0) == pytest.approx(1 + math.cos(math.pi / 4))
    assert compute_learning_rate(settings, 110, 0) == pytest.approx(0.0)


def test_constant_schedule_rises_during_warmup_only() -> None:
    settings = TrainingSettings(schedule="constant", warmup=4, learning_rate=1.0)
    assert [compute_learning_rate(settings, step, 0) for step in (1, 2, 4, 5, 1000)] == [0.25, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": None}, "all are null"),
        ({"steps": None, "epochs": 3, "schedule": "cosine"}, "not null"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, not 0"),
        ({"learning_rate": -0.1}, "learning_rate must be at least 0, not -0.1"),
        ({"learning_rate": 1e38}, "learning_rate must be at most 1e+30, not 1e+38"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1, not 1.0"),
        ({"clip": 0.0}, "clip must be above 0, or null for none, not 0.0"),
        ({"patience": 0}, "patience must be above 0"),
        ({"betas": (0.9,)}, "two numbers, each at least 0 and below 1, not [0.9]"),
        ({"betas": (0.9, 2.0)}, "not [0.9, 2.0]"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, not -1.0"),
    ],
    ids=str,
)
def test_invalid_training_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_settings(TrainingSettings, values, "training")


def test_halving_needs_a_period_above_0() -> None:
    with pytest.raises(ValueError, match="halve_every must be above 0, it is 0"):
        TrainingSettings(schedule="halving", halve_every=0)
    assert TrainingSettings(schedule="constant", halve_every=0).halve_every == 0
