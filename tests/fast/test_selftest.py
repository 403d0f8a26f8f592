"""Self-tests of kernels: whether Triton's run on this machine, and timing comparisons by CPU time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from regard.fast import selftest
from regard.fast.training import step_ops


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


@pytest.fixture
def triton_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Import Triton kernels anew in a test and after it."""
    caches = selftest.load_triton, step_ops.load_triton_step_ops
    for each in caches:
        each.cache_clear()
    yield monkeypatch
    for each in caches:
        each.cache_clear()


class NoCompiler(step_ops.StepOps):
    """Kernels on a machine where Triton has no C compiler."""

    def attentional_tanh(self, *_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")


def test_decoder_steps_are_those_of_pytorch_where_triton_does_not_run(
    triton_modules: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    triton_modules.setitem(sys.modules, "regard.fast.kernels.triton.rnn", SimpleNamespace(TritonStepOps=NoCompiler))
    for _ in range(2):
        assert type(step_ops.load_triton_step_ops(torch.float32, torch.device("cpu"))) is step_ops.StepOps
    assert capsys.readouterr().err == (
        "recurrent decoder runs without Triton kernels: Failed to find C compiler. Please specify via CC\n"
    )


def test_missing_triton_is_reported_once(
    triton_modules: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    triton_modules.setitem(sys.modules, "regard.fast.kernels.triton.rnn", None)  # importing it fails
    for dtype in (torch.float32, torch.bfloat16):
        assert type(step_ops.load_triton_step_ops(dtype, torch.device("cpu"))) is step_ops.StepOps
    assert capsys.readouterr().err.startswith("recurrent decoder: Triton kernels are not available: ")


@pytest.mark.parametrize("working", [True, False])
def test_kernels_are_tried_once_in_each_dtype(triton_modules: pytest.MonkeyPatch, working: bool) -> None:
    module, tried = SimpleNamespace(), list[object]()
    triton_modules.setitem(sys.modules, "a_module_of_kernels", module)
    kernels = selftest.TritonKernels("testing", "a_module_of_kernels")
    weights = [SimpleNamespace(is_cuda=True)]
    dtypes = iter([torch.float32, torch.bfloat16, torch.float32, torch.float32])
    triton_modules.setattr(selftest, "has_kernel_dtype", lambda _: True)
    triton_modules.setattr(selftest, "compute_dtype", lambda _: next(dtypes))

    def try_kernels(found: object) -> None:
        tried.append(found)
        if not working:
            raise ValueError("no such instruction")

    def select(is_training: bool = True) -> object:
        return kernels.select(weights, is_training, try_kernels)  # type: ignore[arg-type]

    assert select(is_training=False) is None, "nothing is known yet"
    expected = module if working else None
    assert [select(), select(), select(is_training=False)] == [expected] * 3
    assert tried == [module, module]
