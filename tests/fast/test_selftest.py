"""Timing comparison of two implementations by CPU time, for the self-test of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from regard.fast import selftest


class FakeClock:
    """A process clock that only `work` advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.threads: set[int] = set()

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[[], object]:
        """Return a function whose successive calls take these seconds of CPU time."""
        left = iter(seconds)

        def run() -> None:
            self.now += next(left)
            self.threads.add(torch.get_num_threads())

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(selftest, "process_time", clock)
    return clock


def test_ratio_compares_the_fastest_runs(clock: FakeClock) -> None:
    assert selftest.cpu_time_ratio(clock.work(9.0, 3.0, 4.0), clock.work(2.0, 8.0, 8.0), 3) == 1.5


def test_ratio_is_right_with_a_coarse_clock(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "process_time", lambda: clock.now // 0.0156 * 0.0156)
    assert selftest.cpu_time_ratio(clock.work(*[0.002] * 200), clock.work(*[0.001] * 200), 3) == pytest.approx(
        2, rel=0.2
    )


@pytest.mark.parametrize("failing", [False, True])
def test_ratio_runs_with_one_thread_and_restores_the_number(clock: FakeClock, failing: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if failing:
            with pytest.raises(StopIteration):
                selftest.cpu_time_ratio(clock.work(1.0), clock.work(1.0), 2)
        else:
            selftest.cpu_time_ratio(clock.work(1.0), clock.work(1.0), 1)
        assert (clock.threads, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
