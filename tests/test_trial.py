"""How two ways to do the same are compared, whatever else a machine has to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from regard.fast import trial


class Clock:
    """Goes on by what work takes of processors, and by nothing else."""

    def __init__(self) -> None:
        self.now = 0.0
        self.threads: set[int] = set()

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[[], object]:
        """What takes so long, time after time."""
        left = iter(seconds)

        def done() -> None:
            self.now += next(left)
            self.threads.add(torch.get_num_threads())

        return done


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trial, "process_time", clock)
    return clock


def test_each_counts_at_its_best(clock: Clock) -> None:
    assert trial.ratio(clock.work(9.0, 3.0, 4.0), clock.work(2.0, 8.0, 8.0), 3) == 1.5


def test_a_clock_may_tick_slowly(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "process_time", lambda: clock.now // 0.0156 * 0.0156)
    assert trial.ratio(clock.work(*[0.002] * 200), clock.work(*[0.001] * 200), 3) == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("failing", [False, True])
def test_pytorch_has_one_thread_and_afterwards_as_many_as_before(clock: Clock, failing: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if failing:
            with pytest.raises(StopIteration):
                trial.ratio(clock.work(1.0), clock.work(1.0), 2)
        else:
            trial.ratio(clock.work(1.0), clock.work(1.0), 1)
        assert (clock.threads, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
