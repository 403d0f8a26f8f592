"""Worker processes that decode batches: results reach their requests, and a worker that dies is replaced."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import uppercase_worker

from regard.errors import UserError
from regard.serve.engine.batching import ContinuousBatcher
from regard.serve.engine.workers import WorkerMain, WorkerPool
from regard.serve.errors import OverloadedError


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool[str, str, int]]:
    processes: WorkerPool[str, str, int] = WorkerPool(uppercase_worker.start, 2)
    processes.wait_until_ready()
    yield processes
    processes.close()


def make_batcher(
    workers: WorkerPool[str, str, int], max_segments: int = 4, max_tokens: int = 1000
) -> ContinuousBatcher[str, str, int]:
    return ContinuousBatcher(
        workers.decode, len, max_tokens=max_tokens, max_segments=max_segments, max_waiting=10_000, threads=2
    )


def send_together(
    batcher: ContinuousBatcher[str, str, int], requests: list[tuple[list[str], int]]
) -> list[list[str] | BaseException]:
    """Send all requests at once; return the answer, or the exception, of each."""

    async def gather() -> list[list[str] | BaseException]:
        answers = await asyncio.gather(*(batcher(texts, kind) for texts, kind in requests), return_exceptions=True)
        batcher.close()
        return answers

    return asyncio.run(gather())


@given(
    st.lists(st.tuples(st.lists(st.text(st.characters(codec="ascii"), max_size=2), max_size=6), st.integers(0, 2))),
    st.integers(1, 5),
    st.integers(1, 30),
)
def test_requests_get_their_own_results_from_workers(
    workers: WorkerPool[str, str, int], requests: list[tuple[list[str], int]], max_segments: int, max_tokens: int
) -> None:
    answers = send_together(make_batcher(workers, max_segments, max_tokens), requests)
    assert answers == [[f"{text.upper()}{kind}" for text in texts] for texts, kind in requests]


def test_worker_exception_fails_its_own_request_with_a_traceback(workers: WorkerPool[str, str, int]) -> None:
    first, second, third = send_together(make_batcher(workers, max_segments=1), [(["a"], 0), (["bad"], 0), (["b"], 1)])
    assert (first, third) == (["A0"], ["B1"])
    assert isinstance(second, ArithmeticError)
    assert "uppercase_worker.py" in second.__notes__[0]


def test_worker_that_dies_is_replaced(workers: WorkerPool[str, str, int]) -> None:
    for _ in range(2):
        first, second, third = send_together(
            make_batcher(workers, max_segments=1), [(["a"], 0), (["die"], 0), (["b"], 1)]
        )
        assert (first, third) == (["A0"], ["B1"])
        assert isinstance(second, RuntimeError)
        assert str(second) == "the decoder process has ended with 7"


def test_worker_that_dies_does_not_fail_the_others_of_its_batch(workers: WorkerPool[str, str, int]) -> None:
    answers = send_together(
        make_batcher(workers, max_segments=9), [(["x"], 1), (["x"], 2), (["a", "b"], 0), (["die"], 0)]
    )
    assert answers[:3] == [["X1"], ["X2"], ["A0", "B0"]]
    assert isinstance(answers[3], RuntimeError)


@pytest.mark.slow
def test_worker_that_dies_while_idle_is_replaced_for_the_next_request() -> None:
    processes: WorkerPool[str, str, int] = WorkerPool(uppercase_worker.start, 1)
    processes.wait_until_ready()
    processes.idle[0].process.kill()
    processes.idle[0].wait()
    assert processes.is_available
    assert send_together(make_batcher(processes), [(["a"], 0)]) == [["A0"]]
    processes.close()


def kill_and_fail_to_replace(processes: WorkerPool[str, str, int]) -> None:
    """Kill the only worker, and check that requests get a 503 because no other one starts."""
    processes.idle[0].process.kill()
    processes.idle[0].wait()
    for _ in range(2):  # the second one does not try to start a worker
        (answer,) = send_together(make_batcher(processes), [(["a"], 0)])
        assert isinstance(answer, OverloadedError)
        assert (answer.status, answer.message) == (503, "The decoder restarts; try again in a moment")
        assert not processes.is_available


@pytest.mark.slow
def test_worker_that_cannot_start_again_is_a_503_and_not_ready() -> None:
    processes: WorkerPool[str, str, int] = WorkerPool(uppercase_worker.start, 1)
    processes.wait_until_ready()
    processes.main = uppercase_worker.exit_at_once
    kill_and_fail_to_replace(processes)
    processes.close()


@pytest.mark.slow
def test_worker_starts_again_once_the_system_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(start: WorkerMain) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    processes: WorkerPool[str, str, int] = WorkerPool(uppercase_worker.start, 1)
    processes.wait_until_ready()
    with monkeypatch.context() as patch:
        patch.setattr("regard.serve.engine.workers.Worker", fail)
        kill_and_fail_to_replace(processes)
    processes.retry_at = 0.0  # the pause is over
    assert processes.is_available
    assert send_together(make_batcher(processes), [(["a"], 0)]) == [["A0"]]
    processes.close()


@pytest.mark.slow
def test_worker_that_dies_at_start_up_is_an_error() -> None:
    processes: WorkerPool[str, str, int] = WorkerPool(uppercase_worker.exit_at_once, 1)
    with pytest.raises(UserError, match="exit code 3 before its model was loaded"):
        processes.wait_until_ready()
    processes.close()


def test_large_batches_and_results_pass_the_pipe(workers: WorkerPool[str, str, int]) -> None:
    texts = [f"{number}{'x' * 100_000}" for number in range(50)]
    answers = send_together(make_batcher(workers, max_segments=50, max_tokens=10**9), [(texts, 0)])
    assert answers == [[f"{text.upper()}0" for text in texts]]
