"""Worker processes that decode batches: results reach their requests, and a worker that dies is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import uppercase_worker

from regard.serve.batching import Batcher
from regard.serve.processes import Processes


@pytest.fixture(scope="module")
def workers() -> Iterator[Processes[str, str, int]]:
    processes: Processes[str, str, int] = Processes(uppercase_worker.start, 2)
    processes.ready()
    yield processes
    processes.close()


def make_batcher(workers: Processes[str, str, int], most: int = 4, tokens: int = 1000) -> Batcher[str, str, int]:
    return Batcher(workers.find, len, tokens=tokens, most=most, room=10_000, threads=2)


def send_together(
    batcher: Batcher[str, str, int], requests: list[tuple[list[str], int]]
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
    workers: Processes[str, str, int], requests: list[tuple[list[str], int]], most: int, tokens: int
) -> None:
    answers = send_together(make_batcher(workers, most, tokens), requests)
    assert answers == [[f"{text.upper()}{kind}" for text in texts] for texts, kind in requests]


def test_worker_exception_fails_its_own_request_with_a_traceback(workers: Processes[str, str, int]) -> None:
    first, second, third = send_together(make_batcher(workers, most=1), [(["a"], 0), (["bad"], 0), (["b"], 1)])
    assert (first, third) == (["A0"], ["B1"])
    assert isinstance(second, ArithmeticError)
    assert "uppercase_worker.py" in second.__notes__[0]


def test_worker_that_dies_is_replaced(workers: Processes[str, str, int]) -> None:
    for _ in range(2):
        first, second, third = send_together(make_batcher(workers, most=1), [(["a"], 0), (["die"], 0), (["b"], 1)])
        assert (first, third) == (["A0"], ["B1"])
        assert isinstance(second, RuntimeError)
        assert str(second) == "the process that decodes has ended, with 7"


def test_worker_that_dies_at_start_up_is_an_error() -> None:
    processes: Processes[str, str, int] = Processes(uppercase_worker.exit_at_once, 1)
    with pytest.raises(EOFError):
        processes.ready()
    processes.close()


def test_large_batches_and_results_pass_the_pipe(workers: Processes[str, str, int]) -> None:
    texts = [f"{number}{'x' * 100_000}" for number in range(50)]
    answers = send_together(make_batcher(workers, most=50, tokens=10**9), [(texts, 0)])
    assert answers == [[f"{text.upper()}0" for text in texts]]
