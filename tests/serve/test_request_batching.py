"""Batching of concurrent requests: fair order, results that are never mixed up or lost, a bounded queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serve.engine.batching import ContinuousBatcher
from regard.serve.errors import OverloadedError

Report = Callable[[int, str], None]
More = Callable[[], Sequence[str]]


class Model:
    """Upper-cases texts, records its batches, and waits at a gate before each."""

    def __init__(self, gated: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Semaphore(0 if gated else 1 << 30)
        self.started = threading.Semaphore(0)

    def __call__(self, texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        self.batches.append(list(texts))
        self.started.release()
        self.gate.acquire()
        for number in reversed(range(len(texts))):
            report(number, texts[number].upper())


def make_batcher(
    model: Model, max_tokens: int = 1000, max_segments: int = 4, max_waiting: int = 1000
) -> ContinuousBatcher[str, str, int]:
    return ContinuousBatcher(model, len, max_tokens=max_tokens, max_segments=max_segments, max_waiting=max_waiting)


async def wait_for_batch(model: Model) -> None:
    """Wait until the model has started another batch."""
    await asyncio.to_thread(model.started.acquire)


def test_results_keep_the_order_of_a_request() -> None:
    async def run_requests() -> None:
        batcher = make_batcher(Model())
        answers = await asyncio.gather(*(batcher([f"{n}a", f"{n}b", f"{n}c"], 0) for n in range(50)))
        assert answers == [[f"{n}A", f"{n}B", f"{n}C"] for n in range(50)]
        batcher.close()

    asyncio.run(run_requests())


def test_waiting_requests_share_a_batch() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model)
        first = asyncio.create_task(batcher(["a"], 0))
        await wait_for_batch(model)
        others = [asyncio.create_task(batcher([text], 0)) for text in "bcd"]
        await asyncio.sleep(0)
        model.gate.release(2)
        assert await first == ["A"]
        assert await asyncio.gather(*others) == [["B"], ["C"], ["D"]]
        batcher.close()

    asyncio.run(run_requests())
    assert model.batches == [["a"], ["b", "c", "d"]]


def test_large_request_does_not_starve_small_ones() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model)
        large = asyncio.create_task(batcher([f"x{n}" for n in range(40)], 0))
        await wait_for_batch(model)
        small = [asyncio.create_task(batcher([text], 0)) for text in ("a", "b")]
        await asyncio.sleep(0)
        model.gate.release(2)
        await asyncio.gather(*small)
        assert not large.done()
        model.gate.release(99)
        await large
        batcher.close()

    asyncio.run(run_requests())
    assert sorted(model.batches[1]) == ["a", "b", "x4", "x5"]


def test_requests_with_different_options_get_separate_batches() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model)
        tasks = [asyncio.create_task(batcher(["a"], 0))]
        await wait_for_batch(model)
        tasks += [asyncio.create_task(batcher([f"k{n}", f"l{n}"], n % 2)) for n in range(4)]
        await asyncio.sleep(0)
        model.gate.release(99)
        await asyncio.gather(*tasks)
        batcher.close()

    asyncio.run(run_requests())
    assert model.batches[1:] == [["k0", "k2", "l0", "l2"], ["k1", "k3", "l1", "l3"]]


def test_padded_batch_stays_within_the_token_limit() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model, max_tokens=12, max_segments=99)
        tasks = [asyncio.create_task(batcher(["a"], 0))]
        await wait_for_batch(model)
        tasks += [asyncio.create_task(batcher([text], 0)) for text in ("bbb", "cccc", "dddddd", "e", "f" * 50)]
        await asyncio.sleep(0)
        model.gate.release(99)
        await asyncio.gather(*tasks)
        batcher.close()

    asyncio.run(run_requests())
    assert model.batches[1:] == [["bbb", "cccc", "e"], ["dddddd"], ["f" * 50]]


def test_failed_batch_fails_its_own_requests_only() -> None:
    def decode(texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        for number, text in enumerate(texts):
            if text == "bad":
                raise ArithmeticError("no")
            report(number, text.upper())

    async def run_requests() -> None:
        batcher: ContinuousBatcher[str, str, int] = ContinuousBatcher(
            decode, len, max_tokens=1000, max_segments=1, max_waiting=10
        )
        answers = await asyncio.gather(
            batcher(["a"], 0), batcher(["bad", "x"], 0), batcher(["b"], 0), return_exceptions=True
        )
        assert answers[0] == ["A"]
        assert isinstance(answers[1], ArithmeticError)
        assert answers[2] == ["B"]
        assert await batcher(["c"], 0) == ["C"]
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(run_requests())


def test_request_fails_when_the_decoder_panics() -> None:
    class PanicError(BaseException):
        pass

    def decode(texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        if "bad" in texts:
            raise PanicError
        report(0, texts[0].upper())

    async def run_requests() -> None:
        batcher: ContinuousBatcher[str, str, int] = ContinuousBatcher(
            decode, len, max_tokens=1000, max_segments=1, max_waiting=10
        )
        with pytest.raises(PanicError):
            await asyncio.wait_for(batcher(["bad"], 0), 60)
        assert await batcher(["a"], 0) == ["A"]
        batcher.close()

    asyncio.run(run_requests())


def test_missing_result_is_an_error() -> None:
    async def run_requests() -> None:
        batcher: ContinuousBatcher[str, str, int] = ContinuousBatcher(
            lambda texts, kind, report, take_more: None, len, max_tokens=1000, max_segments=4, max_waiting=10
        )
        with pytest.raises(RuntimeError, match="without one of its results"):
            await batcher(["a"], 0)
        batcher.close()

    asyncio.run(run_requests())


def test_full_queue_refuses_requests_and_keeps_waiting_ones() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model, max_waiting=5)
        tasks = [asyncio.create_task(batcher(["a"], 0))]
        await wait_for_batch(model)
        tasks += [asyncio.create_task(batcher(["b"] * 5, 0))]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="5 segments wait, 1 more"):
            await batcher(["c"], 0)
        model.gate.release(99)
        assert await asyncio.gather(*tasks) == [["A"], ["B"] * 5]
        assert await batcher(["c"], 0) == ["C"]
        batcher.close()

    asyncio.run(run_requests())


def test_large_request_leaves_others_room_in_the_queue_and_is_completed() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model, max_segments=1, max_waiting=7)
        large = asyncio.create_task(batcher([f"x{n}" for n in range(40)], 0))
        await wait_for_batch(model)
        others = [asyncio.create_task(batcher([text], 0)) for text in "abc"]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await batcher(["d"], 0)
        model.gate.release(999)
        assert await asyncio.gather(*others) == [["A"], ["B"], ["C"]]
        assert await large == [f"X{n}" for n in range(40)]
        batcher.close()

    asyncio.run(run_requests())


def test_cancelled_request_is_not_decoded() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model)
        tasks = [asyncio.create_task(batcher(["a"], 0))]
        await wait_for_batch(model)
        cancelled = asyncio.create_task(batcher(["b"] * 9, 0))
        tasks += [asyncio.create_task(batcher(["c"], 0))]
        await asyncio.sleep(0)
        cancelled.cancel()
        model.gate.release(99)
        await asyncio.gather(*tasks)
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(run_requests())
    assert model.batches == [["a"], ["c"]]


class RollingModel(Model):
    """Lets new texts join a running batch: each time the gate opens, the oldest text is finished."""

    def __call__(self, texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        running, count, new = dict(enumerate(texts)), len(texts), texts
        while running:
            self.batches.append(list(new))
            self.started.release()
            self.gate.acquire()
            number = min(running)
            report(number, running.pop(number).upper())
            new = take_more()
            running.update(enumerate(new, count))
            count += len(new)


def test_new_sentences_join_a_running_batch() -> None:
    model = RollingModel(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model)
        tasks = [asyncio.create_task(batcher([f"x{n}" for n in range(6)], 0))]
        await wait_for_batch(model)
        tasks += [asyncio.create_task(batcher([text], 0)) for text in "ab"]
        await asyncio.sleep(0)
        for _ in range(7):
            model.gate.release()
            await wait_for_batch(model)
        model.gate.release()
        assert await asyncio.gather(*tasks) == [[f"X{n}" for n in range(6)], ["A"], ["B"]]
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(run_requests())
    assert model.batches == [["x0", "x1", "x2", "x3"], ["x4"], ["a"], ["b"], ["x5"], [], [], []]


def test_running_batch_is_not_joined_ahead_of_longer_waiting_requests() -> None:
    model = RollingModel(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model, max_tokens=8)
        tasks = [asyncio.create_task(batcher(["a", "b"], 0))]
        await wait_for_batch(model)
        tasks += [
            asyncio.create_task(batcher([text], kind)) for text, kind in (("c" * 5, 0), ("d", 0), ("e", 1), ("f", 0))
        ]
        await asyncio.sleep(0)
        model.gate.release(99)
        await asyncio.gather(*tasks)
        batcher.close()

    asyncio.run(run_requests())
    batches = [batch for batch in model.batches if batch]
    assert batches == [["a", "b"], ["c" * 5], ["d"], ["e"], ["f"]]


def test_failed_running_batch_fails_the_bad_request_only() -> None:
    started, gate = threading.Semaphore(0), threading.Semaphore(0)

    def decode(texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        started.release()
        gate.acquire()
        if "bad" in texts:
            raise ArithmeticError("no")
        report(0, texts[0].upper())
        if "bad" in take_more():
            raise ArithmeticError("no")

    async def run_requests() -> None:
        batcher: ContinuousBatcher[str, str, int] = ContinuousBatcher(
            decode, len, max_tokens=1000, max_segments=2, max_waiting=10
        )
        tasks = [asyncio.create_task(batcher([text], 0)) for text in ("a", "bad", "b")]
        await asyncio.to_thread(started.acquire)
        gate.release(99)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert (answers[0], answers[2]) == (["A"], ["B"])
        assert isinstance(answers[1], ArithmeticError)
        batcher.close()

    asyncio.run(run_requests())


def test_bad_sentence_does_not_fail_the_others_of_its_batch() -> None:
    started, gate, batches = threading.Semaphore(0), threading.Semaphore(0), list[list[str]]()

    def decode(texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        started.release()
        gate.acquire()
        batches.append(list(texts))
        report(0, texts[0].upper())
        if "bad" in texts:
            raise ArithmeticError("no")
        for number, text in enumerate(texts[1:], 1):
            report(number, text.upper())

    async def run_requests() -> None:
        batcher: ContinuousBatcher[str, str, int] = ContinuousBatcher(
            decode, len, max_tokens=1000, max_segments=64, max_waiting=100
        )
        first = asyncio.create_task(batcher(["a"], 0))
        await asyncio.to_thread(started.acquire)
        tasks = [asyncio.create_task(batcher([text], 0)) for text in ("b", "c", "d", "bad")]
        await asyncio.sleep(0)
        gate.release(99)
        assert await first == ["A"]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers[:3] == [["B"], ["C"], ["D"]]
        assert await batcher(["e"], 0) == ["E"]
        batcher.close()

    asyncio.run(run_requests())
    assert batches == [["a"], ["b", "c", "d", "bad"], ["c"], ["d"], ["bad"], ["e"]]


def test_disconnected_client_leaves_the_queue_at_once() -> None:
    model = Model(gated=True)

    async def run_requests() -> None:
        batcher = make_batcher(model, max_waiting=9)
        first = asyncio.create_task(batcher(["a"], 0))
        await wait_for_batch(model)
        cancelled = asyncio.create_task(batcher(["b"] * 9, 0))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert (batcher.waiting, len(batcher.queue)) == (0, 0)
        second = asyncio.create_task(batcher(["c"] * 9, 0))  # there is room for it again
        model.gate.release(99)
        assert await first == ["A"]
        assert await second == ["C"] * 9
        batcher.close()

    asyncio.run(run_requests())


def test_empty_request_is_answered() -> None:
    async def run_requests() -> None:
        batcher = make_batcher(Model())
        assert await batcher([], 0) == []
        batcher.close()

    asyncio.run(run_requests())


@given(
    st.lists(st.tuples(st.lists(st.text(st.characters(codec="ascii"), max_size=8), max_size=6), st.integers(0, 2))),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 3),
)
def test_concurrent_requests_get_their_own_results(
    requests: list[tuple[list[str], int]], max_segments: int, max_tokens: int, threads: int
) -> None:
    def decode(texts: Sequence[str], kind: int, report: Report, take_more: More) -> None:
        running, count = dict(enumerate(texts)), len(texts)
        while running:
            assert len(running) <= max_segments
            assert len(running) == 1 or max(map(len, running.values())) * len(running) <= max_tokens
            number = max(running, key=lambda number: hash((number, running[number])))
            report(number, f"{running.pop(number).upper()}{kind}")
            new = take_more()
            running.update(enumerate(new, count))
            count += len(new)

    async def run_requests() -> None:
        batcher: ContinuousBatcher[str, str, int] = ContinuousBatcher(
            decode, len, max_tokens=max_tokens, max_segments=max_segments, max_waiting=10_000, threads=threads
        )
        answers = await asyncio.gather(*(batcher(texts, kind) for texts, kind in requests))
        assert answers == [[f"{text.upper()}{kind}" for text in texts] for texts, kind in requests]
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(run_requests())
