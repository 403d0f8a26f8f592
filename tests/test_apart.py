"""Batches in processes of their own: everybody gets their own results, and a process that dies is replaced."""

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
def two() -> Iterator[Processes[str, str, int]]:
    processes: Processes[str, str, int] = Processes(uppercase_worker.start, 2)
    processes.ready()
    yield processes
    processes.close()


def batcher(processes: Processes[str, str, int], most: int = 4, tokens: int = 1000) -> Batcher[str, str, int]:
    return Batcher(processes.find, len, tokens=tokens, most=most, room=10_000, threads=2)


def asked(ask: Batcher[str, str, int], requests: list[tuple[list[str], int]]) -> list[list[str] | BaseException]:
    """What each request is answered, of requests that come at once."""

    async def go() -> list[list[str] | BaseException]:
        found = await asyncio.gather(*(ask(texts, kind) for texts, kind in requests), return_exceptions=True)
        ask.close()
        return found

    return asyncio.run(go())


@given(
    st.lists(st.tuples(st.lists(st.text(st.characters(codec="ascii"), max_size=2), max_size=6), st.integers(0, 2))),
    st.integers(1, 5),
    st.integers(1, 30),
)
def test_whatever_is_asked_everybody_gets_their_own(
    two: Processes[str, str, int], requests: list[tuple[list[str], int]], most: int, tokens: int
) -> None:
    found = asked(batcher(two, most, tokens), requests)
    assert found == [[f"{text.upper()}{kind}" for text in texts] for texts, kind in requests]


def test_what_fails_fails_for_those_who_asked_with_the_place_where_it_did(two: Processes[str, str, int]) -> None:
    first, second, third = asked(batcher(two, most=1), [(["a"], 0), (["bad"], 0), (["b"], 1)])
    assert (first, third) == (["A0"], ["B1"])
    assert isinstance(second, ArithmeticError)
    assert "uppercase_worker.py" in second.__notes__[0]


def test_a_process_that_dies_is_replaced(two: Processes[str, str, int]) -> None:
    for _ in range(2):
        first, second, third = asked(batcher(two, most=1), [(["a"], 0), (["die"], 0), (["b"], 1)])
        assert (first, third) == (["A0"], ["B1"])
        assert isinstance(second, RuntimeError)
        assert str(second) == "the process that decodes has ended, with 7"


def test_one_that_never_begins_is_told_of() -> None:
    never: Processes[str, str, int] = Processes(uppercase_worker.stillborn, 1)
    with pytest.raises(EOFError):
        never.ready()
    never.close()


def test_a_large_batch_and_large_results_come_through(two: Processes[str, str, int]) -> None:
    texts = [f"{number}{'x' * 100_000}" for number in range(50)]
    assert asked(batcher(two, most=50, tokens=10**9), [(texts, 0)]) == [[f"{text.upper()}0" for text in texts]]
