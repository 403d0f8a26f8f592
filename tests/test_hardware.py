"""Table of machines: figures from metrics, estimates of what was not measured, and the page that shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.hardware import (
    BEGIN,
    END,
    OTHER_GPUS,
    PAGE,
    PEAK,
    RESULTS,
    estimate_rows,
    find_goal,
    format_table,
    merge_figures,
    summarize_metrics,
)
from regard.training.metrics import TrainingCost


def make_metrics() -> list[dict[str, Any]]:
    """Return the rows of 200 updates of 0.1 s, with a validation of 3 s every 100 updates."""
    rows: list[dict[str, Any]] = []
    for step in range(20, 201, 20):
        seconds = 0.1 * step + 3 * ((step - 1) // 100)
        rows.append({"kind": "train", "step": step, "seconds": seconds, "tokens_per_second": 5.0, "memory_mb": step})
        if step % 100 == 0:
            rows.append({"kind": "dev", "step": step, "bleu": step / 10, "measure": "bleu"})
    return rows


def make_row(**values: Any) -> dict[str, Any]:
    cost = {"seconds_per_update": 0.5, "seconds_per_validation": 10.0, "tokens_per_second": 100, "memory_mb": 2000}
    row = {"pairs": 5000, "machine": "H200", "device": "cuda", "parameters": 10**6, "goal": None}
    return {**row, **cost, "training": {"steps": 400, "validate_every": 100}, **values}


def test_metrics_give_the_seconds_of_updates_and_validations() -> None:
    figures = summarize_metrics(make_metrics())
    assert figures["seconds_per_update"] == pytest.approx(0.1)
    assert figures["seconds_per_validation"] == pytest.approx(3.0)
    assert (figures["updates"], figures["tokens_per_second"], figures["memory_mb"]) == (200, 5, 200)
    assert [(point["step"], point["seconds"], point["score"]) for point in figures["curve"]] == [
        (100, 10.0, 10.0),
        (200, 23.0, 20.0),
    ]


def test_goal_is_the_first_validation_with_95_percent_of_the_best_score() -> None:
    curve = [{"step": step, "score": score} for step, score in ((1, 10.0), (2, 19.0), (3, 18.0), (4, 20.0))]
    assert find_goal(curve) == curve[1]
    assert find_goal([]) is None


def test_unfinished_training_is_estimated_up_to_its_last_update() -> None:
    (row, *others) = estimate_rows([make_row()])
    assert (row.seconds, row.is_limit, row.is_measured) == (400 * 0.5 + 4 * 10.0, True, False)
    assert {one.machine: one.seconds for one in others} == {
        name: pytest.approx(240 * PEAK / peak) for name, peak in OTHER_GPUS.items()
    }


def test_small_models_are_not_faster_or_as_much_slower_on_other_gpus() -> None:
    large, small = make_row(pairs=300_000), make_row(tokens_per_second=20)
    seconds = {(one.pairs, one.machine): one.seconds for one in estimate_rows([small, large])}
    assert seconds[5000, "RTX 4090"] == pytest.approx(240 * PEAK / OTHER_GPUS["RTX 4090"] / 5)
    assert seconds[300_000, "RTX 4090"] == pytest.approx(240 * PEAK / OTHER_GPUS["RTX 4090"])
    tiny = make_row(tokens_per_second=1)
    assert {one.seconds for one in estimate_rows([tiny, large])[:3]} == {240}, "arithmetic does not limit it anywhere"


def test_finished_training_has_its_own_time_and_gives_other_gpus_its_updates() -> None:
    (row, *others) = estimate_rows([make_row(goal={"step": 200, "seconds": 99.0})])
    assert (row.seconds, row.is_limit, row.is_measured) == (99.0, False, True)
    assert {one.is_measured for one in others} == {False}
    assert others[0].seconds == pytest.approx((200 * 0.5 + 2 * 10.0) * PEAK / OTHER_GPUS[others[0].machine])


def test_new_figures_keep_a_goal_that_is_known() -> None:
    old, new = make_row(goal={"step": 200, "seconds": 99.0}, memory_mb=None), make_row()
    assert merge_figures([old], [new]) == [{**new, "goal": old["goal"]}]


def test_cost_grows_with_updates_and_validations_and_falls_with_speed() -> None:
    cost = TrainingCost(0.5, 100.0, 2.0)
    assert cost.estimate_seconds(10, 3) == 11.0
    assert cost.scale(2.0) == TrainingCost(0.25, 100.0, 1.0)


def test_page_shows_the_committed_figures() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == format_table(json.loads(RESULTS.read_text(encoding="utf-8")))
